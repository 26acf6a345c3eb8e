"""Exact tests on counts of outputs: permuted labels, corrections for many cases, paired pass rates.

Formulas, limits and calibration: docs/statistics.md.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from specbench.comparison.format import Expect

EXACT_LIMIT = 20  # outputs per side up to which the null distribution is enumerated (a few milliseconds)
DRAWS = 9_999  # Monte Carlo draws beyond that, and for the combined test


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


def score(base: Sequence[int], candidate: Sequence[int]) -> int:
    """S = sum over distinct outputs of n_B a(a-1) - (n_A-1) a b: between minus within disagreement, in integers."""
    n_a, n_b = sum(base), sum(candidate)
    return sum(n_b * a * (a - 1) - (n_a - 1) * a * b for a, b in zip(base, candidate, strict=True))


@lru_cache(maxsize=4096)
def score_null(pooled: tuple[int, ...], n_a: int, n_b: int) -> dict[int, float]:
    """Distribution of S when labels are exchangeable, given the pooled counts of each distinct output.

    A dynamic programme over the outputs with state (labels given out, score) and weight prod C(N_k, a_k).
    """
    states: dict[tuple[int, int], int] = {(0, 0): 1}
    for n_k in pooled:
        following: dict[tuple[int, int], int] = {}
        for (used, total), ways in states.items():
            for a in range(max(0, n_k - n_b), min(n_k, n_a - used) + 1):
                key = (used + a, total + n_b * a * (a - 1) - (n_a - 1) * a * (n_k - a))
                following[key] = following.get(key, 0) + ways * math.comb(n_k, a)
        states = following
    everything = math.comb(n_a + n_b, n_a)
    return {total: ways / everything for (used, total), ways in states.items() if used == n_a}


@lru_cache(maxsize=4096)
def _drawn_null(pooled: tuple[int, ...], n_a: int, n_b: int) -> Counter[int]:
    """Scores of seeded random relabellings, for more outputs than can be enumerated."""
    counts = np.asarray(pooled, dtype=np.int64)
    a = np.random.default_rng(0).multivariate_hypergeometric(counts, n_a, DRAWS, method="marginals")
    return Counter((n_b * a * (a - 1) - (n_a - 1) * a * (counts - a)).sum(axis=1).tolist())


def score_test(base: Sequence[int], candidate: Sequence[int]) -> ScoreTest:
    """Permutation test of S, given counts per distinct output in the same order; base needs two outputs or more.

    Beyond `EXACT_LIMIT` outputs a side the observed score counts as one draw of its own null, so p is never 0
    (Phipson & Smyth 2010).
    """
    n_a, n_b = sum(base), sum(candidate)
    observed = score(base, candidate)
    pooled = tuple(sorted((a + b for a, b in zip(base, candidate, strict=True)), reverse=True))
    if max(n_a, n_b) <= EXACT_LIMIT:
        null = score_null(pooled, n_a, n_b)
    else:
        drawn = _drawn_null(pooled, n_a, n_b) + Counter([observed])
        null = {value: count / (DRAWS + 1) for value, count in drawn.items()}
    p = math.fsum(chance for value, chance in null.items() if value >= observed)
    return ScoreTest(observed, min(1.0, p), min(1.0, null[max(null)]), null)


def tarone(p_min: Sequence[float], alpha: float) -> list[bool]:
    """Which hypotheses to test at all (Tarone 1990): those whose smallest p can reach alpha / K, where K is the least
    k with at most k hypotheses able to reach alpha / k. Looks at pooled counts only, so the level holds."""
    smallest = np.sort(np.asarray(p_min, dtype=np.float64))
    k = next(k for k in range(1, len(smallest) + 2) if np.searchsorted(smallest, alpha / k, side="right") <= k)
    return [p <= alpha / k for p in p_min]


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p values (Holm 1979), in the order given."""
    adjusted = [1.0] * len(p)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        running = max(running, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = running
    return adjusted


def holm_tarone(tests: Sequence[ScoreTest | None], alpha: float) -> list[float | None]:
    """Adjusted p per test; None where the test could not have rejected, whatever its outcome."""
    able = [i for i, keep in enumerate(tarone([1.0 if t is None else t.p_min for t in tests], alpha)) if keep]
    adjusted: list[float | None] = [None] * len(tests)
    for i, p in zip(able, holm([t.p for t in (tests[i] for i in able) if t is not None]), strict=True):
        adjusted[i] = p
    return adjusted


def combined_p(tests: Sequence[ScoreTest], alpha: float, seed: int = 0) -> float | None:
    """Monte Carlo p of the summed score, labels permuted within each case; None when it could not reach alpha.

    Many cases with the same null are drawn together as one multinomial, so thousands cost no more than a few.
    """
    varying = [t for t in tests if t.p_min < 1]
    if not varying or math.prod(t.p_min for t in varying) > alpha:
        return None
    groups: dict[tuple[tuple[int, float], ...], int] = {}
    for test in varying:
        key = tuple(sorted(test.null.items()))
        groups[key] = groups.get(key, 0) + 1
    rng = np.random.default_rng(seed)
    total = np.zeros(DRAWS, dtype=np.int64)
    for key, cases in groups.items():
        values = np.array([value for value, _ in key], dtype=np.int64)
        chances = np.array([chance for _, chance in key])
        if cases > len(values):
            total += rng.multinomial(cases, chances / chances.sum(), size=DRAWS) @ values
        else:
            drawn = np.searchsorted(np.cumsum(chances)[:-1], rng.random((cases, DRAWS)), side="right")
            total += values[drawn].sum(axis=0)
    observed = sum(t.score for t in varying)
    return float((1 + np.count_nonzero(total >= observed)) / (1 + DRAWS))


def mcnemar(only_base: int, only_candidate: int) -> float:
    """Exact two-sided McNemar p over the discordant pairs: a sign test (McNemar 1947), 1.0 without any."""
    n = only_base + only_candidate
    tail = sum(math.comb(n, k) for k in range(min(only_base, only_candidate) + 1))
    return min(1.0, float(2 * tail / 2**n))


def pass_rates(base: Sequence[bool], candidate: Sequence[bool]) -> Expect:
    """Exact McNemar test; `base[i]` and `candidate[i]` are the same (case, repeat). `cases` is left empty."""
    only_base = sum(a and not b for a, b in zip(base, candidate, strict=True))
    only_candidate = sum(b and not a for a, b in zip(base, candidate, strict=True))
    differing = only_base + only_candidate
    reason = None
    if mcnemar(0, differing) > 0.05:
        reason = f"{differing} pairs of answers differ in this, and fewer than six can never reject at 5%"
    p = None if reason else mcnemar(only_base, only_candidate)
    return Expect(len(base), sum(base), sum(candidate), only_base, only_candidate, p, reason, {}, {})
