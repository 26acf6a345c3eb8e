"""Prompt lookup: what n-gram drafting does with token ids that are known, and what its steps cost."""
