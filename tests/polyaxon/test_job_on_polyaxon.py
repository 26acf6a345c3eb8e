"""experiment.yaml run by the test agent against Polyaxon's real API, killed and stopped; results that are tracked."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from support import HANG_S, ROOT
from support.experiments import wait_for
from support.polyaxon_agent import embedded_engine
from support.polyaxon_deployments import cli
from support.polyaxon_server import PROJECT, Cluster
from support.vllm_standin import StandIn, record
from test_service_yaml import uploaded

from specbench.polyaxon.api import DONE, RunApi

# ---- the whole experiment as a job of the cluster


@pytest.fixture
def folder_with_few_prompts(tmp_path: Path, two_cases: Path) -> Path:
    """What -u would upload of this folder, with an inventory that takes seconds."""
    folder = tmp_path / "checkout"
    for name in [".polyaxonignore", *uploaded(ROOT)]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    shutil.copy(two_cases, folder / "prompts.jsonl")
    return folder


def start_job(polyaxon: Cluster, home: Path, folder: Path, repeats: int = 1) -> str:
    """The UUID of a run of experiment.yaml, as the README starts it."""
    polyaxon.agent.command = embedded_engine
    given = " ".join(f"-P {param}" for param in ("concurrency=1", f"repeats={repeats}", "order=NB"))
    ran = cli(polyaxon, home, f"polyaxon run -p {PROJECT} -f experiment.yaml -u {given}", cwd=folder)
    found = re.search(r"Run `(\w{32})` was approved", ran.stdout)
    assert found, ran.stdout + ran.stderr
    return found[1]


def wait_for_line(polyaxon: Cluster, job: str, text: str) -> None:
    wait_for(lambda: text in polyaxon.agent.log(job).read_text())


def test_the_job_ends_with_verdicts_and_a_page_also_killed_twice(
    polyaxon: Cluster, folder_with_few_prompts: Path, tmp_path: Path
) -> None:
    """Its node goes away under load, and again while it deploys; nobody does anything about it."""
    job = start_job(polyaxon, tmp_path, folder_with_few_prompts)
    wait_for_line(polyaxon, job, "01-ngram: 1 user")
    polyaxon.agent.kill(job)
    wait_for_line(polyaxon, job, "02-baseline: starting")
    polyaxon.agent.kill(job)
    api = RunApi(PROJECT, patience_s=HANG_S, poll_s=0.1)
    wait_for(lambda: str(api.read(job)[0].status) in DONE)
    printed = polyaxon.agent.log(job).read_text()
    run, _ = api.read(job)
    assert str(run.status) == "succeeded", printed

    document = json.loads((polyaxon.artifacts / job / "outputs" / "experiment" / "experiment.json").read_text())
    names = [(one["name"], one["status"]) for one in document["deployments"]]
    assert names[:2] == [("01-ngram", "interrupted"), ("01-ngram-2", "done")] and names[-1][1] == "done", names
    assert len(polyaxon.agent.started) == 1 + len(names)
    assert polyaxon.gateway.services == {} and api.unfinished(f"specbench-{document['id']}-%") == []

    files = api._run(job).get_artifacts_tree("outputs/experiment").files
    assert {"report.html", "experiment.json", "compare-c1.json"} <= set(files)
    outputs = dict(run.outputs)
    result = json.loads((polyaxon.artifacts / job / "outputs" / "experiment" / "compare-c1.json").read_text())
    assert outputs["c1_verdict"] == (result["verdict"]["verdict"] or "no verdict")
    copy = result["metrics"]["e2el"]["families"]["copy"]
    assert outputs["c1_copy_e2el_ratio"] == pytest.approx(copy["interval"]["ratio"])
    assert outputs["c1_ngram_e2el_s_p50"] > 0 and outputs["c1_baseline_requests_ok"] == 2
    shown = api._run(None).list(query="metrics.c1_e2el_ratio:>0", sort="-metrics.c1_e2el_ratio").results
    assert [str(one.uuid) for one in shown] == [job]
    manifest = json.loads(
        (polyaxon.artifacts / job / "outputs" / "experiment" / "01-ngram-2-c1" / "manifest.json").read_text()
    )
    assert manifest["client"]["location"] == "cluster"
    secret = polyaxon.agent.secrets["polyaxon-token", "token"].encode()
    stored = [path for path in (polyaxon.artifacts / job).rglob("*") if path.is_file()]
    assert [path for path in stored if secret in path.read_bytes()] == [] and secret.decode() not in printed


def test_stopping_the_job_stops_what_it_deployed(
    polyaxon: Cluster, folder_with_few_prompts: Path, tmp_path: Path
) -> None:
    job = start_job(polyaxon, tmp_path, folder_with_few_prompts, repeats=200)
    wait_for_line(polyaxon, job, "01-ngram: 1 user")
    stop = cli(polyaxon, tmp_path, f"polyaxon ops stop -p {PROJECT} -uid {job} --yes")
    assert stop.returncode == 0, stop.stdout + stop.stderr
    api = RunApi(PROJECT, patience_s=HANG_S, poll_s=0.1)
    wait_for(lambda: str(api.read(job)[0].status) in DONE)
    document = json.loads((polyaxon.artifacts / job / "outputs" / "experiment" / "experiment.json").read_text())
    wait_for(lambda: api.unfinished(f"specbench-{document['id']}-%") == [])
    wait_for(lambda: polyaxon.gateway.services == {})


# ---- tracking outside of a run


def test_results_are_tracked_beside_polyaxon_where_it_is_asked_for(
    polyaxon: Cluster, two_cases: Path, tmp_path: Path
) -> None:
    with StandIn("ngram", record=record("ngram")) as server:
        measure = f"{sys.executable} bench.py --url {server.url} --prompts {two_cases} --concurrency 1 --repeats 1"
        silent = cli(polyaxon, tmp_path, f"{measure} --out {tmp_path}/silent")
        lost = cli(polyaxon, tmp_path, f"{measure} --out {tmp_path}/lost --track -p nowhere")
        done = cli(polyaxon, tmp_path, f"{measure} --out {tmp_path}/tracked --track -p {PROJECT}")
    assert silent.returncode == 0 and "tracked" not in silent.stderr
    assert lost.returncode == 0, lost.stderr
    assert "warning: the results are not in Polyaxon: there is no project default/nowhere" in lost.stderr
    assert (tmp_path / "lost" / "summary.json").exists()
    found = re.search(rf"tracked as run (\w{{32}}) of default/{PROJECT}", done.stderr)
    assert done.returncode == 0 and found, done.stderr
    api = RunApi(PROJECT)
    run, _ = api.read(found[1])
    summary = json.loads((tmp_path / "tracked" / "summary.json").read_text())
    assert str(run.status) == "succeeded"
    assert run.outputs["e2el_s_p50"] == pytest.approx(summary["metrics"]["overall"]["e2el_s"]["p50"])
    assert run.outputs["acceptance_rate"] == pytest.approx(summary["server"]["acceptance_rate"])
    assert set(api._run(found[1]).get_artifacts_tree("outputs").files) == {"summary.json", "manifest.json"}
