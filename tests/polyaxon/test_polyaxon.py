"""specbench/polyaxon against Polyaxon's real API: haupt's sandbox, a test agent, a stand-in for the gateway."""

import itertools
import json
import os
import re
import shlex
import signal
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
from support.polyaxon_agent import embedded_engine, health_only
from support.polyaxon_server import PROJECT, ROOT, Cluster, cluster, haupt

from specbench import UserError
from specbench.polyaxon.polyaxon_run import (
    SERVED_FILES,
    NoAccess,
    PolyaxonTarget,
    RunMissing,
    Runs,
    ServiceRun,
    address_in,
    contradiction,
    find_service,
    instead_of_health,
    pods_command,
)

POLYAXON = str(Path(sys.executable).with_name("polyaxon"))
UNKNOWN = "a" * 32
_number = itertools.count(1)


@pytest.fixture(scope="module")
def deployment_of_polyaxon(
    not_available: Callable[[str], NoReturn], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    command = haupt()
    if command is None:
        not_available("Polyaxon's sandbox is not installed: run `make sandbox`")
    with cluster(command, tmp_path_factory.mktemp("polyaxon")) as running:
        yield running


@pytest.fixture
def polyaxon(deployment_of_polyaxon: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Cluster]:
    """The deployment, as this process's configuration names it; every switch is back where it was afterwards."""
    from polyaxon import settings

    running = deployment_of_polyaxon
    monkeypatch.setattr(settings, "CLIENT_CONFIG", type(settings.CLIENT_CONFIG)(host=running.gateway.host))
    monkeypatch.setattr(settings, "AUTH_CONFIG", None)
    for name in ("POLYAXON_TOKEN", "POLYAXON_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    running.agent.command = health_only
    yield running
    running.gateway.api_status = running.gateway.token = running.agent.fail = None
    running.gateway.drop_uploads = running.agent.idle = False


def test_health_is_verified_with_the_certificates_that_bench_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def get(_: str, **options: Any) -> httpx.Response:
        asked.update(options)
        return httpx.Response(200)

    monkeypatch.setattr(httpx, "get", get)
    assert instead_of_health("https://polyaxon/services/", None) is None
    assert isinstance(asked["verify"], ssl.SSLContext)  # True would mean certifi's


class Said(list[str]):
    """Collects the progress lines."""

    def __call__(self, line: str) -> None:
        self.append(line)

    @property
    def text(self) -> str:
        return "\n".join(self)


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def runs(polyaxon: Cluster, said: Said) -> Runs:
    return Runs(PROJECT, patience_s=20, say=said, poll_s=0.05)


@pytest.fixture
def target(runs: Runs) -> PolyaxonTarget:
    return target_for(runs, ROOT / "service.yaml")


def target_for(runs: Runs, component: Path, **changes: Any) -> PolyaxonTarget:
    options: dict[str, Any] = {"params": {}, "queue": None, "approve": False, "startup_s": 20.0, **changes}
    return PolyaxonTarget(runs, component, f"test{next(_number)}", **options)


def deployment(mode: str = "ngram") -> dict[str, Any]:
    return {"index": 1, "name": f"01-{mode}", "mode": mode, "url": None}


def start(target: PolyaxonTarget, entry: dict[str, Any]) -> str:
    target.start(entry, lambda: None)
    return str(entry["run"]["uuid"])


def needs_approval(folder: Path) -> Path:
    """A copy of service.yaml whose runs wait for a person."""
    component = folder / "service.yaml"
    component.write_text((ROOT / "service.yaml").read_text() + "isApproved: false\n")
    for name in SERVED_FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    return component


def cli(
    polyaxon: Cluster, home: Path, line: str, cwd: Path = ROOT, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command line of the README with the real CLI."""
    command = [POLYAXON if word == "polyaxon" else word for word in shlex.split(line)]
    return subprocess.run(
        command, cwd=cwd, env=polyaxon.environment(home, **variables), check=False, capture_output=True, text=True
    )


# ---- deploying


def test_a_deployment_from_start_to_proof(polyaxon: Cluster, target: PolyaxonTarget, said: Said) -> None:
    entry, saved = deployment("baseline"), []
    target.check()
    target.start(entry, lambda: saved.append((entry["run"]["name"], entry["run"]["uuid"])))
    uuid = entry["run"]["uuid"]
    name = f"specbench-{target.experiment}-01-baseline"
    assert saved == [(name, None), (name, uuid)]  # the name is on disk before the run exists

    entry["url"] = target.wait_ready(entry)
    assert entry["url"] == f"{polyaxon.gateway.host}/rewrite-services/v1/polyaxon/default/{PROJECT}/runs/{uuid}/8000/"
    assert httpx.get(entry["url"] + "health").status_code == 200
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
    assert f"run {uuid} is stopped" in proof["proven"]
    assert "its URL is dead (HTTP 502)" in proof["proven"]
    assert pods_command(uuid, "polyaxon") in " ".join(proof["proven"] + proof["not_proven"])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_params_reach_the_run(polyaxon: Cluster, runs: Runs) -> None:
    target = target_for(runs, ROOT / "service.yaml", params={"prefix_caching": "on", "num_speculative_tokens": "7"})
    entry = deployment()
    service = runs.service(start(target, entry))
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
def test_params_the_component_does_not_take(runs: Runs, params: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        target_for(runs, ROOT / "service.yaml", params=params).check()
    assert sentence in str(error.value)


def test_a_run_that_waits_for_approval_says_how_and_goes_on(
    polyaxon: Cluster, runs: Runs, said: Said, tmp_path: Path
) -> None:
    target, entry = target_for(runs, needs_approval(tmp_path)), deployment()
    start(target, entry)

    def approve_as_told() -> None:
        line = next(line for line in said if "waits for approval" in line)
        cli(polyaxon, tmp_path, line.split("approval: ")[1].split(" (or")[0])

    timer = threading.Timer(1.0, approve_as_told)
    timer.start()
    entry["url"] = target.wait_ready(entry)
    timer.join()
    assert sum("waits for approval" in line for line in said) == 1
    target.stop(entry)


def test_approve_gives_the_approval(runs: Runs, said: Said, tmp_path: Path) -> None:
    target, entry = target_for(runs, needs_approval(tmp_path), approve=True), deployment()
    start(target, entry)
    target.wait_ready(entry)
    target.stop(entry)
    assert "waits for approval" not in said.text


def test_an_approval_that_does_not_come_has_a_deadline(runs: Runs, tmp_path: Path) -> None:
    target, entry = target_for(runs, needs_approval(tmp_path)), deployment()
    target.approval_s = 0.2
    start(target, entry)
    with pytest.raises(UserError, match="was not approved within 0 s: pass --approve"):
        target.wait_ready(entry)
    target.stop(entry)
    assert entry["run"]["status"] == "stopping and was never scheduled"


def test_a_queue_without_an_agent(polyaxon: Cluster, runs: Runs) -> None:
    polyaxon.agent.idle = True
    target, entry = target_for(runs, ROOT / "service.yaml", startup_s=0.3), deployment()
    uuid = start(target, entry)
    with pytest.raises(UserError, match=rf"run {uuid} stayed queued for 0 s: no agent took it.*--queue"):
        target.wait_ready(entry)
    target.stop(entry)
    assert target.prove_free(entry)["proven"][0] == f"run {uuid} is stopping and was never scheduled"


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
    target.stop_s = 20
    target.stop(entry)
    assert entry["run"]["status"] == "stopped"


def test_a_run_that_fails_to_start_ends_with_its_reason(polyaxon: Cluster, target: PolyaxonTarget) -> None:
    polyaxon.agent.fail = "CUDA error: no kernel image is available"
    entry = deployment()
    uuid = start(target, entry)
    with pytest.raises(UserError, match=rf"run {uuid} ended as failed \(TestAgent: CUDA error") as error:
        target.wait_ready(entry)
    assert "  failed (TestAgent): CUDA error" in str(error.value)
    target.stop(entry)
    proof = target.prove_free(entry)
    assert proof["proven"] == [f"run {uuid} is failed"]
    assert proof["not_proven"][0] == "its URL is dead (no answer: it was never ready)"


def test_a_service_that_stays_unhealthy_shows_its_conditions(polyaxon: Cluster, runs: Runs) -> None:
    polyaxon.agent.command = lambda mode, port: ["sleep", "60"]
    target, entry = target_for(runs, ROOT / "service.yaml"), deployment()
    uuid = start(target, entry)
    runs.wait_running(uuid, approve=False, approval_s=0, startup_s=20)
    with pytest.raises(UserError, match=r"its /health gives HTTP 502 after 0 s \(--startup-timeout\)") as error:
        runs.wait_healthy(runs.service(uuid), startup_s=0.1)
    assert "running (TestAgent): process" in str(error.value)
    target.stop(entry)


def test_bench_on_a_run_that_does_not_get_ready_shows_its_conditions(
    polyaxon: Cluster, runs: Runs, target: PolyaxonTarget, tmp_path: Path
) -> None:
    polyaxon.agent.command = lambda mode, port: ["sleep", "60"]
    entry = deployment()
    uuid = start(target, entry)
    runs.wait_running(uuid, approve=False, approval_s=0, startup_s=20)
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


def test_a_run_that_was_deleted_from_outside(polyaxon: Cluster, target: PolyaxonTarget, runs: Runs) -> None:
    entry = deployment()
    uuid = start(target, entry)
    entry["url"] = target.wait_ready(entry)
    runs._run(uuid).delete()
    polyaxon.gateway.services.pop(uuid)
    assert target.died(entry) == "its run was deleted"
    assert uuid in target.bench_options(entry)  # bench.py fails then, and the deployment is done again
    with pytest.raises(RunMissing, match=f"default/{PROJECT} has no run {uuid}.*was deleted"):
        find_service(uuid, PROJECT)
    target.stop(entry)
    assert f"run {uuid} is deleted" in target.prove_free(entry)["proven"]


def test_a_resume_finds_a_run_whose_uuid_was_never_written_down(target: PolyaxonTarget, runs: Runs) -> None:
    entry = deployment()
    uuid = start(target, entry)
    target.wait_ready(entry)
    entry["run"]["uuid"] = None  # killed between the creation and the save
    target.stop(entry)
    assert (entry["run"]["uuid"], entry["run"]["status"]) == (uuid, "stopped")
    assert runs.unfinished(entry["run"]["name"]) == []


def test_an_answer_that_got_lost_does_not_create_a_second_run(target: PolyaxonTarget, runs: Runs) -> None:
    entry = deployment()
    uuid = start(target, entry)
    assert runs.create(entry["run"]["name"], target._content("ngram")) == uuid
    target.stop(entry)


# ---- an API that is away


def test_an_api_that_comes_back_is_waited_for(polyaxon: Cluster, target: PolyaxonTarget, said: Said) -> None:
    entry = deployment()
    start(target, entry)
    polyaxon.gateway.api_status = 503
    timer = threading.Timer(0.5, setattr, (polyaxon.gateway, "api_status", None))
    timer.start()
    target.wait_ready(entry)
    target.stop(entry)
    assert f"{polyaxon.gateway.host} is away; asking again for 20 s" in said.text
    assert f"{polyaxon.gateway.host} answers again" in said.text


def test_an_api_that_stays_away_is_one_sentence_without_the_token(
    polyaxon: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    from polyaxon import settings

    monkeypatch.setattr(settings, "CLIENT_CONFIG", type(settings.CLIENT_CONFIG)(host="http://127.0.0.1:1"))
    monkeypatch.setenv("POLYAXON_TOKEN", "s3cret")
    with pytest.raises(NoAccess) as error:
        find_service(UNKNOWN, PROJECT)
    assert "http://127.0.0.1:1 does not answer" in str(error.value)
    with pytest.raises(NoAccess):
        Runs(PROJECT, patience_s=0).upload(UNKNOWN, ROOT, "launch_vllm.py")
    printed = capfd.readouterr()
    assert "s3cret" not in printed.out + printed.err + caplog.text + str(error.value)  # the client would log it


# ---- finding the service of a run


def test_find_service(polyaxon: Cluster, target: PolyaxonTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = deployment()
    uuid = start(target, entry)
    url = target.wait_ready(entry)
    monkeypatch.setenv("POLYAXON_TOKEN", "s3cret")
    by_flags = find_service(uuid, PROJECT)
    assert (by_flags.url, by_flags.mode, by_flags.status, by_flags.token) == (url, "ngram", "running", "s3cret")
    assert "s3cret" not in repr(by_flags)
    assert find_service(uuid, f"default/{PROJECT}") == by_flags
    assert find_service(uuid, url=url) == by_flags  # owner and project from the URL
    assert find_service(str(uuid.upper()), PROJECT) == by_flags

    for other in ("other", "me/bench"):
        with pytest.raises(UserError, match=rf"the URL leads to default/{PROJECT}, -p says (default/other|me/bench)"):
            find_service(uuid, other, url=url)
    target.stop(entry)
    with pytest.raises(
        UserError, match=rf"run {uuid} of default/{PROJECT} is stopped \(TestAgent: the process is gone\)"
    ):
        find_service(uuid, PROJECT)


def test_runs_that_cannot_be_measured(polyaxon: Cluster, runs: Runs) -> None:
    from polyaxon.client import ProjectClient, RunClient

    ProjectClient(owner="default", project="other", client=runs._api).create({"name": "other"})
    elsewhere = RunClient(owner="default", project="other", client=runs._api)
    job = {"version": 1.1, "kind": "component", "run": {"kind": "job", "container": {"image": "busybox"}}}
    elsewhere.create(content=job, pending="upload")
    cases = [
        (elsewhere.run_uuid, "other", "is a job, not a service"),
        (elsewhere.run_uuid, PROJECT, f"default/{PROJECT} has no run {elsewhere.run_uuid}: it is of another project"),
        (
            UNKNOWN,
            "nowhere",
            "no project default/nowhere: create it with `polyaxon project create --name default/nowhere`",
        ),
        (UNKNOWN, "no where", "-p 'no where'"),
        ("12", PROJECT, "--service-run '12' is not the UUID of a run"),
        (UNKNOWN, None, "--service-run needs -p PROJECT"),
    ]
    for uuid, project, sentence in cases:
        with pytest.raises(UserError) as error:
            find_service(uuid, project)
        assert sentence in str(error.value)
    with pytest.raises(UserError, match="--owner says me, -p says you"):
        find_service(UNKNOWN, "you/bench", owner="me")


@pytest.mark.parametrize(
    ("status", "token", "sentence"),
    [
        (401, None, "wants a token: run `polyaxon login`, or set POLYAXON_AUTH_TOKEN"),
        (401, "old", "refuses the token"),
        (403, "mine", "the token has no permission to read the run in default/bench"),
    ],
)
def test_refusals_of_the_api(
    polyaxon: Cluster, monkeypatch: pytest.MonkeyPatch, status: int, token: str | None, sentence: str
) -> None:
    polyaxon.gateway.api_status = status
    if token:
        monkeypatch.setenv("POLYAXON_TOKEN", token)
    with pytest.raises(NoAccess) as error:
        find_service(UNKNOWN, PROJECT)
    assert sentence in str(error.value)


def test_hosts_that_must_not_get_the_token(polyaxon: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyaxon import settings

    monkeypatch.setenv("POLYAXON_TOKEN", "s3cret")
    monkeypatch.setattr(settings, "CLIENT_CONFIG", type(settings.CLIENT_CONFIG)(host="http://polyaxon.example.com"))
    with pytest.raises(UserError, match="would get the token in the clear: use https, or pass --insecure-http"):
        find_service(UNKNOWN, PROJECT)
    monkeypatch.setattr(settings, "CLIENT_CONFIG", type(settings.CLIENT_CONFIG)(host="polyaxon.example.com"))
    with pytest.raises(UserError, match=r"has no scheme: write https://polyaxon\.example\.com"):
        find_service(UNKNOWN, PROJECT)


def test_polyaxon_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polyaxon", None)
    with pytest.raises(NoAccess, match=r"polyaxon is not installed here: pip install"):
        find_service(UNKNOWN, PROJECT)


def test_address_in() -> None:
    url = f"https://host/base/rewrite-services/v1/ns/acme/bench/runs/{UNKNOWN}/8000/v1/models"
    found = address_in(url)
    assert found is not None
    assert (found.owner, found.project, found.uuid) == ("acme", "bench", UNKNOWN)
    assert address_in("http://127.0.0.1:8000") is None


# ---- the run's inputs against the server


SERVICE = ServiceRun(
    uuid=UNKNOWN, owner="me", project="p", namespace="ns", status="running", url="http://h/", token=None,
    inputs={"mode": "ngram", "prefix_caching": "off", "num_speculative_tokens": 5, "prompt_lookup_min": 2,
            "prompt_lookup_max": 4},
)  # fmt: skip
RECORD: dict[str, Any] = {
    "mode": "ngram", "engine": "vllm", "prefix_caching": False, "service_run": UNKNOWN,
    "speculative_config": {"num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
}  # fmt: skip


def test_agreement_is_no_contradiction() -> None:
    assert contradiction(SERVICE, "ngram", RECORD) is None
    assert contradiction(SERVICE, None, None) is None
    # The embedded engine has one match length, whatever the inputs say.
    other = {"method": "ngram-simple", "num_speculative_tokens": 5, "prompt_lookup_min": 3, "prompt_lookup_max": 3}
    embedded = {**RECORD, "engine": "llama.cpp", "speculative_config": other}
    assert contradiction(SERVICE, "ngram", embedded) is None


@pytest.mark.parametrize(
    ("mode", "change", "sentence"),
    [
        ("baseline", {}, "--mode says baseline, the inputs of run"),
        (None, {"mode": "baseline", "speculative_config": None}, "mode: the inputs of run"),
        (None, {"prefix_caching": True}, "prefix caching: the inputs of run .* say off, the server says on"),
        (
            None,
            {"speculative_config": {"num_speculative_tokens": 3}},
            "num_speculative_tokens: .* say 5, the server says 3",
        ),
        (None, {"speculative_config": {"prompt_lookup_max": 3}}, "prompt_lookup_max: .* say 4, the server says 3"),
        (None, {"service_run": "b" * 32}, f"--service-run is {UNKNOWN}, the server at its URL says it is run bbb"),
    ],
)
def test_contradictions(mode: str | None, change: dict[str, Any], sentence: str) -> None:
    found = contradiction(SERVICE, mode, {**RECORD, **change})
    assert found is not None
    assert re.search(sentence, found), found


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


def stopped(target: PolyaxonTarget) -> dict[str, Any]:
    """A deployment that was up, seen by kubectl, and is stopped."""
    entry = deployment()
    start(target, entry)
    entry["url"] = target.wait_ready(entry)
    target.stop(entry)
    return entry


def test_the_pod_is_gone(target: PolyaxonTarget, kubectl: Path, tmp_path: Path) -> None:
    kubectl.write_text("pod/plx-service-1\n")
    entry = stopped(target)
    assert entry["run"]["pods"] == ["pod/plx-service-1"]
    timer = threading.Timer(0.5, kubectl.write_text, ("",))
    timer.start()
    proof = target.prove_free(entry)
    uuid = entry["run"]["uuid"]
    line = f"kubectl get pods -n polyaxon -l app.kubernetes.io/instance={uuid} -o name"
    assert proof["not_proven"] == []
    assert f"its pod is gone: `{line}` shows none" in proof["proven"]
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
    assert "kubectl showed none while it ran: perhaps another cluster" in blind["not_proven"][0]
    kubectl.unlink()
    broken = target.prove_free(stopped(target))
    assert "No such file" in broken["not_proven"][0]


def test_a_gateway_that_is_away_proves_nothing(target: PolyaxonTarget) -> None:
    entry = stopped(target)
    entry["url"] = "http://127.0.0.1:1/"
    assert "its URL is dead (ConnectError)" in target.prove_free(entry)["not_proven"]


# ---- by hand, with the real CLI


@pytest.fixture
def two_cases(tmp_path: Path) -> Path:
    """An inventory that takes a second or two."""
    path = tmp_path / "cases.jsonl"
    cases = [
        {"id": name, "family": "copy", "messages": [{"role": "user", "content": f"Repeat: {name} {name} {name}"}]}
        for name in ("harbor", "ledger")
    ]
    path.write_text("".join(json.dumps({**case, "max_tokens": 8}) + "\n" for case in cases))
    return path


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
    runs = Runs(PROJECT, poll_s=0.1)
    assert runs.stop(uuid, 20) == "stopped"
    again = cli(polyaxon, tmp_path, f"{measure} --out {tmp_path}/again")
    assert (again.returncode, f"run {uuid} of default/{PROJECT} is stopped" in again.stderr) == (2, True)


def test_an_upload_of_nothing_fails_the_run(polyaxon: Cluster, tmp_path: Path) -> None:
    component = tmp_path / "service.yaml"
    component.write_bytes((ROOT / "service.yaml").read_bytes())
    (tmp_path / ".polyaxonignore").write_text("*\n")
    cli(polyaxon, tmp_path, f"polyaxon run -p {PROJECT} -f service.yaml -u -P mode=ngram --name nothing", cwd=tmp_path)
    uuid = Runs(PROJECT)._run(None).list(query="name:nothing").results[0].uuid
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
            polyaxon.gateway.api_status = 503
            threading.Timer(1.5, setattr, (polyaxon.gateway, "api_status", None)).start()
        if "03-ngram: 1 user" in line:
            Runs(PROJECT)._run(polyaxon.agent.started[-1]).delete()

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
    """SIGKILL while the first deployment starts, and while the second is measured; --resume ends both runs."""
    options = ["--target", "polyaxon", "-p", PROJECT, "--order", "NB", "--concurrency", "1", "--repeats", "1"]
    process = experiment(polyaxon, tmp_path, *options, "--prompts", str(two_cases))
    finished(process, lambda line: "queued" in line and process.kill())
    assert process.returncode == -signal.SIGKILL
    left = state(tmp_path)["deployments"][0]["run"]["uuid"]

    second = experiment(polyaxon, tmp_path, "--resume")
    seen = finished(second, lambda line: ("02-baseline: 1 user" in line) and second.kill())
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
