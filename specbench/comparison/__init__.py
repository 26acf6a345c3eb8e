"""From result directories of two modes to ratios, gates and verdicts."""
