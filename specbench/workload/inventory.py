"""The cases of an experiment, read from a file in any of the formats that docs/workloads.md lists.

The native format is JSON Lines, one case a line:

    {"id": "copy-1", "family": "copy", "messages": [{"role": "user", "content": "…"}],
     "max_tokens": 64, "expect": "regex"}            (on one line)

`family`, `max_tokens` and `expect` (judging.py) may be left out, and so may what was answered to the case before:
`answer` (a text) and `usage` (`prompt_tokens`, `completion_tokens`).
"""

import contextlib
import gc
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from specbench import UserError
from specbench.words import count
from specbench.workload.case import DEFAULT_FAMILY, Case, Entry, Refused, compact
from specbench.workload.formats import NATIVE, Format, accepts, recognised
from specbench.workload.lines import objects

MANY_FAMILIES = 50


@dataclass(frozen=True, slots=True)
class Inventory:
    """Every case of one file, in file order; `sha256` covers all that a case says.

    `notes` are sentences for the user: which format the file was read as, and what else is not as expected.
    """

    name: str
    cases: list[Case]
    sha256: str
    notes: list[str] = field(default_factory=list)

    def manifest(self) -> dict[str, Any]:
        """What manifest.json holds of it: everything but the messages, which stand there as a digest."""
        cases = [
            {
                "id": case.id,
                "family": case.family,
                "max_tokens": case.max_tokens,
                "expect": case.expect,
                "prompt_sha256": case.sha256,
            }
            for case in self.cases
        ]
        return {"name": self.name, "sha256": self.sha256, "cases": cases}


class LeftOut(msgspec.Struct, frozen=True):
    """A line that is no case, and why: `reason` follows the words "line 7"."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Workload:
    """A file with all that its lines hold: cases, the answers of a log, and the lines that are no cases."""

    name: str
    format: str
    entries: list[Entry]
    left_out: list[LeftOut]
    notes: list[str]

    @property
    def sha256(self) -> str:
        """Digest of the cases, as an inventory of the same cases has it."""
        return cases_digest(entry.case for entry in self.entries)


def read_inventory(path: Path) -> Inventory:
    """Read and check a file of cases.

    Raises UserError naming the file, the first line that is wrong and what is wrong with it.
    """
    reading = _Reading(path)
    cases: list[Case] = []
    with _without_collection():
        for found in reading.entries():
            if isinstance(found, LeftOut):
                raise UserError(f"{path} line {found.line} {found.reason}")
            cases.append(found.case)
    if not cases:
        raise UserError(f"{path} holds no case; write one JSON object a line")
    return Inventory(path.name, cases, cases_digest(cases), reading.notes())


def read_workload(path: Path) -> Workload:
    """Read a file of cases or a log, and say of each line that is no case why.

    Raises UserError for a file that cannot be read or has no line that is a case.
    """
    reading = _Reading(path)
    entries: list[Entry] = []
    left_out: list[LeftOut] = []
    with _without_collection():
        for found in reading.entries():
            if isinstance(found, LeftOut):
                left_out.append(found)
            else:
                entries.append(found)
    if not entries:
        first = f": line {left_out[0].line} {left_out[0].reason}" if left_out else "; write one JSON object a line"
        raise UserError(f"{path} holds no case{first}")
    return Workload(path.name, reading.format_name, entries, left_out, reading.notes())


def cases_digest(cases: Iterable[Case]) -> str:
    """SHA-256 (hexadecimal) of all that the cases say."""
    return list_digest(
        compact([case.id, case.family, case.messages, case.max_tokens, case.expect]) for case in cases
    )


def list_digest(elements: Iterable[str]) -> str:
    """SHA-256 (hexadecimal) of the JSON list of `elements`, each already compact JSON in ASCII; holds one at a time."""
    state = hashlib.sha256(b"[")
    separator = ""
    for element in elements:
        state.update(f"{separator}{element}".encode("ascii"))
        separator = ","
    state.update(b"]")
    return state.hexdigest()


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """No garbage collection: all that is made stays, and looking through it takes a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Reading:
    """One pass over a file, with what can only be said at its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._format: Format | None = None
        self._format_line = 0
        self._lines: dict[str, int] = {}  # of each id
        self._families: Counter[str] = Counter()
        self._later_turns = 0

    @property
    def format_name(self) -> str:
        """What the file was read as."""
        return self._format.name if self._format else "nothing"

    def entries(self) -> Iterator[Entry | LeftOut]:
        """Every line as a case, or why it is none."""
        for number, value in objects(self.path):
            try:
                if isinstance(value, Refused):
                    raise value
                yield self._entry(value, number)
            except Refused as refusal:
                yield LeftOut(number, str(refusal))

    def _entry(self, value: dict[str, Any], number: int) -> Entry:
        current = self._format
        if current is None or not accepts(current, value):
            own = recognised(value)
            if own is None:
                raise Refused(f"is of no known format: its keys are {', '.join(sorted(value)[:6]) or 'none'}")
            if current is not None:
                raise Refused(f"has another format than line {self._format_line}: {own.name}, not {current.name}")
            self._format, self._format_line = own, number
            current = own
        entry = current.entry(value, number)
        earlier = self._lines.setdefault(entry.case.id, number)
        if earlier != number:
            raise Refused(f"has the id {entry.case.id!r}, which was used in line {earlier} already")
        self._families[entry.case.family] += 1
        self._later_turns += entry.later_turns
        return entry

    def notes(self) -> list[str]:
        """Sentences for the user, once every line was read."""
        notes = [] if self._format in (None, NATIVE) else [f"{self.path} is read as {self.format_name}"]
        if default := self._families[DEFAULT_FAMILY]:
            which = "every case" if default == self._families.total() else f"{default:,} of the cases"
            notes.append(f"family of {which}: {DEFAULT_FAMILY!r}, which a line without a family gets")
        if self._later_turns:
            notes.append(
                f"only the first turn of each question is sent; {count(self._later_turns, 'later turn')} would need "
                "the model's own answers"
            )
        if len(self._families) > MANY_FAMILIES:
            notes.append(f"{len(self._families)} families: results are told by family, so merge those that are alike")
        if twins := self._twins():
            notes.append(f"the ids {twins[0]!r} and {twins[1]!r} differ only in case, which is easily misread")
        return notes

    def _twins(self) -> tuple[str, str] | None:
        folded: dict[str, str] = {}
        for name in self._lines:
            twin = folded.setdefault(name.casefold(), name)
            if twin != name:
                return twin, name
        return None
