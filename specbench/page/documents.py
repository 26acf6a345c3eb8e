"""JSON files that anyone may have edited, read once, checked, and refused in one sentence."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from specbench import UserError

# No time, count or ratio that was measured comes near; numbers beyond it would only break the charts.
LARGEST = 1e15

_Document = TypeVar("_Document")


class _Version(msgspec.Struct):
    format: int | None = None


def read_document(path: Path, schema: type[_Document], version: int, again: str) -> _Document:
    """The document in `path`, of format `version`. `again` says how to make the file again.

    Raises UserError where it cannot be read, is of another format, or holds what no version writes.
    """
    try:
        content = path.read_bytes()
        found = msgspec.json.decode(content, type=_Version).format
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); {again}") from None
    except msgspec.ValidationError:
        found = None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}); it was edited or cut off: {again}") from None
    if found != version:
        raise UserError(f"{path} has format {found!r}, this version reads {version}: {again}")
    try:
        document = msgspec.json.decode(content, type=schema)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise UserError(f"{path} is not what was written there: {error}; it was edited: {again}") from None
    check_numbers(document, path)
    return document


def check_numbers(document: Any, path: Path) -> None:
    """Raise UserError where a number in a document is larger than anything that can have been measured."""
    left = [document]
    while left:
        value = left.pop()
        if isinstance(value, msgspec.Struct):
            left += [getattr(value, name) for name in value.__struct_fields__]
        elif isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, list | tuple):
            left += value
        elif isinstance(value, int | float) and not abs(value) <= LARGEST:
            shown = f"{value:.3g}" if isinstance(value, float) else "a number of many digits"
            raise UserError(f"{path} holds {shown}, which nobody can have measured; it was edited: make it again")
