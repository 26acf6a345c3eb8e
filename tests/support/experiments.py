"""Whole experiments for tests: how they are started, what they leave, and that nothing of theirs still runs."""

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import psutil

import experiment
from specbench.record.directory import read_requests, read_summary
from support import HANG_S, ROOT

CASES = [
    {"id": "copy-1", "family": "copy", "messages": [{"role": "user", "content": "Repeat: a b c d e a b c d e"}]},
    {"id": "short-1", "family": "short", "messages": [{"role": "user", "content": "What is 2 + 2?"}]},
]
FAKE_VLLM = f"{sys.executable} {ROOT / 'tests' / 'support' / 'vllm_program.py'}"


Process: TypeAlias = "subprocess.Popen[str]"


@dataclass
class Answer:
    """What a call of experiment.py ended with and printed."""

    code: int
    out: str
    error: str


def run(*arguments: object) -> Answer:
    """experiment.py in this process, as a shell would call it; its servers and bench.py are processes all the same."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = experiment.main([*map(str, arguments)])
    return Answer(code, out.getvalue(), error.getvalue())


def start(folder: Path, *arguments: object, stdout: int = subprocess.DEVNULL, before: str = "") -> Process:
    """experiment.py as a process of its own in `folder`, to be killed; without the page at the end.

    `before`: Python that runs first.
    """
    script = (
        f"import signal, sys; sys.path.insert(0, {str(ROOT)!r}); {before}\n"
        "import experiment; from specbench import terminal; experiment.make_page = lambda folder: None\n"
        "raise SystemExit(terminal.run('experiment.py', experiment.main))"
    )
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=folder, stdout=stdout, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def on_vllm(
    prompts: Path, out: Path, *arguments: object, order: str = "BN", loads: str = "1", fake: str = ""
) -> list[Any]:
    """Arguments for --target vllm with the recorded streams behind it; `fake`: options of vllm_program.py."""
    return [
        "--target", "vllm", "--out", out, "--prompts", prompts, "--order", order, "--concurrency", loads,
        "--repeats", 1, *arguments, "--", "--vllm", f"{FAKE_VLLM} {fake}", "--model", "m",
    ]  # fmt: skip


def on_local(prompts: Path, out: Path, *arguments: object) -> list[Any]:
    """Arguments for one pair on the embedded engine at 1 user."""
    return [
        "--target", "local", "--out", out, "--prompts", prompts, "--order", "BN", "--concurrency", 1,
        "--repeats", 1, *arguments,
    ]  # fmt: skip


def state(out: Path) -> dict[str, Any]:
    """experiment.json as jq reads it."""
    return dict(json.loads((out / "experiment.json").read_text()))


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until `condition` holds; a state file that is not there yet, or replaced meanwhile, is none that holds."""
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, LookupError):
            if condition():
                return
        time.sleep(0.01)
    raise AssertionError("what was waited for did not come")


def running_in(folder: Path) -> list[psutil.Process]:
    """Other processes whose working folder is in `folder`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            here = Path(process.cwd()).is_relative_to(folder) and process.pid != os.getpid()
            if here and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def put_gpu(folder: Path, path: str) -> tuple[Path, str]:
    """A GPU as nvidia-smi shows it: the file that holds the MiB in use, and `path` with the command before it."""
    used = folder / "used-mib"
    used.write_text("4")
    command = folder / "bin" / "nvidia-smi"
    command.parent.mkdir()
    command.write_text(
        f'#!/bin/sh\ncase "$1" in *memory.used*) echo "0, A GPU, $(cat {used})";; *) echo "A GPU, 1000, 570.1";; esac\n'
    )
    command.chmod(0o755)
    return used, f"{command.parent}{os.pathsep}{path}"


def assert_complete(out: Path, loads: tuple[int, ...]) -> None:
    """Every place in the order has a whole directory per load, and compare.py took them as pairs."""
    document = state(out)
    assert document["status"] == "complete"
    for load in loads:
        step = document["comparisons"][str(load)]
        assert step["exit_code"] in (0, 1)
        directories = [out / name for pair in step["pairs"] for name in pair]
        assert len(set(directories)) == len(document["settings"]["order"])
        asked = []
        for directory in directories:
            requests = read_summary(directory).requests
            assert requests.ok == requests.scheduled > 0
            rows = [row for row in read_requests(directory) if row.phase == "measured"]
            asked.append(sorted((row.case, row.repeat, row.prompt_sha256) for row in rows))
        assert all(one == asked[0] for one in asked)
        result = json.loads((out / step["json"]).read_text())
        assert result["base"]["directories"] == [base for base, _ in step["pairs"]]
