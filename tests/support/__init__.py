"""What tests share: where the project is, free ports, waiting for a server."""

import pathlib
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
RECORDINGS = TESTS / "recordings" / "vllm-0.11.2"
HANG_S = 300.0  # a deadline that only a hang can reach, however slow or busy the machine is


def find_free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until_healthy(process: "subprocess.Popen[bytes]", url: str, log: pathlib.Path) -> None:
    """Wait until `url`/health answers 200; fail with the log's end when the process dies or hangs."""
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=10):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    process.kill()
    pytest.fail(f"the server did not get healthy: {log.read_text(errors='replace')[-2000:]}")
