"""bench.yaml: what Polyaxon 2.18 accepts, and the Kubernetes object it makes of it. Not executed on a cluster."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import ROOT
from test_service_yaml import main_container, rendered, uploaded

import bench

JOB = ROOT / "bench.yaml"
UUID = "c" * 32
FOLDER = f"/plx-context/artifacts/{'a' * 32}"

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # Polyaxon's own


@pytest.fixture(scope="module")
def container() -> dict[str, Any]:
    job = rendered(JOB, service_run=UUID, mode="ngram", concurrency="4")
    assert job["kind"] == "Job"
    return main_container(job["batchJobSpec"]["template"]["spec"])


def test_it_runs_bench_with_arguments_that_bench_takes(container: dict[str, Any]) -> None:
    assert container["image"] == "python:3.12-slim"
    assert container["workingDir"] == f"{FOLDER}/uploads"
    arguments = bench.parse_args(container["args"])
    assert (arguments.service_run, arguments.project, arguments.mode) == (UUID, "me/demo", "ngram")
    assert (arguments.concurrency, arguments.repeats) == (4, 10)
    assert arguments.out == Path(f"{FOLDER}/outputs/ngram-c4")  # what the sidecar keeps


def test_it_installs_the_requirements_at_the_versions_of_the_lock(container: dict[str, Any]) -> None:
    assert container["command"][:2] == ["/bin/sh", "-c"]
    script = container["command"][2]
    assert "--constraint requirements.lock --requirement requirements.txt" in script
    # A param reaches bench.py as one argument, whatever it holds.
    script = re.sub(r"^pip .* &&\s+exec python bench.py", "exec printf '%s|'", script)
    done = subprocess.run(
        ["sh", "-c", script, "bench.py", "a b", "$(id); `id`"], check=True, capture_output=True, text=True
    )
    assert done.stdout == "a b|$(id); `id`|"


def test_the_token_is_a_secret_and_nothing_else_is_set(container: dict[str, Any]) -> None:
    given = [each for each in container["env"] if not each["name"].startswith(("POLYAXON_", "NVIDIA_"))]
    token = {"name": "POLYAXON_TOKEN", "valueFrom": {"secretKeyRef": {"name": "polyaxon-token", "key": "token"}}}
    assert (given, token in container["env"]) == ([], True)
    assert container["resources"]["requests"] == {"cpu": "2", "memory": "1Gi"}


def test_every_template_variable_is_defined() -> None:
    text = JOB.read_text()
    inputs = {each["name"] for each in yaml.safe_load(text)["inputs"]}
    known = {f"globals.{name}" for name in ("run_artifacts_path", "run_outputs_path", "owner_name", "project_name")}
    assert set(re.findall(r"\{\{ *([\w.]+) *\}\}", text)) <= inputs | known


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ([f"service_run={UUID}", "mode=ngram"], 0),
        ([f"service_run={UUID}", "mode=eagle"], 1),
        (["service_run=latest", "mode=ngram"], 1),
    ],
)
def test_check(params: list[str], code: int) -> None:
    command = [str(Path(sys.executable).with_name("polyaxon")), "check", "-f", str(JOB)]
    for param in params:
        command += ["-P", param]
    assert subprocess.run(command, check=False, capture_output=True).returncode == code


def test_the_upload_is_enough_to_run_bench(tmp_path: Path) -> None:
    for name in uploaded(ROOT):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    done = subprocess.run(
        [sys.executable, "bench.py", "--help"], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "requirements.lock").exists()


def test_the_file_says_that_it_was_not_executed() -> None:
    assert "NOT EXECUTED ON A CLUSTER" in JOB.read_text()
