"""experiment.yaml: what Polyaxon 2.18 accepts, and the Kubernetes object it makes of it. Not executed on a cluster."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import HANG_S, ROOT
from test_service_yaml import main_container, rendered, uploaded

import experiment
from specbench.deploy.polyaxon_target import params_in

JOB = ROOT / "experiment.yaml"
FOLDER = f"/plx-context/artifacts/{'a' * 32}"

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # Polyaxon's own


def container_of(**params: str) -> dict[str, Any]:
    job = rendered(JOB, **params)
    assert job["kind"] == "Job"
    return main_container(job["batchJobSpec"]["template"]["spec"])


def arguments_of(container: dict[str, Any], folder: Path, before: str = "") -> list[str]:
    """What the container's script gives to experiment.py, in `folder` as its working directory."""
    script = container["command"][2].replace("exec python", "exec printf '%s\\n'")
    done = subprocess.run(
        ["sh", "-c", f"pip() {{ :; }}; {before}\n{script}", container["command"][3], *container["args"]],
        cwd=folder, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "experiment.py").touch()
    return tmp_path


def test_it_runs_the_experiment_with_arguments_that_it_takes(folder: Path) -> None:
    script, *arguments = arguments_of(container_of(queue="gpus/h200", order="BNNBBN"), folder)
    assert script == "experiment.py"
    given = experiment.parse(arguments)
    assert (given.target, given.project, given.queue) == ("polyaxon", "me/demo", "gpus/h200")
    assert (given.order, given.concurrency, given.max_tokens, given.repeats) == ("BNNBBN", "1,4,8", 128, None)
    assert given.out == Path(f"{FOLDER}/outputs/experiment")  # what the sidecar keeps
    assert not given.resume
    inputs = yaml.safe_load((ROOT / "service.yaml").read_text())["inputs"]
    defaults = {each["name"]: each.get("value") for each in inputs}
    del defaults["mode"]
    assert params_in(given.launcher_options) == {name: str(value) for name, value in defaults.items()}


def test_a_param_that_is_empty_is_not_given(folder: Path) -> None:
    given = experiment.parse(arguments_of(container_of(), folder)[1:])
    assert (given.queue, given.repeats) == (None, None)
    assert experiment.parse(arguments_of(container_of(repeats="3"), folder)[1:]).repeats == 3


def test_a_job_that_was_restarted_goes_on(folder: Path) -> None:
    container = container_of()
    container["args"][0] = str(folder / "out")
    (folder / "out").mkdir()
    (folder / "out" / "experiment.json").touch()
    assert experiment.parse(arguments_of(container, folder)[1:]).resume


def test_started_outside_its_folder_it_is_one_sentence(tmp_path: Path) -> None:
    container = container_of()
    done = subprocess.run(
        [*container["command"], *container["args"]], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "experiment.py is not among the uploads: use polyaxon run -f experiment.yaml -u in its folder" in done.stderr


def test_a_param_cannot_become_a_command(folder: Path) -> None:
    container = container_of()
    container["args"] += ["$(touch stolen); `touch stolen`"]
    assert arguments_of(container, folder)[-1] == container["args"][-1]
    assert not (folder / "stolen").exists()


def test_it_installs_what_the_page_needs_at_the_versions_of_the_lock() -> None:
    script = container_of()["command"][2]
    assert "--constraint requirements.lock --requirement requirements.txt" in script
    demo = (ROOT / "requirements-demo.txt").read_text()
    for package in re.search(r"requirements.txt \\\n +(.*)", script)[1].split():  # type: ignore[index]
        assert re.search(rf"^{package}\b", demo, re.MULTILINE), package


def test_the_token_is_a_secret_and_a_restart_finds_what_was_measured() -> None:
    job = rendered(JOB)
    assert job["termination"] == {"backoffLimit": 3, "activeDeadlineSeconds": 86400}
    container = main_container(job["batchJobSpec"]["template"]["spec"])
    given = [each for each in container["env"] if not each["name"].startswith(("POLYAXON_", "NVIDIA_"))]
    token = {"name": "POLYAXON_TOKEN", "valueFrom": {"secretKeyRef": {"name": "polyaxon-token", "key": "token"}}}
    assert (given, token in container["env"]) == ([], True)
    assert container["resources"]["requests"] == {"cpu": "2", "memory": "1Gi"}
    # Polyaxon's own init container fetches what the sidecar of an earlier pod kept.
    spec = job["batchJobSpec"]["template"]["spec"]
    assert "polyaxon-sidecar" in [each["name"] for each in spec["containers"]]
    fetches = [each for each in spec["initContainers"] if "artifacts" in each["name"]]
    assert fetches and "a" * 32 in " ".join(map(str, fetches[0]["args"]))


def test_every_template_variable_is_defined() -> None:
    text = JOB.read_text()
    inputs = {each["name"] for each in yaml.safe_load(text)["inputs"]}
    known = {f"globals.{name}" for name in ("run_artifacts_path", "run_outputs_path", "owner_name", "project_name")}
    used = set(re.findall(r"\{\{ *([\w.]+) *\}\}", text))
    assert used <= inputs | known and inputs <= used


@pytest.mark.parametrize(
    "params",
    [{"order": "BXNB"}, {"concurrency": "1;4"}, {"repeats": "-1"}, {"cudagraph_mode": "none"}, {"mode": "ngram"}],
    ids=str,
)
def test_other_values_are_refused(params: dict[str, str]) -> None:
    from polyaxon._polyaxonfile import check_polyaxonfile
    from polyaxon.exceptions import PolyaxonfileError

    with pytest.raises(PolyaxonfileError):
        check_polyaxonfile(polyaxonfile=str(JOB), params=params, is_cli=False, strict_params=True)


@pytest.mark.parametrize("script", ["experiment.py", "bench.py", "compare.py", "report.py", "launch_vllm.py"])
def test_the_upload_is_enough_to_run_it(tmp_path: Path, script: str) -> None:
    for name in uploaded(ROOT):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    code = (
        "import sys, runpy; sys.argv = [sys.argv[1], '--help']; sys.path.insert(0, '');"
        "import specbench.deploy.experiment, specbench.deploy.opening, specbench.client.run, specbench.page.page;"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, script], cwd=tmp_path, check=False, capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout and (tmp_path / "requirements.lock").exists()


def test_the_file_says_that_it_was_not_executed() -> None:
    assert "NOT EXECUTED ON A CLUSTER" in JOB.read_text()
