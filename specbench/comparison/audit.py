"""A gate that audits drafting: did the server draft what prompt lookup drafts under the setting that is recorded?"""

from collections.abc import Mapping

from specbench.comparison.format import Gate
from specbench.comparison.pairing import Pair
from specbench.comparison.steps import Steps, Unknown
from specbench.words import count, some

NAME = "drafting audit"
LARGEST_DIFFERENCE = 0.005  # of the replay; what was published is equal to the unit
_CAUSES = (
    "look for another num_speculative_tokens or other lookup bounds than recorded, for request parameters that switch "
    "drafting off (logprobs, penalties, min_p), and for prompts that are prefilled in parts"
)
_TO_CHECK = "measure with bench.py on a vLLM server that answers /metrics and GET /server-record"


def audit_drafting(pair: Pair, counted: Mapping[str, Steps | Unknown]) -> Gate:
    """The gate over every run of ngram; `number` is the largest difference from the replay, as a share of it."""
    runs = [run for run in pair.runs if run.mode == "ngram"]
    if not runs:
        return Gate(NAME, "ok", None, None, "no side drafts", None)
    worst = 0.0
    unchecked = []
    for run in runs:
        steps, server = counted[run.name], run.summary.server
        if isinstance(steps, Unknown) or steps.drafts is None or steps.draft_tokens is None:
            unchecked.append(str(steps) if isinstance(steps, Unknown) else f"{run.name} drafts by other rules")
            continue
        if server.drafts is None or server.draft_tokens is None:
            unchecked.append(f"{run.name} does not say how much it drafted")
            continue
        if server.foreign_requests:
            unchecked.append(f"{run.name} answered requests of others, which drafted too")
            continue
        for what, said, expected in (
            ("draft", server.drafts, steps.drafts), ("draft token", server.draft_tokens, steps.draft_tokens),
        ):  # fmt: skip
            difference = said - expected
            share = abs(difference) / max(expected, 1)
            worst = max(worst, share)
            if share > LARGEST_DIFFERENCE:
                how = "lost" if difference < 0 else "too many"
                sentence = (
                    f"{run.name} made {count(int(said), what)} where its prompts and answers give {expected:,} "
                    f"({abs(int(difference)):,} {how}, {share:.1%})"
                )
                return Gate(NAME, "fired", share, LARGEST_DIFFERENCE, sentence, _CAUSES)
    if unchecked:
        return Gate(NAME, "not checked", None, LARGEST_DIFFERENCE, some(unchecked, 2), _TO_CHECK)
    exact = "to the unit" if worst == 0 else f"within {worst:.2%}"
    return Gate(NAME, "ok", worst, LARGEST_DIFFERENCE, f"drafts are what prompt lookup gives, {exact}", None)
