"""Answers are taken from where their token ids are, and refused where a forecast from them would be wrong."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.tiny_tokenizer import write_tokenizer

from specbench import UserError
from specbench.files import sha256_of
from specbench.lookup.answers import read_answers
from specbench.lookup.logs import read_log
from specbench.record.prompts import read_prompt_tokens, write_prompt_tokens
from specbench.workload.tokenizing import FolderTokenizer

PUBLISHED = ROOT / "results" / "h200-smollm2-135m"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A copy of a published baseline that a test may damage."""
    return Path(shutil.copytree(PUBLISHED / "01-baseline-c1", tmp_path / "run"))


def edit_manifest(run: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads((run / "manifest.json").read_text())
    edit(document)
    (run / "manifest.json").write_text(json.dumps(document))


def edit_requests(run: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    rows = [json.loads(line) for line in (run / "requests.jsonl").read_text().splitlines()]
    for row in rows:
        edit(row)
    (run / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = json.loads((run / "summary.json").read_text())
    summary["requests_sha256"] = sha256_of(run / "requests.jsonl")
    (run / "summary.json").write_text(json.dumps(summary))


def test_a_published_baseline() -> None:
    read = read_answers(PUBLISHED / "01-baseline-c1")
    assert (len(read.answers), read.max_model_len, read.model) == (90, 2048, "SmolLM2-135M-Instruct")
    assert list(dict.fromkeys(answer.case for answer in read.answers))[:3] == ["copy-1", "copy-2", "copy-3"]
    assert {answer.max_tokens for answer in read.answers} == {128}
    assert read.notes == []


def test_what_did_not_end_ok_is_left_out_and_said(run: Path) -> None:
    edit_requests(run, lambda row: row.update(outcome="timeout") if row["position"] in (3, 4) else None)
    read = read_answers(run)
    assert len(read.answers) == 88
    assert read.notes == ["2 requests that did not end ok are left out"]


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda row: row.update(token_ids=None), "holds no token ids of its answers, because vllm streams text alone"),
        (lambda row: row.update(completion_tokens=3), "the answer of .* token ids and the server counted 3 tokens"),
        (lambda row: row.update(prompt_tokens=1), "the prompt of .* token ids and the server counted 1 tokens"),
        (
            lambda row: row.update(token_ids=[7] * 129, completion_tokens=129),
            "has 129 tokens, and at most 128 were asked for",
        ),
        (lambda row: row.update(outcome="timeout"), "no answer that ended ok"),
    ],
)
def test_requests_that_cannot_be_replayed(edit: Callable[[dict[str, Any]], object], sentence: str, run: Path) -> None:
    edit_requests(run, edit)
    with pytest.raises(UserError, match=sentence):
        read_answers(run)


@pytest.mark.parametrize(("name", "value"), [("temperature", 0.7), ("top_k", 5), ("presence_penalty", 0.1)])
def test_sampled_runs(name: str, value: float, run: Path) -> None:
    edit_manifest(run, lambda manifest: manifest["request"].update({name: value}))
    with pytest.raises(UserError, match=f"was measured with {name} {value}: only greedy"):
        read_answers(run)


def test_limits_that_were_edited(run: Path) -> None:
    edit_manifest(run, lambda manifest: manifest["server"]["model"].update(max_model_len=60))
    with pytest.raises(UserError, match="longer than the server's max_model_len 60"):
        read_answers(run)
    edit_manifest(run, lambda manifest: manifest["request"].update(max_tokens="many"))
    with pytest.raises(UserError, match="max_tokens 'many', which is no number"):
        read_answers(run)


def test_prompts_that_are_missing(run: Path) -> None:
    prompts = read_prompt_tokens(run)
    assert prompts is not None
    del prompts["copy-1"]
    write_prompt_tokens(run, prompts)
    with pytest.raises(UserError, match="lacks the case 'copy-1'"):
        read_answers(run)
    (run / "prompt-tokens.jsonl").unlink()
    with pytest.raises(UserError, match=r"has no prompt-tokens\.jsonl"):
        read_answers(run)
    edit_manifest(run, lambda manifest: manifest.update(prompt_tokens={"source": None, "missing": "of this"}))
    with pytest.raises(UserError, match="the token ids of its prompts, because of this: measure again"):
        read_answers(run)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"case":"a","token_ids":[1]}\n{"case":"a","token_ids":[2]}\n', "line 2: the case 'a' stands in an earlier"),
        ('{"case":"a","token_ids":["b"]}\n', "line 1 is not what bench.py writes"),
        ('{"case":"a"', "line 1 is not what bench.py writes"),
    ],
)
def test_prompts_that_were_edited(content: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "prompt-tokens.jsonl").write_text(content)
    with pytest.raises(UserError, match=sentence):
        read_prompt_tokens(tmp_path)


def test_a_token_id_that_no_model_has(run: Path) -> None:
    edit_requests(run, lambda row: row.update(token_ids=[2**40], completion_tokens=1))
    with pytest.raises(UserError, match="too large to be one"):
        read_answers(run)


def test_prompts_are_read_as_they_were_written(tmp_path: Path) -> None:
    prompts = {"b": [3, 1, 2], "a": []}
    write_prompt_tokens(tmp_path, prompts)
    assert read_prompt_tokens(tmp_path) == prompts
    assert (tmp_path / "prompt-tokens.jsonl").read_text().splitlines()[0] == '{"case":"b","token_ids":[3,1,2]}'
    assert read_prompt_tokens(tmp_path / "elsewhere") is None


# ---- logs


@pytest.fixture
def tokenizer(tmp_path: Path) -> FolderTokenizer:
    pytest.importorskip("tokenizers", reason="requirements-forecast.txt is not installed")
    return FolderTokenizer(str(write_tokenizer(tmp_path / "model", "say one two three four")))


def log(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def line(asked: str, answer: str | None, prompt: int | None = None, completion: int | None = None) -> dict[str, Any]:
    response: dict[str, Any] = {"choices": [{"message": {"role": "assistant", "content": answer}}] if answer else []}
    if prompt is not None:
        response["usage"] = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {"messages": [{"role": "user", "content": asked}], "max_tokens": 3, "response": response}


def test_a_log(tokenizer: FolderTokenizer, tmp_path: Path) -> None:
    lines = [line("say one two", "one two", 8, 3), line("say three", "three four one", 7, 3), line("say", None)]
    path = log(tmp_path, *lines)
    read = read_log(path, tokenizer)
    first, second = read.answers
    assert list(first.prompt_ids) == [1, 4, 7, 8, 9, 2, 1, 5]
    assert list(first.output_ids) == [8, 9, 2]  # with the token that ended it
    assert list(second.output_ids) == [10, 11, 8]  # as many as were counted: it was cut off before one
    assert (first.max_tokens, second.max_tokens) == (3, 3)
    assert any("without an answer" in note for note in read.notes)
    assert any("sampled" in note for note in read.notes) and any("Another model" in note for note in read.notes)


def test_a_log_without_counts_ends_every_answer(tokenizer: FolderTokenizer, tmp_path: Path) -> None:
    [answer] = read_log(log(tmp_path, line("say one", "one two three")), tokenizer).answers
    assert (list(answer.output_ids), answer.max_tokens) == ([8, 9, 10, 2], 4)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([line("say one", None)], "holds no answers"),
        ([line("say one", "one", 8, 2)], "line 1: its prompt had 8 tokens and has 7 with this tokenizer"),
        ([line("say one", "one", 7, 9)], "its answers had 9 tokens and have 2 with this tokenizer"),
    ],
)
def test_logs_that_cannot_be_replayed(
    lines: list[dict[str, Any]], sentence: str, tokenizer: FolderTokenizer, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=sentence):
        read_log(log(tmp_path, *lines), tokenizer)
