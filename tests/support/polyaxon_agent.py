"""A test agent: what a Polyaxon agent and Kubernetes do to a queued run, on this machine and with processes.

It asks the API for its work, reports the run's states, and ends the process when the run is stopped or deleted.

- A service: it checks the run's folder as the container would (the uploaded launch_vllm.py takes the rendered
  arguments) and starts `command(mode, port)` in place of vLLM. One that died is started again (services are
  Deployments).
- A job: it runs the container's own command in the run's folder, with the container's variables, and with the
  packages of this environment in place of what `pip install` would bring. One that fails or is killed is started
  again as often as its `maxRetries` say; its folder is then as the last attempt left it.
"""

import contextlib
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]  # also run by itself

import httpx  # noqa: E402
import psutil  # noqa: E402

from support import HANG_S, ROOT  # noqa: E402

Command = Callable[[str, int], list[str]]
JOB_GRACE_S = 30.0  # Kubernetes' own


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
    log: Path | None = None
    retries: int | None = None  # of a job; None for a service, which is started again for ever
    killed_at: float | None = None  # when a job that was asked to end is killed
    process: "subprocess.Popen[bytes]" = field(init=False)

    def start(self) -> None:
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(self.log.open("ab")) if self.log else subprocess.DEVNULL
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, env=self.environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def end(self, grace_s: float = 10.0) -> None:
        """As Kubernetes: SIGTERM to the container's first process, and after the grace SIGKILL to all of it."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace_s)
        self.kill()

    def kill(self) -> None:
        """As a node that goes away: everything in the container ends at once."""
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(self.process.pid)
            for process in [*first.children(recursive=True), first]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Agent:
    """Runs from a thread until the with block ends; then nothing that it started is left.

    Args:
      api: the sandbox's host.
      artifacts: the sandbox's folder, the artifacts store.
      services: run UUID -> base URL of its process, kept up to date (the gateway's table).
      host: the gateway's, which a job talks to.
    """

    def __init__(
        self, api: str, artifacts: Path, services: dict[str, str], host: str, command: Command = embedded_engine
    ) -> None:
        self.api, self.artifacts, self.services, self.host, self.command = api, artifacts, services, host, command
        self.secrets: dict[tuple[str, str], str] = {("polyaxon-token", "token"): "the-token-of-the-secret"}
        self.homes = Path(tempfile.mkdtemp(prefix="specbench-agent-"))
        self.idle = False  # takes no run: they stay queued
        self.fail: str | None = None  # the reason with which the next runs fail to start
        self.started: list[str] = []
        self._lock = threading.Lock()  # held for one round of work
        self._running: dict[str, _Running] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._http = httpx.Client(base_url=api, timeout=HANG_S, trust_env=False)

    def __enter__(self) -> "Agent":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        for uuid in list(self._running):
            self._end(uuid)
        self._http.close()
        shutil.rmtree(self.homes, ignore_errors=True)

    def _loop(self) -> None:
        while not self._stop.wait(0.1):
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
                if self._has_stopped(_uuid(instance)):
                    self._end(_uuid(instance))
                    self._report(instance, "stopped", "the process is gone")
            for uuid, running in list(self._running.items()):
                if self._is_deleted(running.instance):
                    self._end(uuid)
                elif (code := running.process.poll()) is not None:
                    self._ended(uuid, running, code)

    def _has_stopped(self, uuid: str) -> bool:
        """Whether a run that is to stop may be ended now: a job gets half a minute to end by itself."""
        running = self._running.get(uuid)
        if running is None or running.retries is None:
            return True
        if running.killed_at is None:
            running.killed_at = time.monotonic() + JOB_GRACE_S
            running.process.terminate()
        return running.process.poll() is not None or time.monotonic() > running.killed_at

    def _ended(self, uuid: str, running: _Running, code: int) -> None:
        """Start again what ended by itself, unless it is a job that is done or may not be started again."""
        if running.killed_at is not None:
            return  # to be reported as stopped
        if running.retries is None:
            running.start()
        elif code and running.retries:
            running.retries -= 1
            running.start()
        else:
            self._end(uuid)
            self._report(running.instance, "failed" if code else "succeeded", f"exit code {code}")

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
        is_job = content["run"]["kind"] == "job"
        folder = self._path_of(container["workingDir"])
        wrong = self.fail or (None if is_job else _wrong(folder, container))
        if wrong:
            self._report(instance, "failed", wrong)
            return
        running = self._job(instance, content, folder) if is_job else self._service(instance, container, folder)
        running.start()
        self._running[uuid] = running
        self._report(instance, "running", f"process {running.process.pid}")

    def _path_of(self, text: str) -> Path:
        return Path(text.replace("/plx-context/artifacts", str(self.artifacts)))

    def _service(self, instance: str, container: dict[str, Any], folder: Path) -> _Running:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        mode = re.search(r"--mode[= ](\w+)", " ".join(container["args"]))
        assert mode is not None
        self.services[_uuid(instance)] = f"http://127.0.0.1:{port}"
        environment = {**os.environ, "POLYAXON_RUN_INSTANCE": instance}
        return _Running(instance, self.command(mode[1], port), folder, environment)

    def _job(self, instance: str, content: dict[str, Any], folder: Path) -> _Running:
        container, home = content["run"]["container"], self.homes / _uuid(instance)
        programs = home / "bin"
        programs.mkdir(parents=True)
        for name, script in (("pip", "exit 0"), ("python", f'exec "{sys.executable}" "$@"')):
            (programs / name).write_text(f"#!/bin/sh\n{script}\n")
            (programs / name).chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("POLYAXON_", "SERVICE_URL"))}
        environment = {
            **kept, "POLYAXON_HOST": self.host, "POLYAXON_HOME": str(home), "POLYAXON_RUN_INSTANCE": instance,
            "PATH": f"{programs}:{os.environ['PATH']}",
        }  # fmt: skip
        for variable in container.get("env") or []:
            secret = (variable.get("valueFrom") or {}).get("secretKeyRef")
            value = self.secrets[secret["name"], secret["key"]] if secret else variable["value"]
            environment[variable["name"]] = value
        command = [str(self._path_of(word)) if "/plx-context/" in word else word for word in container["args"]]
        retries = int((content.get("termination") or {}).get("maxRetries") or 0)
        return _Running(instance, [*container["command"], *command], folder, environment, self.log(instance), retries)

    def log(self, run: str) -> Path:
        """What a job printed, over all its attempts. `run`: its UUID or instance."""
        return self.homes / f"{_uuid(run)}.log"

    def _end(self, uuid: str) -> None:
        self.services.pop(uuid, None)
        if running := self._running.pop(uuid, None):
            running.end()

    def pid(self, uuid: str) -> int:
        return self._running[uuid].process.pid

    def kill(self, uuid: str) -> None:
        """End a run's container without a warning."""
        self._running[uuid].kill()

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
