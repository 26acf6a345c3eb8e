"""deploy/processes.py: what is started is known first, and only what was started is ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
from support import HANG_S, ROOT, find_free_port
from support.experiments import running_in

from specbench.deploy import processes
from specbench.deploy.state import Process


class Owner:
    """The part of the state that a process is started for."""

    process: Process | None = None

    @property
    def started(self) -> Process:
        assert self.process is not None
        return self.process


def start(tmp_path: Path, script: str, owner: Owner) -> "subprocess.Popen[bytes]":
    process = processes.start_process(["/bin/sh", "-c", script], owner, lambda: None, cwd=tmp_path)
    assert processes.wait_until((tmp_path / "ready").exists, HANG_S)
    return process


def test_what_the_state_does_not_name_never_runs(tmp_path: Path) -> None:
    script = (
        "import os, types; from specbench.deploy.processes import start_process\n"
        "start_process(['touch', 'ran'], types.SimpleNamespace(), lambda: os._exit(9))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, timeout=HANG_S, check=False)
    assert killed.returncode == 9
    assert processes.wait_until(lambda: not running_in(tmp_path), HANG_S)
    assert not (tmp_path / "ran").exists()


def test_a_stranger_with_the_same_number_is_left_alone(tmp_path: Path) -> None:
    owner = Owner()
    process = start(tmp_path, "touch ready; exec sleep 600", owner)
    earlier = msgspec.structs.replace(owner.started, created=owner.started.created - 60, marker="another")
    elsewhere = msgspec.structs.replace(owner.started, boot="another", marker="another")
    for recorded in (earlier, elsewhere):
        processes.end_process(recorded, grace_s=0)
        assert processes.living(recorded) == [] and process.poll() is None
    processes.end_process(owner.process, grace_s=HANG_S)
    assert process.wait(HANG_S) == -signal.SIGTERM


def test_a_group_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    owner = Owner()
    start(tmp_path, "trap '' TERM; sleep 600 & touch ready; sleep 600; sleep 600", owner)
    assert processes.wait_until(lambda: len(processes.living(owner.started)) == 3, HANG_S)
    processes.end_process(owner.process, grace_s=0.3)
    assert processes.living(owner.started) == []


def test_an_orphan_is_told_from_a_stranger_by_its_environment(tmp_path: Path) -> None:
    owner = Owner()
    script = f"sleep 600 & env -u {processes.STARTED_AS} sleep 601 & touch ready; exit"
    process = start(tmp_path, script, owner)
    process.wait(HANG_S)
    # env needs a moment to become sleep.
    assert processes.wait_until(lambda: ["sleep", "601"] in [one.cmdline() for one in running_in(tmp_path)], HANG_S)
    assert [orphan.cmdline() for orphan in processes.living(owner.started)] == [["sleep", "600"]]
    processes.end_process(owner.process, grace_s=0.1)
    left = running_in(tmp_path)
    assert [stranger.cmdline() for stranger in left] == [["sleep", "601"]]
    left[0].kill()
    left[0].wait(HANG_S)


def test_a_free_port_is_free() -> None:
    assert not processes.port_answers(find_free_port())
    assert not processes.port_answers(processes.free_port())
