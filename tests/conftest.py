"""Fixtures that several test files share: a free port, the embedded engine, and what CI must not skip."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest
from support import HANG_S, ROOT, find_free_port, wait_until_healthy
from support.vllm_source import Source, fetch_source

# Files whose tests wait for engines and Polyaxon's API: begun first, they do not leave one worker alone at the end.
LONG = ("tests/polyaxon/", "tests/test_own_workload.py", "tests/client/test_withholding.py", "tests/deploy/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long files first; the order within them stays."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.fixture
def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens."""
    return find_free_port()


@pytest.fixture(scope="session")
def not_available() -> Callable[[str], NoReturn]:
    """Skip with a reason where something optional is missing; in CI (CI=1) that is a failure."""

    def skip_or_fail(reason: str) -> NoReturn:
        if os.environ.get("CI"):
            pytest.fail(f"needed in CI: {reason}")
        pytest.skip(reason)

    return skip_or_fail


@pytest.fixture(scope="session")
def vllm(not_available: Callable[[str], NoReturn]) -> Source:
    """The source of the vLLM version that launch_vllm.py pins."""
    return fetch_source(not_available)


@pytest.fixture(scope="session")
def embedded_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """`embedded_engine(mode)` gives the URL of launch_local.py in that mode, started once per session."""
    running: dict[str, tuple[subprocess.Popen[bytes], str]] = {}
    logs = tmp_path_factory.mktemp("engine")

    def url_of(mode: str) -> str:
        if mode not in running:
            port = find_free_port()
            command = [sys.executable, str(ROOT / "launch_local.py"), "--mode", mode, "--port", str(port)]
            with (logs / f"{mode}.log").open("wb") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            running[mode] = process, f"http://127.0.0.1:{port}"
            wait_until_healthy(process, running[mode][1], logs / f"{mode}.log")
        return running[mode][1]

    yield url_of
    for process, _ in running.values():
        process.terminate()
    for process, _ in running.values():
        process.wait(timeout=HANG_S)
