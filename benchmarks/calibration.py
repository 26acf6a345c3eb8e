"""Does the statistics of compare.py keep its promises? Seeded simulations with known truth.

    python benchmarks/calibration.py                 # the full grid: the tables of docs/statistics.md, about 10 minutes
    python benchmarks/calibration.py --quick         # a tenth of the replicates
    python benchmarks/calibration.py pair verdict    # only these sections

Every section calls the functions that compare.py uses, prints a table in Markdown and names its seed and replicates.
The Monte Carlo error of a share near 5% is about 1 point at 2,000 replicates and 0.3 at 20,000.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from specbench.comparison import equality, estimates, intervals

Floats = npt.NDArray[np.float64]
Rng = np.random.Generator
Line = tuple[object, ...]

# Autoregressions fitted (Yule-Walker, order by AIC) to the residuals of runs on an H200, vLLM 0.11.2, nine cases
# times ten repeats: (baseline, ngram) at 1, 4 and 8 users.
RECORDED = {
    "recorded 1": ((0.62, 0.03, 0.25, -0.29, 0.18), (0.76,)),
    "recorded 4": ((0.24, 0.20), (0.47, 0.06, 0.25)),
    "recorded 8": ((0.27,), (0.32, 0.40)),
}
NOISES = ("none", "t3", "outliers", "AR .3", "AR .6", "slow", "drift", "step", "bursts", *RECORDED)


# --- noise


def autoregressive(rng: Rng, rows: int, n: int, coefficients: tuple[float, ...]) -> Floats:
    """Unit variance, stationary (200 values of run-in; the variance is the sum of the squared impulse response)."""
    e, response = rng.normal(size=(rows, n + 200)), np.eye(1, 400)
    for series in (e, response):
        for j in range(1, series.shape[1]):
            for lag, coefficient in enumerate(coefficients[:j], 1):
                series[:, j] += coefficient * series[:, j - lag]
    return np.asarray(e[:, 200:] / math.sqrt((response**2).sum()))


def noise(rng: Rng, rows: int, n: int, kind: str, candidate: bool = False) -> Floats:
    """One run's noise in units of its white part. Drift and step start from the true level, so what they add over
    the run counts as error; that is the strict reading."""
    white = rng.normal(size=(rows, n))
    time_ = np.linspace(0, 1, n)
    if kind == "t3":
        return rng.standard_t(3, (rows, n)) / math.sqrt(3)
    if kind == "outliers":
        return white * np.where(rng.random((rows, n)) < 0.02, 5, 1)
    if kind.startswith("AR"):
        return autoregressive(rng, rows, n, (float(kind.split()[1]),))
    if kind == "slow":
        return np.asarray(math.sqrt(0.65) * autoregressive(rng, rows, n, (0.92,)) + math.sqrt(0.35) * white)
    if kind == "drift":
        return np.asarray(white + time_ * rng.normal(size=(rows, 1)))
    if kind == "step":
        return np.asarray(white + (time_ > rng.uniform(0.3, 0.7, (rows, 1))) * rng.normal(size=(rows, 1)))
    if kind == "bursts":  # one request in a hundred starts a stretch of twelve that are 3 sd slower
        starts = rng.random((rows, n + 12)) < 0.01
        slow = np.stack([starts[:, 12 - lag : 12 - lag + n] for lag in range(12)]).any(0)
        return np.asarray(white + 3 * (slow - (1 - 0.99**12)))
    if kind in RECORDED:
        return autoregressive(rng, rows, n, RECORDED[kind][candidate])
    return white


def shuffled(rng: Rng, cases: int, repeats: int) -> intervals.Layout:
    return intervals.layout(np.concatenate([rng.permutation(cases) for _ in range(repeats)]))


def two_runs(rng: Rng, rows: int, lay: intervals.Layout, kind: str, sd: float = 0.1) -> tuple[Floats, Floats, Floats]:
    """Base and candidate without a difference; cases differ in noise. Returns both and the cases' scale."""
    n = len(lay.case)
    scale = sd * np.exp(rng.normal(0, 0.5, len(lay.repeats)))
    base, candidate = (noise(rng, rows, n, kind, side) * scale[lay.case] for side in (False, True))
    return base, candidate, scale


def percent(hits: Any) -> str:
    return f"{100 * float(np.mean(hits)):.1f}"


def table(title: str, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    header = list(header)
    print(f"\n### {title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(str(cell) for cell in row)} |", flush=True)


PAIR_HEADER = "C×R", "noise", "iid", "wider (iid, 5 batches)", "ours (and drift)"


# --- sections: each takes the share of replicates


def pair(share: float) -> None:
    """Statement 1: these requests on these two deployments."""
    rows, rng = int(2000 * share), np.random.default_rng(101)
    lines: list[Line] = []
    for cases, repeats in ((9, 2), (9, 5), (9, 10), (9, 20), (60, 2), (20, 5), (9, 50), (60, 10)):
        for kind in NOISES:
            lay = shuffled(rng, cases, repeats)
            base, candidate, _ = two_runs(rng, rows, lay, kind)
            weights = np.full(cases, 1 / cases)
            error = np.abs(intervals.case_means(lay, candidate - base) @ weights)
            iid = intervals.iid_half_width(lay, weights, base, candidate)
            wider = np.maximum(iid, intervals.batch_half_width(lay, weights, base, candidate))
            ours = wider + intervals.drift_allowance(lay, weights, base, candidate)
            one_look = len(lay.case) / intervals.inflation(lay, candidate - base) >= 30
            enough = len(lay.case) >= estimates.MIN_REQUESTS
            gate = enough & (intervals.effective_requests(lay, base, candidate) >= estimates.MIN_EFFECTIVE)
            lines.append(
                (
                    *(f"{cases}×{repeats}", kind),
                    *(percent(error <= half) for half in (iid, wider, ours)),
                    *(percent(one_look), percent(one_look & (error > wider))),
                    *(percent(gate), percent(gate & (error > ours))),
                    f"{np.median(ours / iid):.2f}",
                )
            )
    table(
        f"This pair: coverage of the overall ratio, % ({rows} replicates, seed 101)",
        [*PAIR_HEADER, "one look prints", "and is wrong", "three looks print", "and is wrong", "width ours / iid"],
        lines,
    )


def family(share: float) -> None:
    """Statement 1 for one of three families, gated by the whole run."""
    rows, rng = int(2000 * share), np.random.default_rng(102)
    lines: list[Line] = []
    for cases, repeats in ((9, 5), (9, 10), (9, 50), (60, 2)):
        for kind in ("none", "AR .3", "AR .6", "slow", "drift", "bursts", "recorded 8"):
            lay = shuffled(rng, cases, repeats)
            base, candidate, _ = two_runs(rng, rows, lay, kind)
            weights = np.where(np.arange(cases) % 3 == 0, 3 / cases, 0.0)
            error = np.abs(intervals.case_means(lay, candidate - base) @ weights)
            half = intervals.pair_half_width(lay, weights, base, candidate)
            gate = intervals.effective_requests(lay, base, candidate) >= estimates.MIN_EFFECTIVE
            own = np.abs(intervals.case_means(lay, candidate - base))
            halves = intervals.case_half_widths(lay, base, candidate)
            lines.append(
                (
                    *(f"{cases}×{repeats}", kind),
                    *(percent(error <= half), percent(gate & (error > half))),
                    *(percent(own <= halves), percent(gate[:, None] & (own > halves))),
                )
            )
    table(
        f"One family of three, and single cases: coverage, % ({rows} replicates, seed 102)",
        ["C×R", "noise", "family covered", "family printed and wrong", "case covered", "case printed and wrong"],
        lines,
    )


EFFECTS: dict[str, Callable[[Rng, tuple[int, ...]], Any]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "t3": lambda rng, shape: rng.standard_t(3, shape) / math.sqrt(3),
    "skewness 2": lambda rng, shape: rng.exponential(1, shape) - 1,
    "one in five gains": lambda rng, shape: (rng.random(shape) < 0.2) * 2.5 - 0.5,
    "lognormal": lambda rng, shape: (rng.lognormal(0, 1, shape) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e),
}


def prompts(share: float) -> None:
    """Statement 2: prompts like these."""
    rows, rng = int(4000 * share), np.random.default_rng(103)
    lines: list[Line] = []
    for cases in (3, 9, 12, 30, 60):
        weights, one = np.full(cases, 1 / cases), np.zeros(cases, dtype=np.int64)
        covered = []
        for draw in EFFECTS.values():
            effects = 0.3 * draw(rng, (rows, cases)) + 0.045 * rng.normal(size=(rows, cases))
            half = intervals.stratified_half_width(effects, weights, one)
            covered.append(percent(np.abs(effects.mean(1)) <= half))
        lines.append((cases, *covered))
    title = f"Shape of case effects: coverage, % ({rows} replicates, seed 103); fewer than 12 cases get no interval"
    table(title, ["cases", *EFFECTS], lines)

    lines = []
    for cases, repeats, d in ((9, 10, 2), (60, 2, 2), (300, 1, 2), (300, 1, 4)):
        weights, one = np.full(cases, 1 / cases), np.zeros(cases, dtype=np.int64)
        for spread in (0.0, 0.01, 0.03, 0.08):
            sides = [
                spread * rng.normal(size=(rows, d, 1)) + 0.1 / math.sqrt(repeats) * rng.normal(size=(rows, d, cases))
                for _ in range(2)
            ]
            effects = (sides[1] - sides[0]).mean(1) + 0.15 * rng.normal(size=(rows, cases))
            case_half = intervals.stratified_half_width(effects, weights, one)
            half = np.hypot(case_half, intervals.deployment_half_width(sides[0].mean(2), sides[1].mean(2))[0])
            error = np.abs(effects.mean(1))
            lines.append((f"{cases}×{repeats}", d, spread, percent(error <= case_half), percent(error <= half)))
    title = f"Prompts and deployments both vary: coverage, % ({rows} replicates, seed 103)"
    table(title, ["C×R", "d", "redeploy noise", "case t alone", "ours"], lines)

    rows, lines = int(600 * share), []
    for cases, repeats in ((300, 1), (60, 2), (20, 5), (12, 10)):
        for kind in ("none", "AR .3", "AR .6", "slow", "drift"):
            alone, ours, printed = _prompts_one_pair(rng, rows, cases, repeats, kind)
            lines.append((f"{cases}×{repeats}", kind, percent(alone), percent(printed), percent(printed & ~ours)))
    title = f"Prompts like these from one pair: coverage of the case t, and ours, % ({rows} replicates, seed 103)"
    table(title, ["C×R", "noise", "case t alone", "ours prints", "and is wrong"], lines)


def _prompts_one_pair(rng: Rng, rows: int, cases: int, repeats: int, kind: str) -> tuple[Any, Any, Any]:
    """Through `estimate` itself, with three families of unlike effects."""
    alone, ours, printed = np.zeros((3, rows), dtype=bool)
    family_ = np.arange(cases) % 3
    for row in range(rows):
        lay = shuffled(rng, cases, repeats)
        base, candidate, _ = two_runs(rng, 1, lay, kind)
        effects = np.array([-0.45, 0.65, 0.45])[family_] + 0.15 * rng.normal(size=cases)
        candidate = candidate + effects[lay.case]
        truth = float(np.mean([-0.45, 0.65, 0.45]))
        runs = estimates.LogTimes(base, candidate, lay.case, family_, ("a", "b", "c"))
        summary = estimates.estimate(runs).overall.prompts
        seen = intervals.case_means(lay, candidate - base)
        half = intervals.stratified_half_width(seen, np.full(cases, 1 / cases), family_)
        alone[row] = abs(seen.mean() - truth) <= half[0]
        if summary.low is not None and summary.high is not None:
            printed[row], ours[row] = True, summary.low <= math.exp(truth) <= summary.high
    return alone, ours, printed


def verdict_power(effect: float, spread: float, deployments: int) -> float:
    """Power of the verdict: two-sided t test at 5% on `deployments` means per mode with standard deviation `spread`
    (logs) when the ratio is 1 + effect; exact, the noncentral t integrated over its chi-square."""
    df = 2 * deployments - 2
    shift = abs(math.log1p(effect)) / (spread * math.sqrt(2 / deployments))
    chi2 = np.linspace(1e-6, df + 12 * math.sqrt(2 * df) + 20, 20_001)
    weight = np.exp((df / 2 - 1) * np.log(chi2) - chi2 / 2)
    limit = intervals.t_quantile(0.975, df) * np.sqrt(chi2 / df)
    normal = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)))
    return float((weight * (normal(shift - limit) + normal(-shift - limit))).sum() / weight.sum())


def verdict(share: float) -> None:
    """Statement 3: faster or slower over deployments."""
    rows, rng = int(20000 * share), np.random.default_rng(104)
    lines: list[Line] = []

    def rejects(base: Floats, candidate: Floats) -> Any:
        return np.abs((candidate - base).mean(1)) > intervals.deployment_half_width(base, candidate)[0]

    for d in (2, 3, 4):
        for within in (0.005, 0.04):
            cells = []
            for spread in (0.0, 0.01, 0.02, 0.03, 0.05, 0.08):
                sides = [math.hypot(spread, within) * rng.normal(size=(rows, d)) for _ in range(2)]
                cells.append(percent(rejects(*sides)))
            lines.append((d, within, *cells))
    title = f"False faster or slower, %, no effect ({rows} replicates, seed 104), by redeploy noise"
    table(title, ["d", "within-run s.e.", "0", "1%", "2%", "3%", "5%", "8%"], lines)

    lines = []
    for s in (0.01, 0.03, 0.08):
        for d in (2, 3, 4, 6):
            exact = [percent(verdict_power(e, s, d)) for e in (0.05, 0.1, 0.2)]
            effect = next(e / 1000 for e in range(1, 3000) if verdict_power(e / 1000, s, d) >= 0.8)
            sides = [s * rng.normal(size=(rows, d)) for _ in range(2)]
            lines.append((s, d, *exact, percent(rejects(sides[0], sides[1] + math.log(1.1))), f"{100 * effect:.1f}"))
    title = f"Power, %: exact, and simulated at 10% ({rows} replicates, seed 104)"
    table(title, ["s", "d", "5%", "10%", "20%", "10% simulated", "effect for 80%, %"], lines)

    lines = []
    for d in (2, 3, 4):
        orders = {"AABB": "A" * d + "B" * d, "ABAB": "AB" * d, "ABBA": ("ABBA" * d)[: 2 * d]}
        cells = []
        for order in orders.values():
            drift = 0.03 * np.arange(2 * d)
            places = [np.array([i for i, side in enumerate(order) if side == name]) for name in "AB"]
            cells.append(percent(rejects(*(drift[p] + 0.03 * rng.normal(size=(rows, d)) for p in places))))
        wide = [0.03 * k * rng.normal(size=(rows, d)) for k in (1, 3)]
        heavy = [0.03 * rng.standard_t(3, (rows, d)) / math.sqrt(3) for _ in range(2)]
        two = [0.03 * ((rng.random((rows, d)) < 0.2) * 2.5 - 0.5) + 0.005 * rng.normal(size=(rows, d)) for _ in "ab"]
        lines.append((d, *cells, *(percent(rejects(*sides)) for sides in (wide, heavy, two))))
    title = f"When its assumptions fail: false, % ({rows} replicates, seed 104)"
    header = ["d", "drift 3% a deployment, AABB", "ABAB", "ABBA", "candidate spread ×3", "t3", "two-point 80/20"]
    table(title, header, lines)


def planning(share: float) -> None:
    """How many deployments to plan from the redeploy spread of a first experiment with d per mode."""
    rows, rng = int(4000 * share), np.random.default_rng(109)
    lines: list[Line] = []
    for d in (2, 3, 4):
        df = 2 * d - 2
        seen = 0.03 * np.sqrt(rng.chisquare(df, rows) / df)
        low = [intervals.deployments_needed(float(s), 0.1) for s in seen]
        high = [intervals.deployments_needed(intervals.spread_limit(float(s), df), 0.1) for s in seen]
        cells = ["–".join(f"{q:.0f}" for q in np.percentile(plan, [10, 90])) for plan in (low, high)]
        need = intervals.deployments_needed(0.03, 0.1)
        lines.append((d, need, *cells, percent(np.less_equal(low, need) & np.less_equal(need, high))))
    table(
        f"Deployments planned for a 10% effect, true redeploy noise 3% ({rows} replicates, seed 109)",
        ["d of the first", "truly needed", "low end, 10–90%", "high end, 10–90%", "range holds the truth, %"],
        lines,
    )


def end_to_end(share: float) -> None:
    """A/A through `estimate`: every word, all cells of a family table."""
    rows, rng = int(500 * share), np.random.default_rng(105)
    lines: list[Line] = []
    cases, repeats, family_ = 9, 10, np.arange(9) % 3
    for d in (1, 2, 3):
        for kind in ("none", "slow"):
            for spread in (0.0, 0.03, 0.08):
                words = np.zeros((rows, 4), dtype=bool)
                for row in range(rows):
                    lay = shuffled(rng, cases, repeats)
                    base, candidate, _ = two_runs(rng, d, lay, kind)
                    base, candidate = (y + spread * rng.normal(size=(d, 1)) for y in (base, candidate))
                    order = tuple({"A": "base", "B": "candidate"}[x] for x in ("ABBA" * d)[: 2 * d])
                    runs = estimates.LogTimes(base, candidate, lay.case, family_, ("a", "b", "c"), order)
                    result = estimates.estimate(runs)
                    words[row] = [
                        line.verdict.startswith((estimates.FASTER, estimates.SLOWER))
                        for line in (result.overall, *result.families)
                    ]
                lines.append((d, kind, spread, percent(words[:, 0]), percent(words[:, 1:]), percent(words.any(1))))
    table(
        f"Nine cases × ten repeats through estimate(), no effect: false words, % ({rows} replicates, seed 105)",
        ["d", "noise", "redeploy noise", "overall", "one family", "any of the four"],
        lines,
    )


MIX = (1.0,), (1.0,), (1.0,), (1.0,), (1.0,), (0.9, 0.1), (0.9, 0.1), (0.6, 0.2, 0.1, 0.1), (0.2,) * 5


def _changed(chances: tuple[float, ...], how: str) -> tuple[float, ...]:
    new = {"null": 0.0, "20% new": 0.2, "wholly new": 1.0}[how]
    return (*(c * (1 - new) for c in chances), new)


def _outputs(rng: Rng, chances: tuple[float, ...], deployments: int, repeats: int, around: float) -> list[list[int]]:
    """Outputs of one side; `around` is the Dirichlet concentration of a deployment's own chances (inf: the same)."""
    sides = []
    for _ in range(deployments):
        own = np.asarray(chances) if math.isinf(around) else rng.dirichlet(around * np.asarray(chances) + 1e-9)
        sides.append(rng.choice(len(own), size=repeats, p=own / own.sum()).tolist())
    return sides


def judged_outputs(
    rng: Rng, d: int, repeats: int, how: str, only: int | None = None, around: float = math.inf
) -> equality.Equality:
    cases = []
    for i, chances in enumerate(MIX):
        shift = _changed(chances, how if only is None or only == i else "null")
        base = _outputs(rng, (*chances, 0.0), d, repeats, around)
        cases.append(equality.compare_outputs(str(i), base, _outputs(rng, shift, d, repeats, around)))
    return equality.judge_cases(cases)


def outputs(share: float) -> None:
    """Equality: nine cases, five always alike, four varying."""
    rows, rng = int(250 * share), np.random.default_rng(106)
    lines: list[Line] = []
    for d, repeats in ((1, 2), (1, 3), (1, 5), (1, 10), (2, 5), (2, 10)):
        for how, only in (("null", None), ("20% new", None), ("wholly new", None), ("wholly new", 0)):
            judged = [judged_outputs(rng, d, repeats, how, only) for _ in range(rows)]
            case = [any(c.verdict == equality.DIFFERENT for c in j.cases) for j in judged]
            both = [j.combined_p is not None and j.combined_p <= 0.025 for j in judged]
            word = [j.verdict == equality.DIFFERENT for j in judged]
            passes = [j.verdict in (equality.IDENTICAL, equality.WITHIN) for j in judged]
            where = how if only is None else "one fixed case wholly new"
            lines.append((d, repeats, where, percent(case), percent(both), percent(word), percent(passes)))
    table(
        f"Equality, %, either test at 2.5% ({rows} replicates, seed 106)",
        ["d", "R", "candidate", "a case is different", "combined rejects", "verdict different", "floor accepts"],
        lines,
    )


def outputs_by_deployment(share: float) -> None:
    """Equality where every deployment has chances of its own."""
    rows, rng = int(200 * share), np.random.default_rng(107)
    lines: list[Line] = []
    for around in (1000.0, 30.0, 10.0, 3.0):
        for d in (1, 2, 3):
            judged = [judged_outputs(rng, d, 10, "null", around=around) for _ in range(rows)]
            word = [j.verdict == equality.DIFFERENT for j in judged]
            base = [j.verdict == equality.BASE_DIFFERS for j in judged]
            lines.append((around, d, percent(word), percent(base)))
    table(
        f"Outputs that depend on the deployment, both sides alike, R = 10, % ({rows} replicates, seed 107)",
        ["Dirichlet concentration", "d", "verdict different (false)", "the baseline differs from itself"],
        lines,
    )


def outputs_one_repeat(share: float) -> None:
    """Equality of many cases with one repeat: the floor comes from the second deployment."""
    rows, rng = int(100 * share), np.random.default_rng(108)
    lines: list[Line] = []
    for floor in (0.05, 0.2):
        for new in (0.0, 0.05, 0.1, 0.3):
            judged = [judged_one_repeat(rng, 300, floor, new) for _ in range(rows)]
            words = [j.verdict for j in judged]
            lines.append(
                (floor, new, *(percent([w == x for w in words]) for x in (equality.DIFFERENT, equality.WITHIN)))
            )
    table(
        f"300 cases × 1 repeat, two deployments a side, % ({rows} replicates, seed 108)",
        ["cases that vary (half of the time)", "cases with a new output", "different", "within"],
        lines,
    )


def judged_one_repeat(rng: Rng, cases: int, floor: float, new: float) -> equality.Equality:
    varies, changed = rng.random(cases) < floor, rng.random(cases) < new
    drawn = (rng.random((cases, 4)) < 0.5) & varies[:, None]
    compared = []
    for i in range(cases):
        base = [[int(x)] for x in drawn[i, :2]]
        compared.append(equality.compare_outputs(str(i), base, [[2] if changed[i] else [int(x)] for x in drawn[i, 2:]]))
    return equality.judge_cases(compared)


SECTIONS: dict[str, Callable[[float], None]] = {
    "pair": pair,
    "family": family,
    "prompts": prompts,
    "verdict": verdict,
    "planning": planning,
    "end-to-end": end_to_end,
    "outputs": outputs,
    "outputs-by-deployment": outputs_by_deployment,
    "outputs-one-repeat": outputs_one_repeat,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="a tenth of the replicates")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.sections) - set(SECTIONS))
    if unknown:
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    for name in arguments.sections or SECTIONS:
        began = time.monotonic()
        SECTIONS[name](0.1 if arguments.quick else 1.0)
        print(f"\n{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
