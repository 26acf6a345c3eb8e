"""Does the statistics of compare.py keep its promises? Seeded simulations with known truth, held against bars.

    python benchmarks/calibration.py                    # the full grid: the tables of docs/statistics.md
    python benchmarks/calibration.py --quick            # a tenth of the replicates
    python benchmarks/calibration.py verdicts outputs   # only these sections

Times come from a closed loop that is simulated step by step (benchmarks/closed_loop.py), outputs from the counts that
an H200 gave. Every section calls the functions that compare.py uses, prints a table in Markdown and names its seed and
replicates. The exit code is 1 when a bar does not hold.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.closed_loop import CASES, FAMILY, Runs, experiments, true_effects
from specbench.comparison import equality, intervals
from specbench.comparison.format import Likeness
from specbench.comparison.intervals import Earlier

Floats = npt.NDArray[np.float64]
Rng = np.random.Generator
OVERALL = np.full(CASES, 1 / CASES)
BY_FAMILY = [np.where(number == FAMILY, 1 / np.sum(number == FAMILY), 0.0) for number in range(3)]


class Judged(NamedTuple):
    """[replicates]: the effect, its half width by Student's t alone and as printed, the spread, the noise's share."""

    effect: Floats
    student: Floats
    half: Floats
    spread: Floats
    share: Floats

    @property
    def sign(self) -> Floats:
        """-1 faster, 1 slower, 0 no clear difference."""
        return np.asarray(np.where(np.abs(self.effect) > self.half, np.sign(self.effect), 0))


def judge(runs: Runs, weights: Floats, earlier: Earlier | None = None) -> Judged:
    """The interval over deployments of every replicate, by the functions that compare.py calls."""
    base, candidate = (intervals.case_means(side) @ weights for side in (runs.base, runs.candidate))
    deployments = base.shape[-1]
    spread = intervals.deployment_spread(base, candidate)
    student = intervals.deployment_half_width(spread, deployments, earlier)
    half = np.maximum(student, intervals.least_half_width(*runs, weights))
    share = intervals.noise_share(*runs, weights, spread)
    assert share is not None, "repeats are what these experiments are made of"
    return Judged((candidate - base).mean(-1), student, half, spread, share)


def called(runs: Runs, earlier: Earlier | None = None) -> Any:
    """[replicates] whether the verdict is faster, slower or depends, as specbench/comparison/verdict.py concludes."""
    whole = judge(runs, OVERALL, earlier).sign
    families = np.stack([judge(runs, weights, earlier).sign for weights in BY_FAMILY])
    return (whole != 0) | ((families == 1).any(0) & (families == -1).any(0))


def narrowest_covered(errors: Iterable[Floats], halves: Iterable[Floats]) -> float:
    """Coverage of the narrowest tenth of all these intervals."""
    error, half = np.concatenate(list(errors)), np.concatenate(list(halves))
    tenth = np.argsort(half)[: max(1, len(half) // 10)]
    return float((error[tenth] <= half[tenth]).mean())


def percent(hits: Any) -> str:
    return f"{100 * float(np.mean(hits)):.1f}"


def table(title: str, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    header = list(header)
    print(f"\n### {title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(str(cell) for cell in row)} |", flush=True)


class Bars:
    """What must hold, within three standard deviations of what so many replicates estimate."""

    def __init__(self) -> None:
        self.failed = 0

    def hold(self, what: str, value: float, bar: float, count: int, *, least: bool = False) -> None:
        """`value` must be at most `bar`, or at least with `least`; both are shares, `count` replicates long."""
        room = 3 * math.sqrt(bar * (1 - bar) / count)
        held = value >= bar - room if least else value <= bar + room
        self.failed += not held
        sign = "≥" if least else "≤"
        print(f"{'holds' if held else 'FAILS'}: {what}: {value:.1%}, bar {sign} {bar:.1%} (± {room:.1%})", flush=True)


# ---- sections: each takes the share of replicates


def verdicts(share: float, bars: Bars) -> None:
    """No effect: false words, lucky widths; and ngram's effect: coverage of the truth."""
    rows, rng = int(8000 * share), np.random.default_rng(201)
    lines: list[tuple[object, ...]] = []
    kept: dict[int, list[Judged]] = {}
    worst = 0.0
    for users in (1, 4, 8):
        for repeats in (2, 10):
            for deployments in (2, 3, 4):
                for spread in (0.01, 0.03, 0.08):
                    shape = {"deployments": deployments, "users": users, "repeats": repeats, "spread": spread}
                    runs = experiments(rng, rows, **shape)
                    one = judge(runs, OVERALL)
                    error, words = np.abs(one.effect), called(runs)
                    worst = max(worst, float(words.mean()))
                    kept.setdefault(deployments, []).append(one)
                    lines.append(
                        (
                            *(users, repeats, deployments, f"{spread:.0%}"),
                            *(percent(error > one.student), percent(words)),
                            *(f"{100 * narrowest_covered([error], [half]):.0f}" for half in (one.student, one.half)),
                            *(f"{100 * np.median(half):.1f}" for half in (one.student, one.half)),
                            f"{100 * np.median(one.share):.0f}",
                        )
                    )
    head = ["users", "R", "d", "spread", "t false", "words false", "narrowest tenth: t", "as printed"]
    head += ["median ±%: t", "as printed", "noise share"]
    table(f"No effect, % ({rows} replicates, seed 201)", head, lines)
    bars.hold("false words at d >= 2, worst cell", worst, 0.055, rows)
    for deployments, judged in kept.items():
        covered = narrowest_covered([np.abs(one.effect) for one in judged], [one.half for one in judged])
        count = rows * len(judged) // 10
        bars.hold(f"narrowest tenth of what is printed, d = {deployments}", covered, 0.88, count, least=True)

    lines = []
    for users in (1, 8):
        truth = true_effects(rng, users, 10) @ OVERALL
        for deployments in (2, 4):
            for spread in (0.01, 0.03, 0.08):
                shape = {"deployments": deployments, "users": users, "repeats": 10, "spread": spread}
                one = judge(experiments(rng, rows, **shape, ngram=True), OVERALL)
                lines.append((users, deployments, f"{spread:.0%}", percent(np.abs(one.effect - truth) <= one.half)))
    title = f"ngram's effect: coverage of the truth, % ({rows} replicates, seed 201)"
    table(title, ["users", "d", "spread", "overall"], lines)


def families(share: float, bars: Bars) -> None:
    """The truth over orders of requests: one schedule for all, and one for every pair."""
    rows, rng = int(2000 * share), np.random.default_rng(202)
    lines: list[tuple[object, ...]] = []
    for users in (1, 8):
        truth = true_effects(rng, users, 10)
        for deployments in (2, 4):
            cells = []
            for own in (False, True):
                shape = {"deployments": deployments, "users": users, "repeats": 10, "spread": 0.01}
                runs = experiments(rng, rows, **shape, ngram=True, own_schedules=own)
                judged = [judge(runs, weights) for weights in BY_FAMILY]
                covers = [
                    np.abs(one.effect - truth @ weights) <= one.half
                    for one, weights in zip(judged, BY_FAMILY, strict=True)
                ]
                students = [
                    np.abs(one.effect - truth @ weights) <= one.student
                    for one, weights in zip(judged, BY_FAMILY, strict=True)
                ]
                cells += [percent(students), percent(covers)]
                if own:
                    what = f"families, a schedule per pair, {users} users, d = {deployments}"
                    bars.hold(what, float(np.mean(covers)), 0.93, 3 * rows, least=True)
            lines.append((users, deployments, *cells))
    head = ["users", "d", "one schedule: t", "as printed", "a schedule per pair: t", "as printed"]
    table(f"Families at a spread of 1%: coverage, % ({rows} replicates, seed 202)", head, lines)


EFFECTS: dict[str, Callable[[Rng, tuple[int, ...]], Any]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "t3": lambda rng, shape: rng.standard_t(3, shape) / math.sqrt(3),
    "skewness 2": lambda rng, shape: rng.exponential(1, shape) - 1,
    "one in five gains": lambda rng, shape: (rng.random(shape) < 0.2) * 2.5 - 0.5,
    "lognormal": lambda rng, shape: (rng.lognormal(0, 1, shape) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e),
}


def prompts(share: float, bars: Bars) -> None:
    """Prompts like these."""
    rows, rng = int(4000 * share), np.random.default_rng(203)
    lines: list[tuple[object, ...]] = []
    for cases in (3, 9, 12, 30, 60):
        weights, one = np.full(cases, 1 / cases), np.zeros(cases, dtype=np.int64)
        covered = []
        for draw in EFFECTS.values():
            effects = 0.3 * draw(rng, (rows, cases)) + 0.045 * rng.normal(size=(rows, cases))
            half = intervals.stratified_half_width(effects, weights, one)
            covered.append(percent(np.abs(effects.mean(1)) <= half))
        lines.append((cases, *covered))
    title = f"Shape of case effects: coverage, % ({rows} replicates, seed 203); fewer than 12 cases get no interval"
    table(title, ["cases", *EFFECTS], lines)
    lines = []
    for cases, repeats, deployments in ((60, 2, 2), (60, 2, 4), (300, 1, 2), (300, 1, 4)):
        weights, one = np.full(cases, 1 / cases), np.zeros(cases, dtype=np.int64)
        for spread in (0.0, 0.01, 0.03, 0.08):
            sides = [
                spread * rng.normal(size=(rows, deployments, 1))
                + 0.1 / math.sqrt(repeats) * rng.normal(size=(rows, deployments, cases))
                for _ in range(2)
            ]
            effects = (sides[1] - sides[0]).mean(1) + 0.15 * rng.normal(size=(rows, cases))
            case_half = intervals.stratified_half_width(effects, weights, one)
            seen = intervals.deployment_spread(sides[0].mean(2), sides[1].mean(2))
            half = np.hypot(case_half, intervals.deployment_half_width(seen, deployments))
            error = np.abs(effects.mean(1))
            covers = float((error <= half).mean())
            shape = f"{cases}×{repeats}", deployments, f"{spread:.0%}"
            bars.hold("prompts like these, {}, d = {}, {}".format(*shape), covers, 0.92, rows, least=True)
            lines.append((*shape, percent(error <= case_half), percent(covers)))
    title = f"Prompts and deployments both vary: coverage, % ({rows} replicates, seed 203)"
    table(title, ["C×R", "d", "spread", "case t alone", "as printed"], lines)


def verdict_power(effect: float, spread: float, deployments: int, extra_df: int = 0) -> float:
    """Power of the verdict: two-sided t test at 5% on `deployments` means per mode with standard deviation `spread`
    (logs) when the ratio is 1 + effect; exact, the noncentral t integrated over its chi-square."""
    df = 2 * deployments - 2 + extra_df
    shift = abs(math.log1p(effect)) / (spread * math.sqrt(2 / deployments))
    chi2 = np.linspace(1e-6, df + 12 * math.sqrt(2 * df) + 20, 20_001)
    weight = np.exp((df / 2 - 1) * np.log(chi2) - chi2 / 2)
    limit = intervals.t_quantile(0.975, df) * np.sqrt(chi2 / df)
    normal = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)))
    return float((weight * (normal(shift - limit) + normal(-shift - limit))).sum() / weight.sum())


def least_found(spread: float, deployments: int, extra_df: int = 0) -> float:
    """The least effect that is found with 80% power, to a tenth of a percent."""
    effects = (effect / 1000 for effect in range(1, 3000))
    return next(effect for effect in effects if verdict_power(effect, spread, deployments, extra_df) >= 0.8)


def power(share: float, bars: Bars) -> None:
    """What is found, what is overstated, and what two kinds of node do."""
    rows, rng = int(20000 * share), np.random.default_rng(204)
    lines: list[tuple[object, ...]] = []
    for spread in (0.01, 0.03, 0.08):
        for d in (2, 3, 4, 6):
            exact = [percent(verdict_power(effect, spread, d)) for effect in (0.05, 0.1, 0.2)]
            lines.append((f"{spread:.0%}", d, *exact, percent(least_found(spread, d))))
    table("Power, %: exact", ["spread", "d", "5%", "10%", "20%", "effect for 80%, %"], lines)

    lines = []
    for d in (2, 3, 4):
        cells = []
        for effect in (0.05, 0.1):
            base, candidate = (0.03 * rng.normal(size=(rows, d)) for _ in range(2))
            seen = (candidate - base).mean(1) + math.log1p(effect)
            half = intervals.deployment_half_width(intervals.deployment_spread(base, candidate), d)
            found = seen[np.abs(seen) > half]
            cells += [percent(len(found) / rows), f"{np.mean(np.abs(found)) / math.log1p(effect):.2f}"]
        slow = [0.01 * rng.normal(size=(rows, d)) + math.log(1.1) * (rng.random((rows, d)) < 0.5) for _ in range(2)]
        half = intervals.deployment_half_width(intervals.deployment_spread(*slow), d)
        lines.append((d, *cells, percent(np.abs((slow[1] - slow[0]).mean(1)) > half)))
    head = ["d", "5%: found, %", "overstated", "10%: found, %", "overstated", "two kinds of node 1.1 apart: false, %"]
    table(f"At a spread of 3%, what is called is overstated ({rows} replicates, seed 204)", head, lines)


def earlier(share: float, bars: Bars) -> None:
    """--spread-from: six degrees of freedom of an experiment whose spread is another."""
    rows, rng = int(4000 * share), np.random.default_rng(205)
    lines: list[tuple[object, ...]] = []
    for differs in (0.0, 0.3, 0.6):
        for d in (2, 3):
            cells = []
            for users in (1, 8):
                # The log of the ratio of both spreads has this standard deviation.
                now, then = (0.03 * np.exp(differs * rng.normal(size=rows) / math.sqrt(2)) for _ in range(2))
                before = judge(experiments(rng, rows, deployments=4, users=users, repeats=10, spread=then), OVERALL)
                runs = experiments(rng, rows, deployments=d, users=users, repeats=10, spread=now)
                one = judge(runs, OVERALL, Earlier(before.spread**2, 6))
                false = float((one.sign != 0).mean())
                bars.hold(f"--spread-from, spreads differ by {differs:.0%}, d = {d}, {users} users", false, 0.07, rows)
                cells += [percent(np.abs(one.effect) > one.student), percent(false)]
            lines.append((f"{differs:.0%}", d, *cells))
    title = f"--spread-from, four deployments of each mode earlier: false words, % ({rows} replicates, seed 205)"
    head = ["spreads differ by", "d", "1 user: t alone", "as printed", "8 users: t alone", "as printed"]
    table(title, head, lines)
    lines = [(d, *(percent(least_found(0.03, d, extra)) for extra in (0, 6, 12))) for d in (2, 3, 4)]
    table("Least effect found with 80% power at a spread of 3%, %", ["d", "alone", "6 df more", "12 df more"], lines)


# Shares of distinct outputs of nine cases, as four H200 deployments gave them at 4 and 8 users: three vary.
MIX = ((1.0,),) * 6 + ((0.9, 0.1), (0.78, 0.12, 0.08, 0.02), (0.6, 0.33, 0.07))


def drawn(rng: Rng, shares: tuple[float, ...], deployments: int, repeats: int, around: float) -> list[list[int]]:
    """Outputs of one side; `around` is the Dirichlet concentration of a deployment's own shares (inf: the same)."""
    sides = []
    for _ in range(deployments):
        own = np.asarray(shares) if math.isinf(around) else rng.dirichlet(around * np.asarray(shares) + 1e-9)
        sides.append(rng.choice(len(own), size=repeats, p=own / own.sum()).tolist())
    return sides


def judged_outputs(
    rng: Rng, d: int, repeats: int, new: float = 0.0, only: int | None = None, around: float = math.inf
) -> equality.Judged:
    """`new`: the share of a case's requests that the candidate answers otherwise, in one case (`only`) or in all."""
    cases = []
    for number, shares in enumerate(MIX):
        share = new if only is None or only == number else 0.0
        base = drawn(rng, (*shares, 0.0), d, repeats, around)
        candidate = drawn(rng, (*(chance * (1 - share) for chance in shares), share), d, repeats, around)
        cases.append(equality.compare_outputs(str(number), base, candidate))
    return equality.judge_cases(cases)


REFUSED = Likeness.CHANGED, Likeness.CANNOT_TELL
CHANGES: dict[str, tuple[float, int | None]] = {
    "nothing": (0.0, None),
    "half of one fixed case": (0.5, 0),
    "a fifth of one fixed case": (0.2, 0),
    "one fixed case wholly": (1.0, 0),
    "a fifth of every case": (0.2, None),
}


def outputs(share: float, bars: Bars) -> None:
    """Outputs of nine cases, three of them varying: what is refused of an unchanged candidate, what is found."""
    rows, rng = int(600 * share), np.random.default_rng(206)
    lines: list[tuple[object, ...]] = []
    for d, repeats in ((1, 2), (1, 10), (2, 2), (2, 5), (2, 10), (2, 40), (4, 10)):
        for what, (new, only) in CHANGES.items():
            if repeats == 40 and new not in (0.0, 0.2):
                continue
            words = [judged_outputs(rng, d, repeats, new, only).verdict for _ in range(rows)]
            changed, unknown = (float(np.mean([word is one for word in words])) for one in REFUSED)
            lines.append((d, repeats, what, percent(changed), percent(unknown)))
            if repeats == 10 and d > 1 and what == "nothing":
                bars.hold(f"unchanged and refused, d = {d}, R = 10", changed + unknown, 0.15 if d == 2 else 0.08, rows)
            if (d, repeats, what) == (2, 10, "half of one fixed case"):
                bars.hold("half of one fixed case changed is found, d = 2, R = 10", changed, 0.9, rows, least=True)
    title = f"Nine cases, three of which vary: words, % ({rows} replicates, seed 206)"
    table(title, ["d", "R", "the candidate changes", "changed", "cannot tell"], lines)

    lines = []
    for around in (1000.0, 30.0, 10.0, 3.0):
        for d in (1, 2, 3):
            words = [judged_outputs(rng, d, 10, around=around).verdict for _ in range(rows // 3)]
            lines.append((around, d, percent([word is Likeness.CHANGED for word in words])))
    title = f"Outputs that depend on the deployment, R = 10: falsely changed, % ({rows // 3} replicates, seed 206)"
    table(title, ["Dirichlet concentration", "d", "changed"], lines)


def judged_one_repeat(rng: Rng, cases: int, floor: float, new: float) -> equality.Judged:
    """Many cases once, two deployments a side: `floor` of the cases vary half the time, `new` of them have changed."""
    varies, changed = rng.random(cases) < floor, rng.random(cases) < new
    answers = (rng.random((cases, 4)) < 0.5) & varies[:, None]
    compared = []
    for number in range(cases):
        base = [[int(x)] for x in answers[number, :2]]
        candidate = [[2] if changed[number] else [int(x)] for x in answers[number, 2:]]
        compared.append(equality.compare_outputs(str(number), base, candidate))
    return equality.judge_cases(compared)


def outputs_one_repeat(share: float, bars: Bars) -> None:
    """Many cases with one repeat: the floor comes from the second deployment."""
    rows, rng = int(200 * share), np.random.default_rng(207)
    lines: list[tuple[object, ...]] = []
    for floor in (0.05, 0.2):
        for new in (0.0, 0.05, 0.1, 0.3):
            words = [judged_one_repeat(rng, 300, floor, new).verdict for _ in range(rows)]
            shares = [np.mean([word is one for word in words]) for one in REFUSED]
            lines.append((floor, new, *map(percent, shares)))
    title = f"300 cases × 1 repeat, two deployments a side, % ({rows} replicates, seed 207)"
    table(title, ["cases that vary (half of the time)", "cases with a new output", "changed", "cannot tell"], lines)


SECTIONS: dict[str, Callable[[float, Bars], None]] = {
    "verdicts": verdicts,
    "families": families,
    "prompts": prompts,
    "power": power,
    "spread-from": earlier,
    "outputs": outputs,
    "outputs-one-repeat": outputs_one_repeat,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="a tenth of the replicates")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.sections) - set(SECTIONS))
    if unknown:
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    share = 0.1 if arguments.quick else 1.0
    bars = Bars()
    for name in arguments.sections or SECTIONS:
        began = time.monotonic()
        SECTIONS[name](share, bars)
        print(f"\n{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return int(bars.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
