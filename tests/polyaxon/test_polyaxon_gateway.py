"""bench.py behind the gateway: prefixes, token, and what a shortened read timeout does, over a real socket."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT
from support.polyaxon_gateway import Gateway
from support.vllm_standin import StandIn, record

UUID = "ab" * 16
TOKEN = "a-scoped-token"


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn("baseline", record=record("baseline")) as running:
        yield running


@pytest.fixture
def gateway(server: StandIn) -> Iterator[Gateway]:
    with Gateway(token=TOKEN) as running:
        running.services[UUID] = server.url
        yield running


def bench(url: str, folder: Path, token: str | None = TOKEN, *options: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POLYAXON_", "SERVICE_URL"))}
    if token:
        kept["POLYAXON_TOKEN"] = token
    command = [sys.executable, str(ROOT / "bench.py"), "--url", url, "--concurrency", "1", "--repeats", "1"]
    return subprocess.run(
        [*command, "--ready-timeout", "1", "--out", str(folder / "out"), *options],
        env={**kept, "POLYAXON_HOME": str(folder)}, check=False, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("prefix", ["rewrite-services", "rewrite-external"])
def test_a_rewritten_path_reaches_the_server_and_the_token_with_it(
    gateway: Gateway, server: StandIn, tmp_path: Path, prefix: str
) -> None:
    done = bench(gateway.service_url(UUID, prefix), tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path for path, *_ in server.seen} >= {"/health", "/v1/models", "/v1/chat/completions", "/metrics"}
    assert {headers["authorization"] for _, headers, _ in server.seen} == {f"Token {TOKEN}"}
    stored = "".join(path.read_text() for path in (tmp_path / "out").iterdir())
    assert TOKEN not in stored + done.stdout + done.stderr


@pytest.mark.parametrize("prefix", ["services", "external"])
def test_a_plain_prefix_passes_the_whole_path(gateway: Gateway, server: StandIn, tmp_path: Path, prefix: str) -> None:
    done = bench(gateway.service_url(UUID, prefix), tmp_path)
    assert done.returncode == 2
    assert "was not ready within 1 s (last: HTTP 404)" in done.stderr
    assert {path for path, *_ in server.seen} == {f"/{prefix}/v1/polyaxon/default/bench/runs/{UUID}/8000/health"}


@pytest.mark.parametrize("token", [None, "another-token"])
def test_services_want_a_token(gateway: Gateway, server: StandIn, tmp_path: Path, token: str | None) -> None:
    done = bench(gateway.service_url(UUID), tmp_path, token)
    assert done.returncode == 2
    assert "HTTP 401: set POLYAXON_TOKEN (or POLYAXON_AUTH_TOKEN)" in done.stderr
    assert server.seen == []


def test_external_services_are_open_to_anyone(gateway: Gateway, server: StandIn, tmp_path: Path) -> None:
    assert bench(gateway.service_url(UUID, "rewrite-external"), tmp_path, None).returncode == 0
    assert not any("authorization" in headers for _, headers, _ in server.seen)


def test_a_read_timeout_of_the_gateway_is_a_failed_request(gateway: Gateway, server: StandIn, tmp_path: Path) -> None:
    gateway.read_timeout_s = 0.2
    server.pause_s = 0.6
    done = bench(gateway.service_url(UUID), tmp_path)
    assert done.returncode == 2  # already the warm-up
    assert "disconnected" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_stale_service_url(gateway: Gateway, tmp_path: Path) -> None:
    done = bench(gateway.service_url(UUID), tmp_path, TOKEN, "--service-run", "cd" * 16)
    assert done.returncode == 2
    assert f"the URL is of run {UUID} and --service-run says {'cd' * 16}" in done.stderr


def test_without_api_access_the_inputs_are_not_verified(gateway: Gateway, server: StandIn, tmp_path: Path) -> None:
    server.record["service_run"] = UUID  # type: ignore[index]
    done = bench(gateway.service_url(UUID), tmp_path, TOKEN, "--service-run", UUID)
    assert done.returncode == 0, done.stderr
    assert "not verified" in done.stdout + done.stderr
