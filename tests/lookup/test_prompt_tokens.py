"""benchmarks/prompt_tokens.py adds the ids of prompts to older result directories, and only ids that fit."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import ROOT

from specbench.record.prompts import PROMPT_TOKENS

PUBLISHED = ROOT / "results" / "h200-smollm2-135m" / "01-baseline-c1"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A published result directory as it was before its prompts' ids were kept."""
    folder = Path(shutil.copytree(PUBLISHED, tmp_path / "run"))
    (folder / PROMPT_TOKENS).unlink()
    return folder


def add(run: Path, url: str, prompts: Path = ROOT / "prompts.jsonl") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "benchmarks" / "prompt_tokens.py")]
    command += ["--url", url, "--prompts", str(prompts), str(run)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_published_file_is_made_again(run: Path, embedded_engine: Callable[[str], str]) -> None:
    answer = add(run, embedded_engine("baseline"))
    assert (answer.returncode, answer.stderr) == (0, "")
    assert (run / PROMPT_TOKENS).read_bytes() == (PUBLISHED / PROMPT_TOKENS).read_bytes()


def test_ids_of_another_length_are_not_written(run: Path, embedded_engine: Callable[[str], str]) -> None:
    rows = [json.loads(line) for line in (run / "requests.jsonl").read_text().splitlines()]
    rows[3]["prompt_tokens"] += 1
    (run / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answer = add(run, embedded_engine("baseline"))
    assert answer.returncode == 2
    assert "--url has another tokenizer or chat template" in answer.stderr
    assert not (run / PROMPT_TOKENS).exists()


def test_other_prompts_are_refused(run: Path, tmp_path: Path, embedded_engine: Callable[[str], str]) -> None:
    other = tmp_path / "prompts.jsonl"
    other.write_text("\n".join((ROOT / "prompts.jsonl").read_text().splitlines()[:8]) + "\n")
    answer = add(run, embedded_engine("baseline"), other)
    assert answer.returncode == 2 and "was not measured with" in answer.stderr


@pytest.mark.parametrize(
    ("path", "ignored"), [("mine/prompt-tokens.jsonl", True), ("results/h200-x/a/prompt-tokens.jsonl", False)]
)
def test_what_git_ignores(path: str, ignored: bool) -> None:
    """Token ids are text in another form: by accident they come into git no more than requests.jsonl does."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "-C", str(ROOT), "check-ignore", "--quiet", "--no-index", path]
    assert (subprocess.run(command, check=False).returncode == 0) is ignored
