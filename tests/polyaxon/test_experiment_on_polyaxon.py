"""The README's commands by hand with the real CLI, and the whole experiment in one command."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import HANG_S, ROOT
from support.polyaxon_agent import embedded_engine
from support.polyaxon_deployments import cli
from support.polyaxon_server import PROJECT, Cluster

from specbench import UserError
from specbench.polyaxon.api import RunApi
from specbench.polyaxon.service import find_service

# ---- by hand, with the real CLI


def test_the_readme_by_hand(polyaxon: Cluster, two_cases: Path, tmp_path: Path) -> None:
    """polyaxon run, bench.py without a URL, ops service, ops stop: the article's commands as 2.18 takes them."""
    polyaxon.agent.command = embedded_engine
    ran = cli(polyaxon, tmp_path, f"polyaxon run -p {PROJECT} -f service.yaml -u -P mode=ngram")
    found = re.search(r"Run `(\w{32})` was approved", ran.stdout)
    assert found, ran.stdout + ran.stderr
    uuid = found[1]

    measure = (
        f"{sys.executable} bench.py --service-run {uuid} -p {PROJECT} --prompts {two_cases} --concurrency 1 --repeats 1"
    )
    wrong = cli(polyaxon, tmp_path, f"{measure} --mode baseline --out {tmp_path}/wrong")
    assert wrong.returncode == 2
    assert "baseline" in wrong.stderr and "ngram" in wrong.stderr
    assert not (tmp_path / "wrong").exists()

    right = cli(polyaxon, tmp_path, f"{measure} --mode ngram --out {tmp_path}/right")
    assert right.returncode == 0, right.stderr
    manifest = json.loads((tmp_path / "right" / "manifest.json").read_text())
    assert (manifest["mode"], manifest["service_run"]) == ("ngram", uuid)
    assert f"/runs/{uuid}/8000" in manifest["url"]

    shown = cli(polyaxon, tmp_path, f"polyaxon ops service -p {PROJECT} -uid {uuid} --url", COLUMNS="400")
    assert f"/rewrite-services/v1/polyaxon/default/{PROJECT}/runs/{uuid}/" in shown.stdout
    stop = cli(polyaxon, tmp_path, f"polyaxon ops stop -p {PROJECT} -uid {uuid} --yes")
    assert stop.returncode == 0, stop.stdout + stop.stderr
    api = RunApi(PROJECT, poll_s=0.1)
    assert api.stop(uuid, HANG_S) == "stopped"
    again = cli(polyaxon, tmp_path, f"{measure} --out {tmp_path}/again")
    assert (again.returncode, f"run {uuid} of default/{PROJECT} is stopped" in again.stderr) == (2, True)


def test_an_upload_of_nothing_fails_the_run(polyaxon: Cluster, tmp_path: Path) -> None:
    component = tmp_path / "service.yaml"
    component.write_bytes((ROOT / "service.yaml").read_bytes())
    (tmp_path / ".polyaxonignore").write_text("*\n")
    cli(polyaxon, tmp_path, f"polyaxon run -p {PROJECT} -f service.yaml -u -P mode=ngram --name nothing", cwd=tmp_path)
    uuid = RunApi(PROJECT)._run(None).list(query="name:nothing").results[0].uuid
    with pytest.raises(UserError, match=rf"run {uuid} of default/{PROJECT} is failed \(UploadEmpty"):
        find_service(uuid, PROJECT)


# ---- the whole experiment in one command


def experiment(polyaxon: Cluster, folder: Path, *options: str) -> "subprocess.Popen[str]":
    polyaxon.agent.command = embedded_engine
    command = [sys.executable, "-u", str(ROOT / "experiment.py"), "--out", str(folder / "experiment"), *options]
    environment = polyaxon.environment(folder / "home")
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finished(process: "subprocess.Popen[str]", on_line: Callable[[str], object] = lambda _: None) -> str:
    """Everything that the process prints; each line is handed to `on_line` as it comes."""
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        on_line(line)
    process.wait()
    return "".join(lines)


def state(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "experiment" / "experiment.json").read_text()))


def test_one_command_runs_the_experiment_to_a_verdict(polyaxon: Cluster, two_cases: Path, tmp_path: Path) -> None:
    """Both orders (BNNB); the API goes away while the second run starts; somebody deletes the third under load."""

    def disturb(line: str) -> None:
        if "02-ngram: starting" in line:
            polyaxon.gateway.go_away()
        if "03-ngram: 1 user" in line:
            RunApi(PROJECT)._run(polyaxon.agent.started[-1]).delete()

    options = [
        "--target",
        "polyaxon",
        "-p",
        PROJECT,
        "--concurrency",
        "1",
        "--repeats",
        "1",
        "--prompts",
        str(two_cases),
    ]
    process = experiment(polyaxon, tmp_path, *options)
    printed = finished(process, disturb)
    assert process.returncode == 0, printed
    assert "is away; asking again" in printed
    assert "answers again" in printed
    assert "the server died: its run was deleted" in printed
    assert re.search(r"^ *copy .*verdict$\n^1 user( +\d+\.\d\d)+  [a-z]", printed, re.MULTILINE), printed

    document = state(tmp_path)
    assert document["status"] == "complete"
    deployments = document["deployments"]
    assert [one["name"] for one in deployments] == [
        "01-baseline", "02-ngram", "03-ngram", "03-ngram-2", "04-baseline",
    ]  # fmt: skip
    for one in deployments:
        run = one["run"]
        assert run["name"] == f"specbench-{document['id']}-{one['name']}"
        ended = "deleted" if one["name"] == "03-ngram" else "stopped"
        assert f"run {run['uuid']} is {ended}" in one["proof"]["proven"]
        if ended == "deleted":
            continue
        manifest = json.loads((tmp_path / "experiment" / f"{one['name']}-c1" / "manifest.json").read_text())
        assert (manifest["mode"], manifest["service_run"]) == (one["mode"], run["uuid"])
    assert polyaxon.gateway.services == {}


def test_killed_at_any_moment_it_resumes(polyaxon: Cluster, two_cases: Path, tmp_path: Path) -> None:
    """SIGKILL while the first deployment starts, and while the second is measured; --resume ends both api."""
    options = ["--target", "polyaxon", "-p", PROJECT, "--order", "NB", "--concurrency", "1", "--repeats", "1"]
    process = experiment(polyaxon, tmp_path, *options, "--prompts", str(two_cases))
    finished(process, lambda line: process.kill() if "queued" in line else None)
    assert process.returncode == -signal.SIGKILL
    left = state(tmp_path)["deployments"][0]["run"]["uuid"]

    second = experiment(polyaxon, tmp_path, "--resume")
    seen = finished(second, lambda line: second.kill() if "02-baseline: 1 user" in line else None)
    assert f"run {left} is stop" in seen  # stopped, or stopping and never scheduled

    third = experiment(polyaxon, tmp_path, "--resume")
    printed = finished(third)
    assert third.returncode == 0, printed
    document = state(tmp_path)
    names = [(one["name"], one["status"]) for one in document["deployments"]]
    assert names == [
        ("01-ngram", "interrupted"), ("01-ngram-2", "done"), ("02-baseline", "interrupted"), ("02-baseline-2", "done"),
    ]  # fmt: skip
    assert all(one["proof"] for one in document["deployments"])
    assert polyaxon.gateway.services == {}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--target", "polyaxon"], "--target polyaxon needs -p PROJECT"),
        (["--target", "polyaxon", "-p", "nowhere"], "polyaxon project create --name default/nowhere"),
        (["--target", "polyaxon", "-p", PROJECT, "--", "--k", "5"], "must be -P NAME=VALUE"),
    ],
)
def test_an_experiment_that_cannot_start(polyaxon: Cluster, tmp_path: Path, options: list[str], sentence: str) -> None:
    process = experiment(polyaxon, tmp_path, *options)
    printed = finished(process)
    assert (process.returncode, printed.count("\n")) == (2, 1)
    assert sentence in printed
    assert not (tmp_path / "experiment").exists()


def test_a_token_that_may_not_start_runs_deploys_nothing(polyaxon: Cluster, tmp_path: Path) -> None:
    """It may look at the project, so that only the first deployment meets the refusal."""
    polyaxon.gateway.refuse_creation = True
    process = experiment(polyaxon, tmp_path, "--target", "polyaxon", "-p", PROJECT, "--order", "BN")
    printed = finished(process)
    assert process.returncode == 2, printed
    assert f"the token has no permission to create the run in default/{PROJECT}" in printed.splitlines()[-1]
    assert RunApi(PROJECT).unfinished(f"specbench-{state(tmp_path)['id']}-%") == []
