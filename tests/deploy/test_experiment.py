"""experiment.py: whole experiments over real processes and sockets, killed and resumed; its rules one by one."""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import ROOT, find_free_port

import experiment
from specbench import UserError
from specbench.record.directory import read_requests, read_summary

CASES = [
    {"id": "copy-1", "family": "copy", "messages": [{"role": "user", "content": "Repeat: a b c d e a b c d e"}]},
    {"id": "short-1", "family": "short", "messages": [{"role": "user", "content": "What is 2 + 2?"}]},
]
FAKE_VLLM = f"{sys.executable} {ROOT / 'tests' / 'support' / 'vllm_program.py'}"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Two cases of eight tokens."""
    path = tmp_path / "two.jsonl"
    path.write_text("".join(json.dumps({**case, "max_tokens": 8}) + "\n" for case in CASES))
    return path


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GPU as nvidia-smi shows it; the file holds the MiB in use."""
    used = tmp_path / "used-mib"
    used.write_text("4")
    command = tmp_path / "bin" / "nvidia-smi"
    command.parent.mkdir()
    command.write_text(
        f'#!/bin/sh\ncase "$1" in *memory.used*) echo "0, A GPU, $(cat {used})";; *) echo "A GPU, 1000, 570.1";; esac\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    return used


@pytest.fixture
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Whatever a test starts has the test's folder as its working folder, and is gone at its end."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    left = running_in(tmp_path)
    for process in left:
        process.kill()
    assert left == []


def running_in(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def command(*arguments: object) -> list[str]:
    """experiment.py without the page at the end, which has tests of its own and takes as long as the rest."""
    script = "import experiment; experiment.make_page = print; raise SystemExit(experiment.main())"
    return [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {script}", *map(str, arguments)]


def run(tmp_path: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=240, cwd=tmp_path, check=False
    )


def state(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "experiment.json").read_text()))


def vllm(
    prompts: Path, out: Path, *arguments: object, order: str = "BN", loads: str = "1", fake: str = ""
) -> list[Any]:
    return [
        "--target", "vllm", "--out", out, "--prompts", prompts, "--order", order, "--concurrency", loads,
        "--repeats", 1, *arguments, "--", "--vllm", f"{FAKE_VLLM} {fake}", "--model", "m",
    ]  # fmt: skip


def parsed(*arguments: object) -> argparse.Namespace:
    return experiment.parse([*map(str, arguments)])


def assert_complete(out: Path, loads: tuple[int, ...]) -> None:
    """Every place in the order has a whole directory per load, and compare.py took them as pairs."""
    document = state(out)
    assert document["status"] == "complete"
    for load in loads:
        step = document["comparisons"][str(load)]
        assert step["exit_code"] in (0, 1)
        directories = [out / name for pair in step["pairs"] for name in pair]
        assert len(set(directories)) == len(document["settings"]["order"])
        asked = []
        for directory in directories:
            requests = read_summary(directory)["requests"]
            assert requests["ok"] == requests["scheduled"] > 0
            rows = [row for row in read_requests(directory) if row.phase == "measured"]
            asked.append(sorted((row.case, row.repeat, row.prompt_sha256) for row in rows))
        assert all(one == asked[0] for one in asked)
        result = json.loads((out / step["json"]).read_text())
        assert result["base"]["directories"] == [base for base, _ in step["pairs"]]


# ---- the order


@pytest.mark.parametrize("order", ["BN", "NB", "BNNB", "NBBN", "BNNBBN", "BNNBBNNB"])
def test_an_alternating_order_is_taken(order: str) -> None:
    experiment.check_order(order)


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ("BBNN", "does not alternate"),
        ("BNBN", "does not alternate"),
        ("BBN", "does not alternate"),
        ("BNN", "does not alternate"),
        ("BNNBNB", "does not alternate"),
        ("BB", "both modes"),
        ("B", "both modes"),
        ("", "both modes"),
        ("BXNB", "holds X"),
        ("bnnb", "holds b, n"),
    ],
)
def test_any_other_order_is_refused(order: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        experiment.check_order(order)


# ---- bad input: one sentence, exit 2, nothing made


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "--target is missing"),
        (["--target", "local", "--order", "BB"], "both modes"),
        (["--target", "local", "--concurrency", "1,1"], "--concurrency 1,1"),
        (["--target", "local", "--concurrency", "0"], "--concurrency 0"),
        (["--target", "local", "--concurrency", "1,x"], "--concurrency 1,x"),
        (["--target", "local", "--repeats", "0"], "--repeats 0"),
        (["--target", "local", "--prompts", "none.jsonl"], "none.jsonl"),
        (["--target", "local", "--", "--model", "m"], "no options after --"),
        (["--target", "vllm"], "no GPU"),
        (["--resume"], "nothing to --resume"),
        (["--target", "local", "--port", "99999"], "--port 99999 must be from 1 to 65535"),
        (["--target", "local", "--port", "0"], "--port 0 must be from 1 to 65535"),
        (["--target", "local", "--startup-timeout", "0"], "--startup-timeout 0 must be"),
        (["--target", "local", "--startup-timeout", "inf"], "--startup-timeout inf must be"),
        (["--target", "local", "--startup-timeout", "nan"], "--startup-timeout nan must be"),
        (["--target", "local", "-p", "demo"], "--project is for --target polyaxon"),
        (["--target", "vllm", "--owner", "me", "--queue", "q"], "--owner, --queue is for --target polyaxon"),
        (["--target", "local", "--approve"], "--approve is for --target polyaxon"),
        (["--target", "vllm", "--insecure-http"], "--insecure-http is for --target polyaxon"),
        (["--target", "polyaxon", "-p", "demo", "--port", "8000"], "--port is for --target local and vllm"),
    ],
)
@pytest.mark.usefixtures("no_gpu")
def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    options, _, rest = " ".join(arguments).partition("-- ")
    out = tmp_path / "out"
    assert experiment.main(["--out", str(out), *options.split(), *(["--", *rest.split()] if rest else [])]) == 2
    error = capsys.readouterr().err
    assert error.startswith("experiment.py: ") and sentence in error and error.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--vllm", "no-such-vllm"], "no command 'no-such-vllm'"),
        (["--port", "1"], "--port after -- is set by experiment.py"),
        (["--mode=ngram"], "--mode after -- is set by experiment.py"),
        (["--num-speculative-tokens", "0"], "--num-speculative-tokens 0"),
    ],
)
@pytest.mark.usefixtures("gpu")
def test_bad_launcher_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    assert experiment.main(["--target", "vllm", "--out", str(tmp_path / "out"), "--", *options]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("")
    assert experiment.main(["--target", "local", "--out", str(tmp_path)]) == 2
    assert "not an empty folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("arguments", [["--target", "moon"], ["--repeats", "x"], ["--no-such"]])
def test_a_bad_command_line_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        experiment.main(["--out", str(tmp_path / "out"), *arguments])
    error = capsys.readouterr().err
    assert error.startswith("experiment.py: ") and error.count("\n") == 1


@pytest.mark.parametrize("cut", [0, 10, None])
def test_what_a_kill_before_the_first_save_left_can_be_used_again(tmp_path: Path, prompts: Path, cut: int) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "prompts.jsonl").write_bytes(prompts.read_bytes()[:cut])
    (out / "experiment.json.part").write_text("{")
    document = experiment.new_document(parsed("--target", "local", "--out", out, "--prompts", prompts))
    assert document["settings"]["target"] == "local"
    assert (out / "prompts.jsonl").read_bytes() == prompts.read_bytes()


def test_other_prompts_in_the_folder_are_left_alone(tmp_path: Path, prompts: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "prompts.jsonl").write_text("mine")
    with pytest.raises(UserError, match="not an empty folder"):
        experiment.new_document(parsed("--target", "local", "--out", out, "--prompts", prompts))
    assert (out / "prompts.jsonl").read_text() == "mine"


SETTINGS = {**experiment.DEFAULTS, "target": "local", "prompts_sha256": ""}
PARTS = {"format": 1, "id": "1", "settings": SETTINGS, "device": {}, "deployments": [], "comparisons": {}}


@pytest.mark.parametrize(
    "content",
    [[], {}, {"format": 1}, "text", {**PARTS, "settings": {}}, {**PARTS, "deployments": [{}]}],
)
def test_a_state_edited_by_hand_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: object
) -> None:
    (tmp_path / "experiment.json").write_text(json.dumps(content))
    assert experiment.main(["--out", str(tmp_path), "--resume"]) == 2
    error = capsys.readouterr().err
    assert "is not a state that experiment.py wrote" in error and error.count("\n") == 1


def test_polyaxon_gets_the_params_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "Runs", lambda *_, **__: None)
    arguments = parsed("--target", "polyaxon", "--out", tmp_path, "-p", "me/demo", "--", "-P", "hub_token=s3cret")
    settings = experiment.DEFAULTS | experiment.given_settings(arguments)
    assert "s3cret" not in json.dumps(settings)
    target = experiment.target_of(settings, arguments, "1")
    assert isinstance(target, experiment.PolyaxonTarget) and target.params == {"hub_token": "s3cret"}


def test_a_second_experiment_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with experiment.held(tmp_path), pytest.raises(UserError, match="another experiment"), experiment.held(tmp_path):
        pass
    with experiment.held(tmp_path):
        pass  # free again


# ---- processes


def start(tmp_path: Path, script: str, owner: dict[str, Any]) -> "subprocess.Popen[bytes]":
    process = experiment.start_process(["/bin/sh", "-c", script], owner, lambda: None, cwd=tmp_path)
    assert experiment.wait_until((tmp_path / "ready").exists, 10)
    return process


def test_what_the_state_does_not_name_never_runs(tmp_path: Path) -> None:
    script = "import os, experiment; experiment.start_process(['touch', 'ran'], {}, lambda: os._exit(9))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, timeout=60, check=False)
    assert killed.returncode == 9
    assert experiment.wait_until(lambda: not running_in(tmp_path), 10)
    assert not (tmp_path / "ran").exists()


def test_a_stranger_with_the_same_number_is_left_alone(tmp_path: Path) -> None:
    owner: dict[str, Any] = {}
    process = start(tmp_path, "touch ready; exec sleep 60", owner)
    for changed in ({"created": owner["process"]["created"] - 60}, {"boot": "another"}):
        recorded = {**owner["process"], **changed, "marker": "another"}
        experiment.end_process(recorded, grace_s=0)
        assert experiment.living(recorded) == [] and process.poll() is None
    experiment.end_process(owner["process"], grace_s=10)
    assert process.wait(10) == -signal.SIGTERM


def test_a_group_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    owner: dict[str, Any] = {}
    start(tmp_path, "trap '' TERM; sleep 60 & touch ready; sleep 60; sleep 60", owner)
    assert len(experiment.living(owner["process"])) == 3
    experiment.end_process(owner["process"], grace_s=0.3)
    assert experiment.living(owner["process"]) == []


def test_an_orphan_is_told_from_a_stranger_by_its_environment(tmp_path: Path) -> None:
    owner: dict[str, Any] = {}
    script = f"sleep 60 & env -u {experiment.MARKER} sleep 61 & touch ready; exit"
    process = start(tmp_path, script, owner)
    process.wait(10)
    assert [orphan.cmdline() for orphan in experiment.living(owner["process"])] == [["sleep", "60"]]
    experiment.end_process(owner["process"], grace_s=0.1)
    left = running_in(tmp_path)
    assert [stranger.cmdline() for stranger in left] == [["sleep", "61"]]
    left[0].kill()
    left[0].wait(10)


# ---- the device


def test_gpu_memory_is_read_per_gpu(gpu: Path) -> None:
    gpu.write_text("812")
    assert experiment.gpu_memory() == {"0 A GPU": 812}


@pytest.mark.usefixtures("no_gpu")
def test_without_nvidia_smi_there_is_no_gpu() -> None:
    assert experiment.gpu_memory() is None


@pytest.mark.parametrize(
    ("used", "said"),
    [
        ({"0 A": 204}, []),
        ({"0 A": 205}, ["0 A holds 205 MiB, held 4 before"]),
        ({"0 A": 0}, []),
        ({}, ["0 A is no longer there"]),
        (None, ["nvidia-smi does not answer"]),
    ],
)
def test_memory_held(used: dict[str, int] | None, said: list[str]) -> None:
    assert experiment.memory_held({"0 A": 4}, used) == said


def test_a_gpu_that_is_not_given_back_stops_the_experiment(
    tmp_path: Path, gpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "FREE_PATIENCE_S", 0.2)
    target = experiment.VllmTarget(tmp_path, [], None, 1)
    deployment = {"name": "02-ngram", "gpu_memory_mib": {"free": {"0 A GPU": 4}}}
    assert target.prove_memory(deployment)["not_proven"] == []
    gpu.write_text("70000")
    with pytest.raises(UserError, match="not free after 02-ngram was stopped: 0 A GPU holds 70000 MiB, held 4"):
        target.prove_memory(deployment)


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path, prompts: Path, free_port: int) -> None:
    taken = subprocess.Popen(
        [sys.executable, "-m", "http.server", str(free_port), "--bind", "127.0.0.1"],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert experiment.wait_until(lambda: experiment.port_answers(free_port), 20)
        answer = run(tmp_path, "--target", "local", "--out", "out", "--prompts", prompts, "--port", free_port)
        assert answer.returncode == 2
        assert answer.stderr.splitlines() == [
            f"experiment.py: --port {free_port} of 127.0.0.1 is taken: stop what listens there, or leave --port out"
        ]
        assert taken.poll() is None
    finally:
        taken.kill()
        taken.wait(10)


# ---- whole experiments on launch_vllm.py, with recorded streams behind it


def test_a_whole_experiment_on_a_gpu_host(tmp_path: Path, prompts: Path, gpu: Path) -> None:
    out = tmp_path / "out"
    answer = run(tmp_path, *vllm(prompts, out, order="BNNB", loads="1,2"))
    assert answer.returncode == 0, answer.stderr
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
    assert "[3 of 4] 03-ngram: 2 users, about" in answer.stdout
    assert "In short" in answer.stdout and "overall" in answer.stdout

    again = run(tmp_path, "--out", out, "--resume")
    assert again.returncode == 0 and "[1 of 4]" not in again.stdout and "In short" in again.stdout
    changed = run(tmp_path, "--out", out, "--resume", "--repeats", 3, "--order", "BNNB", "--", "--model", "other")
    assert changed.returncode == 2
    assert "repeats was 1, now 3" in changed.stderr and "now ['--model', 'other']" in changed.stderr
    assert "order" not in changed.stderr
    fresh = run(tmp_path, *vllm(prompts, out))
    assert fresh.returncode == 2 and "holds an experiment: give --resume" in fresh.stderr
    (out / "prompts.jsonl").write_text(json.dumps(CASES[0]) + "\n")
    edited = run(tmp_path, "--out", out, "--resume")
    assert edited.returncode == 2 and "was changed since the experiment began" in edited.stderr


@pytest.mark.usefixtures("gpu")
def test_a_server_that_fails_at_start_is_one_message_with_its_log(tmp_path: Path, prompts: Path) -> None:
    out = tmp_path / "out"
    answer = run(tmp_path, *vllm(prompts, out, fake=f"--fail-at-start --once {tmp_path / 'failed'}"))
    assert answer.returncode == 2
    assert "01-baseline ended before it was healthy" in answer.stderr and "CUDA out of memory" in answer.stderr
    assert state(out)["status"] == "stopped" and running_in(tmp_path) == []
    answer = run(tmp_path, "--out", out, "--resume")
    assert answer.returncode == 0, answer.stderr
    assert_complete(out, (1,))
    assert [one["name"] for one in state(out)["deployments"]] == ["01-baseline", "01-baseline-2", "02-ngram"]


@pytest.mark.usefixtures("gpu")
def test_a_server_that_never_gets_healthy_meets_a_deadline(tmp_path: Path, prompts: Path) -> None:
    answer = run(tmp_path, *vllm(prompts, tmp_path / "out", "--startup-timeout", 2, fake="--never-healthy"))
    assert answer.returncode == 2
    assert "01-baseline was not healthy after --startup-timeout 2 s" in answer.stderr


@pytest.mark.parametrize("trouble", ["--die-at 6", "--sick-at 6"])
@pytest.mark.usefixtures("gpu")
def test_a_server_that_dies_under_load_is_deployed_once_more(tmp_path: Path, prompts: Path, trouble: str) -> None:
    out = tmp_path / "out"
    answer = run(tmp_path, *vllm(prompts, out, fake=f"{trouble} --once {tmp_path / 'died'}"))
    assert answer.returncode == 0, answer.stderr
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
    answer = run(tmp_path, *vllm(prompts, out, fake="--die-at 6"))
    assert answer.returncode == 2
    assert "the server of deployment 1 died twice under load" in answer.stderr
    assert [one["status"] for one in state(out)["deployments"]] == ["died", "died"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("gpu")
def test_an_interrupt_ends_everything_and_can_be_resumed(tmp_path: Path, prompts: Path, number: int) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        command(*vllm(prompts, out, loads="1,2", fake="--pause 0.004")), cwd=tmp_path, start_new_session=True,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert experiment.wait_until((out / "01-baseline-c2" / "requests.jsonl").exists, 60)
    process.send_signal(number)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130 and "--resume" in error
    assert running_in(tmp_path) == []
    assert state(out)["status"] == "interrupted"
    answer = run(tmp_path, "--out", out, "--resume")
    assert answer.returncode == 0, answer.stderr
    assert_complete(out, (1, 2))
    assert state(out)["comparisons"]["1"]["pairs"] == [["01-baseline-c1", "02-ngram-c1"]]
    assert state(out)["comparisons"]["2"]["pairs"] == [["01-baseline-2-c2", "02-ngram-c2"]]


class Interrupted(experiment.ProcessTarget):
    """A target whose first stop a signal cuts short."""

    stops = 0

    def start(self, deployment: dict[str, Any], save: Callable[[], None]) -> None:
        script = ["/bin/sh", "-c", "trap '' TERM; touch ready; sleep 60; sleep 60"]
        self.child = experiment.start_process(script, deployment, save, cwd=self.folder)

    def wait_ready(self, deployment: dict[str, Any]) -> str:
        assert experiment.wait_until((self.folder / "ready").exists, 10)
        raise UserError("not healthy")

    def stop(self, deployment: dict[str, Any]) -> None:
        self.stops += 1
        if self.stops == 1:
            raise KeyboardInterrupt
        experiment.end_process(deployment["process"], 0.1)


def test_a_signal_while_a_server_is_ended_does_not_leave_it_running(tmp_path: Path, prompts: Path) -> None:
    document = experiment.new_document(parsed("--target", "local", "--out", tmp_path / "out", "--prompts", prompts))
    target = Interrupted(tmp_path, [], None, 10)
    with pytest.raises(KeyboardInterrupt):
        experiment.Experiment(tmp_path / "out", document, target).run()
    (deployment,) = document["deployments"]
    assert target.stops == 2 and experiment.living(deployment["process"]) == []
    assert state(tmp_path / "out")["status"] == "interrupted"


def test_a_signal_before_anything_was_started(
    tmp_path: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment.ProcessTarget, "check", check)
    assert experiment.main(["--target", "local", "--out", str(tmp_path / "out"), "--prompts", str(prompts)]) == 130
    error = capsys.readouterr().err
    assert "before anything was started" in error and "--resume" not in error and not (tmp_path / "out").exists()


def test_secrets_in_options_are_not_stored(tmp_path: Path, prompts: Path, gpu: Path) -> None:
    out = tmp_path / "out"
    given = vllm(prompts, out, fake=f"--fail-at-start --once {tmp_path / 'failed'}")
    with_secret = [*given, "--revision", "main"]
    with_secret[with_secret.index("--vllm") + 1] = f"env A=1 HF_TOKEN=hf_secret {given[given.index('--vllm') + 1]}"
    assert run(tmp_path, *with_secret).returncode == 2
    assert "hf_secret" not in (out / "experiment.json").read_text()
    answer = run(tmp_path, "--out", out, "--resume")
    assert answer.returncode == 2 and "give them again" in answer.stderr


# ---- whole experiments on the embedded engine


def test_killed_at_ten_moments_and_resumed_each_time(tmp_path: Path, prompts: Path) -> None:
    out = tmp_path / "out"
    moments = random.Random(20261130)
    arguments = [
        "--target",
        "local",
        "--prompts",
        str(prompts),
        "--order",
        "BN",
        "--concurrency",
        "1,2",
        "--repeats",
        "1",
    ]
    finished: dict[str, int] = {}
    killed = 0
    for number in range(10):
        process = subprocess.Popen(
            command("--out", out, *(["--resume"] if (out / "experiment.json").exists() else arguments)),
            cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        # Wait for the state the first time, so that each kill meets an experiment under way.
        assert number or experiment.wait_until((out / "experiment.json").exists, 30)
        time.sleep(moments.uniform(0.3, 5))
        process.kill()
        _, error = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0), error
        killed += process.returncode == -signal.SIGKILL
        for one in state(out)["deployments"]:
            for entry in one["loads"].values():
                if entry["status"] == "done":
                    finished.setdefault(
                        entry["directory"], (out / entry["directory"] / "summary.json").stat().st_mtime_ns
                    )
    assert killed > 5  # a machine that is done before that needs more repeats here
    answer = run(tmp_path, "--out", out, "--resume")
    assert answer.returncode == 0, answer.stderr
    assert_complete(out, (1, 2))
    counted = {name for step in state(out)["comparisons"].values() for pair in step["pairs"] for name in pair}
    assert set(finished) <= counted  # what was finished before a kill was kept
    for name, written in finished.items():
        assert (out / name / "summary.json").stat().st_mtime_ns == written
    recorded = [one["process"] for one in state(out)["deployments"]]
    recorded += [entry["process"] for one in state(out)["deployments"] for entry in one["loads"].values()]
    assert all(experiment.living(process) == [] for process in recorded if process)
    assert running_in(tmp_path) == []


def test_a_free_port_is_free() -> None:
    assert not experiment.port_answers(find_free_port())


def test_the_end_is_a_table_with_a_line_a_load() -> None:
    def result(copy: float | None, overall: float, verdict: str) -> dict[str, Any]:
        line = {"name": "copy", "interval": {"ratio": copy}}
        whole = {"name": "overall", "interval": {"ratio": overall}}
        return {"metrics": {"e2el": {"families": {"copy": line}, "overall": whole}}, "verdict": {"verdict": verdict}}

    loads = [("1 user", result(0.5581, 0.98, "faster")), ("16 users", result(None, 1.2, "not comparable"))]
    assert experiment.in_short(loads) == [
        "          copy  overall  verdict",
        "  1 user  0.56     0.98  faster",
        "16 users     –     1.20  not comparable",
    ]
