"""Whether an answer is right: what `expect` of a case means.

    "expect": "regular expression"                  it matches somewhere in the answer (re.search)
    "expect": {"exact": "text"}                     the answer is this text, blanks and line breaks around it aside
    "expect": {"json": {"any": "value"}}            the answer is JSON of this value, in any order of keys
    "expect": {"command": ["python3", "check.py"]}  the command, with the answer on its standard input, exits 0 in time

A command runs only where the caller allows it, without a shell and without the tokens of the environment. It may take
10 s, or what "timeout_s" beside it says.
"""

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable
from typing import Any

from specbench import UserError
from specbench.workload.case import Expect, Refused

TIMEOUT_S, LONGEST_TIMEOUT_S = 10.0, 600.0
_KINDS = ("exact", "json", "command")
_SECRET = re.compile("TOKEN|SECRET|PASSWORD|KEY|CREDENTIAL", re.IGNORECASE)

Judge = Callable[[str], bool]


def check_expect(expect: Any) -> None:
    """Raise Refused where `expect` has none of the forms above."""
    if isinstance(expect, str):
        try:
            re.compile(expect)
        except (re.error, OverflowError, RecursionError) as error:
            raise Refused(f"has an expect that is not a regular expression: {error}") from None
        return
    kind = next((kind for kind in _KINDS if isinstance(expect, dict) and kind in expect), None)
    if kind is None or set(expect) - {kind, *(["timeout_s"] if kind == "command" else [])}:
        raise Refused(
            "has an expect of no known form: give a regular expression in a text, or an object with one of "
            "'exact', 'json' and 'command'"
        )
    if kind == "exact" and not isinstance(expect["exact"], str):
        raise Refused("needs a text as 'exact' of its expect")
    if kind == "command":
        _check_command(expect)


def needs_command(expect: Expect | None) -> bool:
    """Whether judging runs a program."""
    return isinstance(expect, dict) and "command" in expect


def check_commands(expectations: Iterable[Expect | None]) -> None:
    """Raise UserError where the program of a command is not there: said before anything is measured."""
    for expect in expectations:
        if isinstance(expect, dict) and "command" in expect and shutil.which(expect["command"][0]) is None:
            raise UserError(f"the command {expect['command'][0]!r} of an expect is not found on this machine")


def judge_for(expect: Expect | None, *, allow_commands: bool = False) -> Judge | None:
    """A function that tells whether an answer is right; None where nothing is expected, or a command is not allowed.

    Equal answers are judged once. The function raises UserError where a command cannot be started.
    """
    if not expect or (needs_command(expect) and not allow_commands):
        return None
    if isinstance(expect, str):
        pattern = re.compile(expect)
        return lambda answer: pattern.search(answer) is not None
    if "exact" in expect:
        text = str(expect["exact"]).strip()
        return lambda answer: answer.strip() == text
    if "json" in expect:
        return lambda answer: _is_json_of(answer, expect["json"])
    command, timeout_s = expect["command"], expect.get("timeout_s", TIMEOUT_S)
    return functools.lru_cache(maxsize=4096)(lambda answer: _passes(command, answer, timeout_s))


def _check_command(expect: dict[str, Any]) -> None:
    command, timeout_s = expect["command"], expect.get("timeout_s", TIMEOUT_S)
    texts = isinstance(command, list) and all(isinstance(word, str) for word in command)
    if not texts or not command or not command[0]:
        raise Refused("needs a list of texts as 'command' of its expect, the program first")
    if any("\0" in word for word in command):
        raise Refused("holds a NUL character in 'command' of its expect: remove it")
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s <= LONGEST_TIMEOUT_S:
        raise Refused(f"needs a number of seconds up to {LONGEST_TIMEOUT_S:g} as 'timeout_s' of its expect")


def _is_json_of(answer: str, value: Any) -> bool:
    try:
        return _same(json.loads(answer), value)
    except (ValueError, RecursionError):
        return False


def _same(one: Any, other: Any) -> bool:
    """Equality of JSON values: 1 is 1.0 and neither is true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _passes(command: list[str], answer: str, timeout_s: float) -> bool:
    """Whether a command takes the answer: exit code 0 within the time. What it starts ends with it."""
    environment = {name: value for name, value in os.environ.items() if not _SECRET.search(name)}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise UserError(f"the command {command[0]!r} of an expect cannot be run: {error.strerror}") from None
    try:
        process.communicate(answer.encode("utf-8", "replace"), timeout_s)
        return process.returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
