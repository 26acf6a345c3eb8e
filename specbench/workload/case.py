"""What one line of a file amounts to: the case that is sent and, where the line is of a log, what came back."""

import hashlib
import json
from typing import Any

import msgspec

DEFAULT_FAMILY = "default"
Message = dict[str, str]
Expect = str | dict[str, Any]  # judging.py says what each form means


class Refused(Exception):
    """A line that cannot be used. Its text follows the words "line 7": "needs 'id', a text that is not empty"."""


class Case(msgspec.Struct, frozen=True):
    """One conversation to send, and what a right answer is, where that is known."""

    id: str
    family: str
    messages: list[Message]
    max_tokens: int | None
    expect: Expect | None

    @property
    def sha256(self) -> str:
        """Digest of the messages alone: what the model is asked, whatever the case is called."""
        return hashlib.sha256(compact(self.messages).encode("ascii")).hexdigest()


class Entry(msgspec.Struct, frozen=True):
    """A case, its line in the file (from 1), and the answer and token counts of a log; None where it has none.

    `later_turns`: how many questions follow that are not sent, because they need the model's own answers before them.
    """

    case: Case
    line: int
    answer: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    later_turns: int = 0


compact = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def is_text(value: Any) -> bool:
    """Whether a value is a text that says something and reaches an engine whole."""
    return isinstance(value, str) and bool(value) and not value.isspace() and "\0" not in value


def checked_text(value: Any, name: str) -> str:
    """`value` where it is such a text. `name` is how the refusal calls it."""
    if is_text(value):
        return str(value)
    if isinstance(value, str) and "\0" in value:
        raise Refused(f"holds a NUL character in {name}, which engines take for the end of a text: remove it")
    raise Refused(f"needs {name}, a text that is not empty")


def checked_family(value: Any) -> str:
    """A family's name."""
    family = checked_text(value, "'family'")
    if family.strip() == "overall":
        raise Refused("has the family 'overall', which is the word for all families: choose another")
    return family


def checked_max_tokens(value: Any) -> int | None:
    """A case's own limit; None where it has none."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise Refused("has a max_tokens that is not a whole number of at least 1")
    return value
