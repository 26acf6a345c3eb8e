"""Fixtures of the tests against Polyaxon's real API: one sandbox a session, empty for every test."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from support import HANG_S, ROOT
from support.polyaxon_agent import health_only
from support.polyaxon_deployments import Said, target_for
from support.polyaxon_server import PROJECT, Cluster, cluster, haupt

from specbench.deploy.polyaxon_target import PolyaxonTarget
from specbench.polyaxon.api import RunApi


@pytest.fixture(scope="session")
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
    running.gateway.drop_uploads = running.gateway.refuse_creation = running.agent.idle = False
    running.agent.clear()


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def api(polyaxon: Cluster, said: Said) -> RunApi:
    return RunApi(PROJECT, patience_s=HANG_S, say=said, poll_s=0.05)


@pytest.fixture
def target(api: RunApi) -> PolyaxonTarget:
    return target_for(api, ROOT / "service.yaml")


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
