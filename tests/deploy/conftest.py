"""Fixtures of the experiment's tests: prompts, a GPU or none, and nothing left at the end."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.experiments import CASES, put_gpu, running_in


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Two cases of eight tokens."""
    path = tmp_path / "two.jsonl"
    path.write_text("".join(json.dumps({**case, "max_tokens": 8}) + "\n" for case in CASES))
    return path


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GPU as nvidia-smi shows it; the file holds the MiB in use."""
    used, path = put_gpu(tmp_path, os.environ["PATH"])
    monkeypatch.setenv("PATH", path)
    return used


@pytest.fixture
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test starts has the test's folder as its working folder, and is gone at its end.

    experiment.py itself runs in this process: its page has tests of its own, and its signal handlers and variables
    go with the test.
    """
    import experiment

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiment, "make_page", lambda folder: None)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in ending}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    left = running_in(tmp_path)
    for process in left:
        process.kill()
    assert left == []
