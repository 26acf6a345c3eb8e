"""bench.py for tests: its command line, and runs of it in this process."""

import io
import os
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from bench import main as bench_main
from specbench.record.format import REQUESTS
from support import HANG_S, ROOT


def command(out: Path, *arguments: str) -> list[str]:
    return [
        sys.executable,
        str(ROOT / "bench.py"),
        "--concurrency",
        "1",
        "--repeats",
        "1",
        "--out",
        str(out),
        *arguments,
    ]


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POLYAXON", "SERVICE_URL"))}
    return {**kept, **changes}


def bench(out: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """bench.py in this process, which spares its start; as a command it is run where signals and streams matter."""
    argv = command(out, *arguments)[2:]
    stdout, stderr = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
        for name in set(os.environ) - set(environment()):
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        try:
            code: Any = bench_main(argv)
        except SystemExit as exit:  # argparse's own
            code = exit.code
    return subprocess.CompletedProcess(argv, code, stdout.getvalue(), stderr.getvalue())


def wait_for_rows(out: Path, count: int) -> None:
    """Wait until requests.jsonl holds `count` whole lines."""
    deadline = time.monotonic() + HANG_S
    while not (out / REQUESTS).exists() or (out / REQUESTS).read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
