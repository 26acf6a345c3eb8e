"""polyaxon/api.py and service.py against Polyaxon's real API: looking runs up, and an API that is away or refuses."""

import re
import ssl
import sys
from typing import Any

import httpx
import pytest
from support import ROOT
from support.polyaxon_deployments import UNKNOWN, Said, deployment, start
from support.polyaxon_server import PROJECT, Cluster

from specbench import UserError
from specbench.deploy.polyaxon_target import PolyaxonTarget
from specbench.polyaxon.api import NoAccess, RunApi, ServiceRun, instead_of_health
from specbench.polyaxon.service import address_in, contradiction, find_service


def test_health_is_verified_with_the_certificates_that_bench_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def get(_: str, **options: Any) -> httpx.Response:
        asked.update(options)
        return httpx.Response(200)

    monkeypatch.setattr(httpx, "get", get)
    assert instead_of_health("https://polyaxon/services/", None) is None
    assert isinstance(asked["verify"], ssl.SSLContext)  # True would mean certifi's


# ---- an API that is away


def test_an_api_that_comes_back_is_waited_for(polyaxon: Cluster, target: PolyaxonTarget, said: Said) -> None:
    entry = deployment()
    start(target, entry)
    polyaxon.gateway.go_away()
    target.wait_ready(entry)
    target.stop(entry)
    assert f"{polyaxon.gateway.host} is away; asking again for 300 s" in said.text
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
        RunApi(PROJECT, patience_s=0).upload(UNKNOWN, ROOT, "launch_vllm.py")
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


def test_runs_that_cannot_be_measured(polyaxon: Cluster, api: RunApi) -> None:
    from polyaxon.client import ProjectClient, RunClient

    ProjectClient(owner="default", project="other", client=api._api).create({"name": "other"})
    elsewhere = RunClient(owner="default", project="other", client=api._api)
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
