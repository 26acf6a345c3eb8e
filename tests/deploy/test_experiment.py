"""The experiment over real processes and sockets: whole, failing, killed at named states and resumed."""

import errno
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import HANG_S
from support.experiments import CASES, assert_complete, on_local, on_vllm, run, running_in, start, state, wait_for

import experiment
from specbench import UserError
from specbench.deploy import processes
from specbench.deploy import state as state_module
from specbench.deploy.experiment import Experiment
from specbench.deploy.opening import new_experiment
from specbench.deploy.state import Deployment, State
from specbench.deploy.targets import LocalTarget
from specbench.record.directory import read_manifest


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path, prompts: Path) -> None:
    with socket.create_server((processes.HOST, 0)) as taken:
        port = taken.getsockname()[1]
        answer = run("--target", "local", "--out", tmp_path / "out", "--prompts", prompts, "--port", port)
    assert answer.code == 2
    assert answer.error.splitlines() == [
        f"experiment.py: --port {port} of 127.0.0.1 is taken: stop what listens there, or leave --port out"
    ]
    assert not (tmp_path / "out").exists()


# ---- whole experiments on launch_vllm.py, with recorded streams behind it


@pytest.mark.usefixtures("gpu")
def test_a_whole_experiment_on_a_gpu_host(
    tmp_path: Path, prompts: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    answer = run(*on_vllm(prompts, out, order="BNNB", loads="1,2"))
    assert answer.code == 0, answer.error
    steps = capfd.readouterr().out
    assert "04-baseline-c2: complete" in steps and "next:" not in steps  # bench.py's, which does not know what is next
    assert_complete(out, (1, 2))
    document = state(out)
    names = ["01-baseline", "02-ngram", "03-ngram", "04-baseline"]
    assert [one["name"] for one in document["deployments"]] == names
    for one in document["deployments"]:
        assert one["status"] == "done" and one["ready_s"] > 0 and one["compile_cache"] == "warm"
        assert one["gpu_memory_mib"] == {key: {"0 A GPU": 4} for key in ("free", "before", "ready", "after")}
        assert len(one["proof"]["proven"]) == 3 and one["proof"]["not_proven"] == []
    assert document["comparisons"]["2"]["pairs"] == [
        ["01-baseline-c2", "02-ngram-c2"], ["04-baseline-c2", "03-ngram-c2"],
    ]  # fmt: skip
    assert "[3 of 4] 03-ngram: 2 users, about" in answer.out
    assert "In short" in answer.out and "overall" in answer.out

    seeds = [read_manifest(out / f"{name}-c{load}").schedule.seed for name in names for load in (1, 2)]
    assert seeds == [0, 0, 0, 0, 1, 1, 1, 1]

    again = run("--out", out, "--resume")
    assert again.code == 0 and "[1 of 4]" not in again.out and "In short" in again.out
    changed = run("--out", out, "--resume", "--repeats", 3, "--order", "BNNB", "--", "--model", "other")
    assert changed.code == 2
    assert "repeats was 1, now 3" in changed.error and "now ['--model', 'other']" in changed.error
    assert "order" not in changed.error
    fresh = run(*on_vllm(prompts, out))
    assert fresh.code == 2 and "holds an experiment: give --resume" in fresh.error
    (out / "prompts.jsonl").write_text(json.dumps(CASES[0]) + "\n")
    edited = run("--out", out, "--resume")
    assert edited.code == 2 and "was changed since the experiment began" in edited.error


@pytest.mark.usefixtures("gpu")
def test_a_server_that_fails_at_start_is_one_message_with_its_log(tmp_path: Path, prompts: Path) -> None:
    out = tmp_path / "out"
    answer = run(*on_vllm(prompts, out, fake=f"--fail-at-start --once {tmp_path / 'failed'}"))
    assert answer.code == 2
    assert "01-baseline ended before it was healthy" in answer.error and "CUDA out of memory" in answer.error
    assert state(out)["status"] == "stopped" and running_in(tmp_path) == []
    answer = run("--out", out, "--resume")
    assert answer.code == 0, answer.error
    assert_complete(out, (1,))
    assert [one["name"] for one in state(out)["deployments"]] == ["01-baseline", "01-baseline-2", "02-ngram"]


@pytest.mark.usefixtures("gpu")
def test_a_server_that_never_gets_healthy_meets_a_deadline(tmp_path: Path, prompts: Path) -> None:
    answer = run(*on_vllm(prompts, tmp_path / "out", "--startup-timeout", 1, fake="--never-healthy"))
    assert answer.code == 2
    assert "01-baseline was not healthy after --startup-timeout 1 s" in answer.error


@pytest.mark.parametrize("trouble", ["--die-at 6", "--sick-at 6"])
@pytest.mark.usefixtures("gpu")
def test_a_server_that_dies_under_load_is_deployed_once_more(tmp_path: Path, prompts: Path, trouble: str) -> None:
    out = tmp_path / "out"
    answer = run(*on_vllm(prompts, out, fake=f"{trouble} --once {tmp_path / 'died'}"))
    assert answer.code == 0, answer.error
    assert_complete(out, (1,))
    document = state(out)
    assert [(one["name"], one["status"]) for one in document["deployments"]] == [
        ("01-baseline", "died"), ("01-baseline-2", "done"), ("02-ngram", "done"),
    ]  # fmt: skip
    assert document["comparisons"]["1"]["pairs"] == [["01-baseline-2-c1", "02-ngram-c1"]]
    assert (out / "01-baseline-c1" / "requests.jsonl").exists()


@pytest.mark.usefixtures("gpu")
def test_a_second_death_ends_the_experiment(tmp_path: Path, prompts: Path) -> None:
    out = tmp_path / "out"
    answer = run(*on_vllm(prompts, out, fake="--die-at 6"))
    assert answer.code == 2
    assert "the server of deployment 1 died twice under load" in answer.error
    assert [one["status"] for one in state(out)["deployments"]] == ["died", "died"]


def test_secrets_in_options_are_not_stored(tmp_path: Path, prompts: Path, gpu: Path) -> None:
    out = tmp_path / "out"
    given = on_vllm(prompts, out, fake=f"--fail-at-start --once {tmp_path / 'failed'}")
    with_secret = [*given, "--revision", "main"]
    with_secret[with_secret.index("--vllm") + 1] = f"env A=1 HF_TOKEN=hf_secret {given[given.index('--vllm') + 1]}"
    assert run(*with_secret).code == 2
    assert "hf_secret" not in (out / "experiment.json").read_text()
    answer = run("--out", out, "--resume")
    assert answer.code == 2 and "give them again" in answer.error


# ---- what became of a folder meanwhile


@pytest.mark.usefixtures("gpu")
def test_directories_that_are_gone_or_damaged_are_measured_again(tmp_path: Path, prompts: Path) -> None:
    out = tmp_path / "out"
    assert run(*on_vllm(prompts, out, loads="1,2")).code == 0
    shutil.rmtree(out / "01-baseline-c1")
    with (out / "02-ngram-c2" / "requests.jsonl").open("a") as requests:
        requests.write("{}\n")
    kept = (out / "01-baseline-c2" / "summary.json").stat().st_mtime_ns
    answer = run("--out", out, "--resume")
    assert answer.code == 0, answer.error
    assert "01-baseline-c1 does not count and is measured again" in answer.out
    assert "02-ngram-c2 does not count and is measured again" in answer.out
    assert_complete(out, (1, 2))
    pairs = {load: step["pairs"] for load, step in state(out)["comparisons"].items()}
    assert pairs == {"1": [["01-baseline-2-c1", "02-ngram-c1"]], "2": [["01-baseline-c2", "02-ngram-2-c2"]]}
    assert (out / "01-baseline-c2" / "summary.json").stat().st_mtime_ns == kept


@pytest.mark.usefixtures("gpu")
def test_prompts_that_are_gone_are_one_sentence(tmp_path: Path, prompts: Path) -> None:
    out = tmp_path / "out"
    assert run(*on_vllm(prompts, out, fake="--fail-at-start")).code == 2
    (out / "prompts.jsonl").unlink()
    answer = run("--out", out, "--resume")
    assert answer.code == 2 and "prompts.jsonl" in answer.error and answer.error.count("\n") == 1, answer.error
    shutil.rmtree(out)
    answer = run("--out", out, "--resume")
    assert answer.code == 2 and "nothing to --resume" in answer.error and not out.exists()


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EROFS])
@pytest.mark.usefixtures("gpu")
def test_a_folder_that_cannot_be_written_any_more_ends_everything_with_one_sentence(
    tmp_path: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    """A full disk, or one that became read-only, while the first server is up; --resume goes on once it is mended."""
    out = tmp_path / "out"
    saved = 0

    def write_state(folder: Path, document: State) -> None:
        nonlocal saved
        saved += 1
        if saved > 4:
            raise OSError(reason, os.strerror(reason), str(folder / "experiment.json"))
        state_module.write_state(folder, document)

    with monkeypatch.context() as patch:
        patch.setattr("specbench.deploy.experiment.write_state", write_state)
        answer = run(*on_vllm(prompts, out))
    assert answer.code == 2 and answer.error.count("\n") == 1, answer.error
    assert f"experiment.json: {os.strerror(reason)}" in answer.error and "--resume" in answer.error
    assert running_in(tmp_path) == []
    answer = run("--out", out, "--resume")
    assert answer.code == 0, answer.error
    assert_complete(out, (1,))


@pytest.mark.usefixtures("gpu")
def test_a_folder_that_is_deleted_meanwhile_ends_everything_with_one_sentence(tmp_path: Path, prompts: Path) -> None:
    out = tmp_path / "out"
    process = start(tmp_path, *on_vllm(prompts, out, fake="--pause 0.02"))
    wait_for((out / "01-baseline-c1" / "requests.jsonl").exists)
    shutil.rmtree(out)
    _, error = process.communicate(timeout=HANG_S)
    assert process.returncode == 2 and "experiment.py: " in error.splitlines()[-1] and "Traceback" not in error, error
    assert running_in(tmp_path) == []


# ---- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
@pytest.mark.usefixtures("gpu")
def test_an_interrupt_ends_everything_and_can_be_resumed(tmp_path: Path, prompts: Path, number: int) -> None:
    out = tmp_path / "out"
    process = start(tmp_path, *on_vllm(prompts, out, loads="1,2", fake="--pause 0.004"))
    wait_for((out / "01-baseline-c2" / "requests.jsonl").exists)
    process.send_signal(number)
    _, error = process.communicate(timeout=HANG_S)
    assert process.returncode == 130 and "--resume" in error
    assert running_in(tmp_path) == []
    assert state(out)["status"] == "interrupted"
    if number == signal.SIGQUIT:  # what follows is the same
        return
    answer = run("--out", out, "--resume")
    assert answer.code == 0, answer.error
    assert_complete(out, (1, 2))
    assert state(out)["comparisons"]["1"]["pairs"] == [["01-baseline-c1", "02-ngram-c1"]]
    assert state(out)["comparisons"]["2"]["pairs"] == [["01-baseline-2-c2", "02-ngram-c2"]]


@pytest.mark.usefixtures("gpu")
def test_under_nohup_a_closed_terminal_ends_nothing_and_lost_output_neither(tmp_path: Path, prompts: Path) -> None:
    """As `nohup experiment.py … | head -1`: SIGHUP comes, and nobody reads what is printed."""
    out = tmp_path / "out"
    reader, writer = os.pipe()
    before = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    process = start(tmp_path, *on_vllm(prompts, out, fake="--pause 0.004"), stdout=writer, before=before)
    os.close(writer)
    os.close(reader)
    wait_for((out / "01-baseline-c1" / "requests.jsonl").exists)
    process.send_signal(signal.SIGHUP)
    _, error = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, error
    assert_complete(out, (1,))


class Interrupted(LocalTarget):
    """A target whose first stop a signal cuts short."""

    stops = 0

    def start(self, deployment: Deployment, save: Callable[[], None]) -> None:
        script = ["/bin/sh", "-c", "trap '' TERM; touch ready; sleep 600; sleep 600"]
        self.child = processes.start_process(script, deployment, save, cwd=self.folder)

    def wait_ready(self, deployment: Deployment) -> str:
        assert processes.wait_until((self.folder / "ready").exists, HANG_S)
        raise UserError("not healthy")

    def stop(self, deployment: Deployment) -> None:
        self.stops += 1
        if self.stops == 1:
            raise KeyboardInterrupt
        processes.end_process(deployment.process, 0.1)


def test_a_signal_while_a_server_is_ended_does_not_leave_it_running(tmp_path: Path, prompts: Path) -> None:
    out = tmp_path / "out"
    begun = new_experiment(experiment.parse(["--target", "local", "--out", str(out), "--prompts", str(prompts)]))
    target = Interrupted(tmp_path, [], None, 10)
    with pytest.raises(KeyboardInterrupt):
        Experiment(out, begun, target).run()
    (deployment,) = begun.deployments
    assert deployment.process is not None
    assert target.stops == 2 and processes.living(deployment.process) == []
    assert state(out)["status"] == "interrupted"


def test_a_signal_before_anything_was_started(
    tmp_path: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalTarget, "check", check)
    answer = run("--target", "local", "--out", tmp_path / "out", "--prompts", prompts)
    assert answer.code == 130
    assert "before anything was started" in answer.error and "--resume" not in answer.error
    assert not (tmp_path / "out").exists()


# ---- SIGKILL at named states


def last(out: Path) -> dict[str, Any]:
    return dict(state(out)["deployments"][-1])


def lines(path: Path) -> int:
    return path.read_text().count("\n")


# name -> whether an experiment in this folder is there, or just past it
MOMENTS: dict[str, Callable[[Path], object]] = {
    "the state is saved for the first time": state,
    "a server starts": lambda out: last(out)["process"] and last(out)["ready_s"] is None,
    "a server is ready": lambda out: last(out)["status"] == "ready",
    "the first load is measured": lambda out: lines(out / last(out)["loads"]["1"]["directory"] / "requests.jsonl") > 4,
    "the first load is done": lambda out: last(out)["loads"]["1"]["status"] == "done",
    "the second load is measured": lambda out: (out / last(out)["loads"]["2"]["directory"] / "requests.jsonl").exists(),
    "a server is ended": lambda out: last(out)["status"] == "done" and last(out)["proof"] is None,
    "the second server is measured": lambda out: last(out)["index"] == 2 and last(out)["loads"]["1"]["process"],
    "the first load is compared": lambda out: state(out)["comparisons"]["1"]["process"],
}


def finished(out: Path) -> dict[str, int]:
    """The result directories that are done, and when their summary was written."""
    done = [
        load["directory"]
        for one in state(out)["deployments"] if one["status"] != "died"
        for load in one["loads"].values() if load["status"] == "done"
    ]  # fmt: skip
    return {name: (out / name / "summary.json").stat().st_mtime_ns for name in done}


@pytest.mark.usefixtures("gpu")
def test_killed_at_every_named_state_and_resumed_each_time(tmp_path: Path, prompts: Path) -> None:
    """One experiment, killed nine times on its way: what was finished before a kill is kept as it was."""
    out = tmp_path / "out"
    begin = on_vllm(prompts, out, loads="1,2", fake="--pause 0.004")
    kept: dict[str, int] = {}
    for name, is_there in MOMENTS.items():
        process = start(tmp_path, *(["--out", out, "--resume"] if (out / "experiment.json").exists() else begin))
        wait_for(lambda: is_there(out) or process.poll() is not None)  # noqa: B023
        process.kill()
        _, error = process.communicate(timeout=HANG_S)
        assert process.returncode == -signal.SIGKILL, f"{name}: {error}"
        kept |= {directory: written for directory, written in finished(out).items() if directory not in kept}
    answer = run("--out", out, "--resume")
    assert answer.code == 0, answer.error
    assert_complete(out, (1, 2))
    counted = {name for step in state(out)["comparisons"].values() for pair in step["pairs"] for name in pair}
    assert set(kept) <= counted and kept.items() <= finished(out).items()
    assert running_in(tmp_path) == []


def test_killed_while_the_embedded_engine_is_measured(tmp_path: Path, prompts: Path) -> None:
    """The one real case: an engine that computes, killed under load, ended and measured again by --resume."""
    out = tmp_path / "out"
    process = start(tmp_path, *on_local(prompts, out))
    wait_for(lambda: lines(out / "01-baseline-c1" / "requests.jsonl") > 0)
    process.kill()
    process.communicate(timeout=HANG_S)
    answer = run("--out", out, "--resume")
    assert answer.code == 0, answer.error
    assert_complete(out, (1,))
    first = state(out)["deployments"][0]  # its bench.py may have come to its end before the resume: then that counts
    assert first["status"] == "interrupted" and first["proof"]["proven"]
    assert running_in(tmp_path) == []
