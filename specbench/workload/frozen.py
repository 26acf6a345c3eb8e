"""Cases written down for good: canonical native lines, and beside them where they came from."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from specbench import UserError
from specbench.files import check_writable, json_bytes, sha256_of, write_atomically
from specbench.workload.case import Entry
from specbench.workload.inventory import LeftOut, Workload, cases_digest

FORMAT = 1
_SUFFIX = ".origin.json"


class Origin(msgspec.Struct, kw_only=True):
    """Where a file of cases came from, as it stands beside it. `earlier` is the origin of its source, if known."""

    format: int
    step: str
    options: dict[str, Any]
    source: str
    source_sha256: str
    read_as: str
    sha256: str
    file_sha256: str
    cases: int
    families: dict[str, int]
    left_out: int
    left_out_lines: list[LeftOut]
    earlier: dict[str, Any] | None


def origin_path(path: Path) -> Path:
    """The file beside a file of cases that says where they came from."""
    return path.with_name(path.name + _SUFFIX)


def check_new(out: Path) -> None:
    """Raise UserError where `out` is there already, cannot be written, or stands where measurements are kept."""
    if out.exists() or origin_path(out).exists():
        raise UserError(f"--out {out} is there already, and frozen cases are never written over: name another file")
    check_writable(out, "--out")


def write(
    out: Path, entries: Sequence[Entry], *, source: Path, workload: Workload, step: str, options: dict[str, Any]
) -> Origin:
    """Write the entries, and what `step` made of `source`, read as `workload`, beside them; returns the latter.

    Raises UserError where that cannot be done; `check_new` says so beforehand.
    """
    check_new(out)
    try:
        write_atomically(out, b"".join(line(entry) for entry in entries))
        origin = Origin(
            format=FORMAT,
            step=step,
            options=options,
            source=source.name,
            source_sha256=sha256_of(source),
            read_as=workload.format,
            sha256=cases_digest(entry.case for entry in entries),
            file_sha256=sha256_of(out),
            cases=len(entries),
            families=dict(sorted(Counter(entry.case.family for entry in entries).items())),
            left_out=len(workload.left_out),
            left_out_lines=workload.left_out,
            earlier=_earlier(source),
        )
        write_atomically(origin_path(out), json_bytes(origin))
    except OSError as error:
        raise UserError(f"cannot write --out {out}: {error.strerror}; name another file") from None
    return origin


def line(entry: Entry) -> bytes:
    """An entry as a canonical native line: keys in one order, no blanks, what is not there left out."""
    case = entry.case
    value: dict[str, Any] = {"id": case.id, "family": case.family, "messages": case.messages}
    counts = {"prompt_tokens": entry.prompt_tokens, "completion_tokens": entry.completion_tokens}
    usage = {name: number for name, number in counts.items() if number is not None}
    more = {"max_tokens": case.max_tokens, "expect": case.expect, "answer": entry.answer, "usage": usage or None}
    value |= {name: content for name, content in more.items() if content is not None}
    return msgspec.json.encode(value) + b"\n"


def _earlier(source: Path) -> dict[str, Any] | None:
    """The origin beside the source, where it is of this very file."""
    try:
        earlier = msgspec.json.decode(origin_path(source).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None
    return earlier if earlier.get("file_sha256") == sha256_of(source) else None
