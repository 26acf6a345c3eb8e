"""A result directory: what one run of bench.py leaves behind, in plain JSON that jq reads.

    requests.jsonl      a line per request, appended as it completes
    prompt-tokens.jsonl the token ids of each case's prompt, where the server says them
    metrics-before.txt  /metrics after the warm-up        metrics-after.txt  /metrics after the last request
    manifest.json       what was asked of whom, and how the answer was verified
    summary.json        written last, atomically, with requests.jsonl's SHA-256: no summary means the run did not end

requests.jsonl may be kept as requests.jsonl.gz (`gzip -n requests.jsonl`); the digest is that of the lines inside.

Killed at any moment the directory is still readable: every line is written whole, in one call.
"""

import errno
import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import msgspec

from specbench import UserError
from specbench.files import PARTIAL, json_bytes, sha256_of_stream, write_atomically
from specbench.record.format import (
    FORMAT,
    LONGEST_S,
    MANIFEST,
    METRICS_AFTER,
    METRICS_BEFORE,
    MOST_TOKENS,
    REQUESTS,
    SUMMARY,
    Manifest,
    Request,
    Summary,
)
from specbench.record.prompts import PROMPT_TOKENS

_GZIP = ".gz"
_Document = TypeVar("_Document", Manifest, Summary)


class _Version(msgspec.Struct):
    format: int | None = None


class ResultDirectory:
    """The write side of a result directory. Refuses a directory that holds anything."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._created = [folder for folder in (path, *path.parents) if not folder.exists()]
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise UserError(f"{path} is not empty; name a fresh directory with --out")
            self._requests = open(path / REQUESTS, "ab", buffering=0)  # noqa: SIM115 - open for the whole run
        except OSError as error:
            raise UserError(f"cannot write to {path}: {error.strerror}; name another directory with --out") from None

    def append(self, request: Request) -> None:
        """Add one line, in one write, so that a kill leaves whole lines only; so does a disk that is full.

        Raises OSError when the line could not be written whole.
        """
        line = msgspec.json.encode(request) + b"\n"
        size = self._requests.tell()
        written = self._requests.write(line)
        if written != len(line):
            self._requests.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write_text(self, name: str, text: str) -> None:
        """Write one whole file, for example a raw scrape."""
        write_atomically(self.path / name, text.encode())

    def write_json(self, name: str, value: Any) -> None:
        """Write MANIFEST or SUMMARY: indented JSON, whole or not at all."""
        write_atomically(self.path / name, json_bytes(value))

    def discard(self) -> None:
        """Leave the place as it was found: nothing in it was measured."""
        self._requests.close()
        for name in (REQUESTS, PROMPT_TOKENS, METRICS_BEFORE, METRICS_AFTER, MANIFEST, SUMMARY):
            for file in (self.path / name, self.path / (name + PARTIAL)):
                file.unlink(missing_ok=True)
        with suppress(OSError):  # somebody else has put something there
            for folder in self._created:
                folder.rmdir()

    def close(self) -> None:
        """Put everything appended on disk."""
        if not self._requests.closed:
            os.fsync(self._requests.fileno())
            self._requests.close()


# ---- reading


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a result directory; UserError when it is none, or of a format this version does not read."""
    if not directory.is_dir():
        raise UserError(f"{directory} is not a directory; name a result directory of bench.py")
    return _read_document(directory / MANIFEST, Manifest)


def read_summary(directory: Path) -> Summary:
    """The summary of a complete run; UserError says how far an incomplete one came."""
    if not (directory / SUMMARY).exists():
        scheduled = read_manifest(directory).schedule.requests
        raise UserError(
            f"{directory} has no {SUMMARY}: its run was killed or still goes on, after {_measured_lines(directory)} of "
            f"{scheduled} requests; run bench.py again with a fresh --out"
        )
    return _read_document(directory / SUMMARY, Summary)


def read_requests(directory: Path) -> Iterator[Request]:
    """Every request in file order, one at a time (memory does not grow with the file).

    Raises UserError naming the line that was cut off, edited, or holds an impossible value.
    """
    path = requests_path(directory)
    decoder = msgspec.json.Decoder(Request)
    try:
        with _open(path) as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    raise UserError(f"{path} line {number} is cut off: the file was truncated; run bench.py again")
                try:
                    request = decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise UserError(f"{path} line {number} is not what bench.py writes: {error}") from None
                _check_values(request, f"{path} line {number}")
                yield request
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"cannot decompress {path}: {error}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def requests_path(directory: Path) -> Path:
    """Where the requests stand: compressed, if they are there in that form only."""
    plain, compressed = directory / REQUESTS, directory / (REQUESTS + _GZIP)
    return compressed if compressed.exists() and not plain.exists() else plain


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix == _GZIP else open(path, "rb")


def _read_document(path: Path, schema: type[_Document]) -> _Document:
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=_Version).format
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; name a result directory of bench.py") from None
    except msgspec.ValidationError:
        version = None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}); it was edited or cut off: run bench.py again") from None
    if version != FORMAT:
        raise UserError(
            f"{path} has format {version!r}, this version reads format {FORMAT}; use the version that wrote it"
        )
    try:
        return msgspec.json.decode(content, type=schema)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UserError(f"{path} is not what bench.py writes: {error}; it was edited: run bench.py again") from None


def _measured_lines(directory: Path) -> int:
    try:
        with open(directory / REQUESTS, "rb") as file:
            return sum(line.endswith(b"\n") and b'"phase":"measured"' in line for line in file)
    except OSError:
        return 0


def _check_values(request: Request, where: str) -> None:
    for name in ("start_s", "ttft_s", "e2el_s", "decode_s"):
        value = getattr(request, name)
        if value is not None and not 0 <= value <= LONGEST_S:
            raise UserError(f"{where}: {name} is {value}, which no run can have measured")
    if request.outcome == "ok" and request.e2el_s is None:
        raise UserError(f"{where}: an ok request needs an e2el_s")
    for name in ("prompt_tokens", "completion_tokens", "first_tokens", "chunks"):
        count = getattr(request, name)
        if count is not None and not 0 <= count <= MOST_TOKENS:
            raise UserError(f"{where}: {name} is {count}, which no run can have counted")


def _digest(path: Path) -> str:
    try:
        with _open(path) as file:
            return sha256_of_stream(file)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"cannot decompress {path}: {error}") from None


def check_unedited(directory: Path, manifest: Manifest, summary: Summary) -> None:
    """Raise UserError where the files of a result directory are no longer the ones that bench.py left.

    A summary without a digest, as the first version wrote it, is held against the manifest alone.
    """
    again = "it was edited or replaced: run bench.py again with a fresh --out"
    path = requests_path(directory)
    if summary.requests_sha256 not in (None, _digest(path)):
        raise UserError(f"{path} is not the file that {SUMMARY} beside it was made of; {again}")
    if manifest.status != summary.status:
        raise UserError(
            f"{directory / MANIFEST} says {manifest.status} and {SUMMARY} {summary.status}; {again}"
        )
