"""Polyaxon's real API on this machine, for the tests: haupt's sandbox in an environment of its own.

    python tests/support/polyaxon_server.py       # the sandbox, a test agent and a gateway, to follow the README

haupt is AGPL-3.0 and 676 MB: `make sandbox` installs it into .venv-haupt, and nothing here imports it.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]  # also run by itself

from support import HANG_S, ROOT  # noqa: E402
from support.polyaxon_agent import Agent  # noqa: E402
from support.polyaxon_gateway import Gateway  # noqa: E402

PROJECT = "bench"


@dataclass
class Cluster:
    """What a Polyaxon deployment is to its user: a host; and behind it, the API, an agent and a gateway."""

    api: str
    artifacts: Path
    gateway: Gateway
    agent: Agent

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        """Variables for a process that talks to this deployment and has no configuration of its own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("POLYAXON_", "SERVICE_URL"))}
        return {**kept, "POLYAXON_HOST": self.gateway.host, "POLYAXON_HOME": str(home), "COLUMNS": "200", **more}


def haupt() -> Path | None:
    """The haupt command, None where `make sandbox` has not been run."""
    folder = Path(os.environ.get("SPECBENCH_SANDBOX_VENV", ROOT / ".venv-haupt"))
    command = folder / "bin" / "haupt"
    return command if command.exists() else None


@contextlib.contextmanager
def cluster(command: Path, folder: Path) -> Iterator[Cluster]:
    """A running deployment with one project, PROJECT; nothing of it is left afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    api, artifacts = f"http://127.0.0.1:{port}", folder / "artifacts"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POLYAXON_")}
    environment["POLYAXON_HOME"] = str(folder / "home")
    with (folder / "sandbox.log").open("wb") as log:
        process = subprocess.Popen(
            [str(command), "sandbox", "start", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
             "--path", str(artifacts)],
            env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        _wait_for_api(process, api, folder / "sandbox.log")
        with Gateway(api) as gateway, Agent(api, artifacts, gateway.services, gateway.host) as agent:
            yield Cluster(api, artifacts, gateway, agent)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for_api(process: "subprocess.Popen[bytes]", api: str, log: Path) -> None:
    end = time.monotonic() + HANG_S
    with httpx.Client(trust_env=False) as client:
        while process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(httpx.HTTPError):
                if client.post(f"{api}/api/v1/default/projects/create", json={"name": PROJECT}).is_success:
                    return
            time.sleep(0.2)
    raise RuntimeError(f"the sandbox did not start: {log.read_text(errors='replace')[-2000:]}")


def main() -> int:
    command = haupt()
    if command is None:
        print("sandbox.py: haupt is not installed: run `make sandbox`", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder, cluster(command, Path(folder)) as running:
        print(
            f"export POLYAXON_HOST={running.gateway.host} POLYAXON_HOME={folder}/home   # project: {PROJECT}",
            flush=True,
        )
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise SystemExit(main())
