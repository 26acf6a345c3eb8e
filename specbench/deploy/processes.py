"""Processes that outlive the one that started them, and are found again: nothing runs that the state does not name."""

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import psutil

from specbench import UserError
from specbench.deploy.state import Process
from specbench.record.provenance import STARTED_AS

HOST = "127.0.0.1"


class Owner(Protocol):
    """What a process is started for, a part of the state: a deployment, a measurement, a comparison."""

    process: Process | None


def start_process(
    command: Sequence[str],
    owner: Owner,
    save: Callable[[], None],
    *,
    log: Path | None = None,
    cwd: Path | None = None,
) -> "subprocess.Popen[bytes]":
    """Start `command` in a process group of its own; pid and start time are saved in `owner` before it runs.

    The child waits for a line on its standard input before it becomes `command`. If this process is killed
    before the state is on disk, the pipe closes and the child ends.
    """
    marker = uuid.uuid4().hex
    gate = ["/bin/sh", "-c", 'read -r go && exec "$@" </dev/null', "sh", *command]
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("ab")) if log else None
        child = subprocess.Popen(
            gate, stdin=subprocess.PIPE, stdout=output, stderr=output and subprocess.STDOUT, cwd=cwd,
            start_new_session=True, env={**os.environ, STARTED_AS: marker},
        )  # fmt: skip
    created = psutil.Process(child.pid).create_time()
    owner.process = Process(child.pid, created, machine_boot(), marker)
    save()
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(b"go\n")
        child.stdin.close()
    return child


def leader(process: Process) -> psutil.Process | None:
    """The recorded process if it still exists (perhaps as a zombie): same pid and same start time."""
    if process.boot != machine_boot():
        return None
    with contextlib.suppress(psutil.NoSuchProcess):
        found = psutil.Process(process.pid)
        if abs(found.create_time() - process.created) < 2:  # clocks of two readings differ by up to a tick
            return found
    return None


def living(process: Process) -> list[psutil.Process]:
    """What still runs of a recorded process and its group; never a stranger that got the number later."""
    verified = leader(process) is not None
    found = []
    for candidate in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getpgid(candidate.pid) != process.pid or candidate.status() == psutil.STATUS_ZOMBIE:
                continue
            if verified or candidate.environ().get(STARTED_AS) == process.marker:
                found.append(candidate)
    return found


def has_ended(process: Process) -> bool:
    """Whether the recorded process itself, not its group, is gone. Leaves a zombie unreaped: it guards the number."""
    found = leader(process)
    return found is None or found.status() == psutil.STATUS_ZOMBIE


def end_process(process: Process | None, grace_s: float) -> None:
    """SIGTERM to the recorded process, SIGKILL to its group after `grace_s`. Nothing to do when it is gone."""
    if process is None:
        return
    first = leader(process)
    if first is not None and not has_ended(process):
        _signal_all([first], signal.SIGTERM)
    if not wait_until(lambda: not living(process), grace_s):
        _signal_all(living(process), signal.SIGKILL)
        if not wait_until(lambda: not living(process), 30):
            raise UserError(f"process {process.pid} did not end after SIGKILL: end it by hand, then --resume")


def _signal_all(processes: list[psutil.Process], number: signal.Signals) -> None:
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


def machine_boot() -> str:
    """Which boot of which machine this is, as a digest: process numbers mean something only within one."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        name = f"{socket.gethostname()} {psutil.boot_time():.0f}"
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def port_answers(port: int) -> bool:
    """Whether something listens on a port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex((HOST, port)) == 0
