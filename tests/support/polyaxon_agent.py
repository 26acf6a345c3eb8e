"""A test agent: what a Polyaxon agent and Kubernetes do to a queued run, on this machine and with processes.

It asks the API for its work, checks the run's folder as the container would (the uploaded launch_vllm.py takes the
rendered arguments), starts `command(mode, port)` in place of vLLM, reports the run's states, restarts a service that
died (services are Deployments), and ends the process when the run is stopped or deleted.
"""

import contextlib
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]  # also run by itself

import httpx  # noqa: E402

from support import ROOT  # noqa: E402

Command = Callable[[str, int], list[str]]


def embedded_engine(mode: str, port: int) -> list[str]:
    """The service command of the tests: the embedded engine."""
    return [sys.executable, str(ROOT / "launch_local.py"), "--mode", mode, "--port", str(port)]


def health_only(mode: str, port: int) -> list[str]:
    """A service that answers /health, where a test needs no engine."""
    return [sys.executable, __file__, str(port)]


@dataclass
class _Running:
    instance: str
    command: list[str]
    folder: Path
    environment: dict[str, str]
    process: "subprocess.Popen[bytes]" = field(init=False)

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command, cwd=self.folder, env=self.environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Agent:
    """Runs from a thread until the with block ends; then nothing that it started is left.

    Args:
      api: the sandbox's host.
      artifacts: the sandbox's folder, the artifacts store.
      services: run UUID -> base URL of its process, kept up to date (the gateway's table).
    """

    def __init__(self, api: str, artifacts: Path, services: dict[str, str], command: Command = embedded_engine) -> None:
        self.api, self.artifacts, self.services, self.command = api, artifacts, services, command
        self.idle = False  # takes no run: they stay queued
        self.fail: str | None = None  # the reason with which the next runs fail to start
        self.started: list[str] = []
        self._lock = threading.Lock()  # held for one round of work
        self._running: dict[str, _Running] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._http = httpx.Client(base_url=api, timeout=30, trust_env=False)

    def __enter__(self) -> "Agent":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        for uuid in list(self._running):
            self._end(uuid)
        self._http.close()

    def _loop(self) -> None:
        while not self._stop.wait(0.3):
            if not self.idle:
                # The next round asks again. The sandbox now and then gives its web page (or 405) for an API call.
                with contextlib.suppress(httpx.HTTPError, ValueError):
                    self.step()

    def step(self) -> None:
        """One round of work: start what is queued, end what is stopped or deleted, restart what died."""
        with self._lock:
            state = self._state()
            for instance, _, _, content, _ in state["queued"]:
                self._start(instance, json.loads(content))
            for instance, *_ in state["stopping"]:
                self._end(_uuid(instance))
                self._report(instance, "stopped", "the process is gone")
            for uuid, running in list(self._running.items()):
                if self._is_deleted(running.instance):
                    self._end(uuid)
                elif running.process.poll() is not None:
                    running.start()

    def clear(self) -> None:
        """End every run, also those that are queued: what one test leaves is nothing to the next."""
        with self._lock:
            state = self._state()
            for instance, *_ in [*state["queued"], *state["stopping"]]:
                self._report(instance, "stopped", "the test is over")
            for uuid, running in list(self._running.items()):
                self._end(uuid)
                self._report(running.instance, "stopped", "the test is over")
            self.services.clear()
            self.started.clear()

    def _state(self) -> dict[str, Any]:
        """What the API wants done. The sandbox now and then answers with its web page, or with 405."""
        for _ in range(5):
            with contextlib.suppress(httpx.HTTPStatusError, ValueError):
                answer = self._http.get("/api/v1/orgs/default/agents/state").raise_for_status()
                return dict(answer.json()["state"])
        raise ValueError("the sandbox does not say what is to be done")

    def _is_deleted(self, instance: str) -> bool:
        """Whether somebody deleted the run.

        The state names a deleted run once, to whoever asks first, and the sandbox has a thread that asks every two
        seconds and keeps the answer: so the state's list is not used. The run itself can be read until its row is
        gone, a day later; its statuses can not.
        """
        return self._http.get(f"{_path(instance)}/statuses").status_code == 404

    def _start(self, instance: str, content: dict[str, Any]) -> None:
        uuid, container = _uuid(instance), content["run"]["container"]
        self.started.append(uuid)
        self._report(instance, "starting", "")
        folder = Path(container["workingDir"].replace("/plx-context/artifacts", str(self.artifacts)))
        wrong = self.fail or _wrong(folder, container)
        if wrong:
            self._report(instance, "failed", wrong)
            return
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        mode = re.search(r"--mode[= ](\w+)", " ".join(container["args"]))
        assert mode is not None
        running = _Running(
            instance, self.command(mode[1], port), folder,
            {**os.environ, "POLYAXON_RUN_INSTANCE": instance},
        )  # fmt: skip
        running.start()
        self._running[uuid] = running
        self.services[uuid] = f"http://127.0.0.1:{port}"
        self._report(instance, "running", f"process {running.process.pid}")

    def _end(self, uuid: str) -> None:
        self.services.pop(uuid, None)
        if running := self._running.pop(uuid, None):
            running.end()

    def pid(self, uuid: str) -> int:
        return self._running[uuid].process.pid

    def _report(self, instance: str, status: str, message: str) -> None:
        condition = {"type": status, "status": "True", "reason": "TestAgent", "message": message}
        for _ in range(5):
            if self._http.post(f"{_path(instance)}/statuses", json={"condition": condition}).status_code != 405:
                return


def _wrong(folder: Path, container: dict[str, Any]) -> str | None:
    """What a container that fails at once would say: launch_vllm.py is missing, or refuses its arguments."""
    script = folder / container["command"][1]
    if not script.is_file():
        return f"can't open file {container['command'][1]!r}: No such file or directory"
    done = subprocess.run(
        [sys.executable, str(script), *container["args"], "--print"], check=False, capture_output=True, text=True
    )
    return None if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def _uuid(instance: str) -> str:
    return instance.split(".")[-1]


def _path(instance: str) -> str:
    owner, project, _, uuid = instance.split(".")
    return f"/api/v1/{owner}/{project}/runs/{uuid}"


class _Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()


if __name__ == "__main__":
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), _Health).serve_forever()
