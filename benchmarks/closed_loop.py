"""A closed loop that is simulated step by step: where the times of benchmarks/calibration.py come from.

A server decodes for all users at once. Each step gives every running answer its next tokens, and takes longer the more
answers run and the longer their texts are; a request that comes in holds up everybody for its prefill. A user sends the
next request of the schedule when the last one is answered. ngram takes fewer and dearer steps. Every deployment has a
speed of its own, and within a run there are slow spells, a drift and stalls. Nothing of this is known to the methods
that are tested.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FAMILY = np.repeat(np.arange(3), 3)  # copy, explain, short: three cases each
TOKENS = np.array([60, 90, 90, 128, 128, 128, 8, 12, 20])
TOKENS_A_STEP = np.array([4.5, 3.5, 1.6, 1.15, 1.1, 1.1, 1.0, 1.0, 1.05])  # of ngram
WEIGHT = np.array([2.5, 2.0, 1.5, 0.6, 0.6, 0.6, 0.4, 0.4, 0.4])  # what a running answer adds to a step, by case
PREFILL_S = np.array([0.02, 0.016, 0.012, 0.005, 0.005, 0.005, 0.004, 0.004, 0.004])
CASES = len(TOKENS)


class Noise(NamedTuple):
    """Within a run, in logs: of every stretch between two answers; slow spells, with their correlation from answer to
    answer; the drift from start to end. `stalls`: the share of answers that one of 150 ms on average delays."""

    white: float = 0.03
    slow: float = 0.015
    correlation: float = 0.9
    drift: float = 0.01
    stalls: float = 0.003


class Runs(NamedTuple):
    """ln(E2EL) of both sides and each request's position in the schedule, [replicates, deployments, cases, repeats]."""

    base: Floats
    candidate: Floats
    position: Ints


def experiments(
    rng: np.random.Generator,
    rows: int,
    *,
    deployments: int,
    users: int,
    repeats: int,
    spread: float | Floats,
    ngram: bool = False,
    own_schedules: bool = True,
    noise: Noise | None = None,
) -> Runs:
    """`rows` experiments of `deployments` pairs. `spread`: standard deviation of a deployment's own speed in logs,
    one or [rows]; `own_schedules`: an order of requests for every pair, else one for all. Without `ngram` both sides
    are alike."""
    shared = _schedules(rng, rows, repeats)
    sides: tuple[list[Floats], list[Floats]] = ([], [])
    positions = []
    for _ in range(deployments):
        schedule = _schedules(rng, rows, repeats) if own_schedules else shared
        order = np.argsort(schedule, axis=1, kind="stable")
        for side in (0, 1):
            speed = spread * rng.normal(size=rows)
            times = _closed_loop(rng, schedule, users, ngram and side == 1, np.exp(speed), noise or Noise())
            sides[side].append(np.log(np.take_along_axis(times, order, 1)).reshape(rows, CASES, repeats))
        positions.append(order.reshape(rows, CASES, repeats))
    return Runs(np.stack(sides[0], 1), np.stack(sides[1], 1), np.stack(positions, 1))


def true_effects(rng: np.random.Generator, users: int, repeats: int) -> Floats:
    """[cases] what ngram changes in ln(E2EL), over deployments and orders of requests."""
    runs = experiments(rng, 4000, deployments=1, users=users, repeats=repeats, spread=0.0, ngram=True)
    return np.asarray((runs.candidate - runs.base).mean(axis=(0, 1, 3)))


def _schedules(rng: np.random.Generator, rows: int, repeats: int) -> Ints:
    """[rows, cases × repeats] case numbers, shuffled inside each repeat."""
    every = np.tile(np.arange(CASES), (rows, 1))
    return np.concatenate([rng.permuted(every, axis=1) for _ in range(repeats)], axis=1)


def _closed_loop(
    rng: np.random.Generator, schedule: Ints, users: int, ngram: bool, factor: Floats, noise: Noise
) -> Floats:
    """E2EL (s) by position in the schedule, [rows, n]; from one answer's end to the next the batch does not change."""
    rows, n = schedule.shape
    steps_of = np.ceil(TOKENS / TOKENS_A_STEP) if ngram else TOKENS.astype(float)  # greedy answers do not vary
    step_s, step_a_user_s = (0.0063, 0.00052) if ngram else (0.0045, 0.0004)
    every = np.arange(rows)
    running = min(users, n)
    item = np.tile(np.arange(running), (rows, 1))  # the request that each user waits for; -1: none is left
    case = schedule[:, :running].copy()
    left = steps_of[case]
    began, clock, times = np.zeros((rows, running)), np.zeros(rows), np.zeros((rows, n))
    following = np.full(rows, running)
    slow, drift = rng.normal(size=rows), noise.drift * rng.normal(size=rows)
    for done in range(n):
        first = np.where(item >= 0, left, np.inf).argmin(1)
        steps = left[every, first]
        slow = noise.correlation * slow + np.sqrt(1 - noise.correlation**2) * rng.normal(size=rows)
        disturbed = np.exp(noise.slow * slow + drift * done / n + noise.white * rng.normal(size=rows))
        step = factor * disturbed * (step_s + step_a_user_s * np.where(item >= 0, WEIGHT[case], 0.0).sum(1))
        stall = (rng.random(rows) < noise.stalls) * rng.exponential(0.15, rows)
        another = following < n
        coming = schedule[every, np.minimum(following, n - 1)]
        clock += steps * step + np.where(another, PREFILL_S[coming], 0.0) * factor + stall
        left -= steps[:, None]
        times[every, item[every, first]] = clock - began[every, first]
        item[every, first] = np.where(another, following, -1)
        case[every, first] = coming
        left[every, first] = steps_of[coming]
        began[every, first] = clock
        following += another
    return times
