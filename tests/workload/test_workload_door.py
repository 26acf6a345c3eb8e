"""workload.py: what it says of a file, what it writes, and its exit codes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.tiny_tokenizer import write_tokenizer
from support.workloads import SAMPLES, write_sample

import workload
from specbench.workload.inventory import read_workload
from specbench.workload.lengths import overlap

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = workload.main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("name", SAMPLES)
def test_check_tells_what_a_file_of_any_format_holds(tmp_path: Path, run: Run, name: str) -> None:
    code, out, _ = run("check", write_sample(tmp_path, name), "--json", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert code == 0 and f"4 cases, read as {SAMPLES[name].read_as}" in out
    assert found["overall"]["cases"] == 4 and found["overall"]["answers"] == 4 * SAMPLES[name].answered
    assert len(found["near_duplicates"]) == 1 and "nearly the text of an earlier one" in out
    assert (found["overall"]["overlap"] is not None) == SAMPLES[name].answered


def test_check_names_every_line_that_is_no_case_and_exits_1(tmp_path: Path, run: Run) -> None:
    image = {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}
    path = write(tmp_path / "log", {"prompt": "x"}, image, "{", *[{"prompt": ""}] * 20)
    code, out, _ = run("check", path)
    assert code == 1 and "22 lines left out:" in out and "line 3 is not JSON" in out and "10 more lines" in out
    assert "line 2 has another format" in out
    code, out, _ = run("check", write(tmp_path / "log", image, {"messages": [{"role": "user", "content": "x"}]}))
    assert code == 1 and "line 1 holds an image in the 'content' of message 1" in out


def test_lengths_and_room_are_in_tokens_where_a_tokenizer_is_named(tmp_path: Path, run: Run) -> None:
    folder = write_tokenizer(tmp_path / "model", "one two three four")
    first = {"id": "a", "family": "f", "messages": [{"role": "user", "content": "one two three"}]}
    second = {"id": "b", "family": "g", "messages": [{"role": "user", "content": "one two three four"}]}
    path = write(tmp_path / "log", first | {"answer": "two three four"}, second | {"max_tokens": 90})
    code, _, _ = run("check", path, "--tokenizer", folder, "--max-model-len", 100, "--max-tokens", 20,
                     "--json", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert code == 1 and found["unit"] == "tokens"
    family = found["families"]["f"]  # <s> user one two three </s> <s> assistant
    assert (family["longest"], family["room"], family["overlap"]) == (8, 100 - 8 - 20 - 5, 0.0)
    assert found["families"]["g"]["room"] == 100 - 9 - 90 - 5
    assert re.search(r"1 case too long .*: the longest, b, wants 9 \+ 90 for its answer \+ 5", found["too_long"])
    assert run("check", path, "--tokenizer", folder, "--max-model-len", 104)[0] == 1  # a has 128 tokens by default


def test_overlap_counts_the_ngrams_of_the_answer_that_stand_in_the_prompt() -> None:
    assert overlap(list("abcd"), list("bcde")) == (2, 1)
    assert overlap(list("ab"), list("ab")) == (0, 0)
    assert overlap([1, 2, 3], [1, 2, 3, 1, 2, 3]) == (4, 2)


def test_sample_redact_and_freeze_write_native_lines_and_say_what_they_did(tmp_path: Path, run: Run) -> None:
    log = write_sample(tmp_path, "chat log")
    code, out, err = run("redact", log, "--out", tmp_path / "redacted.jsonl")
    assert code == 0 and re.search(r"EMAIL +2 replaced, 1 different", out) and "stay as they are" in out
    assert "is read as OpenAI chat lines" in err
    redacted = (tmp_path / "redacted.jsonl").read_text()
    assert "anna@example.com" not in redacted and redacted.count("<EMAIL_1>") == 2
    code, out, _ = run("sample", tmp_path / "redacted.jsonl", "-n", 3, "--seed", 1, "--out", tmp_path / "sample.jsonl")
    assert code == 0 and "3 cases (copy 1, mail 1, short 1)" in out
    code, out, _ = run("freeze", tmp_path / "sample.jsonl", "--out", tmp_path / "frozen.jsonl")
    frozen = read_workload(tmp_path / "frozen.jsonl")
    assert code == 0 and frozen.sha256 in out and len(frozen.entries) == 3
    origin = json.loads((tmp_path / "frozen.jsonl.origin.json").read_text())
    sampled, redacted_from = origin["earlier"], origin["earlier"]["earlier"]
    assert [origin["step"], sampled["step"], redacted_from["step"]] == ["freeze", "sample", "redact"]
    assert redacted_from["options"] == {"replaced": {"EMAIL": [2, 1]}}


def test_nothing_personal_is_in_the_origin_of_a_redacted_file(tmp_path: Path, run: Run) -> None:
    line = {"id": "anna@example.com", "prompt": "x"}
    assert run("redact", write(tmp_path / "log", line, line), "--out", tmp_path / "out.jsonl")[0] == 0
    written = (tmp_path / "out.jsonl").read_text() + (tmp_path / "out.jsonl.origin.json").read_text()
    assert "anna" not in written and "which was used in line 1 already" in written


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check", "none"], "cannot read the prompts file none"),
        (["check", "log", "--max-model-len", 100], "--max-model-len counts tokens"),
        (["check", "log", "--url", "http://127.0.0.1:9"], "cannot reach"),
        (["check", "log", "--tokenizer", "./none"], "is not a folder"),
        (["check", "log", "--json", "requests.jsonl"], "where measurements are kept"),
        (["sample", "log", "-n", 9, "--out", "new"], "-n 9 is more than the 1 case"),
        (["freeze", "log", "--out", "log"], "is there already"),
        (["freeze", "log", "--out", "none/new"], "its folder does not exist"),
        (["freeze", "bad", "--out", "new"], "bad holds no case: line 1 is not JSON"),
        (["freeze", ".", "--out", "new"], "cannot read"),
    ],
)
def test_unusable_input_is_one_sentence_and_exit_2(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[Any], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POLYAXON_TOKEN", raising=False)
    write(tmp_path / "log", {"prompt": "x"})
    write(tmp_path / "bad", "{")
    code, out, err = run(*arguments)
    assert (code, out) == (2, "") and says in err.replace("\n", " ") and len(err.splitlines()) == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("arguments", [[], ["sample", "log"], ["sample", "log", "-n", "x", "--out", "o"], ["check"]])
def test_a_mistake_on_the_command_line_is_one_sentence(run: Run, capsys: Any, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run(*arguments)
    assert stop.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1
