"""Do two modes give the same outputs, judged against how often the baseline differs from itself?

compare.py calls `compare_outputs` once per case, then `judge_cases` once over all cases (the corrections for many
cases live there), `first_divergence` for the cases it shows, and `pass_rates` for `expect`. An output is any hashable:
a tuple of token ids where both sides have them, else the text. Formulas, limits and calibration: docs/statistics.md.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

IDENTICAL = "identical"
WITHIN = "within the baseline's own variation"
DIFFERENT = "different"
BASE_DIFFERS = "the baseline differs from itself between deployments"
TOO_FEW = "differs, too few repeats to tell"
NO_FLOOR = "floor not measured"


@dataclass(frozen=True, slots=True)
class ScoreTest:
    """One exact test: are the second side's outputs further from the first side's than the first's from themselves?

    `null` maps each attainable score to its probability when labels are exchangeable; `p_min` is the smallest p that
    these pooled counts could have given (1.0: the test cannot reject).
    """

    score: int
    p: float
    p_min: float
    null: dict[int, float]


@dataclass(frozen=True, slots=True)
class CaseEquality:
    """One case, before any correction for the number of cases.

    `distinct_*`: number of distinct outputs over all deployments of the side. `within_base` (the noise floor) and
    `between`: the share of pairs of outputs that differ, base/base and base/candidate; `within_base` is None with one
    base output. `test`: base against candidate, None when either side has too few outputs. `base_tests`: base
    deployments against each other, both ways (empty with one deployment or one repeat).
    """

    case: str
    repeats_base: int
    repeats_candidate: int
    distinct_base: int
    distinct_candidate: int
    shared: int
    within_base: float | None
    between: float
    test: ScoreTest | None
    base_tests: tuple[ScoreTest, ...]


@dataclass(frozen=True, slots=True)
class JudgedCase:
    """`verdict` is one of the six words above; `p` is corrected for the number of cases (None: no test could reject);
    `reason` is one sentence with the numbers behind the verdict and, where it helps, what would settle it."""

    case: str
    verdict: str
    p: float | None
    reason: str
    equality: CaseEquality


@dataclass(frozen=True, slots=True)
class Equality:
    """All cases of one comparison.

    `verdict`: the six words again, over all cases together: what `--accept-floor` should look at (it passes
    `identical` and `within …`). `combined_p`: did this run's outputs change at all (exact or seeded Monte Carlo);
    `base_p`: the same for base against base (None with one base deployment or one repeat). `floor`, `between`: mean
    shares of differing pairs. `sentence` says it for a reader; `assumption` is printed under it.
    """

    verdict: str
    sentence: str
    assumption: str
    combined_p: float | None
    base_p: float | None
    floor: float | None
    between: float
    cases: tuple[JudgedCase, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where two outputs part: `index` (in tokens or characters, as given), what both share just
    before, and both continuations (empty when that side ended there)."""

    index: int
    before: Sequence[Hashable]
    base: Sequence[Hashable]
    candidate: Sequence[Hashable]


@dataclass(frozen=True, slots=True)
class PassRates:
    """`expect` pass rates paired by (case, repeat). `p` is exact McNemar over the discordant pairs, None when there
    are too few of them to reject at 5% (`reason` says so)."""

    pairs: int
    base_passed: int
    candidate_passed: int
    only_base: int
    only_candidate: int
    p: float | None
    reason: str | None


def compare_outputs(
    case: str, base: Sequence[Sequence[Hashable]], candidate: Sequence[Sequence[Hashable]]
) -> CaseEquality:
    """Compare one case's outputs. `base[k]` holds the repeats of the k-th base deployment, `candidate` likewise.

    Deployments are pooled for base against candidate; every deployment needs at least one output.
    """
    raise NotImplementedError


def judge_cases(cases: Sequence[CaseEquality], alpha: float = 0.05, seed: int = 0) -> Equality:
    """Verdict per case and overall: Holm after Tarone (1990) and the combined test at alpha/2 each."""
    raise NotImplementedError


def first_divergence(
    base: Sequence[Hashable], candidate: Sequence[Hashable], around: int = 20
) -> Divergence | None:
    """Where two outputs (texts, or lists of token ids) part; None when they are equal."""
    raise NotImplementedError


def pass_rates(base: Sequence[bool], candidate: Sequence[bool]) -> PassRates:
    """Exact McNemar test; `base[i]` and `candidate[i]` are the same (case, repeat)."""
    raise NotImplementedError
