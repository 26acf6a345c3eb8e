"""Each form of `expect` passes what is right and nothing else; a command runs only where allowed, and ends in time."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import HANG_S

from specbench import UserError
from specbench.workload.case import Refused
from specbench.workload.judging import check_expect, judge_for, needs_command


def passes(expect: Any, answer: str, **options: bool) -> bool:
    check_expect(expect)
    judge = judge_for(expect, **options)
    assert judge is not None
    return judge(answer)


@pytest.mark.parametrize(
    ("expect", "right", "wrong"),
    [
        ("Par.s", "It is Paris.", "London"),
        ({"exact": "Paris"}, " Paris\n", "Paris."),
        ({"json": {"a": [1, 2], "b": None}}, '{"b": null, "a": [1.0, 2]}', '{"a": [2, 1], "b": null}'),
        ({"json": {"a": 1}}, '{"a": 1}', '{"a": true}'),
        ({"json": {"a": 1}}, '{"a": 1}', '{"a": 1, "b": 2}'),
        ({"json": True}, "true", "1"),
        ({"json": "x"}, '"x"', "x"),
        ({"json": 1}, "1", "[" * 100_000),
    ],
)
def test_each_form_takes_the_right_answer_alone(expect: Any, right: str, wrong: str) -> None:
    assert passes(expect, right) and not passes(expect, wrong)


def json_values() -> st.SearchStrategy[Any]:
    leaves = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3)
    return st.recursive(leaves, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=2), v, max_size=3))


@given(json_values(), json_values())
@settings(max_examples=200, deadline=None)
def test_json_is_equal_where_its_canonical_text_is(one: Any, other: Any) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert passes({"json": one}, json.dumps(other, indent=2)) == same
    assert passes({"json": one}, json.dumps(one))


@pytest.mark.parametrize(
    "expect",
    ["(", 3, [], {}, {"regex": "x"}, {"exact": 3}, {"exact": "a", "json": 1}, {"command": "rm -rf /"}, {"command": []},
     {"command": [""]}, {"command": ["a", 3]}, {"command": ["a\0"]}, {"command": ["a"], "timeout_s": 0},
     {"command": ["a"], "timeout_s": True}, {"command": ["a"], "timeout_s": 1e9}, {"exact": "a", "timeout_s": 3}],
)
def test_an_expect_of_no_known_form_is_refused(expect: Any) -> None:
    with pytest.raises(Refused):
        check_expect(expect)


def test_a_command_runs_only_where_it_is_allowed_and_gets_the_answer_as_its_input(tmp_path: Path) -> None:
    expect = {"command": [sys.executable, "-c", "import sys; sys.exit(sys.stdin.read() != 'grüße')"]}
    assert needs_command(expect) and judge_for(expect) is None
    assert passes(expect, "grüße", allow_commands=True) and not passes(expect, "x", allow_commands=True)


def test_equal_answers_are_judged_once(tmp_path: Path) -> None:
    count = tmp_path / "count"
    command = [sys.executable, "-c", f"open({str(count)!r}, 'a').write('x')"]
    judge = judge_for({"command": command}, allow_commands=True)
    assert judge is not None and all(judge(answer) for answer in ["a", "a", "b", "a"])
    assert count.read_text() == "xx"


def test_a_command_that_does_not_end_is_a_wrong_answer_and_so_is_all_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = (f"import os, subprocess, time; c = subprocess.Popen(['sleep', '{HANG_S:.0f}']); "
              f"open({str(pid)!r}, 'w').write(str(c.pid)); time.sleep({HANG_S:.0f})")
    assert not passes({"command": [sys.executable, "-c", script], "timeout_s": 3}, "x", allow_commands=True)
    deadline = time.monotonic() + HANG_S
    while pid.exists() and alive(int(pid.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_command_sees_no_token_and_one_that_is_not_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYAXON_TOKEN", "secret")
    script = "import os, sys; sys.exit('POLYAXON_TOKEN' in os.environ)"
    assert passes({"command": [sys.executable, "-c", script]}, "x", allow_commands=True)
    assert os.environ["POLYAXON_TOKEN"] == "secret"
    with pytest.raises(UserError, match="cannot be run"):
        passes({"command": ["no-such-program"]}, "x", allow_commands=True)


def test_a_command_that_reads_nothing_may_still_pass() -> None:
    assert passes({"command": [sys.executable, "-c", ""]}, "x" * 1_000_000, allow_commands=True)
