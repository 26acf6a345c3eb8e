"""Runs of two sides that answered the same requests, or the reason why they cannot be compared.

Nothing is dropped: a request that one side lacks ends the comparison.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specbench import UserError
from specbench.comparison.sides import Ints, Outputs, Run, read_run
from specbench.record.format import CaseRecord, value_at


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Deployments of two sides that answered the same schedule. `case`: [n] index into `cases`."""

    bases: list[Run]
    candidates: list[Run]
    cases: list[CaseRecord]
    families: tuple[str, ...]
    family: Ints
    case: Ints
    repeats: int
    concurrency: int
    outputs: Outputs

    @property
    def deployments(self) -> list[Run]:
        """All of them, in order of their start."""
        return sorted([*self.bases, *self.candidates], key=lambda run: run.started)


def pair(bases: Sequence[Path], candidates: Sequence[Path], allow_same_mode: bool = False) -> Pair:
    """Load both sides and refuse, in one sentence, whatever cannot be compared.

    Raises:
        UserError: naming the directories, what differs and which flag would make them pair.
    """
    _distinct_paths([*bases, *candidates])
    outputs = Outputs()
    base = [read_run(path, "base", outputs) for path in bases]
    candidate = [read_run(path, "candidate", outputs) for path in candidates]
    first = base[0]
    for other in [*base[1:], *candidate]:
        _check_identity(first, other)
    _check_modes(base, candidate, allow_same_mode)
    _check_independent(base, candidate)
    for other in [*base[1:], *candidate]:
        other.manifest.inventory = first.manifest.inventory  # equal, and with many cases large
    cases = first.manifest.inventory.cases
    families = tuple(dict.fromkeys(case.family for case in cases))
    return Pair(
        bases=base,
        candidates=candidate,
        cases=cases,
        families=families,
        family=np.array([families.index(case.family) for case in cases], dtype=np.int64),
        case=first.shape[:, 0],
        repeats=first.manifest.schedule.repeats,
        concurrency=first.manifest.concurrency,
        outputs=outputs,
    )


def _distinct_paths(paths: Sequence[Path]) -> None:
    seen: dict[Path, Path] = {}
    for path in paths:
        if (resolved := path.resolve()) in seen:
            raise UserError(f"{path} is given twice (also as {seen[resolved]}); name another result directory")
        seen[resolved] = path


# What two directories must agree in: where the manifest holds it, what to call it, and what to do.
_IDENTITY = (
    ("concurrency", "concurrency", "compare runs of one --concurrency"),
    ("inventory.sha256", "inventory", "run both modes with the same --prompts file"),
    ("schedule.repeats", "number of repeats", "run both modes with the same --repeats"),
    ("schedule.sha256", "schedule", "run both modes with the same --seed"),
    ("server.model.id", "model", "deploy both modes with one model"),
    ("server.model.root", "model root", "deploy both modes with one model"),
    ("server.model.max_model_len", "limit max_model_len", "deploy both modes with one limit"),
    ("server.record.model", "model in the server record", "deploy both modes with one model"),
    ("server.record.revision", "model revision", "deploy both modes with one --revision"),
    ("server.engine", "engine", "deploy both modes on one engine"),
    ("timeout_s", "limit timeout_s", "run both modes with the same --timeout"),
    ("inactivity_timeout_s", "limit inactivity_timeout_s", "run both modes with the same --inactivity-timeout"),
)


def _check_identity(first: Run, other: Run) -> None:
    for path, what, action in _IDENTITY:
        one, two = value_at(first.manifest, path), value_at(other.manifest, path)
        unknown = path.startswith("server.record.") and (one is None or two is None)
        if one != two and not unknown:
            names = f"{first.name} and {other.name}"
            raise UserError(f"{names} differ in {what}: {_short(one)} and {_short(two)}; {action}")
    one, two = first.manifest.request, other.manifest.request
    for key in sorted(one.keys() | two.keys()):
        if one.get(key) != two.get(key):
            raise UserError(
                f"{first.name} and {other.name} differ in the request parameter {key}: {_short(one.get(key))} and "
                f"{_short(two.get(key))}; run both modes with the same parameters"
            )
    if first.manifest.inventory.cases != other.manifest.inventory.cases:
        raise UserError(f"{first.name} and {other.name} list other cases under one inventory digest; one was edited")
    if not np.array_equal(first.shape, other.shape):
        raise UserError(f"{first.name} and {other.name} sent their requests in different orders; one was edited")


def _check_modes(bases: Sequence[Run], candidates: Sequence[Run], allow_same_mode: bool) -> None:
    for side in (bases, candidates):
        for run in side[1:]:
            if run.mode != side[0].mode:
                raise UserError(
                    f"{side[0].name} ({side[0].mode}) and {run.name} ({run.mode}) stand on one side; "
                    "name base and candidate in turn: BASE CANDIDATE --and BASE2 CANDIDATE2"
                )
    base, candidate = bases[0], candidates[0]
    if allow_same_mode:
        return
    for run in (base, candidate):
        if run.mode is None:
            raise UserError(
                f"{run.name} does not say its mode; run bench.py with --mode, or pass --allow-same-mode"
            )
    if base.mode == candidate.mode:
        raise UserError(
            f"{base.name} and {candidate.name} are both {base.mode}; name one run of each mode, or pass "
            "--allow-same-mode to compare a mode with itself"
        )


def _check_independent(bases: Sequence[Run], candidates: Sequence[Run]) -> None:
    """A copy of a run is not another run, and two runs of one deployment are not two deployments."""
    seen: dict[str, Run] = {}
    for run in [*bases, *candidates]:
        manifest = run.manifest
        key = json.dumps([manifest.started, manifest.ended, manifest.command, manifest.service_run, manifest.url])
        if key in seen:
            raise UserError(f"{run.name} is a copy of {seen[key].name}; name another result directory")
        seen[key] = run
    for side in (bases, candidates):
        known: dict[str, Run] = {}
        for run in side:
            deployment = run.launched.boot_id or run.manifest.service_run or run.manifest.server.process_start_time
            identity = str(deployment or run.name)
            if identity in known:
                raise UserError(
                    f"{known[identity].name} and {run.name} are two runs of one deployment; --and takes another "
                    "deployment: stop the service, start it again and measure again"
                )
            known[identity] = run


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else text[:12] + "…"
