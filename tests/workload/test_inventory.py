"""A bad prompts file is one sentence; whatever a case says is in the digest."""

import json
from collections import Counter
from pathlib import Path

import pytest
from support import ROOT

from specbench import UserError
from specbench.words import printable
from specbench.workload.inventory import read_inventory

GOOD = {"id": "a", "family": "f", "messages": [{"role": "user", "content": "hello"}]}


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "holds no case"),
        (["", "  "], "holds no case"),
        ([GOOD, "{not json"], "line 2 is not JSON"),
        (["[1, 2]"], "line 1 is not a JSON object"),
        (['{"id":' + "9" * 6000 + "}"], "line 1 is not a case"),
        ([{**GOOD, "family": " overall"}], "the family 'overall'"),
        ([GOOD, GOOD], "line 2 has the id 'a', which was used in line 1 already"),
        ([{**GOOD, "prompt": "x"}], "unknown key 'prompt'"),
        ([{**GOOD, "id": ""}], "needs 'id'"),
        ([{**GOOD, "family": 3}], "needs 'family'"),
        ([{**GOOD, "messages": []}], "at least one message"),
        ([{**GOOD, "messages": [{"role": "user", "content": " \n"}]}], "needs the 'content' of message 1"),
        ([{**GOOD, "messages": [{"role": "robot", "content": "x"}]}], "needs a 'role'"),
        ([{**GOOD, "messages": [{"role": "user", "content": "x", "text": "y"}]}], "unknown key 'text'"),
        (['{"id":"a","family":"f","messages":[{"role":"user","content":"\\ud800"}]}'], "surrogate"),
        ([{**GOOD, "max_tokens": 0}], "max_tokens"),
        ([{**GOOD, "max_tokens": True}], "max_tokens"),
        ([{**GOOD, "expect": "("}], "not a regular expression"),
        (["[" * 100_000], "nested too deeply"),
    ],
)
def test_a_bad_prompts_file_is_one_sentence(tmp_path: Path, lines: list[object], says: str) -> None:
    path = write(tmp_path / "p.jsonl", *lines)
    with pytest.raises(UserError) as error:
        read_inventory(path)
    assert says in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


def test_missing_bom_and_wrong_encoding(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the prompts file"):
        read_inventory(tmp_path / "none.jsonl")
    marked = tmp_path / "bom.jsonl"
    marked.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    with pytest.raises(UserError, match="byte order mark"):
        read_inventory(marked)
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(json.dumps({**GOOD, "id": "é"}, ensure_ascii=False).encode("latin-1"))
    with pytest.raises(UserError, match="not UTF-8"):
        read_inventory(latin)


def test_a_line_separator_inside_a_text_does_not_end_the_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    case = {**GOOD, "messages": [{"role": "user", "content": "a\u2028b\x85c"}]}
    path.write_text(json.dumps(case, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_inventory(path).cases[0].messages[0]["content"] == "a\u2028b\x85c"


def test_the_shipped_inventory() -> None:
    inventory = read_inventory(ROOT / "prompts.jsonl")
    assert Counter(case.family for case in inventory.cases) == {"copy": 3, "explain": 3, "short": 3}
    assert all(case.expect for case in inventory.cases if case.family in ("copy", "short"))
    # Real overlap between prompt and answer is what n-gram drafting lives on. At four characters a token there is room.
    for case in inventory.cases:
        assert sum(len(message["content"]) for message in case.messages) < 4 * (2048 - 128 - 5)


def test_another_text_is_another_digest(tmp_path: Path) -> None:
    first = read_inventory(write(tmp_path / "a.jsonl", GOOD))
    other = read_inventory(write(tmp_path / "b.jsonl", {**GOOD, "messages": [{"role": "user", "content": "hello!"}]}))
    assert first.sha256 != other.sha256 and first.cases[0].sha256 != other.cases[0].sha256


def test_digests_are_those_of_the_published_runs() -> None:
    inventory = read_inventory(ROOT / "prompts.jsonl")
    manifest = json.loads((ROOT / "results/h200-smollm2-135m/01-baseline-c1/manifest.json").read_text())
    assert inventory.manifest() == manifest["inventory"]


def test_printable_shows_what_could_steer_a_terminal() -> None:
    assert printable("a\x1b[31mb\u202ec\r\x9b") == "a\\x1b[31mb\\u202ec\\x0d\\x9b".replace("\\x0d", "\\r")
    assert printable("tab\tnew\nline é 漢") == "tab\tnew\nline é 漢"
