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
from specbench.comparison.sides import Ints, Outputs, Run, Side, read_run
from specbench.record.format import CaseRecord, value_at


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Runs of two sides that answered the same requests; `bases[k]` and `candidates[k]` answered one schedule.

    `family`: [cases] index into `families`.
    """

    bases: list[Run]
    candidates: list[Run]
    cases: list[CaseRecord]
    families: tuple[str, ...]
    family: Ints
    repeats: int
    concurrency: int
    outputs: Outputs

    @property
    def runs(self) -> list[Run]:
        """All of them, in order of their start."""
        return sorted([*self.bases, *self.candidates], key=lambda run: run.started)

    @property
    def order(self) -> tuple[Side, ...]:
        """The sides in order of their start."""
        return tuple(run.side for run in self.runs)

    @property
    def places(self) -> Ints:
        """[cases, repeats] The place of each request in a run's arrays."""
        return np.arange(len(self.cases) * self.repeats).reshape(len(self.cases), self.repeats)


def pair(bases: Sequence[Path], candidates: Sequence[Path], allow_same_mode: bool = False) -> Pair:
    """Read both sides and refuse, in one sentence, whatever cannot be compared.

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
    for one, other in zip(base, candidate, strict=True):
        _check_schedule(one, other)
    _check_modes(base, candidate, allow_same_mode)
    _check_independent(base, candidate)
    for other in [*base[1:], *candidate]:
        other.manifest.inventory = first.manifest.inventory  # equal, and with many cases large
    cases = first.manifest.inventory.cases
    families = tuple(dict.fromkeys(case.family for case in cases))
    index = {family: number for number, family in enumerate(families)}
    return Pair(
        bases=base,
        candidates=candidate,
        cases=cases,
        families=families,
        family=np.array([index[case.family] for case in cases], dtype=np.int64),
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


_SEED = "seed"  # bench.py --seed orders the schedule, and each pair has a schedule of its own
# What two directories must agree in: where the manifest holds it, what to call it, and what to do.
_IDENTITY = (
    ("concurrency", "concurrency", "compare runs of one --concurrency"),
    ("inventory.sha256", "inventory", "run both modes with the same --prompts file"),
    ("no_text", "--no-text", "run both modes with it, or both without"),
    ("schedule.repeats", "number of repeats", "run both modes with the same --repeats"),
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
    for key in sorted((one.keys() | two.keys()) - {_SEED}):
        _check_parameter(first, other, key)
    if first.manifest.inventory.cases != other.manifest.inventory.cases:
        raise UserError(f"{first.name} and {other.name} list other cases under one inventory digest; one was edited")


def _check_schedule(one: Run, other: Run) -> None:
    """Both runs of a pair sent their requests in one order; another pair may have another, and better has."""
    names = f"{one.name} and {other.name}"
    if one.manifest.schedule.sha256 != other.manifest.schedule.sha256:
        raise UserError(f"{names} are a pair and differ in schedule; run both modes of a pair with the same --seed")
    _check_parameter(one, other, _SEED)
    if not np.array_equal(one.position, other.position):
        raise UserError(f"{names} sent their requests in different orders under one schedule; one was edited")


def _check_parameter(one: Run, other: Run, key: str) -> None:
    first, second = one.manifest.request.get(key), other.manifest.request.get(key)
    if first != second:
        raise UserError(
            f"{one.name} and {other.name} differ in the request parameter {key}: {_short(first)} and "
            f"{_short(second)}; run both modes with the same parameters"
        )


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
        if (key := run_key(run)) in seen:
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


def run_key(run: Run) -> str:
    """What no two runs share; a copied directory has the same."""
    manifest = run.manifest
    return json.dumps([manifest.started, manifest.ended, manifest.command, manifest.service_run, manifest.url])


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else text[:12] + "…"
