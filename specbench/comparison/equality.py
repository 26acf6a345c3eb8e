"""Do two modes give the same outputs, judged against how often the baseline differs from itself?

compare.py calls `compare_outputs` once per case, then `judge_cases` once over all cases (the corrections for many
cases live there), `first_divergence` for the cases it shows, and `pass_rates` for `expect`. An output is any hashable:
a tuple of token ids where both sides have them, else the text. Formulas, limits and calibration: docs/statistics.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import product

from specbench.comparison.permutation import ScoreTest, combined_p, holm_tarone, mcnemar, score, score_test

IDENTICAL = "identical"
WITHIN = "within the baseline's own variation"
DIFFERENT = "different"
BASE_DIFFERS = "the baseline differs from itself between deployments"
TOO_FEW = "differs, too few repeats to tell"
NO_FLOOR = "floor not measured"

RULE_REPEATS = 4  # fewer, and "one output against only others" is chance too often (3.3% per varying case at 3)


@dataclass(frozen=True, slots=True)
class CaseEquality:
    """One case, before any correction for the number of cases.

    `distinct_*`: number of distinct outputs over all deployments of the side. `within_base` (the noise floor) and
    `between`: the share of pairs of outputs that differ, base/base and base/candidate; `within_base` is None with one
    base output. `test`: base against candidate, None when either side has too few outputs. `base_tests`: base
    deployments against each other, both ways (empty with one deployment or one repeat). `exchanged`: the score after
    exchanging one base deployment for one candidate deployment, every way (empty with one deployment of a side).
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
    exchanged: tuple[int, ...]


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

    `verdict`: the six words again, over all cases together; where no case has it alone it speaks of each, and
    `--accept-floor` passes no case then, unless it is `within …`.
    `combined_p`: did this run's outputs change at all (exact or seeded Monte Carlo);
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


def _counts(outputs: Sequence[Hashable], order: Sequence[Hashable]) -> list[int]:
    counted = Counter(outputs)
    return [counted[output] for output in order]


def _flat(deployments: Sequence[Sequence[Hashable]]) -> list[Hashable]:
    return [output for repeats in deployments for output in repeats]


def _base_tests(base: Sequence[Sequence[Hashable]], order: Sequence[Hashable]) -> tuple[ScoreTest, ...]:
    """Each base deployment against the others together, both ways; always 2 tests at 2 deployments, 2d beyond."""
    if len(base) < 2 or min(len(repeats) for repeats in base) < 2:
        return ()
    tests = []
    for k in range(1 if len(base) == 2 else len(base)):
        one = _counts(base[k], order)
        rest = _counts(_flat([*base[:k], *base[k + 1 :]]), order)
        tests += [score_test(one, rest), score_test(rest, one)]
    return tuple(tests)


def _exchanged(
    base: Sequence[Sequence[Hashable]], candidate: Sequence[Sequence[Hashable]], order: Sequence[Hashable]
) -> tuple[int, ...]:
    if min(len(base), len(candidate)) < 2:
        return ()
    scores = []
    for i, j in product(range(len(base)), range(len(candidate))):
        as_base = [*base[:i], candidate[j], *base[i + 1 :]]
        as_candidate = [*candidate[:j], base[i], *candidate[j + 1 :]]
        scores.append(score(_counts(_flat(as_base), order), _counts(_flat(as_candidate), order)))
    return tuple(scores)


def _alike(case: str, n_a: int, n_b: int, base_deployments: int, candidate_deployments: int) -> CaseEquality:
    """A case with one output everywhere: its score is 0 whatever the labels."""
    several = min(base_deployments, candidate_deployments) > 1
    return CaseEquality(
        *(case, n_a, n_b, 1, 1, 1),
        within_base=0.0 if n_a > 1 else None,
        between=0.0,
        test=ScoreTest(0, 1.0, 1.0, {0: 1.0}) if n_a > 1 else None,
        base_tests=(),
        exchanged=(0,) * (base_deployments * candidate_deployments) if several else (),
    )


def compare_outputs(
    case: str, base: Sequence[Sequence[Hashable]], candidate: Sequence[Sequence[Hashable]]
) -> CaseEquality:
    """Compare one case's outputs. `base[k]` holds the repeats of the k-th base deployment, `candidate` likewise.

    Deployments are pooled for base against candidate; every deployment needs at least one output.
    """
    all_base, all_candidate = _flat(base), _flat(candidate)
    if not all_base or not all_candidate:
        raise ValueError(f"case {case} has no output on one side")
    order = list(dict.fromkeys([*all_base, *all_candidate]))
    if len(order) == 1:  # most cases of most runs
        return _alike(case, len(all_base), len(all_candidate), len(base), len(candidate))
    a, b = _counts(all_base, order), _counts(all_candidate, order)
    n_a, n_b = len(all_base), len(all_candidate)
    same_between = sum(x * y for x, y in zip(a, b, strict=True)) / (n_a * n_b)
    within = None
    if n_a >= 2:
        within = 1 - sum(x * (x - 1) for x in a) / (n_a * (n_a - 1))
    return CaseEquality(
        case=case,
        repeats_base=n_a,
        repeats_candidate=n_b,
        distinct_base=sum(x > 0 for x in a),
        distinct_candidate=sum(y > 0 for y in b),
        shared=sum(x > 0 and y > 0 for x, y in zip(a, b, strict=True)),
        within_base=within,
        between=1 - same_between,
        test=score_test(a, b) if n_a >= 2 else None,
        base_tests=_base_tests(base, order),
        exchanged=_exchanged(base, candidate, order),
    )


def _base_rejects(cases: Sequence[CaseEquality], alpha: float) -> tuple[list[bool], float | None]:
    """Base against base, both ways: which cases reject (Holm after Tarone over cases and ways), and the combined p
    over cases (Bonferroni over the ways; None when there is nothing to test)."""
    flat = [(i, test) for i, case in enumerate(cases) for test in case.base_tests]
    rejects = [False] * len(cases)
    for (i, _), p in zip(flat, holm_tarone([t for _, t in flat], alpha), strict=True):
        rejects[i] |= p is not None and p <= alpha
    ways = max((len(case.base_tests) for case in cases), default=0)
    ps = [
        combined_p([c.base_tests[w] for c in cases if len(c.base_tests) > w], alpha / ways, seed=w + 1)
        for w in range(ways)
    ]
    able = [p for p in ps if p is not None]
    return rejects, min(1.0, ways * min(able)) if able else None


def _separated(case: CaseEquality) -> bool:
    """The base gave one output, the candidate only others, with enough repeats on both sides."""
    enough = min(case.repeats_base, case.repeats_candidate) >= RULE_REPEATS
    return enough and case.distinct_base == 1 and case.shared == 0


def _nothing_new(case: CaseEquality, alpha: float) -> bool:
    """Every candidate output is one the base gave too, with repeats that could have shown otherwise."""
    possible = 2 / math.comb(case.repeats_base + case.repeats_candidate, case.repeats_base)
    return case.shared == case.distinct_candidate and possible <= alpha


def _deployments_differ_as_much(cases: Sequence[CaseEquality]) -> bool:
    """Whether some exchange of one base deployment for one candidate deployment keeps the score as high: then the
    deployments of one mode differ as much as the modes do, and no repeat of theirs can tell these apart."""
    observed = sum(case.test.score for case in cases if case.test)
    ways = zip(*(case.exchanged for case in cases), strict=True)
    return any(sum(scores) >= observed for scores in ways)


def _judge(case: CaseEquality, p: float | None, base_rejects: bool, doubt: bool, alpha: float) -> JudgedCase:
    """`base_rejects`: base against base rejects for this case. `doubt`: it does for some case or for all together;
    then only outputs that the base never gave make a case different."""
    seen = (
        f"{case.distinct_base} distinct in {case.repeats_base} of the base, {case.distinct_candidate} in "
        f"{case.repeats_candidate} of the candidate, {case.shared} shared"
    )
    if case.distinct_base == case.distinct_candidate == case.shared == 1:
        verdict, reason = (
            IDENTICAL,
            f"one output in all {case.repeats_base + case.repeats_candidate} requests",
        )
    elif case.test is None:
        verdict, reason = NO_FLOOR, f"{seen}; measure the floor with --repeats 5 or a second base deployment"
    elif base_rejects:
        verdict, reason = BASE_DIFFERS, f"{seen}; base deployments differ by more than their own repeats do"
    elif p is not None and p <= alpha and doubt and case.shared:
        verdict, reason = BASE_DIFFERS, f"{seen}; redeploying the baseline changes outputs, if not of this case alone"
    elif p is not None and p <= alpha and _deployments_differ_as_much([case]):
        verdict, reason = TOO_FEW, f"{seen}; deployments of one mode differ as much as the modes do, redeploy more"
    elif p is not None and p <= alpha:
        verdict, reason = DIFFERENT, f"{seen}; p = {p:.2g} after correction for the number of cases"
    elif _separated(case):
        verdict, reason = DIFFERENT, f"{seen}; the base always gave one output and the candidate never did"
    elif p is not None:
        verdict, reason = WITHIN, f"{seen}; p = {p:.2g} after correction for the number of cases"
    elif _nothing_new(case, alpha):
        verdict, reason = WITHIN, f"{seen}; the candidate gave nothing that the base did not give"
    else:
        verdict = TOO_FEW
        reason = f"{seen}; no split of these outputs could reach p = {alpha:g}, use more --repeats"
    return JudgedCase(case.case, verdict, p, reason, case)


def _overall(
    judged: Sequence[JudgedCase], combined: float | None, base_p: float | None, alpha: float
) -> tuple[str, str]:
    """The word over all cases, and why. A case that is different decides alone; else the combined test does."""
    words = Counter(case.verdict for case in judged)
    if words[IDENTICAL] == len(judged):
        return IDENTICAL, f"all {len(judged)} cases gave one and the same output"
    if words[DIFFERENT]:
        return DIFFERENT, f"{words[DIFFERENT]} of {len(judged)} cases are different"
    if words[BASE_DIFFERS] or (base_p is not None and base_p <= alpha):
        how = "" if base_p is None else f" (base/base p = {base_p:.2g})"
        return BASE_DIFFERS, f"redeploying the baseline changes its outputs{how}"
    if combined is not None and combined <= alpha and _deployments_differ_as_much([c.equality for c in judged]):
        return TOO_FEW, "outputs changed, but deployments of one mode differ as much as the modes do; redeploy more"
    if combined is not None and combined <= alpha:
        return DIFFERENT, f"outputs changed over all cases together (combined p = {combined:.2g})"
    if words[NO_FLOOR]:
        return NO_FLOOR, f"{words[NO_FLOOR]} of {len(judged)} cases differ and the base ran once"
    if combined is not None:
        return WITHIN, f"over all cases together the base differs from itself as much (p = {combined:.2g})"
    if words[TOO_FEW]:
        return (
            TOO_FEW,
            f"{words[TOO_FEW]} of {len(judged)} cases differ, too few outputs for any test to reject",
        )
    return WITHIN, "the candidate gave nothing that the base did not give"


def _assumption(base_p: float | None, tested: bool, base_tested: bool) -> str:
    if not tested:
        return "Outputs that agree need no test; where they differ, no floor was measured."
    shown = f"p = {base_p:.2g}" if base_p is not None else "not measured, one base deployment or one repeat"
    if base_tested and base_p is None:
        shown = "too few outputs for any test to reject"
    return (
        "Assumes each repeat is an independent draw and redeploying the baseline would not change its outputs "
        f"(base/base: {shown})."
    )


def judge_cases(cases: Sequence[CaseEquality], alpha: float = 0.05, seed: int = 0) -> Equality:
    """Verdict per case and overall: Holm after Tarone (1990) and the combined test at alpha/2 each.

    Both are run at alpha/2 because either may decide. With one repeat and two or more base deployments the pooled
    counts hold one output per deployment; no case can be told alone, the combined test over cases still can.
    """
    half = alpha / 2
    rejects, base_p = _base_rejects(cases, half)
    adjusted = holm_tarone([case.test for case in cases], half)
    doubt = any(rejects) or (base_p is not None and base_p <= half)
    judged = tuple(_judge(case, p, base, doubt, half) for case, p, base in zip(cases, adjusted, rejects, strict=True))
    tests = [case.test for case in cases if case.test is not None]
    combined = combined_p(tests, half, seed)
    verdict, why = _overall(judged, combined, base_p, half)
    floors = [case.within_base for case in cases if case.within_base is not None]
    warnings = []
    by_rule = sum(j.verdict == DIFFERENT and (j.p is None or j.p > half) for j in judged)
    worst = sum(2.0 ** (1 - 2 * min(c.repeats_base, c.repeats_candidate)) for c in cases if c.test and c.test.p_min < 1)
    if by_rule and worst > alpha:
        warnings.append(
            f"{by_rule} cases are called different by the rule 'one output against only others' and up to "
            f"{worst:.1f} could be chance at so few repeats; use more --repeats"
        )
    return Equality(
        verdict=verdict,
        sentence=why,
        assumption=_assumption(base_p, bool(tests), any(case.base_tests for case in cases)),
        combined_p=combined,
        base_p=base_p,
        floor=math.fsum(floors) / len(floors) if floors else None,
        between=math.fsum(case.between for case in cases) / len(cases) if cases else 0.0,
        cases=judged,
        warnings=tuple(warnings),
    )


def first_divergence(base: Sequence[Hashable], candidate: Sequence[Hashable], around: int = 20) -> Divergence | None:
    """Where two outputs (texts, or lists of token ids) part; None when they are equal."""
    length = min(len(base), len(candidate))
    index = next((i for i in range(length) if base[i] != candidate[i]), length)
    if index == len(base) == len(candidate):
        return None
    end = index + around
    return Divergence(index, base[max(0, index - around) : index], base[index:end], candidate[index:end])


def pass_rates(base: Sequence[bool], candidate: Sequence[bool]) -> PassRates:
    """Exact McNemar test; `base[i]` and `candidate[i]` are the same (case, repeat)."""
    only_base = sum(a and not b for a, b in zip(base, candidate, strict=True))
    only_candidate = sum(b and not a for a, b in zip(base, candidate, strict=True))
    discordant = only_base + only_candidate
    reason = None
    if mcnemar(0, discordant) > 0.05:
        reason = f"{discordant} pairs differ, six are the fewest that could reject at 5%"
    p = None if reason else mcnemar(only_base, only_candidate)
    return PassRates(len(base), sum(base), sum(candidate), only_base, only_candidate, p, reason)
