"""Where servers run: what every target does, and the two whose servers are child processes of this machine."""

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import httpx

from specbench import UserError
from specbench.deploy.gpus import TOLERANCE_MIB, gpu_memory, memory_held
from specbench.deploy.processes import (
    HOST,
    end_process,
    free_port,
    has_ended,
    living,
    machine_boot,
    port_answers,
    start_process,
    wait_until,
)
from specbench.deploy.state import MODES, Deployment, Proof
from specbench.words import printable

ROOT = Path(__file__).resolve().parents[2]  # where the scripts are
FREE_PATIENCE_S = 60.0  # the driver gives memory back some seconds after the process is gone


class Target(Protocol):
    """Where servers run. Everything it must know to stop a server stands in the deployment, for a later resume."""

    def check(self) -> None:
        """Raise UserError when no deployment could start here."""

    def start(self, deployment: Deployment, save: Callable[[], None]) -> None:
        """Start the server; what is started is written into `deployment` and saved before it runs."""

    def wait_ready(self, deployment: Deployment) -> str:
        """Wait until healthy and return the URL; UserError with the log's end when it fails or takes too long."""

    def bench_options(self, deployment: Deployment) -> list[str]:
        """What bench.py needs beside URL, mode, load, repeats, prompts and directory."""

    def died(self, deployment: Deployment) -> str | None:
        """Why the server no longer serves, None while it does."""

    def stop(self, deployment: Deployment) -> None:
        """End the server, also one that an earlier call of this script started, also one that is gone."""

    def end_strays(self) -> None:
        """End servers of this experiment that the state does not name, because it is older than they are."""

    def prove_free(self, deployment: Deployment) -> Proof:
        """What shows that the device is free, and what could not be shown; UserError when it provably is not."""

    def memory(self) -> dict[str, int] | None:
        """MiB used per GPU, None where there is no GPU to ask."""


class LocalTarget:
    """launch_local.py as a child process that listens on 127.0.0.1."""

    launcher = "launch_local.py"
    grace_s = 10.0

    def __init__(self, folder: Path, options: list[str], port: int | None, startup_s: float) -> None:
        self.folder = folder
        self.options = options
        self.port = port
        self.startup_s = startup_s
        self.child: subprocess.Popen[bytes] | None = None

    def check(self) -> None:
        if self.options:
            raise UserError(f"--target local takes no options after --, got {' '.join(self.options)}: leave them out")

    def memory(self) -> dict[str, int] | None:
        return None

    def command(self, mode: str, port: int) -> list[str]:
        """The launcher's command line."""
        script = str(ROOT / self.launcher)
        return [sys.executable, script, *self.options, "--mode", mode, "--port", str(port)]

    def start(self, deployment: Deployment, save: Callable[[], None]) -> None:
        port = self.port or free_port()
        if self.port and port_answers(port):
            raise UserError(f"--port {port} of {HOST} is taken: stop what listens there, or leave --port out")
        deployment.url = f"http://{HOST}:{port}"
        deployment.log = f"{deployment.name}.log"
        command = self.command(deployment.mode, port)
        self.child = start_process(command, deployment, save, log=self.folder / deployment.log)

    def wait_ready(self, deployment: Deployment) -> str:
        url, process = str(deployment.url), deployment.process
        assert process is not None
        deadline = time.monotonic() + self.startup_s
        while not has_ended(process):
            with contextlib.suppress(httpx.HTTPError):
                if _get(f"{url}/health").status_code == 200:
                    return url
            if time.monotonic() > deadline:
                raise UserError(
                    f"{deployment.name} was not healthy after --startup-timeout {self.startup_s:g} s; "
                    f"the end of its log:\n{self.last_lines(deployment)}"
                )
            time.sleep(0.1)
        raise UserError(f"{deployment.name} ended before it was healthy; its log:\n{self.last_lines(deployment)}")

    def bench_options(self, deployment: Deployment) -> list[str]:
        return []

    def died(self, deployment: Deployment) -> str | None:
        if deployment.process is None or has_ended(deployment.process):
            return f"its process ended; the end of its log:\n{self.last_lines(deployment)}"
        try:
            status = _get(f"{deployment.url}/health").status_code
        except httpx.HTTPError as error:
            return f"/health does not answer ({type(error).__name__}: {error})"
        return None if status == 200 else f"/health answers {status}"

    def stop(self, deployment: Deployment) -> None:
        end_process(deployment.process, self.grace_s)
        if self.child is not None:
            self.child.wait()

    def end_strays(self) -> None:
        """None can be: a process starts only once the state on this disk names it."""

    def prove_free(self, deployment: Deployment) -> Proof:
        name, process = deployment.name, deployment.process
        if process is None:
            return Proof(["nothing was started"])
        if process.boot != machine_boot():
            return Proof(["it ran on another machine or before a reboot"])
        if left := [one.pid for one in living(process)]:
            raise UserError(f"processes {left} of {name} still run: end them, then --resume")
        port = _port_of(deployment)
        if not wait_until(lambda: not port_answers(port), FREE_PATIENCE_S):
            raise UserError(f"port {port} still answers after {name} ended: end what listens there, then --resume")
        memory = self.prove_memory(deployment)
        gone = [f"process group {process.pid} is gone", f"port {port} is closed"]
        return Proof([*gone, *memory.proven], memory.not_proven)

    def prove_memory(self, deployment: Deployment) -> Proof:
        """As prove_free, for GPU memory: the embedded engine holds none."""
        return Proof()

    def last_lines(self, deployment: Deployment, count: int = 15) -> str:
        """The end of the server's log, indented, safe for a terminal."""
        lines = (self.folder / str(deployment.log)).read_text(errors="replace").splitlines()[-count:]
        return "\n".join(f"    {printable(line)}" for line in lines) or "    (empty)"


class VllmTarget(LocalTarget):
    """launch_vllm.py on a machine with a GPU and vLLM, no Polyaxon needed."""

    launcher = "launch_vllm.py"
    grace_s = 60.0

    def check(self) -> None:
        """GPU there, options taken by the launcher in both modes, command found: before anything is made."""
        for ours in ("--mode", "--host", "--port", "--print"):
            if any(option.partition("=")[0] == ours for option in self.options):
                raise UserError(f"{ours} after -- is set by experiment.py itself: leave it out")
        if self.memory() is None:
            raise UserError("no GPU: nvidia-smi does not answer; --target local needs none")
        for mode in MODES.values():
            command = [*self.command(mode, self.port or 8000), "--print"]
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
            if answer.returncode:
                raise UserError(answer.stderr.strip().rpartition("\n")[2].removeprefix("launch_vllm.py: "))
            program = json.loads(answer.stdout)[0]
            if shutil.which(program) is None:
                raise UserError(f"there is no command {program!r}: install vLLM, or give its command as -- --vllm CMD")

    def memory(self) -> dict[str, int] | None:
        return gpu_memory()

    def prove_memory(self, deployment: Deployment) -> Proof:
        free = deployment.gpu_memory_mib.free
        if free is None:
            return Proof([], ["GPU memory (nvidia-smi did not answer before the first deployment)"])
        wait_until(lambda: not memory_held(free, self.memory()), FREE_PATIENCE_S)
        if held := memory_held(free, self.memory()):
            raise UserError(
                f"the GPU is not free after {deployment.name} was stopped: {', '.join(held)}; "
                "nvidia-smi shows by whom, end it, then --resume"
            )
        return Proof([f"GPU memory is within {TOLERANCE_MIB} MiB of where it was"])


def _port_of(deployment: Deployment) -> int:
    with contextlib.suppress(ValueError):
        if port := urlsplit(deployment.url or "").port:
            return port
    raise UserError(f"the state names no port of {deployment.name}: it was edited, begin again with another --out")


def _get(url: str) -> httpx.Response:
    """One request to this machine, past any proxy."""
    return httpx.get(url, timeout=5, trust_env=False)
