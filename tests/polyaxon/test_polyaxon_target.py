"""deploy/polyaxon_target.py against Polyaxon's real API, with a test agent and a stand-in for the gateway."""

import os
import stat
import sys
import threading
from pathlib import Path

import httpx
import pytest
from support import HANG_S, ROOT
from support.polyaxon_deployments import Said, cli, deployment, needs_approval, run_of, start, target_for
from support.polyaxon_server import PROJECT, Cluster

from specbench import UserError
from specbench.deploy.polyaxon_target import SERVED_FILES, PolyaxonTarget
from specbench.deploy.state import Deployment
from specbench.polyaxon.api import RunApi, RunMissing
from specbench.polyaxon.pods import pods_command
from specbench.polyaxon.service import find_service

# ---- deploying


def test_a_deployment_from_start_to_proof(polyaxon: Cluster, target: PolyaxonTarget, said: Said) -> None:
    entry, saved = deployment("baseline"), []
    target.check()
    target.start(entry, lambda: saved.append((run_of(entry).name, run_of(entry).uuid)))
    uuid = str(run_of(entry).uuid)
    name = f"specbench-{target.experiment}-01-baseline"
    assert saved == [(name, None), (name, uuid)]  # the name is on disk before the run exists

    entry.url = target.wait_ready(entry)
    assert entry.url == f"{polyaxon.gateway.host}/rewrite-services/v1/polyaxon/default/{PROJECT}/runs/{uuid}/8000/"
    assert httpx.get(entry.url + "health").status_code == 200
    assert "queued (SchedulerStart): Run is queued" in said.text
    assert "running (TestAgent)" in said.text
    assert target.bench_options(entry) == ["--service-run", uuid, "--project", f"default/{PROJECT}"]
    assert target.died(entry) is None
    uploads = polyaxon.artifacts / uuid / "uploads"
    sent = {path.relative_to(uploads).as_posix() for path in uploads.rglob("*") if path.is_file()}
    assert sent == set(SERVED_FILES)

    pid = polyaxon.agent.pid(uuid)
    target.stop(entry)
    proof = target.prove_free(entry)
    assert f"run {uuid} is stopped" in proof.proven
    assert "its URL is dead (HTTP 502)" in proof.proven
    assert pods_command(uuid, "polyaxon") in " ".join(proof.proven + proof.not_proven)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_params_reach_the_run(polyaxon: Cluster, api: RunApi) -> None:
    target = target_for(api, ROOT / "service.yaml", params={"prefix_caching": "on", "num_speculative_tokens": "7"})
    entry = deployment()
    service = api.service(start(target, entry))
    target.stop(entry)
    assert service.inputs["prefix_caching"] == "on"
    assert service.inputs["num_speculative_tokens"] == 7
    assert service.mode == "ngram"


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"mode": "ngram"}, "-P mode=… is set by experiment.py"),
        ({"prefix_caching": "maybe"}, "must be one of the values `['on', 'off']`"),
        ({"k": "5"}, "undeclared param `k`"),
    ],
)
def test_params_the_component_does_not_take(api: RunApi, params: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        target_for(api, ROOT / "service.yaml", params=params).check()
    assert sentence in str(error.value)


def test_a_run_that_waits_for_approval_says_how_and_goes_on(
    polyaxon: Cluster, api: RunApi, said: Said, tmp_path: Path
) -> None:
    target, entry = target_for(api, needs_approval(tmp_path)), deployment()
    start(target, entry)

    def approve_as_told() -> None:
        line = next(line for line in said if "waits for approval" in line)
        cli(polyaxon, tmp_path, line.split("approval: ")[1].split(" (or")[0])

    timer = threading.Timer(1.0, approve_as_told)
    timer.start()
    entry.url = target.wait_ready(entry)
    timer.join()
    assert sum("waits for approval" in line for line in said) == 1
    target.stop(entry)


def test_approve_gives_the_approval(api: RunApi, said: Said, tmp_path: Path) -> None:
    target, entry = target_for(api, needs_approval(tmp_path), approve=True), deployment()
    start(target, entry)
    target.wait_ready(entry)
    target.stop(entry)
    assert "waits for approval" not in said.text


def test_an_approval_that_does_not_come_has_a_deadline(api: RunApi, tmp_path: Path) -> None:
    target, entry = target_for(api, needs_approval(tmp_path)), deployment()
    target.approval_s = 0.2
    start(target, entry)
    with pytest.raises(UserError, match="was not approved within 0 s: pass --approve"):
        target.wait_ready(entry)
    target.stop(entry)
    assert run_of(entry).status == "stopping and was never scheduled"


def test_a_queue_without_an_agent(polyaxon: Cluster, api: RunApi) -> None:
    polyaxon.agent.idle = True
    target, entry = target_for(api, ROOT / "service.yaml", startup_s=0.3), deployment()
    uuid = start(target, entry)
    with pytest.raises(UserError, match=rf"run {uuid} stayed queued for 0 s: no agent took it.*--queue"):
        target.wait_ready(entry)
    target.stop(entry)
    assert target.prove_free(entry).proven[0] == f"run {uuid} is stopping and was never scheduled"


def test_a_stop_that_does_not_come_to_an_end(polyaxon: Cluster, target: PolyaxonTarget) -> None:
    entry = deployment()
    uuid = start(target, entry)
    target.wait_ready(entry)
    polyaxon.agent.idle = True
    target.stop_s = 0.3
    with pytest.raises(
        UserError, match=rf"run {uuid} is still stopping 0 s after it was stopped.*kubectl get pods -n "
    ):
        target.stop(entry)
    polyaxon.agent.idle = False
    target.stop_s = HANG_S
    target.stop(entry)
    assert run_of(entry).status == "stopped"


def test_a_run_that_fails_to_start_ends_with_its_reason(polyaxon: Cluster, target: PolyaxonTarget) -> None:
    polyaxon.agent.fail = "CUDA error: no kernel image is available"
    entry = deployment()
    uuid = start(target, entry)
    with pytest.raises(UserError, match=rf"run {uuid} ended as failed \(TestAgent: CUDA error") as error:
        target.wait_ready(entry)
    assert "  failed (TestAgent): CUDA error" in str(error.value)
    target.stop(entry)
    proof = target.prove_free(entry)
    assert proof.proven == [f"run {uuid} is failed"]
    assert proof.not_proven[0] == "its URL is dead (no answer: it was never ready)"


def test_a_service_that_stays_unhealthy_shows_its_conditions(polyaxon: Cluster, api: RunApi) -> None:
    polyaxon.agent.command = lambda mode, port: ["sleep", "60"]
    target, entry = target_for(api, ROOT / "service.yaml"), deployment()
    uuid = start(target, entry)
    api.wait_running(uuid, approve=False, approval_s=0, startup_s=HANG_S)
    with pytest.raises(UserError, match=r"its /health gives HTTP 502 after 0 s \(--startup-timeout\)") as error:
        api.wait_healthy(api.service(uuid), startup_s=0.1)
    assert "running (TestAgent): process" in str(error.value)
    target.stop(entry)


def test_bench_on_a_run_that_does_not_get_ready_shows_its_conditions(
    polyaxon: Cluster, api: RunApi, target: PolyaxonTarget, tmp_path: Path
) -> None:
    polyaxon.agent.command = lambda mode, port: ["sleep", "60"]
    entry = deployment()
    uuid = start(target, entry)
    api.wait_running(uuid, approve=False, approval_s=0, startup_s=HANG_S)
    command = f"{sys.executable} bench.py --service-run {uuid} -p {PROJECT} --concurrency 1 --out {tmp_path}/out"
    done = cli(polyaxon, tmp_path, f"{command} --ready-timeout 0.5")
    target.stop(entry)
    assert done.returncode == 2
    assert "was not ready within 0.5 s (last: HTTP 502)" in done.stderr
    assert "  running (TestAgent): process" in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_upload_that_is_not_there_afterwards(polyaxon: Cluster, target: PolyaxonTarget) -> None:
    polyaxon.gateway.drop_uploads = True
    entry = deployment()
    with pytest.raises(UserError, match=r"launch_vllm.py was uploaded to run \w+ and is not in its uploads"):
        start(target, entry)
    target.stop(entry)


def test_a_run_that_was_deleted_from_outside(polyaxon: Cluster, target: PolyaxonTarget, api: RunApi) -> None:
    entry = deployment()
    uuid = start(target, entry)
    entry.url = target.wait_ready(entry)
    api._run(uuid).delete()
    polyaxon.gateway.services.pop(uuid)
    assert target.died(entry) == "its run was deleted"
    assert uuid in target.bench_options(entry)  # bench.py fails then, and the deployment is done again
    with pytest.raises(RunMissing, match=f"default/{PROJECT} has no run {uuid}.*was deleted"):
        find_service(uuid, PROJECT)
    target.stop(entry)
    assert f"run {uuid} is deleted" in target.prove_free(entry).proven


def test_the_agent_ends_a_deleted_run_that_the_state_no_longer_names(
    polyaxon: Cluster, target: PolyaxonTarget, api: RunApi
) -> None:
    """The stand-in itself: somebody else asked for the deleted runs first, as the sandbox's own thread does."""
    entry = deployment()
    uuid = start(target, entry)
    target.wait_ready(entry)
    polyaxon.agent.idle = True
    api._run(uuid).delete()
    deleted = httpx.post(f"{polyaxon.api}/api/v1/orgs/default/agents/cron", json={"state": True}, trust_env=False)
    assert deleted.is_success
    polyaxon.agent.step()
    assert uuid not in polyaxon.gateway.services
    with pytest.raises(KeyError):
        polyaxon.agent.pid(uuid)


def test_a_resume_finds_a_run_whose_uuid_was_never_written_down(target: PolyaxonTarget, api: RunApi) -> None:
    entry = deployment()
    uuid = start(target, entry)
    target.wait_ready(entry)
    run_of(entry).uuid = None  # killed between the creation and the save
    target.stop(entry)
    assert (run_of(entry).uuid, run_of(entry).status) == (uuid, "stopped")
    assert api.unfinished(run_of(entry).name) == []


def test_runs_that_are_younger_than_the_state_are_ended(target: PolyaxonTarget, api: RunApi) -> None:
    """A job's pod went away before the state that names its last run was stored; other experiments' runs stay."""
    entry, other = deployment(), deployment()
    start(target, entry)
    neighbour = target_for(api, ROOT / "service.yaml")
    start(neighbour, other)
    target.end_strays()
    assert api.unfinished(run_of(entry).name) == [] and api.unfinished(run_of(other).name) != []
    neighbour.stop(other)


def test_an_answer_that_got_lost_does_not_create_a_second_run(target: PolyaxonTarget, api: RunApi) -> None:
    entry = deployment()
    uuid = start(target, entry)
    assert api.create(run_of(entry).name, target._content("ngram")) == uuid
    target.stop(entry)


# ---- kubectl


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubectl in front of the real one; it prints the file it returns, and fails where there is none."""
    pods = tmp_path / "pods"
    script = tmp_path / "bin" / "kubectl"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/kubectl-calls\nexec cat {pods}\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return pods


def stopped(target: PolyaxonTarget) -> Deployment:
    """A deployment that was up, seen by kubectl, and is stopped."""
    entry = deployment()
    start(target, entry)
    entry.url = target.wait_ready(entry)
    target.stop(entry)
    return entry


def test_the_pod_is_gone(target: PolyaxonTarget, kubectl: Path, tmp_path: Path) -> None:
    kubectl.write_text("pod/plx-service-1\n")
    entry = stopped(target)
    assert run_of(entry).pods == ["pod/plx-service-1"]
    timer = threading.Timer(0.5, kubectl.write_text, ("",))
    timer.start()
    proof = target.prove_free(entry)
    uuid = run_of(entry).uuid
    line = f"kubectl get pods -n polyaxon -l app.kubernetes.io/instance={uuid} -o name"
    assert proof.not_proven == []
    assert f"its pod is gone: `{line}` shows none" in proof.proven
    calls = (tmp_path / "kubectl-calls").read_text().splitlines()
    assert calls[-1].startswith(line.removeprefix("kubectl "))


def test_a_pod_that_stays_ends_the_experiment(target: PolyaxonTarget, kubectl: Path) -> None:
    kubectl.write_text("pod/plx-service-1\n")
    entry = stopped(target)
    target.gone_s = 0.1
    with pytest.raises(UserError, match=r"pod/plx-service-1 is still there: the GPU is not free"):
        target.prove_free(entry)


def test_a_kubectl_that_cannot_tell_proves_nothing(target: PolyaxonTarget, kubectl: Path) -> None:
    kubectl.write_text("")
    blind = target.prove_free(stopped(target))
    assert "kubectl showed none while it ran: perhaps another cluster" in blind.not_proven[0]
    kubectl.unlink()
    broken = target.prove_free(stopped(target))
    assert "No such file" in broken.not_proven[0]


def test_a_gateway_that_is_away_proves_nothing(target: PolyaxonTarget) -> None:
    entry = stopped(target)
    entry.url = "http://127.0.0.1:1/"
    assert "its URL is dead (ConnectError)" in target.prove_free(entry).not_proven
