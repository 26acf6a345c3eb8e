"""A file as JSON objects with the numbers of their lines: JSON Lines, or one JSON array."""

import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from specbench import UserError
from specbench.workload.case import Refused

# How files begin that no line can be read from, and what to do about each.
_BEGINNINGS = {
    b"\xef\xbb\xbf": "starts with a byte order mark; save it as UTF-8 without one",
    b"\xff\xfe": "is UTF-16; save it as UTF-8",
    b"\xfe\xff": "is UTF-16; save it as UTF-8",
    b"\x1f\x8b": "is compressed with gzip; unpack it first",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd; unpack it first",
    b"PK\x03\x04": "is a ZIP archive; unpack it first",
    b"PAR1": "is a Parquet file; write its rows as one JSON object a line first",
}
_array = msgspec.json.Decoder(list[msgspec.Raw])
_decode = msgspec.json.Decoder().decode


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any] | Refused]]:
    """Every object of a file with its line, or its place in the array, from 1; where one is unusable, why.

    Reads JSON Lines line by line, so that memory holds no more than what the caller keeps. Raises UserError for a file
    that cannot be read at all.
    """
    try:
        with path.open("rb") as file:
            if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):  # /dev/zero never ends, and its one line fills the memory
                raise UserError(f"{path} is a device, not a prompts file; give the path of a file")
            head = file.peek(4096)
            for beginning, problem in _BEGINNINGS.items():
                if head.startswith(beginning):
                    raise UserError(f"{path} {problem}")
            in_array = head.lstrip()[:1] == b"["
            for number, raw in enumerate(_elements(path, file) if in_array else file, start=1):
                if not raw.isspace():
                    yield number, _object(raw)
    except OSError as error:
        raise UserError(f"cannot read the prompts file {path}: {error.strerror}; give the path of another") from None


def _elements(path: Path, file: io.BufferedReader) -> list[bytes]:
    try:
        return [bytes(raw) for raw in _array.decode(file.read())]
    except RecursionError:
        raise UserError(f"{path} is nested too deeply to be a list of cases") from None
    except msgspec.DecodeError as error:
        raise UserError(f"{path} starts with '[' and is not one JSON array: {error}") from None


def _object(raw: bytes) -> dict[str, Any] | Refused:
    try:
        value = _decode(raw)
    except RecursionError:
        return Refused("is not a case: it is nested too deeply")
    except msgspec.DecodeError:
        try:
            value = _decoded_slowly(raw)
        except Refused as refusal:
            return refusal
    return value if isinstance(value, dict) else Refused("is not a JSON object")


def _decoded_slowly(raw: bytes) -> Any:
    """What the standard library's more tolerant parser makes of a line, or what exactly is wrong with it."""
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Refused(f"is not UTF-8 (byte {error.start + 1} of the line); save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise Refused(f"is not JSON: {error.msg} at column {error.colno}") from None
    except ValueError as error:  # a number of thousands of digits
        raise Refused(f"is not a case: {error}") from None
    except RecursionError:
        raise Refused("is not a case: it is nested too deeply") from None
    if (place := _half_surrogate(value, "")) is not None:
        raise Refused(f"holds half of a surrogate pair in {place or 'its value'}, which UTF-8 cannot carry: remove it")
    return value


def _half_surrogate(value: Any, place: str) -> str | None:
    """Where in a decoded value the first half surrogate stands, as `messages[0].content`; None where there is none."""
    if isinstance(value, str):
        return place if any("\ud800" <= character <= "\udfff" for character in value) else None
    if isinstance(value, dict):
        for key, field in value.items():
            if _half_surrogate(key, "") is not None:
                return f"a key of {place}" if place else "a key"
            if (found := _half_surrogate(field, f"{place}.{key}".lstrip("."))) is not None:
                return found
    if isinstance(value, list):
        for number, element in enumerate(value):
            if (found := _half_surrogate(element, f"{place}[{number}]")) is not None:
                return found
    return None
