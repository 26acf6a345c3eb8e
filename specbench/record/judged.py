"""judged.json in a result directory: which answers were right, where a case says what a right answer is.

An answer stands there as the SHA-256 of its text, so the file tells nothing else. Whoever compares the directory finds
there what a command said of an answer, and need not run it.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from specbench import UserError
from specbench.files import json_bytes, write_atomically
from specbench.record.format import CaseRecord, Request
from specbench.workload.case import Case
from specbench.workload.judging import Judge, judge_for, needs_command

FORMAT = 1
JUDGED = "judged.json"


class Judged(msgspec.Struct):
    """What is known: case id → SHA-256 (hexadecimal) of a row's `text` → whether that answer is right."""

    format: int
    cases: dict[str, dict[str, bool]]

    def passed(self, case: str, text: str) -> bool | None:
        """Whether the answer of a row with this `text` is right; None where that is not known."""
        return self.cases.get(case, {}).get(_digest(text))


def measured_answers(requests: Iterable[Request]) -> Iterator[tuple[str, str, str]]:
    """Every answer that ended ok, as `judge_answers` takes it."""
    for request in requests:
        if request.phase == "measured" and request.outcome == "ok":
            yield request.case, request.text, request.text


def judge_answers(
    answers: Iterable[tuple[str, str, str]], cases: Sequence[CaseRecord | Case], *, allow_commands: bool
) -> Judged:
    """Judge answers, given as case id, what stands in the row, and the answer itself. Equal ones are judged once.

    Raises UserError where a command cannot be run.
    """
    judges: dict[str, Judge] = {}
    for case in cases:
        if (judge := judge_for(case.expect, allow_commands=allow_commands)) is not None:
            judges[case.id] = judge
    judged = Judged(FORMAT, {})
    for case_id, shown, answer in answers:
        if case_id in judges:
            known = judged.cases.setdefault(case_id, {})
            digest = _digest(shown)
            if digest not in known:
                known[digest] = judges[case_id](answer)
    return judged


def count_commands(cases: Sequence[CaseRecord | Case]) -> int:
    """How many cases have a command that judges their answers."""
    return sum(needs_command(case.expect) for case in cases)


def write_judged(directory: Path, judged: Judged) -> None:
    """Write the file, whole or not at all."""
    write_atomically(directory / JUDGED, json_bytes(judged))


def read_judged(directory: Path) -> Judged | None:
    """What a directory says of its answers; None where it has no such file. UserError for one that was edited."""
    try:
        content = (directory / JUDGED).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot read {directory / JUDGED}: {error.strerror}") from None
    try:
        return msgspec.json.decode(content, type=Judged)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{directory / JUDGED} is not what bench.py writes: {error}") from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
