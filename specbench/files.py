"""Files written whole or not at all, and never over something that was measured."""

import hashlib
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from specbench import UserError

PARTIAL = ".part"
_MEASURED = ("requests.jsonl", "requests.jsonl.gz", "manifest.json", "summary.json", "experiment.json")


def json_bytes(value: Any) -> bytes:
    """Indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` so that a reader, or a crash, meets the old file or the new one, never a part.

    A link keeps pointing where it points. What is no file (/dev/stdout, /dev/null, a pipe) is written to.
    Raises OSError.
    """
    if _is_standard_stream(path, 1) or _is_standard_stream(path, 2):
        stream = sys.stdout if _is_standard_stream(path, 1) else sys.stderr
        stream.flush()
        stream.buffer.write(content)
        stream.flush()
        return
    if _is_device(path):
        with open(path, "wb") as device:
            device.write(content)
        return
    target = Path(os.path.realpath(path))
    partial = target.with_name(target.name + PARTIAL)
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def write_output(path: Path, content: bytes, option: str) -> None:
    """Write what the user asked for with `option`; UserError where that cannot be done."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; name another file with {option}") from None


def _is_device(path: Path) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _is_standard_stream(path: Path, descriptor: int) -> bool:
    """Whether `path` is another name of what stdout or stderr is: a second opening would overwrite what is there."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor)) and not path.is_dir()
    except OSError:
        return False


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return sha256_of_stream(file)


def sha256_of_stream(file: IO[bytes]) -> str:
    """The same of what an open file still holds."""
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def check_writable(path: Path, option: str) -> None:
    """Raise UserError where `path`, given to `option`, is no file to write, or would replace what was measured or sent.

    To be called before the work starts. Devices and pipes may be written to; write_atomically does not replace them.
    """
    if _is_device(path):
        return
    target = Path(os.path.realpath(path))
    try:
        if target.is_dir():
            raise UserError(f"{option} {path} is a folder: name a file")
        if not target.parent.is_dir():
            raise UserError(f"cannot write {path}: its folder does not exist; name another file with {option}")
        measured = (target.parent / _MEASURED[0]).exists() or target.name in _MEASURED
        holds_lines = target.suffix == ".jsonl" and target.exists()
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name another file with {option}") from None
    if measured:
        raise UserError(f"{option} {path} is where measurements are kept: name a file outside of result directories")
    if holds_lines:
        raise UserError(f"{option} {path} holds prompts or requests, which would be replaced: name another file")
