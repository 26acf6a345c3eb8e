"""judged.json: a command judges each distinct answer once, when it is allowed, and what it said stays known."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT
from support.vllm_standin import StandIn

from specbench import UserError
from specbench.record.directory import read_summary
from specbench.record.judged import JUDGED, read_judged


def bench(out: Path, prompts: Path, url: str, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "bench.py"), "--url", url, "--prompts", str(prompts), "--concurrency", "1",
               "--repeats", "2", "--out", str(out), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Two of the shipped cases, one judged by a command that notes that it ran, one by a regular expression."""
    lines = [json.loads(line) for line in (ROOT / "prompts.jsonl").read_text().splitlines()]
    script = f"import sys; open({str(tmp_path / 'ran')!r}, 'a').write('x'); sys.exit(not sys.stdin.read().strip())"
    judged = lines[0] | {"expect": {"command": [sys.executable, "-c", script]}}
    cases = [judged, lines[-1] | {"expect": "no such answer"}]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in cases))
    return path


def test_without_the_flag_no_command_runs_and_that_is_said(tmp_path: Path, prompts: Path) -> None:
    with StandIn() as server:
        answer = bench(tmp_path / "out", prompts, server.url)
    assert answer.returncode == 0, answer.stderr
    assert not (tmp_path / "ran").exists() and not (tmp_path / "out" / JUDGED).exists()
    summary = read_summary(tmp_path / "out")
    assert summary is not None and list(summary.expect.cases) == [json.loads(prompts.read_text().splitlines()[1])["id"]]
    assert "1 case not judged: their expect is a command; give --allow-commands" in answer.stdout


def test_with_the_flag_equal_answers_are_judged_once_and_kept(tmp_path: Path, prompts: Path) -> None:
    with StandIn() as server:
        answer = bench(tmp_path / "out", prompts, server.url, "--allow-commands")
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "ran").read_text() == "x"  # two repeats gave one answer
    summary, judged = read_summary(tmp_path / "out"), read_judged(tmp_path / "out")
    assert summary is not None and judged is not None
    assert (summary.expect.checked, summary.expect.passed) == (4, 2)
    text = json.loads((tmp_path / "out" / "requests.jsonl").read_text().splitlines()[-1])["text"]
    assert sorted(len(known) for known in judged.cases.values()) == [1, 1] and text not in (
        tmp_path / "out" / JUDGED
    ).read_text()


def test_a_program_that_is_missing_is_said_before_anything_is_measured(tmp_path: Path, prompts: Path) -> None:
    prompts.write_text(prompts.read_text().replace(json.dumps(sys.executable), '"no-such-program"'))
    answer = bench(tmp_path / "out", prompts, "http://127.0.0.1:9", "--allow-commands")
    assert answer.returncode == 2 and "'no-such-program' of an expect is not found" in answer.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 1}', '{"format": 1, "cases": {"a": {"b": 3}}}'])
def test_an_edited_file_is_a_sentence(tmp_path: Path, content: str) -> None:
    assert read_judged(tmp_path) is None
    (tmp_path / JUDGED).write_text(content)
    with pytest.raises(UserError, match="is not what bench"):
        read_judged(tmp_path)
