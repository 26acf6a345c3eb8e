"""Output equality: the exact test against brute force, the corrections by hand, and every verdict word."""

import math
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.comparison import equality, permutation
from specbench.comparison.divergence import Parting, first_divergence
from specbench.comparison.equality import (
    CANNOT_TELL,
    CHANGED,
    IDENTICAL,
    WITHIN,
    compare_outputs,
    judge_cases,
    least_change,
    repeats_to_tell,
)
from specbench.comparison.format import Likeness
from specbench.comparison.permutation import mcnemar, pass_rates, score_test


def disagreement(a: Sequence[int], b: Sequence[int]) -> float:
    """Between minus within disagreement, from its definition."""
    n_a, n_b = sum(a), sum(b)
    same_within = sum(x * (x - 1) for x in a) / (n_a * (n_a - 1))
    same_between = sum(x * y for x, y in zip(a, b, strict=True)) / (n_a * n_b)
    return (1 - same_between) - (1 - same_within)


def brute_force(a: Sequence[int], b: Sequence[int]) -> float:
    labels = [k for k, n in enumerate(zip(a, b, strict=True)) for _ in range(sum(n))]
    observed, hits, total = disagreement(a, b), 0, 0
    for chosen in combinations(range(len(labels)), sum(a)):
        first = [0] * len(a)
        for i in chosen:
            first[labels[i]] += 1
        rest = [x + y - f for x, y, f in zip(a, b, first, strict=True)]
        hits += disagreement(first, rest) >= observed - 1e-12
        total += 1
    return hits / total


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=4))
def test_exact_p_equals_the_enumeration_of_all_relabellings(table: list[tuple[int, int]]) -> None:
    a, b = [x for x, _ in table], [y for _, y in table]
    if sum(a) < 2 or not sum(b):
        return
    assert score_test(a, b).p == pytest.approx(brute_force(a, b), abs=1e-12)


@pytest.mark.parametrize("repeats", [2, 3, 4, 5, 8, 10])
def test_the_smallest_p_is_two_of_all_relabellings(repeats: int) -> None:
    test = score_test([repeats, 0], [0, repeats])
    assert test.p == test.p_min == pytest.approx(2 / math.comb(2 * repeats, repeats))


def test_many_repeats_are_drawn_and_agree_with_the_enumeration() -> None:
    a, b = [12, 6, 3], [7, 8, 6]
    exact = permutation.score_null(tuple(sorted((19, 14, 9), reverse=True)), 21, 21)
    p = sum(chance for value, chance in exact.items() if value >= permutation.score(a, b))
    drawn = score_test(a, b)
    assert drawn.p == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / permutation.DRAWS))
    assert score_test([50, 0], [0, 50]).p == 1 / (permutation.DRAWS + 1)


def test_holm_by_hand() -> None:
    assert permutation.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_tarone_leaves_out_only_what_cannot_reject() -> None:
    assert permutation.tarone([0.001, 0.02, 0.3, 1.0], 0.05) == [True, True, False, False]
    # 0.03 could reject alone, not beside the other: K = 2 asks for 0.025
    assert permutation.tarone([0.001, 0.03, 1.0], 0.05) == [True, False, False]
    assert permutation.tarone([1.0, 1.0], 0.05) == [False, False]


def test_the_combined_p_agrees_with_the_exact_convolution() -> None:
    test = score_test([3, 1, 1, 0], [1, 0, 2, 2])
    acc = {0: 1.0}
    for _ in range(3):
        following: dict[int, float] = {}
        for total, weight in acc.items():
            for value, chance in test.null.items():
                following[total + value] = following.get(total + value, 0.0) + weight * chance
        acc = following
    exact = sum(weight for total, weight in acc.items() if total >= 3 * test.score)
    drawn = permutation.combined_p([test] * 3, 0.025)
    assert drawn == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / permutation.DRAWS))


def test_many_alike_cases_are_drawn_together_to_the_same_answer() -> None:
    tests = [score_test([4, 1], [3, 2])] * 60 + [score_test([4, 1], [2, 3])] * 40
    together = permutation.combined_p(tests, 0.025, seed=1)
    apart = permutation.combined_p(tests, 0.025, seed=2)
    assert together is not None and apart is not None
    assert together == pytest.approx(apart, abs=0.03)


A, B, C, D, E_ = "abcde"


@pytest.mark.parametrize(
    ("base", "candidate", "word"),
    [
        ([[A]], [[A]], IDENTICAL),
        ([[A] * 10], [[A] * 10], IDENTICAL),
        ([[A]], [[B]], CANNOT_TELL),  # one deployment and one repeat
        ([[A, A]], [[A, B]], WITHIN),  # a single answer is new
        ([[A, A]], [[B, B]], CANNOT_TELL),
        ([[A, A, A]], [[B, B, B]], CANNOT_TELL),
        ([[A] * 4], [[B] * 4], CHANGED),  # by the rule: p = .029 does not reach .025
        ([[A] * 5], [[B] * 5], CHANGED),
        ([[A] * 10], [[A] * 9 + [B]], WITHIN),
        ([[A] * 10], [[A] * 7 + [B] * 3], CANNOT_TELL),
        ([[A] * 9 + [B]], [[A] * 10], WITHIN),
        ([[A, A, A, B, C] * 2], [[A, A, B, B, C] * 2], WITHIN),
        ([[A] * 5 + [B] * 5], [[C] * 5 + [D] * 5], CHANGED),
        ([list("abcdefghij")], [list("klmnopqrst")], WITHIN),  # the base never repeats itself either
        ([[A] * 10, [B] * 5 + [C] * 5], [[A] * 5 + [B] * 5, [A] * 6 + [C] * 4], WITHIN),
        ([[A] * 5, [A] * 5], [[B] * 5, [B] * 5], CHANGED),
        ([[A] * 5, [A] * 5], [[A] * 5, [B] * 5], WITHIN),  # one deployment is odd, whichever mode it had
        ([[A], [A]], [[B], [B]], CANNOT_TELL),
    ],
)
def test_every_verdict_word(base: list[list[str]], candidate: list[list[str]], word: Likeness) -> None:
    judged = judge_cases([compare_outputs("x", base, candidate)])
    assert judged.cases[0].verdict is judged.verdict is word
    assert judged.cases[0].reason and judged.sentence


def test_one_stray_output_does_not_void_the_others() -> None:
    """Nine cases, ten repeats: a tenth of one case's answers is new, which no test of it alone can judge."""
    cases = [compare_outputs(f"fixed-{i}", [[A] * 10] * 2, [[A] * 10] * 2) for i in range(8)]
    stray = compare_outputs("stray", [[A] * 10] * 2, [[A] * 9 + [B]] * 2)
    judged = judge_cases([*cases, stray])
    assert judged.verdict is WITHIN and judged.new == pytest.approx(2 / 180)
    assert not judged.cases[-1].tested and "few of the candidate's outputs are new" in judged.cases[-1].reason
    more = compare_outputs("more", [[A] * 10] * 2, [[A] * 8 + [B] * 2] * 2)
    judged = judge_cases([*cases, more])
    assert judged.verdict is CANNOT_TELL and "more" in judged.sentence
    assert f"{repeats_to_tell(more, 0.025)} answers to a case" in judged.sentence


def test_a_change_that_only_all_cases_show_names_none_and_counts_for_every_one_that_differs() -> None:
    cases = [compare_outputs(f"case-{i}", [[A] * 5], [[A] * 3 + [B] * 2]) for i in range(20)]
    judged = judge_cases([*cases, compare_outputs("fixed", [[A] * 5], [[A] * 5])])
    assert judged.verdict is CHANGED and "all cases together" in judged.sentence
    assert [case.verdict for case in judged.cases] == [CHANGED] * 20 + [IDENTICAL]


@pytest.mark.parametrize(("n", "alpha"), [(20, 0.025), (10, 0.025), (40, 0.02), (5, 0.025)])
def test_the_least_change_that_is_found_has_eighty_percent_power(n: int, alpha: float) -> None:
    """Held against the test itself, over every number of new outputs."""
    share = least_change(n, n, alpha)
    assert share is not None
    found = [score_test([n, 0], [n - x, x]).p <= alpha + 1e-12 for x in range(n + 1)]
    for percent, enough in ((share, True), (share - 0.01, False)):
        chance = [math.comb(n, x) * percent**x * (1 - percent) ** (n - x) for x in range(n + 1)]
        assert (sum(c for c, rejects in zip(chance, found, strict=True) if rejects) >= 0.8) == enough
    assert least_change(2, 2, 0.025) is None and least_change(1, 10, 0.025) is None


def test_real_outputs_at_eight_users_are_within_the_baselines_own_variation() -> None:
    """Counts per distinct output of the recorded runs (vLLM 0.11.2, H200, ten repeats): seven cases never vary."""
    counts = {"explain-2": ([4, 1, 2, 2, 1, 0], [6, 2, 1, 0, 0, 1]), "explain-3": ([4, 4, 1, 1], [4, 3, 2, 1])}
    cases = [compare_outputs(str(i), [[A] * 10], [[A] * 10]) for i in range(7)]
    for name, (a, b) in counts.items():
        base = [k for k, n in enumerate(a) for _ in range(n)]
        candidate = [k for k, n in enumerate(b) for _ in range(n)]
        cases.append(compare_outputs(name, [base], [candidate]))
    judged = judge_cases(cases)
    assert [case.verdict for case in judged.cases] == [IDENTICAL] * 7 + [WITHIN] * 2
    assert judged.verdict == WITHIN
    assert judged.floor is not None and judged.floor > 0.1


def test_a_base_run_that_never_varies_beside_one_that_does_is_told() -> None:
    """Seen on an H200: 10 of 10 alike where another deployment of the same baseline split 4-2-2-1-1."""
    varying = [A] * 4 + [B] * 2 + [C] * 2 + [D, E_]
    judged = judge_cases([compare_outputs("explain", [[A] * 10, varying], [varying, varying])])
    assert judged.verdict is WITHIN and "from deployment to deployment" in judged.sentence
    assert judged.base_p is not None and judged.base_p <= 0.05


def test_base_against_base_is_corrected_for_its_two_ways() -> None:
    """2.5% are shared by both ways: a case whose smallest p is 1.4% cannot reject, two of them can."""
    case = compare_outputs("x", [list("aaaa"), list("bbbc")], [list("aaaa")])
    assert [test.p_min for test in case.base_tests] == pytest.approx([1 / 70, 1 / 70])
    assert judge_cases([case]).base_p is None
    both = judge_cases([case, case])
    ways = [permutation.combined_p([case.base_tests[way]] * 2, 0.0125, seed=way + 1) for way in (0, 1)]
    assert both.base_p == 2 * min(p for p in ways if p is not None)


def test_once_deploying_again_changes_outputs_only_new_outputs_are_a_change() -> None:
    moved = compare_outputs("moved", [[A] * 10, [B] * 10], [[A] * 10, [B] * 10])
    shared = compare_outputs("shared", [[A] * 9 + [B]] * 2, [[A] * 2 + [C] * 8] * 2)
    new = compare_outputs("new", [[A] * 9 + [B]] * 2, [[C] * 8 + [D] * 2] * 2)
    assert judge_cases([shared, new]).verdict is CHANGED
    words = [case.verdict for case in judge_cases([moved, shared, new]).cases]
    assert words == [WITHIN, WITHIN, CHANGED]


def test_a_case_whose_base_never_varies_is_not_excused_by_another_that_does() -> None:
    moved = compare_outputs("moved", [[A] * 10, [B] * 10], [[A] * 10, [B] * 10])
    half = compare_outputs("half", [[A] * 10] * 2, [[A] * 5 + [C] * 5] * 2)
    assert [case.verdict for case in judge_cases([moved, half]).cases] == [WITHIN, CHANGED]


def one_repeat(base: str, candidate: str) -> equality.CaseEquality:
    return compare_outputs("x", [[o] for o in base], [[o] for o in candidate])


def test_many_cases_with_one_repeat_take_the_floor_from_the_second_deployment() -> None:
    floor = [one_repeat("ab", "ab"), one_repeat("aa", "ab"), one_repeat("ab", "aa"), one_repeat("ab", "bb")] * 10
    same = judge_cases(floor + [one_repeat("aa", "aa")] * 260)
    assert same.verdict is WITHIN and same.combined_p is not None and same.floor == pytest.approx(30 / 300)
    changed = judge_cases(floor + [one_repeat("aa", "bb")] * 30 + [one_repeat("aa", "aa")] * 230)
    assert changed.verdict is CHANGED
    alone = judge_cases([compare_outputs("x", [["a"]], [["b"]]), compare_outputs("y", [["a"]], [["a"]])])
    assert alone.verdict is CANNOT_TELL and "the baseline ran once" in alone.sentence and alone.floor is None


def test_one_odd_deployment_does_not_condemn_its_mode() -> None:
    """Every second case changes in one candidate deployment only: that may be the deployment."""
    repeated = [compare_outputs("x", [[A] * 5, [A] * 5], [[A] * 5, [B] * 5])] * 5
    for cases in ([one_repeat("aa", "ab")] * 40 + [one_repeat("aa", "aa")] * 40, repeated):
        judged = judge_cases(cases)
        assert judged.combined_p is not None and judged.combined_p <= 0.025
        assert judged.verdict is WITHIN


def test_the_rule_warns_where_chance_could_have_made_it() -> None:
    cases = [compare_outputs("x", [[A] * 4], [[B] * 4])]
    cases += [compare_outputs("y", [[A, B, A, B]], [[B, A, B, A]])] * 20
    judged = judge_cases(cases)
    assert judged.cases[0].verdict is CHANGED
    assert any("chance" in warning for warning in judged.warnings)


def test_unequal_repeats_and_three_deployments_are_judged() -> None:
    base = [[A, A, B], [A, B], [A, A, A, B]]
    case = compare_outputs("x", base, [[A, B], [A], [A, A, B]])
    assert (case.repeats_base, case.repeats_candidate, len(case.base_tests)) == (9, 6, 6)
    assert judge_cases([case]).verdict == WITHIN


def test_a_side_without_outputs_is_an_error() -> None:
    with pytest.raises(ValueError, match="no output"):
        compare_outputs("x", [[]], [[A]])


def test_first_divergence_of_texts_and_tokens() -> None:
    found = first_divergence("the cat sat", "the car sat", around=4)
    assert found == Parting(6, "e ca", "t sa", "r sa")
    shorter = first_divergence([1, 2, 3], [1, 2])
    assert shorter == Parting(2, [1, 2], [3], [])
    assert first_divergence("same", "same") is None
    assert first_divergence("", "") is None


@pytest.mark.parametrize(("only_base", "only_candidate", "p"), [(0, 0, 1), (0, 5, 0.0625), (6, 0, 0.03125), (3, 3, 1)])
def test_mcnemar_by_hand(only_base: int, only_candidate: int, p: float) -> None:
    assert mcnemar(only_base, only_candidate) == p


def test_pass_rates_say_when_they_cannot_test() -> None:
    few = pass_rates([True, True, False], [True, False, False])
    assert (few.base_passed, few.candidate_passed, few.only_base, few.p) == (2, 1, 1, None)
    assert few.reason is not None and "fewer than six" in few.reason
    many = pass_rates([True] * 10, [False] * 8 + [True] * 2)
    assert many.p == mcnemar(8, 0) and many.reason is None
