"""Do two modes give the same outputs, judged against how often the baseline differs from itself?

assessment.py calls `compare_outputs` once per case, then `judge_cases` once over all cases, where the corrections for
many cases are made. An output is any hashable: a tuple of token ids where both sides have them, else the text.
Formulas, limits and calibration: docs/statistics.md, section 4.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from specbench.comparison.format import Likeness
from specbench.comparison.permutation import ScoreTest, combined_p, holm_tarone, score, score_test, tarone
from specbench.words import count, some

IDENTICAL, WITHIN, CHANGED, CANNOT_TELL = Likeness
RULE_REPEATS = 4  # fewer, and "one output against only others" is chance too often (3.3% per varying case at 3)
MOST_NEW = 0.10  # of the candidate's answers to a case that no test can judge alone
POWER = 0.8
_MOST_REPEATS = 500  # beyond this a plan is no plan


@dataclass(frozen=True, slots=True)
class CaseEquality:
    """One case, before any correction for the number of cases.

    `deployments`: of the base. `distinct_*`: number of distinct outputs over all deployments of the side.
    `within_base` (the noise floor) and `between`: the share of pairs of outputs that differ, base/base and
    base/candidate; `within_base` is None with one base output. `test`: base against candidate, None when either side
    has too few outputs. `base_tests`: base deployments against each other, both ways (empty with one deployment or one
    repeat). `exchanged`: the score after exchanging one base deployment for one candidate deployment, every way (empty
    with one deployment of a side). `new`: answers of the candidate with an output that the base never gave. `rare`:
    outputs that the base gave once.
    """

    case: str
    deployments: int
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
    new: int
    rare: int


@dataclass(frozen=True, slots=True)
class JudgedCase:
    """`p` is corrected for the number of cases (None: no test could reject); `reason` is one sentence with the numbers
    behind the verdict. `tested`: the case was judged alone, not only together with the others."""

    case: str
    verdict: Likeness
    p: float | None
    reason: str
    tested: bool
    equality: CaseEquality


@dataclass(frozen=True, slots=True)
class Judged:
    """All cases of one comparison.

    `combined_p`: did outputs change at all (exact or seeded Monte Carlo); `base_p`: the same for base against base
    (None with one base deployment or one repeat). `floor`, `between`: mean shares of differing pairs. `new`: the share
    of the candidate's requests whose output the base never gave. `least_change`: see the function. `sentence` says it
    for a reader; `assumption` is printed under it.
    """

    verdict: Likeness
    sentence: str
    assumption: str
    combined_p: float | None
    base_p: float | None
    floor: float | None
    between: float
    new: float
    least_change: float | None
    cases: tuple[JudgedCase, ...]
    warnings: tuple[str, ...]


# ---- one case


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
        *(case, base_deployments, n_a, n_b, 1, 1, 1),
        within_base=0.0 if n_a > 1 else None,
        between=0.0,
        test=ScoreTest(0, 1.0, 1.0, {0: 1.0}) if n_a > 1 else None,
        base_tests=(),
        exchanged=(0,) * (base_deployments * candidate_deployments) if several else (),
        new=0,
        rare=0,
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
        deployments=len(base),
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
        new=sum(y for x, y in zip(a, b, strict=True) if not x),
        rare=sum(x == 1 for x in a),
    )


# ---- all cases


def judge_cases(cases: Sequence[CaseEquality], alpha: float = 0.05, seed: int = 0) -> Judged:
    """Verdict per case and over all: Holm after Tarone (1990) per case and one combined test, each at alpha / 2,
    because either may decide.

    A case that no test can judge alone is judged together with the others: it is within the baseline's variation where
    the combined test does not reject and at most MOST_NEW of the candidate's answers to it, or one, are new.
    """
    half = alpha / 2
    base_rejects, base_p = _base_rejects(cases, half)
    doubt = any(base_rejects) or (base_p is not None and base_p <= half)
    tests = [case.test for case in cases]
    alone = [
        _judge(case, p, rejects, doubt, half)
        for case, p, rejects in zip(cases, holm_tarone(tests, half), base_rejects, strict=True)
    ]
    combined = combined_p([test for test in tests if test is not None], half, seed)
    judged = _judge_together(alone, combined, doubt, half)
    able = sum(tarone([1.0 if test is None else test.p_min for test in tests], half))
    floors = [case.within_base for case in cases if case.within_base is not None]
    requests = sum(case.repeats_candidate for case in cases)
    verdict, sentence = _overall(judged, combined, base_p, half, able)
    return Judged(
        verdict=verdict,
        sentence=sentence,
        assumption=_assumption(cases, base_p),
        combined_p=combined,
        base_p=base_p,
        floor=math.fsum(floors) / len(floors) if floors else None,
        between=math.fsum(case.between for case in cases) / len(cases),
        new=sum(case.new for case in cases) / requests,
        least_change=least_change(cases[0].repeats_base, cases[0].repeats_candidate, half / max(1, able)),
        cases=tuple(judged),
        warnings=_warnings(judged, alpha),
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


def _no_further(case: CaseEquality) -> bool:
    """The candidate differs from the base no more often than the base from itself."""
    return case.within_base is not None and case.between <= case.within_base


def _deployments_differ_as_much(cases: Sequence[CaseEquality]) -> bool:
    """Whether some exchange of one base deployment for one candidate deployment keeps the score as high: then the
    deployments of one mode differ as much as the modes do, and no repeat of theirs can tell these apart."""
    observed = sum(case.test.score for case in cases if case.test)
    ways = zip(*(case.exchanged for case in cases), strict=True)
    return any(sum(scores) >= observed for scores in ways)


def _judge(case: CaseEquality, p: float | None, base_rejects: bool, doubt: bool, alpha: float) -> JudgedCase:
    """One case alone; CANNOT_TELL where no test can reject.

    `base_rejects`: base against base rejects for this case. `doubt`: it does for some case or for all together; then an
    output that the base gave too is no sign of a change in a case whose base varies.
    """
    seen = (
        f"{case.distinct_base} distinct in {case.repeats_base} of the base, {case.distinct_candidate} in "
        f"{case.repeats_candidate} of the candidate, {case.shared} shared"
    )
    if case.distinct_base == case.distinct_candidate == case.shared == 1:
        total = case.repeats_base + case.repeats_candidate
        return JudgedCase(case.case, IDENTICAL, p, f"one output in all {total} requests", True, case)
    found = p is not None and p <= alpha
    corrected = f"p = {p:.2g} after correction for the number of cases" if p is not None else ""
    verdict = WITHIN
    if base_rejects:
        why = "base deployments differ by more than their own repeats do"
    elif found and doubt and case.shared and case.distinct_base > 1:
        why = "the base's outputs change from deployment to deployment"
    elif found and _deployments_differ_as_much([case]):
        why = "deployments of one mode differ as much as the modes do"
    elif found:
        verdict, why = CHANGED, corrected
    elif _separated(case):
        verdict, why = CHANGED, "the base always gave one output and the candidate never did"
    elif p is not None:
        why = corrected
    elif case.test is not None and _no_further(case):
        why = "the candidate differs from the base no more often than the base from itself"
    elif case.test is not None and _nothing_new(case, alpha):
        why = "the candidate gave nothing that the base did not give"
    else:
        why = "too few outputs for a test of this case alone"
        return JudgedCase(case.case, CANNOT_TELL, p, f"{seen}; {why}", False, case)
    return JudgedCase(case.case, verdict, p, f"{seen}; {why}", True, case)


def _judge_together(
    judged: Sequence[JudgedCase], combined: float | None, doubt: bool, alpha: float
) -> list[JudgedCase]:
    """The cases after the combined test, which speaks of all of them and can name none."""
    if combined is not None and combined <= alpha:
        if any(case.verdict is CHANGED for case in judged):
            return [_passed(case, "another case explains what all show together") for case in judged]
        if doubt or _deployments_differ_as_much([case.equality for case in judged]):
            return [_passed(case, "deployments of one mode differ as much as the modes do") for case in judged]
        why = f"all cases together changed (p = {combined:.2g}), which names none of those that differ"
        return [
            case if case.verdict is IDENTICAL else replace(case, verdict=CHANGED, reason=f"{case.reason}; {why}")
            for case in judged
        ]
    requests = sum(case.equality.repeats_candidate for case in judged)
    if combined is not None:
        why = "the test of all cases together does not reject"
    else:
        why = "no test of all cases together could reject either"
    new, rare = (sum(getattr(case.equality, name) for case in judged if not case.tested) for name in ("new", "rare"))
    few_everywhere = _few(new, rare, requests)
    return [
        _passed(case, f"{why}, and few of the candidate's outputs are new")
        if _is_few(case.equality, combined is not None, few_everywhere)
        else case
        for case in judged
    ]


def _is_few(case: CaseEquality, tested_together: bool, few_everywhere: bool) -> bool:
    """Whether a case that no test can judge alone has so few new outputs that it passes with the others."""
    if case.test is None:
        return False
    if case.repeats_base == case.deployments and tested_together:  # one repeat: cases can only be judged together
        return few_everywhere
    return case.shared > 0 and _few(case.new, case.rare, case.repeats_candidate)


def _few(new: int, rare: int, answers: int) -> bool:
    """Outputs that the base gave once tell how many more there are to come (Good 1953); few more than that are new."""
    return new <= rare + max(1.0, MOST_NEW * answers)


def _passed(case: JudgedCase, why: str) -> JudgedCase:
    return case if case.tested else replace(case, verdict=WITHIN, reason=f"{case.reason}; {why}")


def _overall(
    judged: Sequence[JudgedCase], combined: float | None, base_p: float | None, alpha: float, able: int
) -> tuple[Likeness, str]:
    """The word over all cases, and the sentence that names cases and test."""
    named = {word: [case.case for case in judged if case.verdict is word] for word in Likeness}
    if len(named[IDENTICAL]) == len(judged):
        return IDENTICAL, f"all {count(len(judged), 'case')} gave one and the same output"
    if changed := [case for case in judged if case.verdict is CHANGED]:
        tested = [case.p for case in changed if case.p is not None and case.p <= alpha]
        if tested:
            how = f"a permutation test of each case, p = {min(tested):.2g} after correction for {count(able, 'case')}"
        elif any(_separated(case.equality) for case in changed):
            how = "the base always gave one output and the candidate never did"
        else:
            how = f"a permutation test of all cases together, p = {combined:.2g}, which names no single case"
        share = f"{count(len(changed), 'case')} of {len(judged)}"
        return CHANGED, f"outputs changed in {share} ({how}): {some(named[CHANGED])}"
    if named[CANNOT_TELL]:
        return CANNOT_TELL, _cannot_tell([case for case in judged if case.verdict is CANNOT_TELL], len(judged), alpha)
    if base_p is not None and base_p <= alpha:
        return WITHIN, f"the baseline's own outputs change from deployment to deployment (base/base p = {base_p:.2g})"
    if combined is not None:
        return WITHIN, f"all cases together do not differ by more than the baseline from itself (p = {combined:.2g})"
    return WITHIN, "what differs is too little to be called a change"


def _cannot_tell(cases: Sequence[JudgedCase], of_all: int, alpha: float) -> str:
    names = some([case.case for case in cases])
    differ = f"{count(len(cases), 'case')} of {of_all} {'differs' if len(cases) == 1 else 'differ'}"
    if any(case.equality.test is None for case in cases):
        return f"{differ} and the baseline ran once, which does not show how far it differs from itself: {names}"
    needed = [repeats_to_tell(case.equality, alpha) for case in cases]
    most = max((number for number in needed if number is not None), default=None)
    more = "more answers" if most is None else f"{most} answers"
    return (
        f"{differ} in too few answers for a test and in too many to be chance; {more} to a case on each side "
        f"(deployments times --repeats) would tell: {names}"
    )


def _assumption(cases: Sequence[CaseEquality], base_p: float | None) -> str:
    if all(case.test is None for case in cases):
        return "One run of the base does not show how far the base differs from itself."
    if base_p is not None:
        shown = f"base against base: p = {base_p:.2g}"
    elif any(case.base_tests for case in cases):
        shown = "too few outputs differ for a test of base against base"
    else:
        shown = "not tested, which needs two base deployments and two repeats"
    return (
        "Assumes that each repeat is an independent draw and that deploying the baseline again does not change its "
        f"outputs ({shown})."
    )


def _warnings(judged: Sequence[JudgedCase], alpha: float) -> tuple[str, ...]:
    by_rule = sum(case.verdict is CHANGED and case.p is None and _separated(case.equality) for case in judged)
    varying = [case.equality for case in judged if case.equality.test and case.equality.test.p_min < 1]
    worst = sum(2.0 ** (1 - 2 * min(case.repeats_base, case.repeats_candidate)) for case in varying)
    if not by_rule or worst <= alpha:
        return ()
    return (
        f"{count(by_rule, 'case')} changed by the rule 'one output against only others', and at so few repeats up to "
        f"{worst:.1f} could be chance; use more --repeats.",
    )


# ---- what could have been seen


def least_change(n_base: int, n_candidate: int, alpha: float) -> float | None:
    """The share of a case's requests that must change to be found with 80% power, where the base always answers alike;
    None where no share is found. Exact: x new outputs are found from the least x on whose p is at most alpha, and x is
    binomial."""
    least = _least_new(n_base, n_candidate, alpha)
    if least is None:
        return None
    for percent in range(1, 101):
        share = percent / 100
        missed = math.fsum(
            math.comb(n_candidate, x) * share**x * (1 - share) ** (n_candidate - x) for x in range(least)
        )
        if 1 - missed >= POWER:
            return share
    return None


def _least_new(n_base: int, n_candidate: int, alpha: float) -> int | None:
    if n_base < 2:
        return None
    labels = n_base + n_candidate
    return next(
        (x for x in range(1, n_candidate + 1) if math.comb(n_candidate, x) <= alpha * math.comb(labels, x)), None
    )


def repeats_to_tell(case: CaseEquality, alpha: float) -> int | None:
    """Outputs of each side with which the share of new outputs seen in this case would be found; None beyond reason."""
    share = case.new / case.repeats_candidate
    for n in range(max(case.repeats_base, case.repeats_candidate) + 1, _MOST_REPEATS):
        new = round(share * n)
        if new and math.comb(n, new) <= alpha * math.comb(2 * n, new):
            return n
    return None
