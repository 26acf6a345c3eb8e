#!/usr/bin/env python3
"""The whole experiment in one command: deploy, bench at each load, stop, prove the device free, next; then compare.

    python experiment.py --target local --out results/trial --repeats 2
    python experiment.py --target vllm --out results/gpu --order BNNBBN -- --vllm "/opt/vllm/bin/vllm"
    python experiment.py --target polyaxon -p PROJECT --out results/cluster -- -P prefix_caching=on
    python experiment.py --out results/gpu --resume

After a crash, Ctrl-C, SIGKILL or a reboot, --resume ends what was left running, keeps every finished result
directory, and goes on; at most the directory in progress is lost. The state is OUT/experiment.json, written
atomically after every step, paths relative to OUT:

    format, id, tool      1, this experiment's own id, tool name and version
    settings              target, order, concurrency, repeats, max_tokens, prompts_sha256, launcher_options (redacted)
    status, stopped       running | complete | interrupted | stopped; the sentence that says why it stopped
    started, ended        UTC
    device                boot: which boot of which machine; gpu_memory_mib: per GPU, before its first deployment
    deployments           in order of time, one per server that was started:
      index, name, mode   place in the order (from 1), name of its log and directories, baseline | ngram
      status              starting | ready | done | died | interrupted | failed
      started, ready_s    UTC; seconds from start to healthy
      compile_cache       cold | warm | unknown, as the server says
      gpu_memory_mib      free (as in device), before, ready, after: MiB used per GPU; null without one
      run                 on Polyaxon: name, uuid, project, namespace, status, pods that kubectl showed
      url, log, process   where it listens; its log; pid, created (start, Unix time), boot, marker (environment)
      loads               concurrency -> directory, status (running | done | unfinished), seconds, exit_code, process
      proof               proven and not_proven: sentences on whether the device was free afterwards
    comparisons           concurrency -> exit_code of compare.py, json, markdown, text (files), pairs of directories

A deployment that died or was interrupted is done again under a new name and both are kept. The directory that
counts for a place in the order and a load is the `done` one of a deployment that did not die.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import math
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import httpx
import msgspec
import psutil

from specbench import Parser, UserError
from specbench.files import json_bytes, write_atomically
from specbench.polyaxon.polyaxon_run import PolyaxonTarget, Runs, params_in
from specbench.record.directory import read_manifest, read_summary
from specbench.record.provenance import now, tool
from specbench.redaction import REDACTED, redacted
from specbench.words import printable
from specbench.workload.inventory import read_inventory

ROOT = Path(__file__).resolve().parent
HOST = "127.0.0.1"
FORMAT = 1
STATE = "experiment.json"
PROMPTS = "prompts.jsonl"
TARGETS = ("local", "vllm", "polyaxon")
MODES = {"B": "baseline", "N": "ngram"}
DEFAULTS = {"order": "BNNB", "concurrency": [1, 4, 8], "repeats": 10, "max_tokens": 128, "launcher_options": []}
MARKER = "SPECBENCH_STARTED_AS"  # in the environment of everything started, so that orphans can be told from strangers
BENCH_GRACE_S = 20.0  # bench.py writes its files after SIGTERM
DEATH_PATIENCE_S = 20.0  # vLLM's server outlives its dead engine by some seconds
FREE_PATIENCE_S = 60.0  # the driver gives memory back some seconds after the process is gone
GPU_TOLERANCE_MIB = 200

Deployment = dict[str, Any]


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

    def prove_free(self, deployment: Deployment) -> dict[str, list[str]]:
        """Sentences under proven and not_proven; UserError when the device is provably not free."""

    def memory(self) -> dict[str, int] | None:
        """MiB used per GPU, None where there is no GPU to ask."""


# ---- processes


def start_process(
    command: Sequence[str],
    owner: dict[str, Any],
    save: Callable[[], None],
    *,
    log: Path | None = None,
    cwd: Path | None = None,
) -> "subprocess.Popen[bytes]":
    """Start `command` in a process group of its own; pid and start time are saved in `owner` before it runs.

    The child waits for a line on its standard input before it becomes `command`. If this process is killed
    before the state is on disk, the pipe closes and the child ends: nothing runs that the state does not name.
    """
    marker = uuid.uuid4().hex
    gate = ["/bin/sh", "-c", 'read -r go && exec "$@" </dev/null', "sh", *command]
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("ab")) if log else None
        child = subprocess.Popen(
            gate, stdin=subprocess.PIPE, stdout=output, stderr=output and subprocess.STDOUT, cwd=cwd,
            start_new_session=True, env={**os.environ, MARKER: marker},
        )  # fmt: skip
    created = psutil.Process(child.pid).create_time()
    owner["process"] = {"pid": child.pid, "created": created, "boot": machine_boot(), "marker": marker}
    save()
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(b"go\n")
        child.stdin.close()
    return child


def leader(process: dict[str, Any]) -> psutil.Process | None:
    """The recorded process if it still exists (perhaps as a zombie): same pid and same start time."""
    if process["boot"] != machine_boot():
        return None
    with contextlib.suppress(psutil.NoSuchProcess):
        found = psutil.Process(process["pid"])
        if abs(found.create_time() - process["created"]) < 2:  # clocks of two readings differ by up to a tick
            return found
    return None


def living(process: dict[str, Any]) -> list[psutil.Process]:
    """What still runs of a recorded process and its group; never a stranger that got the number later."""
    verified = leader(process) is not None
    found = []
    for candidate in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getpgid(candidate.pid) != process["pid"] or candidate.status() == psutil.STATUS_ZOMBIE:
                continue
            if verified or candidate.environ().get(MARKER) == process["marker"]:
                found.append(candidate)
    return found


def has_ended(process: dict[str, Any]) -> bool:
    """Whether the recorded process itself, not its group, is gone. Leaves a zombie unreaped: it guards the number."""
    found = leader(process)
    return found is None or found.status() == psutil.STATUS_ZOMBIE


def end_process(process: dict[str, Any] | None, grace_s: float) -> None:
    """SIGTERM to the recorded process, SIGKILL to its group after `grace_s`. Nothing to do when it is gone."""
    if process is None:
        return
    first = leader(process)
    if first is not None and not has_ended(process):
        signal_all([first], signal.SIGTERM)
    if not wait_until(lambda: not living(process), grace_s):
        signal_all(living(process), signal.SIGKILL)
        if not wait_until(lambda: not living(process), 30):
            raise UserError(f"process {process['pid']} did not end after SIGKILL: end it by hand, then --resume")


def signal_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll `condition` until it holds; whether it did within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


# ---- targets that are child processes of this machine


class ProcessTarget:
    """A launcher as a child process that listens on 127.0.0.1."""

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
        script = str(ROOT / self.launcher)
        return [sys.executable, script, *self.options, "--mode", mode, "--port", str(port)]

    def start(self, deployment: Deployment, save: Callable[[], None]) -> None:
        port = self.port or free_port()
        if self.port and port_answers(port):
            raise UserError(f"--port {port} of {HOST} is taken: stop what listens there, or leave --port out")
        deployment["url"] = f"http://{HOST}:{port}"
        deployment["log"] = f"{deployment['name']}.log"
        command = self.command(deployment["mode"], port)
        self.child = start_process(command, deployment, save, log=self.folder / deployment["log"])

    def wait_ready(self, deployment: Deployment) -> str:
        url = str(deployment["url"])
        deadline = time.monotonic() + self.startup_s
        while not has_ended(deployment["process"]):
            with contextlib.suppress(httpx.HTTPError):
                if get(f"{url}/health").status_code == 200:
                    return url
            if time.monotonic() > deadline:
                raise UserError(
                    f"{deployment['name']} was not healthy after --startup-timeout {self.startup_s:g} s; "
                    f"the end of its log:\n{self.last_lines(deployment)}"
                )
            time.sleep(0.1)
        raise UserError(f"{deployment['name']} ended before it was healthy; its log:\n{self.last_lines(deployment)}")

    def bench_options(self, deployment: Deployment) -> list[str]:
        return []

    def died(self, deployment: Deployment) -> str | None:
        if has_ended(deployment["process"]):
            return f"its process ended; the end of its log:\n{self.last_lines(deployment)}"
        try:
            status = get(f"{deployment['url']}/health").status_code
        except httpx.HTTPError as error:
            return f"/health does not answer ({type(error).__name__}: {error})"
        return None if status == 200 else f"/health answers {status}"

    def stop(self, deployment: Deployment) -> None:
        end_process(deployment["process"], self.grace_s)
        if self.child is not None:
            self.child.wait()

    def prove_free(self, deployment: Deployment) -> dict[str, list[str]]:
        name, process = deployment["name"], deployment["process"]
        if process is None:
            return {"proven": ["nothing was started"], "not_proven": []}
        if process["boot"] != machine_boot():
            return {"proven": ["it ran on another machine or before a reboot"], "not_proven": []}
        if left := [one.pid for one in living(process)]:
            raise UserError(f"processes {left} of {name} still run: end them, then --resume")
        port = int(deployment["url"].rpartition(":")[2])
        if not wait_until(lambda: not port_answers(port), FREE_PATIENCE_S):
            raise UserError(f"port {port} still answers after {name} ended: end what listens there, then --resume")
        memory = self.prove_memory(deployment)
        gone = [f"process group {process['pid']} is gone", f"port {port} is closed"]
        return {"proven": [*gone, *memory["proven"]], "not_proven": memory["not_proven"]}

    def prove_memory(self, deployment: Deployment) -> dict[str, list[str]]:
        return {"proven": [], "not_proven": []}  # the embedded engine holds no GPU

    def last_lines(self, deployment: Deployment, count: int = 15) -> str:
        """The end of the server's log, indented, safe for a terminal."""
        lines = (self.folder / deployment["log"]).read_text(errors="replace").splitlines()[-count:]
        return "\n".join(f"    {printable(line)}" for line in lines) or "    (empty)"


class VllmTarget(ProcessTarget):
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

    def prove_memory(self, deployment: Deployment) -> dict[str, list[str]]:
        free = deployment["gpu_memory_mib"]["free"]
        if free is None:
            return {"proven": [], "not_proven": ["GPU memory (nvidia-smi did not answer before the first deployment)"]}
        wait_until(lambda: not memory_held(free, self.memory()), FREE_PATIENCE_S)
        if held := memory_held(free, self.memory()):
            raise UserError(
                f"the GPU is not free after {deployment['name']} was stopped: {', '.join(held)}; "
                "nvidia-smi shows by whom, end it, then --resume"
            )
        return {"proven": [f"GPU memory is within {GPU_TOLERANCE_MIB} MiB of where it was"], "not_proven": []}


def memory_held(free: dict[str, int], used: dict[str, int] | None) -> list[str]:
    """The GPUs that hold more than when they were free, in words."""
    if used is None:
        return ["nvidia-smi does not answer"]
    return [
        f"{gpu} holds {used[gpu]} MiB, held {before} before" if gpu in used else f"{gpu} is no longer there"
        for gpu, before in free.items()
        if used.get(gpu, before + GPU_TOLERANCE_MIB + 1) > before + GPU_TOLERANCE_MIB
    ]


def gpu_memory() -> dict[str, int] | None:
    """MiB used per visible GPU ("0 NVIDIA H200"), None without nvidia-smi or GPU."""
    command = ["nvidia-smi", "--query-gpu=index,name,memory.used", "--format=csv,noheader,nounits"]
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        command.append(f"--id={os.environ['CUDA_VISIBLE_DEVICES']}")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        rows = [[field.strip() for field in line.split(",")] for line in answer.strip().splitlines()]
        return {f"{index} {name}": int(used) for index, name, used in rows} or None
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def port_answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex((HOST, port)) == 0


def get(url: str) -> httpx.Response:
    """One request to this machine, past any proxy."""
    return httpx.get(url, timeout=5, trust_env=False)


# ---- the experiment


class Experiment:
    """The state on disk and the steps that change it."""

    def __init__(self, folder: Path, document: dict[str, Any], target: Target) -> None:
        self.folder = folder
        self.document = document
        self.target = target
        self.settings = document["settings"]
        self.deployments: list[Deployment] = document["deployments"]

    def save(self) -> None:
        write_atomically(self.folder / STATE, json_bytes(self.document))

    def run(self) -> None:
        """Everything that is not done yet. Raises UserError with the sentence that says why it cannot go on."""
        try:
            self.document.update(status="running", stopped=None, ended=None)
            self.save()
            self.note_device()
            self.end_leftovers()
            for index in range(1, len(self.settings["order"]) + 1):
                self.fill(index)
            for load in self.settings["concurrency"]:
                self.compare(load)
            self.document["status"] = "complete"
        except UserError as error:
            self.document.update(status="stopped", stopped=str(error))
            raise
        except KeyboardInterrupt:
            self.document.update(status="interrupted", stopped="interrupted by a signal")
            self.end_all()  # the signal may have cut short the ending of a deployment; later ones are ignored
            raise
        finally:
            self.document["ended"] = now()
            self.save()

    def note_device(self) -> None:
        """What proofs are held against: GPU memory before the first deployment since this machine booted."""
        if self.document["device"].get("boot") != machine_boot():
            self.document["device"] = {"boot": machine_boot(), "gpu_memory_mib": self.target.memory()}

    def end_leftovers(self) -> None:
        """End what an earlier call may have left running, prove it gone, settle what was in progress."""
        self.end_all()
        for deployment in self.deployments:
            if deployment["proof"] is None:
                if deployment["status"] in ("starting", "ready"):
                    deployment["status"] = "interrupted"
                self.prove(deployment)

    def end_all(self) -> None:
        """End whatever may still run of comparisons and of deployments not proven gone; twice does no harm."""
        for step in self.document["comparisons"].values():
            end_process(step["process"], grace_s=0)
        for deployment in self.deployments:
            if deployment["proof"] is None:
                self.end(deployment)

    def fill(self, index: int) -> None:
        """Deploy until every load of one place in the order has its directory."""
        for attempt in (1, 2):
            missing = [load for load in self.settings["concurrency"] if self.directory(index, load) is None]
            if not missing:
                return
            death = self.deploy(index, missing)
            if death and attempt == 2:
                raise UserError(f"the server of deployment {index} died twice under load; the last time {death}")
            if death:
                print(f"the server died: {death}\nonce more under a new name; the first one's files stay", flush=True)

    def directory(self, index: int, load: int) -> str | None:
        """The result directory that counts for a place in the order and a load."""
        for deployment in self.deployments:
            entry = deployment["loads"].get(str(load), {})
            if deployment["index"] == index and deployment["status"] != "died" and entry.get("status") == "done":
                return str(entry["directory"])
        return None

    def deploy(self, index: int, loads: list[int]) -> str | None:
        """One server from start to proof. Returns how it died under load, None when it did not."""
        deployment = self.new_deployment(index)
        death = None
        try:
            began = time.monotonic()
            self.target.start(deployment, self.save)
            self.say(deployment, "starting" + (f", log {self.folder / deployment['log']}" if deployment["log"] else ""))
            deployment["url"] = self.target.wait_ready(deployment)
            deployment.update(status="ready", ready_s=round(time.monotonic() - began, 1))
            deployment["gpu_memory_mib"]["ready"] = self.target.memory()
            self.save()
            self.say(deployment, f"healthy after {deployment['ready_s']:g} s")
            for load in loads:
                death = self.bench(deployment, load)
                if death:
                    break
            deployment["status"] = "died" if death else "done"
        except KeyboardInterrupt:
            deployment["status"] = "interrupted"
            raise
        except UserError:
            deployment["status"] = "failed"
            raise
        finally:
            self.end(deployment)
        self.prove(deployment)
        return death

    def new_deployment(self, index: int) -> Deployment:
        mode = MODES[self.settings["order"][index - 1]]
        attempts = sum(deployment["index"] == index for deployment in self.deployments)
        name = f"{index:02d}-{mode}" + (f"-{attempts + 1}" if attempts else "")
        memory = {"free": self.document["device"]["gpu_memory_mib"], "before": self.target.memory()}
        deployment: Deployment = {
            "index": index, "name": name, "mode": mode, "status": "starting", "started": now(), "ready_s": None,
            "compile_cache": None, "gpu_memory_mib": {**memory, "ready": None, "after": None},
            "url": None, "log": None, "process": None, "loads": {}, "proof": None,
        }  # fmt: skip
        self.deployments.append(deployment)
        return deployment

    def bench(self, deployment: Deployment, load: int) -> str | None:
        """One result directory. Returns how the server died, None when it did not."""
        directory = f"{deployment['name']}-c{load}"
        entry: dict[str, Any] = {"directory": directory, "status": "running", "process": None}
        entry |= {"seconds": None, "exit_code": None}
        deployment["loads"][str(load)] = entry
        self.say(deployment, f"{users(load)}, {self.time_left()}")
        command = [sys.executable, str(ROOT / "bench.py"), "--url", deployment["url"], "--mode", deployment["mode"]]
        command += ["--concurrency", str(load), "--repeats", str(self.settings["repeats"]), "--prompts", PROMPTS]
        command += ["--max-tokens", str(self.settings["max_tokens"])]
        command += ["--out", directory, *self.target.bench_options(deployment)]
        began = time.monotonic()
        code = start_process(command, entry, self.save, cwd=self.folder).wait()
        entry.update(seconds=round(time.monotonic() - began, 1), exit_code=code)
        settle(entry, self.folder)
        if entry["status"] == "done" and deployment["compile_cache"] is None:
            deployment["compile_cache"] = compile_cache(self.folder / directory)
        self.save()
        died: list[str | None] = [None]

        def has_died() -> bool:
            died[0] = self.target.died(deployment)
            return died[0] is not None

        # A dead engine's API server still answers for some seconds.
        wait_until(has_died, 0 if entry["status"] == "done" else DEATH_PATIENCE_S)
        if died[0] is not None:
            return died[0]
        if was_aborted(self.folder / directory):
            return f"while bench.py wrote {directory}, whose manifest.json says why"
        if entry["status"] != "done":
            raise UserError(
                f"bench.py ended with exit code {code} on {directory}: it says why above; --resume measures it again"
            )
        return None

    def end(self, deployment: Deployment) -> None:
        """End a deployment's processes, the client before the server, so that no stream is open."""
        for entry in deployment["loads"].values():
            if entry["status"] == "running":
                end_process(entry["process"], BENCH_GRACE_S)
                settle(entry, self.folder)
        self.target.stop(deployment)
        self.save()

    def prove(self, deployment: Deployment) -> None:
        """Prove the device free and keep what was proven; the next deployment starts only after this."""
        deployment["proof"] = self.target.prove_free(deployment)
        deployment["gpu_memory_mib"]["after"] = self.target.memory()
        self.save()
        unproven = [f"not proven: {sentence}" for sentence in deployment["proof"]["not_proven"]]
        self.say(deployment, "; ".join(["stopped", *deployment["proof"]["proven"], *unproven]))

    def compare(self, load: int) -> None:
        """compare.py over every deployment at one load. That it finds differences is a result, not a failure."""
        order = self.settings["order"]
        pairs = []
        for first in range(1, len(order), 2):
            base, candidate = (first, first + 1) if order[first - 1] == "B" else (first + 1, first)
            pairs.append([str(self.directory(index, load)) for index in (base, candidate)])
        stem = f"compare-c{load}"
        names = {"json": f"{stem}.json", "markdown": f"{stem}.md", "text": f"{stem}.txt"}
        for name in names.values():
            (self.folder / name).unlink(missing_ok=True)
        step: dict[str, Any] = {"exit_code": None, **names, "pairs": pairs, "process": None}
        self.document["comparisons"][str(load)] = step
        command = [sys.executable, str(ROOT / "compare.py"), *pairs[0]]
        for pair in pairs[1:]:
            command += ["--and", *pair]
        # Under load a baseline differs from itself; outputs that differ no more than that do not end the comparison.
        command += ["--accept-floor", "--json", names["json"], "--markdown", names["markdown"]]
        text = self.folder / names["text"]
        try:
            step["exit_code"] = start_process(command, step, self.save, log=text, cwd=self.folder).wait()
        finally:
            end_process(step["process"], grace_s=0)
        self.save()
        if step["exit_code"] not in (0, 1):
            raise UserError(
                f"compare.py ended with exit code {step['exit_code']} at {users(load)}; it said: {text.read_text()}"
            )

    def say(self, deployment: Deployment, text: str) -> None:
        count = len(self.settings["order"])
        print(f"[{deployment['index']} of {count}] {deployment['name']}: {text}", flush=True)

    def time_left(self) -> str:
        """What the rest will take, from what was measured so far."""
        seconds: dict[str, list[float]] = {}
        for deployment in self.deployments:
            for load, entry in deployment["loads"].items():
                if entry["status"] == "done" and entry["seconds"]:
                    seconds.setdefault(load, []).append(entry["seconds"])
        if not seconds:
            return "time left not known yet"
        means = {load: sum(of) / len(of) for load, of in seconds.items()}
        typical = sum(means.values()) / len(means)
        starts = [deployment["ready_s"] for deployment in self.deployments if deployment["ready_s"]]
        left = 0.0
        for index in range(1, len(self.settings["order"]) + 1):
            missing = [load for load in self.settings["concurrency"] if self.directory(index, load) is None]
            left += sum(means.get(str(load), typical) for load in missing)
            if missing and all(deployment["index"] != index for deployment in self.deployments):
                left += sum(starts) / len(starts)
        return f"about {left / 60:.0f} min left" if left > 90 else f"about {left:.0f} s left"


def settle(entry: dict[str, Any], folder: Path) -> None:
    """A load whose bench.py is gone is done when its directory holds every request, whatever became of this script."""
    directory = folder / entry["directory"]
    entry["status"] = "unfinished"
    if (directory / "summary.json").exists() and read_manifest(directory).status == "complete":
        requests = msgspec.to_builtins(read_summary(directory).requests)
        entry["status"] = "done" if requests["ok"] == requests["scheduled"] else "unfinished"


def was_aborted(directory: Path) -> bool:
    """Whether bench.py gave up on a server that failed request after request or restarted."""
    return (directory / "manifest.json").exists() and read_manifest(directory).status == "aborted"


def compile_cache(directory: Path) -> str:
    """cold or warm, in the server's own word; unknown without one."""
    record = read_manifest(directory).server.record or {}
    return str(record.get("compile_cache", "unknown"))


def users(load: int) -> str:
    return f"{load} user{'s' * (load != 1)}"


# ---- settings and state


def check_order(order: str) -> None:
    """Raise UserError unless `order` is pairs of both modes, each pair the reverse of the one before.

    So each mode comes first as often as it can, and a device that drifts (warmer, busier) favours neither.
    """
    pairs = [order[start : start + 2] for start in range(0, len(order), 2)]
    advice = "give pairs that alternate, such as BN, BNNB or BNNBBN"
    if strange := sorted(set(order) - set(MODES)):
        raise UserError(f"--order {order} holds {', '.join(strange)}: B is baseline, N is ngram; {advice}")
    if set(order) != set(MODES):
        raise UserError(f"--order {order!r} does not hold both modes: {advice}")
    if any(len(set(pair)) != 2 for pair in pairs) or any(one == other for one, other in pairwise(pairs)):
        raise UserError(f"--order {order} does not alternate, so a drift of the device would favour a mode: {advice}")


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that the command line names; the rest is a default or, with --resume, what it was."""
    given: dict[str, Any] = {"target": arguments.target, "order": arguments.order, "repeats": arguments.repeats}
    given |= {"max_tokens": arguments.max_tokens, "project": arguments.project}
    given |= {"owner": arguments.owner, "queue": arguments.queue}
    if arguments.order is not None:
        check_order(arguments.order)
    if arguments.concurrency is not None:
        given["concurrency"] = parse_loads(arguments.concurrency)
    for option, value in (("--repeats", arguments.repeats), ("--max-tokens", arguments.max_tokens)):
        if value is not None and value < 1:
            raise UserError(f"{option} {value}: must be at least 1")
    if arguments.prompts is not None:
        given["prompts_sha256"] = read_inventory(arguments.prompts).sha256
    if arguments.launcher_options:
        given["launcher_options"] = redacted(arguments.launcher_options)
    return {name: value for name, value in given.items() if value is not None}


def parse_loads(text: str) -> list[int]:
    loads = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if min(loads) < 1 or len(set(loads)) < len(loads):
        raise UserError(f"--concurrency {text}: give different whole numbers from 1 on, such as 1,4,8")
    return loads


def new_document(arguments: argparse.Namespace) -> dict[str, Any]:
    """The state of an experiment that begins; makes the folder and puts a copy of the prompts into it."""
    folder = arguments.out
    if (folder / STATE).exists():
        raise UserError(f"--out {folder} holds an experiment: give --resume to go on with it, or another --out")
    if arguments.target is None:
        raise UserError("--target is missing: local (embedded engine, no GPU), vllm (a GPU with vLLM) or polyaxon")
    arguments.prompts = arguments.prompts or ROOT / PROMPTS
    settings = {**DEFAULTS, **given_settings(arguments)}
    prompts = arguments.prompts.read_bytes()
    if folder.exists() and not (folder.is_dir() and is_unused(folder, prompts)):
        raise UserError(f"--out {folder} is not an empty folder: give another --out")
    identity = uuid.uuid4().hex[:8]
    target_of(settings, arguments, identity).check()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / PROMPTS).exists() or (folder / PROMPTS).read_bytes() != prompts:
            (folder / PROMPTS).write_bytes(prompts)
    except OSError as error:
        raise UserError(f"--out {folder} cannot be written ({error.strerror}): give another --out") from None
    return {
        "format": FORMAT, "id": identity, "tool": tool(), "settings": settings,
        "status": "running", "stopped": None, "started": now(), "ended": None,
        "device": {}, "deployments": [], "comparisons": {},
    }  # fmt: skip


def is_unused(folder: Path, prompts: bytes) -> bool:
    """Whether `folder` holds nothing but what a call leaves that was killed before it first saved its state."""
    if not {path.name for path in folder.iterdir()} <= {PROMPTS, f"{STATE}.part"}:
        return False
    return not (folder / PROMPTS).exists() or prompts.startswith((folder / PROMPTS).read_bytes())


def old_document(arguments: argparse.Namespace) -> dict[str, Any]:
    """The state of an experiment to go on with; UserError when there is none or its settings are others."""
    path = arguments.out / STATE
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"--out {arguments.out} holds no {STATE}, so there is nothing to --resume") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): begin again with another --out") from None
    if isinstance(document, dict) and document.get("format", FORMAT) != FORMAT:
        raise UserError(f"{path} has format {document['format']!r}, this version reads {FORMAT}")
    if not is_state(document):
        raise UserError(f"{path} is not a state that experiment.py wrote (edited by hand?): begin another --out")
    settings = document["settings"]
    changed = [
        f"{name} was {settings.get(name)}, now {value}"
        for name, value in given_settings(arguments).items()
        if settings.get(name) != value
    ]
    if changed:
        raise UserError(f"--resume with other settings ({'; '.join(changed)}): leave them out, or begin another --out")
    if read_inventory(arguments.out / PROMPTS).sha256 != settings["prompts_sha256"]:
        raise UserError(f"{arguments.out / PROMPTS} was changed since the experiment began: begin another --out")
    if not arguments.launcher_options and any(REDACTED in option for option in settings["launcher_options"]):
        raise UserError("the options after -- hold a secret, which is not stored: give them again with --resume")
    return document


def is_state(document: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a file's content has the parts that every experiment's state has."""
    parts = {"format": int, "id": str, "settings": dict, "device": dict, "deployments": list, "comparisons": dict}
    if not isinstance(document, dict) or not all(isinstance(document.get(name), kind) for name, kind in parts.items()):
        return False
    settings, deployments = document["settings"], document["deployments"]
    if settings.get("target") not in TARGETS or not {*DEFAULTS, "prompts_sha256"} <= settings.keys():
        return False
    needed = {"index", "name", "mode", "status", "process", "loads", "proof", "url", "log", "gpu_memory_mib"}
    return all(isinstance(one, dict) and needed <= one.keys() for one in deployments)


def check_for_target(arguments: argparse.Namespace, target: str) -> None:
    """Raise UserError for an option out of its range, or one that means nothing to this target."""
    port, patience = arguments.port, arguments.startup_timeout
    if port is not None and not 1 <= port <= 65535:
        raise UserError(f"--port {port} must be from 1 to 65535")
    if not (math.isfinite(patience) and patience > 0):
        raise UserError(f"--startup-timeout {patience:g} must be a number of seconds above 0")
    polyaxon = {
        "--project": arguments.project, "--owner": arguments.owner, "--queue": arguments.queue,
        "--approve": arguments.approve, "--insecure-http": arguments.insecure_http,
    }  # fmt: skip
    if target == "polyaxon" and port is not None:
        raise UserError("--port is for --target local and vllm: Polyaxon gives a service its address; leave it out")
    if target != "polyaxon" and (given := [option for option, value in polyaxon.items() if value]):
        raise UserError(f"{', '.join(given)} is for --target polyaxon: leave it out with --target {target}")


def target_of(settings: dict[str, Any], arguments: argparse.Namespace, identity: str) -> Target:
    check_for_target(arguments, settings["target"])
    if settings["target"] == "polyaxon":
        return polyaxon_target(settings, arguments, identity)
    kind = {"local": ProcessTarget, "vllm": VllmTarget}[settings["target"]]
    options = arguments.launcher_options or settings["launcher_options"]
    return kind(arguments.out, options, arguments.port, arguments.startup_timeout)


def polyaxon_target(settings: dict[str, Any], arguments: argparse.Namespace, identity: str) -> Target:
    if "project" not in settings:
        raise UserError("--target polyaxon needs -p PROJECT, or OWNER/PROJECT")
    options = arguments.launcher_options or settings["launcher_options"]  # the stored ones are redacted
    runs = Runs(settings["project"], settings.get("owner"), insecure_http=arguments.insecure_http)
    return PolyaxonTarget(
        runs, ROOT / "service.yaml", identity, params=params_in(options),
        queue=settings.get("queue"), approve=arguments.approve, startup_s=arguments.startup_timeout,
    )  # fmt: skip


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep `folder` to this process; a second one would end the first one's servers. Ends with the process."""
    number = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(f"another experiment.py works on --out {folder}: wait for it or stop it first") from None
    finally:
        os.close(number)


def machine_boot() -> str:
    """Which boot of which machine this is, as a digest: process numbers mean something only within one."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        name = f"{socket.gethostname()} {psutil.boot_time():.0f}"
    return hashlib.sha256(name.encode()).hexdigest()[:16]


# ---- what a person reads at the end


def closing(experiment: Experiment) -> str:
    """Each load's table in full, then one line a load, then what could not be proven."""
    blocks = []
    summary = []
    for load, step in experiment.document["comparisons"].items():
        blocks += [f"==== {users(int(load))}", (experiment.folder / step["text"]).read_text()]
        summary.append((users(int(load)), json.loads((experiment.folder / step["json"]).read_bytes())))
    blocks += ["==== In short: end-to-end latency (E2EL), ngram / baseline; below 1 ngram is faster"]
    blocks += in_short(summary)
    if any(result["verdict"]["verdict"] == "not comparable" for _, result in summary):
        blocks += ["not comparable: outputs differ by more than these repeats can judge; more --repeats can."]
    unproven = {sentence for one in experiment.deployments for sentence in one["proof"]["not_proven"]}
    blocks += [f"Not proven between deployments: {sentence}" for sentence in sorted(unproven)]
    return "\n".join(blocks)


def in_short(results: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """A line a load: the ratio of each family and overall, and the verdict."""
    rows: list[list[str]] = []
    for load, result in results:
        metric = result["metrics"]["e2el"]
        lines = [*metric["families"].values(), metric["overall"]]
        if not rows:
            rows.append(["", *(printable(line["name"]) for line in lines), "verdict"])
        verdict = printable(str(result["verdict"]["verdict"]))
        rows.append([load, *(ratio(line["interval"]["ratio"]) for line in lines), verdict])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[-1] = 0
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def make_page(folder: Path) -> None:
    """report.py's page, where that script and its packages are; its absence takes nothing from the results."""
    if (ROOT / "report.py").exists():
        subprocess.run([sys.executable, str(ROOT / "report.py"), str(folder)], check=False)


# ---- command line


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="experiment.py",
        description="Baseline against ngram: deploy, bench at each load, stop, prove the device free; then compare.",
        epilog="Exit codes: 0 complete, whatever the comparison found; 2 it cannot go on; 130 interrupted. "
        "After 2 and 130, --resume goes on.",
    )
    add = parser.add_argument
    targets = "embedded engine, launch_vllm.py on this machine's GPU, or service.yaml on a cluster"
    add("--target", choices=TARGETS, help=targets)
    add("--out", type=Path, required=True, metavar="DIR", help="a new folder; with --resume, the experiment's")
    add("--order", help="deployments: B baseline, N ngram, pairs that alternate (default: BNNB)")
    add("--concurrency", metavar="N,N,…", help="users at a time, one result directory each (default: 1,4,8)")
    add("--repeats", type=int, help="of the whole inventory in each directory (default: 10)")
    add("--max-tokens", type=int, metavar="N", help="for cases without their own (default: 128)")
    add("--prompts", type=Path, metavar="FILE", help="inventory (default: prompts.jsonl)")
    resume = (
        "go on with the experiment in --out, with its settings; not stored, so give them again: --approve, "
        "--insecure-http, --port, --startup-timeout, and options after -- that hold a secret"
    )
    add("--resume", action="store_true", help=resume)
    add("--port", type=int, help="where servers listen on 127.0.0.1 (default: a free one)")
    add("--startup-timeout", type=float, default=1800, metavar="S", help="from start to healthy (default: %(default)g)")
    add("-p", "--project", help="polyaxon: where the runs are made, PROJECT or OWNER/PROJECT")
    add("--owner", help="polyaxon: of the project (default: the CLI's)")
    add("--queue", help="polyaxon: QUEUE or AGENT/QUEUE (default: the project's)")
    add("--approve", action="store_true", help="polyaxon: approve runs that wait for a person")
    add("--insecure-http", action="store_true", help="polyaxon: allow the token over http:// to another machine")
    passed_on = "passed on to launch_vllm.py, such as --vllm CMD; to service.yaml on Polyaxon, such as -P NAME=VALUE"
    add("launcher_options", nargs="*", metavar="-- OPTION", help=passed_on)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    arguments.out = arguments.out.absolute()
    for name in ("NO_PROXY", "no_proxy"):  # no proxy leads to this machine's own servers
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), HOST]))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    experiment: Experiment | None = None
    try:
        document = old_document(arguments) if arguments.resume else new_document(arguments)
        with held(arguments.out):
            target = target_of(document["settings"], arguments, document["id"])
            if arguments.resume:
                target.check()
            experiment = Experiment(arguments.out, document, target)
            experiment.run()
        print(closing(experiment), flush=True)
        make_page(arguments.out)
    except UserError as error:
        print(f"experiment.py: {printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        again = shlex.join([sys.executable, sys.argv[0], "--out", str(arguments.out), "--resume"])
        sentence = f"interrupted, and all that it started is ended; go on with: {again}"
        if experiment is None:
            sentence = "interrupted before anything was started: give the same command again"
        print(f"experiment.py: {sentence}", file=sys.stderr)
        return 130
    return 0


def interrupt(number: int, frame: object) -> None:
    """Turn the first signal into KeyboardInterrupt; later ones would cut the cleaning up short, which has deadlines."""
    for known in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(known, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(main())
