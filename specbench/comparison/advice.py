"""What would sharpen a result, and which way is cheaper on this server: more deployments, or more repeats."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from specbench.comparison.format import Advice
from specbench.comparison.intervals import MOST_DEPLOYMENTS, deployments_needed, least_effect, spread_limit
from specbench.comparison.sides import Run
from specbench.record.format import moment
from specbench.words import count

TARGET = 0.1  # the effect that is planned for: 10%
_MOST_REPEATS = 2_000  # beyond this a plan is no plan


@dataclass(frozen=True, slots=True)
class Plan:
    """What these deployments took (s): from the server's start to the run's (0 where the server does not say), and the
    run itself."""

    start_s: float
    run_s: float


def plan_of(runs: Sequence[Run]) -> Plan | None:
    """The times of these runs; None where a run does not say when it ended."""
    spans, starts = [], []
    for run in runs:
        if run.manifest.ended is None:
            return None
        spans.append((moment(run.manifest.ended) - run.started).total_seconds())
        if run.manifest.server.process_start_time is not None:
            starts.append(run.started.timestamp() - run.manifest.server.process_start_time)
    return Plan(max(0.0, median(starts)) if starts else 0.0, max(0.0, mean(spans)))


def advise(plan: Plan, spread: float, noise_share: float | None, pairs: int, repeats: int) -> Advice | None:
    """How to find TARGET with 80% power; None where what was measured already would.

    Args:
        spread: standard deviation of a deployment's mean log.
        noise_share: the share of its square that more repeats would shrink.
        pairs: deployments of each mode.
        repeats: of a run.
    """
    goal = math.log1p(TARGET)
    if not spread or float(least_effect(spread, pairs)) <= goal:
        return None
    needed = deployments_needed(spread, TARGET)
    most = deployments_needed(spread_limit(spread, 2 * pairs - 2), TARGET)
    more_minutes = 2 * (needed - pairs) * (plan.start_s + plan.run_s) / 60
    enough = _repeats_needed(goal, spread, noise_share or 0.0, pairs, repeats)
    again_minutes = None if enough is None else 2 * pairs * (plan.start_s + plan.run_s * enough / repeats) / 60
    cheaper = again_minutes is None or more_minutes <= again_minutes
    number = f"{MOST_DEPLOYMENTS} or more" if needed == MOST_DEPLOYMENTS else str(needed)
    by_deployments = (
        f"{number} deployments of each mode in all ({needed - pairs} more of each, {_minutes(more_minutes)} of this "
        f"server; {most} in all if the spread is underestimated)"
    )
    if enough is None or again_minutes is None:
        by_repeats = "no number of repeats would do"
    else:
        by_repeats = f"--repeats {enough} on {count(pairs, 'new deployment')} of each mode ({_minutes(again_minutes)})"
    ways = (by_deployments, by_repeats) if cheaper else (by_repeats, by_deployments)
    return Advice(
        cheaper="deployments" if cheaper else "repeats",
        deployments=needed,
        most_deployments=most,
        deployments_minutes=more_minutes,
        repeats=enough,
        repeats_minutes=again_minutes,
        sentence=f"To find {TARGET:.0%} with 80% power, the cheaper way is {ways[0]}; the other: {ways[1]}",
    )


def _repeats_needed(goal: float, spread: float, noise_share: float, pairs: int, repeats: int) -> int | None:
    """Repeats that bring the spread down to what finds `goal`; only the share that is noise within the runs shrinks."""
    allowed = (goal / float(least_effect(1.0, pairs))) ** 2
    left = allowed - (1 - noise_share) * spread**2
    if left <= 0:
        return None
    enough = math.ceil(repeats * noise_share * spread**2 / left)
    return max(enough, repeats + 1) if enough <= _MOST_REPEATS else None


def _minutes(minutes: float) -> str:
    return f"about {count(max(1, round(minutes)), 'minute')}"
