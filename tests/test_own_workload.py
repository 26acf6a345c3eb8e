"""Your own workload: a sample in each format goes from the file to a verdict and a page, through every door."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import HANG_S, ROOT
from support.workloads import QUESTIONS, SAMPLES, write_sample


def door(name: str, *arguments: object, codes: tuple[int, ...] = (0,)) -> str:
    command = [sys.executable, str(ROOT / f"{name}.py"), *map(str, arguments)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert answer.returncode in codes, answer.stdout + answer.stderr
    return answer.stdout + answer.stderr


@pytest.mark.parametrize("name", ["native", "chat log", "batch", "vLLM custom", "SPEED-Bench", "ShareGPT array"])
def test_from_a_file_of_any_format_to_a_verdict_and_a_page(
    tmp_path: Path, embedded_engine: Callable[[str], str], name: str
) -> None:
    file, urls = write_sample(tmp_path, name), {mode: embedded_engine(mode) for mode in ("baseline", "ngram")}
    checked = door("workload", "check", file, "--url", urls["baseline"])
    assert f"read as {SAMPLES[name].read_as}" in checked and "tokens with the chat template" in checked
    assert "Room is what the model's limit leaves" in checked
    door("workload", "redact", file, "--out", tmp_path / "redacted.jsonl")
    door("workload", "sample", tmp_path / "redacted.jsonl", "-n", 3, "--out", tmp_path / "mine.jsonl")
    if SAMPLES[name].answered:
        assert "tokens" in door("forecast", "--logs", tmp_path / "mine.jsonl", "--url", urls["baseline"])
    # The frozen file and its source are one inventory, so a run of each may be compared.
    door("workload", "freeze", file, "--out", tmp_path / "frozen.jsonl")
    sides = {"baseline": file, "ngram": tmp_path / "frozen.jsonl"}
    for mode, prompts in sides.items():
        door("bench", "--url", urls[mode], "--mode", mode, "--prompts", prompts, "--concurrency", 2, "--repeats", 1,
             "--max-tokens", 8, "--out", tmp_path / mode)
    runs = [tmp_path / mode for mode in sides]
    door("compare", *runs, "--json", tmp_path / "c.json", codes=(0, 1))
    assert json.loads((tmp_path / "c.json").read_text())["cases"] == len(QUESTIONS)
    door("report", *runs, "--out", tmp_path / "page.html")
    assert "<html" in (tmp_path / "page.html").read_text()
