"""Files written whole or not at all, and never over something that was measured."""

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec

from specbench import UserError

PARTIAL = ".part"
_MEASURED = ("requests.jsonl", "prompt-tokens.jsonl", "manifest.json", "summary.json", "experiment.json")


def json_bytes(value: Any) -> bytes:
    """Indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` so that a reader, or a crash, meets the old file or the new one, never a part."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_writable(path: Path, option: str) -> None:
    """Raise UserError where writing `path`, given to `option`, would be beside or over what was measured."""
    if (path.parent / _MEASURED[0]).exists() or path.name in _MEASURED:
        raise UserError(f"{option} {path} is where measurements are kept: name a file outside of result directories")
