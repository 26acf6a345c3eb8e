"""The command forecast.py: what it prints and writes, and one sentence with exit 2 for input it cannot use."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, find_free_port
from support.tiny_tokenizer import write_tokenizer

import forecast as door
from specbench.record.prompts import PROMPT_TOKENS

PUBLISHED = ROOT / "results" / "h200-smollm2-135m"
BASELINE = str(PUBLISHED / "01-baseline-c1")
FIGURES = {
    "answers", "tokens", "steps", "drafts", "draft_tokens", "accepted_tokens", "accepted_per_position",
    "tokens_per_step", "break_even",
}  # fmt: skip


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence that forecast.py refuses `arguments` with."""
    assert door.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("forecast.py: ") and captured.err.count("\n") == 1
    return captured.err


def test_the_command_forecasts_a_published_baseline() -> None:
    command = [sys.executable, str(ROOT / "forecast.py"), BASELINE, "--cost-ratio", "1.6"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "ngram would pay for copy (0.55), not for explain (1.45) or short (1.27)" in answer.stdout


def test_the_json_is_what_the_documentation_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "forecast.json"
    assert door.main([BASELINE, "--cost", str(PUBLISHED), "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert document["format"] == 1
    [setting] = document["settings"]
    assert [setting[key] for key in ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")] == [5, 2, 4]
    assert set(setting["families"]) == {"copy", "explain", "short"} and len(setting["cases"]) == 9
    for figures in (setting["overall"], *setting["families"].values(), *setting["cases"].values()):
        assert set(figures) == FIGURES | {"e2el_ratio"}
        assert set(figures["e2el_ratio"]) == {"1", "4", "8"}
        for estimate in figures["e2el_ratio"].values():
            assert estimate["low"] < estimate["ratio"] < estimate["high"]
    deployments = document["cost"]["loads"]["1"]["ngram"]
    assert [set(each) for each in deployments] == [{"name", "ttft_s", "undrafted_s", "drafted_s"}] * 4
    capsys.readouterr()


def test_without_a_cost_there_is_no_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "forecast.json"
    assert door.main([BASELINE, "--json", str(path)]) == 0
    assert set(json.loads(path.read_text())["settings"][0]["overall"]) == FIGURES
    assert "E2EL" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ((), [(5, 2, 4)]),
        (("--num-speculative-tokens", "3"), [(3, 2, 4)]),
        (("--num-speculative-tokens", "8,3"), [(3, 2, 4), (8, 2, 4)]),
        (("--prompt-lookup-min", "3", "--prompt-lookup-max", "2,5"), [(5, 3, 5)]),
        (("--sweep", "--prompt-lookup-min", "2", "--num-speculative-tokens", "5"), [(5, 2, 2), (5, 2, 4), (5, 2, 6)]),
    ],
)
def test_settings(
    options: tuple[str, ...], settings: list[tuple[int, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "forecast.json"
    assert door.main([BASELINE, *options, "--json", str(path)]) == 0
    keys = ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
    assert [tuple(each[key] for key in keys) for each in json.loads(path.read_text())["settings"]] == settings
    capsys.readouterr()


def test_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "forecast.md"
    assert door.main([BASELINE, "--sweep", "--markdown", str(path)]) == 0
    assert "| 2–4 |" in path.read_text() and "1.44\\*" in path.read_text()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "name one result directory, or a log with --logs"),
        ((BASELINE, "--logs", "x"), "name one result directory, or a log with --logs"),
        (("--logs", "x"), "give --tokenizer or --url, one of them"),
        (("--logs", "x", "--url", "http://x", "--tokenizer", "y"), "give --tokenizer or --url, one of them"),
        ((BASELINE, "--url", "http://x"), "--url and --tokenizer are for --logs"),
        ((BASELINE, "--cost", "x", "--cost-ratio", "2"), "--cost and --cost-ratio are two answers"),
        ((BASELINE, "--cost-ratio", "-1"), "is no cost"),
        ((BASELINE, "--cost-ratio", "nan"), "is no cost"),
        ((BASELINE, "--cost", "nowhere"), "nowhere is not a folder"),
        ((BASELINE, "--num-speculative-tokens", "0"), "between 1 and 128"),
        ((BASELINE, "--num-speculative-tokens", "3,200"), "between 1 and 128"),
        ((BASELINE, "--prompt-lookup-min", "5"), "above --prompt-lookup-max 4"),
        ((BASELINE, "--prompt-lookup-min", "5,6"), "every --prompt-lookup-min is above"),
        (("nowhere",), "nowhere is not a directory"),
        ((BASELINE, "--json", f"{BASELINE}/forecast.json"), "is where measurements are kept"),
        ((BASELINE, "--json", "nowhere/forecast.json"), "nowhere/forecast.json"),
        (("--logs", "nowhere", "--url", "nothing"), "is not a URL"),
        (("--logs", "nowhere", "--tokenizer", "./nothing"), "is not a folder"),
    ],
)
def test_bad_input_gets_one_sentence(
    arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in refused(capsys, *arguments)


@pytest.mark.parametrize("value", ["x", "3,", "1.5", ""])
def test_numbers_that_are_none(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        door.main([BASELINE, "--num-speculative-tokens", value])
    assert stopped.value.code == 2
    assert "is not a whole number or several" in capsys.readouterr().err


def test_a_log_from_a_tokenizers_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers", reason="requirements-forecast.txt is not installed")
    words = "alpha beta gamma delta epsilon zeta eta theta"
    path = tmp_path / "log.jsonl"
    message = {"role": "user", "content": f"say again {words}"}
    path.write_text(json.dumps({"messages": [message], "response": words}) + "\n")
    folder = write_tokenizer(tmp_path / "model", f"say again {words}")
    written = tmp_path / "forecast.json"
    assert door.main(["--logs", str(path), "--tokenizer", str(folder), "--json", str(written)]) == 0
    overall = json.loads(written.read_text())["settings"][0]["overall"]
    # The prefill gives alpha and a step beta. Then two tokens match: five are drafted and right, theta comes with them.
    # The last draft begins with the token that ends the answer.
    assert (overall["tokens"], overall["steps"], overall["accepted_tokens"]) == (9, 4, 6)
    shown = capsys.readouterr().out
    assert "may have been sampled" in shown and "read as OpenAI" in shown


def test_a_log_from_the_embedded_engine(
    embedded_engine: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same answers, once as the ids that were measured and once as a log's text: the same forecast."""
    log, from_ids, from_text = (tmp_path / name for name in ("log.jsonl", "ids.json", "text.json"))
    log.write_text("".join(json.dumps(line) + "\n" for line in published_log()))
    url = embedded_engine("baseline")
    assert door.main(["--logs", str(log), "--url", url, "--json", str(from_text)]) == 0
    assert door.main([BASELINE, "--json", str(from_ids)]) == 0
    text, ids = (json.loads(path.read_text())["settings"][0]["cases"] for path in (from_text, from_ids))
    for case, figures in text.items():
        assert {**figures, **tenfold(figures)} == {**ids[case]}, case
    capsys.readouterr()


def tenfold(figures: dict[str, Any]) -> dict[str, Any]:
    """The published runs have ten equal repeats of what the log has once."""
    tens = {key: 10 * value for key, value in figures.items() if isinstance(value, int)}
    return {**tens, "accepted_per_position": [10 * value for value in figures["accepted_per_position"]]}


def published_log() -> list[dict[str, Any]]:
    messages = {
        case["id"]: case["messages"] for case in map(json.loads, (ROOT / "prompts.jsonl").read_text().splitlines())
    }
    rows = [json.loads(line) for line in Path(BASELINE, "requests.jsonl").read_text().splitlines()]
    return [
        {
            "id": row["case"],
            "messages": messages[row["case"]],
            "max_tokens": 128,
            "response": {
                "choices": [{"message": {"role": "assistant", "content": row["text"]}}],
                "usage": {key: row[key] for key in ("prompt_tokens", "completion_tokens")},
            },
        }
        for row in rows
        if row["repeat"] == 0
    ]


def test_logs_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers", reason="requirements-forecast.txt is not installed")
    folder = str(write_tokenizer(tmp_path / "model", "a b"))
    for name, content, sentence in (
        ("asked.jsonl", {"messages": [{"role": "user", "content": "a"}]}, "holds no answers"),
        ("other.jsonl", {**published_log()[0]}, "with this tokenizer"),
        ("none.jsonl", {"what": 1}, "none.jsonl"),
    ):
        path = tmp_path / name
        path.write_text(json.dumps(content) + "\n")
        assert sentence in refused(capsys, "--logs", str(path), "--tokenizer", folder)
    gone = f"http://127.0.0.1:{find_free_port()}"
    assert "cannot reach" in refused(capsys, "--logs", str(tmp_path / "asked.jsonl"), "--url", gone)


def test_a_run_without_the_ids_of_its_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("manifest.json", "requests.jsonl", "summary.json"):
        (tmp_path / name).write_bytes(Path(BASELINE, name).read_bytes())
    assert f"has no {PROMPT_TOKENS}" in refused(capsys, str(tmp_path))
