"""--spread-from: how far deployments spread in earlier experiments on the same stack, which the caller declares."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec
import numpy as np

from specbench import UserError
from specbench.comparison.estimates import LogTimes, deployment_means
from specbench.comparison.gates import comparable_flags, public_version
from specbench.comparison.intervals import Earlier, deployment_spread
from specbench.comparison.pairing import Pair, pair, run_key
from specbench.comparison.sides import METRICS, Run

STATE = "experiment.json"
Spreads = dict[str, dict[str, Earlier]]  # metric -> line -> spread


class _Compared(msgspec.Struct):
    pairs: Annotated[list[tuple[str, str]], msgspec.Meta(min_length=1)]


class _Experiment(msgspec.Struct):
    comparisons: dict[str, _Compared]


def read_spreads(folders: Sequence[Path], now: Pair, mix: Mapping[str, float] | None) -> Spreads:
    """The variance between deployments of these experiments at this load, pooled, per metric and line.

    Raises UserError where an experiment cannot be read, has one deployment of each mode, holds a run of this
    comparison, or differs in engine, version, model, GPU, load or flags.
    """
    known = {run_key(run): run.name for run in now.runs}
    parts: dict[str, dict[str, list[Earlier]]] = {metric: {} for metric in METRICS}
    for folder in folders:
        earlier = _read_pairs(folder, now.concurrency)
        if len(earlier.bases) < 2:
            raise UserError(
                f"--spread-from {folder} has one deployment of each mode at this load, which shows no spread between "
                "deployments; name an experiment with two or more"
            )
        for run in earlier.runs:
            if run_key(run) in known:
                raise UserError(f"--spread-from {folder} holds {known[run_key(run)]} again; name an earlier experiment")
            known[run_key(run)] = run.name
            _check_stack(folder, now.bases[0], run)
        for metric in METRICS:
            means = deployment_means(log_times(earlier, metric), _known_mix(mix, earlier))
            for line, (base, candidate) in means.items():
                spread = Earlier(float(deployment_spread(base, candidate)) ** 2, 2 * len(earlier.bases) - 2)
                parts[metric].setdefault(line, []).append(spread)
    return {metric: {line: _pooled(spreads) for line, spreads in lines.items()} for metric, lines in parts.items()}


def log_times(pair: Pair, metric: str) -> LogTimes:
    """One metric of both sides, as the estimates take it."""
    shape = len(pair.bases), len(pair.cases), pair.repeats
    return LogTimes(
        base=np.log(np.stack([run.times[metric] for run in pair.bases])).reshape(shape),
        candidate=np.log(np.stack([run.times[metric] for run in pair.candidates])).reshape(shape),
        position=np.stack([run.position for run in pair.bases]).reshape(shape),
        family=pair.family,
        families=pair.families,
        order=pair.order,
    )


def _known_mix(mix: Mapping[str, float] | None, earlier: Pair) -> Mapping[str, float] | None:
    if mix is None:
        return None
    if unknown := sorted(set(mix) - set(earlier.families)):
        raise UserError(f"--spread-from names an experiment without the family {unknown[0]!r}, which --mix weighs")
    return mix


def _pooled(spreads: Sequence[Earlier]) -> Earlier:
    df = sum(spread.df for spread in spreads)
    return Earlier(sum(spread.df * spread.variance for spread in spreads) / df, df)


def _read_pairs(folder: Path, concurrency: int) -> Pair:
    path = folder / STATE
    try:
        experiment = msgspec.json.decode(path.read_bytes(), type=_Experiment)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; --spread-from takes folders of experiment.py") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not what experiment.py writes: {error}; --spread-from cannot use it") from None
    compared = experiment.comparisons.get(str(concurrency))
    if compared is None:
        loads = ", ".join(experiment.comparisons) or "none"
        raise UserError(f"--spread-from {folder} has no comparison at this load ({concurrency}); it has: {loads}")
    for name in (name for names in compared.pairs for name in names):
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise UserError(f"{path} names {name!r}, which is outside of the experiment's folder; it was edited")
    bases, candidates = zip(*compared.pairs, strict=True)
    return pair([folder / name for name in bases], [folder / name for name in candidates])


def _check_stack(folder: Path, now: Run, earlier: Run) -> None:
    """Deployments of another stack spread differently."""
    one, other = _stack(now), _stack(earlier)
    for what, value in one.items():
        if value != other[what]:
            raise UserError(
                f"--spread-from {folder} cannot be used: {earlier.name} and {now.name} differ in {what}, and "
                "deployments of another stack may spread differently"
            )


def _stack(run: Run) -> dict[str, object]:
    server = run.manifest.server
    return {
        "engine": server.engine,
        "version": public_version(run),
        "model": (server.model.id, server.model.root, server.model.max_model_len),
        "model revision": run.launched.revision,
        "GPU": run.launched.gpus,
        "load": run.manifest.concurrency,
        "flags": comparable_flags(run),
    }
