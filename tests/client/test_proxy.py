"""Which proxy the environment names, and measuring through it over a real socket."""

import os

import httpx
import pytest
from support import HANG_S
from support.asking import Run, answers, ask
from support.scripted_server import END, STREAM_HEAD, Do, Scripted, Step, chunk

from specbench import UserError
from specbench.client.connection import Arrival, Limits, TotalTimeout
from specbench.client.control import ControlClient
from specbench.client.proxy import ProxyTransport, transport_for


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    return monkeypatch


def test_a_proxy_for_the_host_is_used_with_a_warning_and_without_its_password(
    run: Run, no_proxies: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with Scripted(answers(STREAM_HEAD, chunk(b"on"), 0.02, chunk(b"e"), END)) as proxy:
            no_proxies.setenv("HTTP_PROXY", proxy.url.replace("//", "//me:secret@"))
            client, warning = transport_for("http://service.test/v1")
            arrival = Arrival()
            assert await ask(client, "http://service.test/v1", arrival) == b"one"
            assert proxy.requests[0].startswith(b"POST http://service.test/v1 HTTP/1.1\r\n")
            assert warning is not None and "NO_PROXY=service.test" in warning and "secret" not in warning
            assert [body for _, body in arrival.reads] == [b"on", b"e"]
            assert arrival.sent_ns < arrival.reads[0][0] < arrival.reads[1][0] <= arrival.end_ns
            await client.aclose()

    run(test())


@pytest.mark.parametrize(
    ("steps", "error", "total_s"),
    [
        ([Do.CLOSE], httpx.ReadError, HANG_S),
        ([STREAM_HEAD, Do.CLOSE], httpx.ReadError, HANG_S),
        ([Do.HANG], TotalTimeout, 0.3),
    ],
)
def test_failures_through_a_proxy_have_the_same_names(
    run: Run, no_proxies: pytest.MonkeyPatch, steps: list[Step], error: type[Exception], total_s: float
) -> None:
    async def test() -> None:
        async with Scripted(answers(*steps)) as proxy:
            no_proxies.setenv("HTTP_PROXY", proxy.url)
            client, _ = transport_for("http://service.test")
            with pytest.raises(error):
                await ask(client, "http://service.test", limits=Limits(HANG_S, total_s))
            assert len(proxy.requests) == 1

    run(test())


@pytest.mark.parametrize(
    ("variables", "proxied"),
    [
        ({}, False),
        ({"HTTP_PROXY": "http://p:1"}, False),
        ({"HTTPS_PROXY": "http://p:1"}, True),
        ({"https_proxy": "p:1"}, True),
        ({"ALL_PROXY": "http://p:1"}, True),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "service.test"}, False),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": ".test"}, False),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "other.test"}, True),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, False),
        ({"HTTPS_PROXY": "http://p:1", "no_proxy": "service.test:8443"}, False),
    ],
)
def test_which_proxy_variables_apply(no_proxies: pytest.MonkeyPatch, variables: dict[str, str], proxied: bool) -> None:
    for name, value in variables.items():
        no_proxies.setenv(name, value)
    client, warning = transport_for("https://service.test:8443/x")
    assert isinstance(client, ProxyTransport) is proxied
    assert (warning is not None) is proxied


@pytest.mark.parametrize(
    ("url", "exceptions", "proxied"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1/32", False),
        ("http://127.0.0.1:8000", "10.0.0.0/8, 127.0.0.0/8", False),
        ("http://10.1.2.3", "10.0.0.0/8", False),
        ("http://11.1.2.3", "10.0.0.0/8", True),
        ("http://[::1]:8000", "::1", False),
        ("http://[fd00::1]:8000", "fd00::/8", False),
        ("http://10.1.2.3", "ten.test", True),
    ],
)
def test_measured_and_other_requests_go_the_same_way(
    no_proxies: pytest.MonkeyPatch, url: str, exceptions: str, proxied: bool
) -> None:
    no_proxies.setenv("ALL_PROXY", "http://p:1")
    no_proxies.setenv("no_proxy", exceptions)
    client, _ = transport_for(url)
    assert isinstance(client, ProxyTransport) is proxied
    assert (ControlClient(url).proxy is not None) is proxied


def test_a_proxy_that_cannot_be_used_is_refused(no_proxies: pytest.MonkeyPatch) -> None:
    no_proxies.setenv("ALL_PROXY", "gopher://me:secret@p:70")
    with pytest.raises(UserError, match=r"gopher://p:70") as raised:
        transport_for("http://service.test")
    assert "secret" not in str(raised.value)
