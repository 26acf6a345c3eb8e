"""The cases of an experiment, read from a prompts file.

A prompts file is JSON Lines, one case a line:

    {"id": "copy-1", "family": "copy", "messages": [{"role": "user", "content": "…"}],
     "max_tokens": 64, "expect": "regex"}            (on one line)

`max_tokens` and `expect` may be left out.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench import UserError

_KEYS = {"id", "family", "messages", "max_tokens", "expect"}
_ROLES = {"system", "developer", "user", "assistant"}

@dataclass(frozen=True, slots=True)
class Case:
    """One conversation to send. `expect` is a regular expression that a right answer matches somewhere."""

    id: str
    family: str
    messages: list[dict[str, Any]]
    max_tokens: int | None
    expect: str | None

    @property
    def sha256(self) -> str:
        """Digest of the messages alone: what the model is asked, whatever the case is called."""
        return hashlib.sha256(_compact(self.messages).encode("ascii")).hexdigest()


@dataclass(frozen=True, slots=True)
class Inventory:
    """Every case of one prompts file, in file order; `sha256` covers all that a case says."""

    name: str
    cases: list[Case]
    sha256: str

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


def read_inventory(path: Path) -> Inventory:
    """Read and check a prompts file.

    Raises UserError naming the file, the line and what is wrong with it.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UserError(f"cannot read the prompts file {path}: {error.strerror}; name one with --prompts") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    if text.startswith("\ufeff"):
        raise UserError(f"{path} starts with a byte order mark; save it as UTF-8 without one")
    cases: list[Case] = []
    lines: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        case = _case(line, f"{path} line {number}")
        if case.id in lines:
            raise UserError(f"{path} line {number}: the id {case.id!r} was used in line {lines[case.id]} already")
        lines[case.id] = number
        cases.append(case)
    if not cases:
        raise UserError(f"{path} holds no case; write one JSON object a line")
    described = (_compact([case.id, case.family, case.messages, case.max_tokens, case.expect]) for case in cases)
    return Inventory(path.name, cases, list_digest(described))


def _case(line: str, where: str) -> Case:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not JSON: {error.msg} at column {error.colno}") from None
    except ValueError as error:  # a number of thousands of digits
        raise UserError(f"{where} is not a case: {error}") from None
    except RecursionError:
        raise UserError(f"{where} is not a case: it is nested too deeply") from None
    if not isinstance(value, dict):
        raise UserError(f"{where} is not a JSON object")
    if unknown := sorted(set(value) - _KEYS):
        raise UserError(f"{where} has the unknown key {unknown[0]!r}; a case has {', '.join(sorted(_KEYS))}")
    for key in ("id", "family"):
        if not isinstance(value.get(key), str) or not value[key].strip():
            raise UserError(f"{where} needs {key!r}, a text that is not empty")
    if value["family"].strip() == "overall":
        raise UserError(f"{where} has the family 'overall', which is the word for all families: choose another")
    max_tokens = value.get("max_tokens")
    if max_tokens is not None and (not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1):
        raise UserError(f"{where}: max_tokens must be a whole number of at least 1")
    expect = value.get("expect")
    if expect is not None:
        _check_pattern(expect, where)
    return Case(value["id"], value["family"], _messages(value.get("messages"), where), max_tokens, expect)


def _messages(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise UserError(f"{where} needs 'messages', a list with at least one message")
    for number, message in enumerate(value, start=1):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise UserError(f"{where}: message {number} needs a 'role' of {', '.join(sorted(_ROLES))}")
        content = message.get("content")
        if not isinstance(content, str) or not content.strip():
            raise UserError(f"{where}: message {number} is empty; give it a 'content' text")
        if any("\ud800" <= character <= "\udfff" for character in content):
            raise UserError(f"{where}: message {number} holds half of a surrogate pair, which UTF-8 cannot carry")
        if unknown := sorted(set(message) - {"role", "content", "name"}):
            raise UserError(f"{where}: message {number} has the unknown key {unknown[0]!r}")
        if not isinstance(message.get("name", ""), str):
            raise UserError(f"{where}: the 'name' of message {number} must be a text")
    return value


def _check_pattern(expect: Any, where: str) -> None:
    if not isinstance(expect, str):
        raise UserError(f"{where}: expect must be a regular expression in a text")
    try:
        re.compile(expect)
    except re.error as error:
        raise UserError(f"{where}: expect is not a regular expression: {error}") from None


def list_digest(elements: Iterable[str]) -> str:
    """SHA-256 (hexadecimal) of the JSON list of `elements`, each already compact JSON in ASCII; holds one at a time."""
    state = hashlib.sha256(b"[")
    separator = ""
    for element in elements:
        state.update(f"{separator}{element}".encode("ascii"))
        separator = ","
    state.update(b"]")
    return state.hexdigest()


_compact = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
