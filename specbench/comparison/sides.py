"""One run as arrays: a result directory, read once, every request at its place.

A request's place is case × repeats + repeat, cases in inventory order. So element j is the same (case, repeat) in every
run of one inventory, whatever the order in which the requests were sent; `position` tells that order.
"""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from specbench import UserError
from specbench.record.directory import check_unedited, read_manifest, read_requests, read_summary
from specbench.record.format import LaunchRecord, Manifest, Request, Summary, moment
from specbench.words import some
from specbench.workload.case import Refused
from specbench.workload.judging import check_expect

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Side = Literal["base", "candidate"]
METRICS = ("e2el", "ttft", "tpot")
_NAMED = 12  # requests that one sentence names


class Outputs:
    """Every distinct output, stored once: its text and its token ids (4 bytes each), or None without them."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, bytes | None], int] = {}
        self._outputs: list[tuple[str, bytes | None]] = []

    def add(self, text: str, token_ids: Sequence[int] | None) -> int:
        """The number of this output: the same for the same text and ids. OverflowError for an id beyond 32 bits."""
        output = (text, None if token_ids is None else array("i", token_ids).tobytes())
        number = self._numbers.setdefault(output, len(self._outputs))
        if number == len(self._outputs):
            self._outputs.append(output)
        return number

    def text(self, number: int) -> str:
        """The text of an output."""
        return self._outputs[number][0]

    def packed_ids(self, number: int) -> bytes | None:
        """The token ids as bytes, to compare and hash."""
        return self._outputs[number][1]

    def token_ids(self, number: int) -> list[int]:
        """The token ids, empty where there are none."""
        ids = array("i")
        ids.frombytes(self._outputs[number][1] or b"")
        return ids.tolist()


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One complete result directory. Arrays are [cases × repeats], by place.

    `times`: seconds by metric; NaN where an answer has none (TTFT and TPOT of an answer without text, TPOT of one that
    came in one read). `output`: numbers in `Outputs`. `position`: in the schedule. `launched`: the known part of the
    server's own record. `accepted`: drafted tokens that stand in each answer, as the engine reports it; None where it
    reports none.
    """

    name: str
    side: Side
    manifest: Manifest
    summary: Summary
    launched: LaunchRecord
    position: Ints
    times: dict[str, Floats]
    tokens: Ints
    output: Ints
    finish: list[str | None]
    accepted: Ints | None

    @property
    def mode(self) -> str | None:
        """baseline or ngram; None where nobody said."""
        return self.manifest.mode

    @property
    def started(self) -> datetime:
        """When the run began (UTC)."""
        return moment(self.manifest.started)

    @property
    def record(self) -> dict[str, Any]:
        """The server's record as it gave it, empty where it gave none."""
        return self.manifest.server.record or {}


def read_run(directory: Path, side: Side, outputs: Outputs) -> Run:
    """Stream one result directory into arrays.

    Raises UserError when the run is not complete, a line is damaged, or a request is missing, twice there or not ok.
    """
    manifest = read_manifest(directory)
    _check_manifest(directory, manifest)
    summary = read_summary(directory)
    if summary.status != "complete":
        raise UserError(
            f"{directory} is {summary.status}, after {summary.requests.measured} of "
            f"{manifest.schedule.requests} requests; run bench.py again with a fresh --out"
        )
    rows = _Rows(directory, manifest, outputs)
    for request in read_requests(directory):
        if request.phase == "measured":
            rows.add(request)
    rows.check_whole()
    check_unedited(directory, manifest, summary)
    return Run(
        name=str(directory),
        side=side,
        manifest=manifest,
        summary=summary,
        launched=manifest.launched,
        position=rows.position,
        times=rows.times,
        tokens=rows.tokens,
        output=rows.output,
        finish=rows.finish,
        accepted=rows.accepted if rows.reports_drafts else None,
    )


class _Rows:
    """The measured requests of one directory, put at their places."""

    def __init__(self, directory: Path, manifest: Manifest, outputs: Outputs) -> None:
        n = manifest.schedule.requests
        self._directory = directory
        self._repeats = manifest.schedule.repeats
        self._cases = manifest.inventory.cases
        self._index = {case.id: number for number, case in enumerate(self._cases)}
        self._outputs = outputs
        self._taken = np.zeros(n, dtype=bool)  # by position
        self._failed: list[str] = []
        self.position = np.full(n, -1, dtype=np.int64)
        self.times = {metric: np.full(n, np.nan) for metric in METRICS}
        self.tokens = np.zeros(n, dtype=np.int64)
        self.output = np.zeros(n, dtype=np.int64)
        self.finish: list[str | None] = [None] * n
        self.accepted = np.zeros(n, dtype=np.int64)
        self.reports_drafts = False

    def add(self, request: Request) -> None:
        place = self._take_place(request)
        if request.outcome != "ok" or request.e2el_s is None:
            message = request.error or "no message"
            self._failed.append(f"{request.case} repeat {request.repeat} ({request.outcome}: {message})")
            return
        if request.e2el_s == 0 or request.ttft_s == 0:
            raise self._refusal(request, "took 0 s, which no run can have measured")
        self.times["e2el"][place] = request.e2el_s
        # An answer without text has no first token to time. A TPOT of 0 says that the whole answer came in one read.
        self.times["ttft"][place] = request.ttft_s or np.nan
        self.times["tpot"][place] = request.tpot_s or np.nan
        self.tokens[place] = request.completion_tokens or 0
        if request.accepted_tokens is not None:  # an answer without a draft says nothing of drafts
            self.reports_drafts = True
            self.accepted[place] = request.accepted_tokens
        self.finish[place] = request.finish_reason and sys.intern(request.finish_reason)  # few are distinct
        try:
            self.output[place] = self._outputs.add(request.text, request.token_ids)
        except OverflowError:
            raise self._refusal(request, "has a token id that no vocabulary holds") from None

    def _take_place(self, request: Request) -> int:
        case, repeat, position = self._index.get(request.case), request.repeat, request.position
        if case is None or repeat is None or position is None:
            raise self._refusal(request, "is not in the schedule that manifest.json describes")
        if not (0 <= repeat < self._repeats and 0 <= position < len(self.finish)):
            raise self._refusal(request, "is not in the schedule that manifest.json describes")
        place = case * self._repeats + repeat
        if self.position[place] >= 0 or self._taken[position]:
            raise self._refusal(request, "is there twice")
        known = self._cases[case]
        if request.family != known.family or request.prompt_sha256 != known.prompt_sha256:
            raise self._refusal(request, "has another family or prompt than manifest.json says")
        self.position[place] = position
        self._taken[position] = True
        return place

    def _refusal(self, request: Request, what: str) -> UserError:
        where = f"case {request.case!r} repeat {request.repeat} at position {request.position}"
        return UserError(f"{self._directory}/requests.jsonl: {where} {what}; it was edited: run bench.py again")

    def check_whole(self) -> None:
        """Every (case, repeat) exactly once and ok, else a sentence that names those that are not."""
        places = np.flatnonzero(self.position < 0).tolist()
        missing = [f"{self._cases[place // self._repeats].id} repeat {place % self._repeats}" for place in places]
        for names, what in ((missing, "missing"), (self._failed, "not ok")):
            if names:
                raise UserError(
                    f"{self._directory}: {len(names)} of {len(self.finish)} requests are {what}: "
                    f"{some(names, _NAMED)}; a comparison needs every request on both sides: run bench.py again with "
                    "a fresh --out"
                )


def _check_manifest(directory: Path, manifest: Manifest) -> None:
    """Raise UserError for what the schema cannot see: a schedule that is not its cases, a pattern that is none."""
    where = f"{directory}/manifest.json"
    cases, schedule = manifest.inventory.cases, manifest.schedule
    if len({case.id for case in cases}) != len(cases) or schedule.requests != len(cases) * schedule.repeats:
        raise UserError(f"{where}: the schedule is not its cases times its repeats; it was edited: run bench.py again")
    for case in cases:
        try:
            check_expect("" if case.expect is None else case.expect)
        except Refused as refusal:
            raise UserError(f"{where}: case {case.id!r} {refusal}") from None
