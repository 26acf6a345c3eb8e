"""The transport against real sockets: what it collects, when it connects anew, what it never does."""

import asyncio
import os
import ssl
import subprocess
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop
from support.scripted_server import END, STREAM_HEAD, Do, Scripted, Step, chunk, plain

from specbench import UserError
from specbench.client import transport
from specbench.client.transport import Arrival, ProxyTransport, StreamTransport, TotalTimeout, transport_for

Run = Callable[[Coroutine[Any, Any, Any]], Any]
UPGRADE = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"
ONE = plain("200 OK", b"one")


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine, once on each event loop."""
    return asyncio.run if request.param == "asyncio" else uvloop.run


async def ask(
    client: StreamTransport | ProxyTransport, url: str, arrival: Arrival | None = None, **limits: float
) -> httpx.Response:
    request = httpx.Request("POST", url, content=b"{}")
    request.extensions = {"timeout": limits}
    request.extensions["connection"] = await client.open(request.url, 5)
    request.extensions["arrival"] = arrival or Arrival()
    return await client.handle_async_request(request)


def answers(*steps: Step) -> Callable[[int], Sequence[Step]]:
    return lambda _: steps


@pytest.mark.parametrize(
    ("steps", "body"),
    [
        (ONE, b"one"),
        ([STREAM_HEAD, chunk(b"on"), chunk(b"e"), END], b"one"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", *ONE], b"one"),
        ([b"HTTP/1.1 200 OK\r\n\r\non", b"e", Do.CLOSE], b"one"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], b""),
        ([bytes([byte]) for byte in STREAM_HEAD + chunk(b"one") + END], b"one"),
    ],
    ids=["length", "chunked", "1xx first", "ended by closing", "no content", "byte by byte"],
)
def test_an_answer_is_collected_whole(run: Run, steps: list[Step], body: bytes) -> None:
    async def test() -> None:
        arrival = Arrival()
        async with Scripted(answers(*steps)) as server:
            response = await ask(StreamTransport(), server.url, arrival)
        assert response.read() == body
        assert response.status_code == arrival.status
        assert response.headers.get("link") is None
        stamps = [arrival.sent_ns, *(stamp for stamp, _ in arrival.reads), arrival.end_ns]
        assert stamps == sorted(stamps)

    run(test())


def test_each_part_has_the_stamp_of_its_own_read(run: Run) -> None:
    async def test() -> None:
        arrival = Arrival()
        async with Scripted(
            answers(STREAM_HEAD, 0.05, chunk(b"a") + chunk(b"b"), 0.05, chunk(b"c"), 0.05, END)
        ) as server:
            await ask(StreamTransport(), server.url, arrival)
        (a, _), (b, _), (c, _) = arrival.reads
        assert a == b < c < arrival.end_ns

    run(test())


def test_it_serves_an_ordinary_httpx_client(run: Run) -> None:
    async def test() -> None:
        async with Scripted(answers(*ONE)) as server, httpx.AsyncClient(transport=StreamTransport()) as client:
            assert (await client.get(server.url + "/x?y=1")).text == "one"
            assert server.requests[0].startswith(b"GET /x?y=1 HTTP/1.1\r\n")

    run(test())


@pytest.mark.parametrize(
    ("steps", "error", "says"),
    [
        ([Do.CLOSE], httpx.ReadError, "before any answer"),
        ([STREAM_HEAD, chunk(b"on"), Do.CLOSE], httpx.ReadError, "in the middle"),
        ([STREAM_HEAD, chunk(b"on"), 0.05, Do.RESET], httpx.ReadError, "in the middle"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\none", Do.CLOSE], httpx.ReadError, "in the middle"),
        ([b"SSH-2.0-OpenSSH\r\n"], httpx.RemoteProtocolError, "not HTTP"),
        ([STREAM_HEAD, b"zz\r\n"], httpx.RemoteProtocolError, "not HTTP"),
        ([UPGRADE], httpx.RemoteProtocolError, "not HTTP"),
        ([Do.HANG], httpx.ReadTimeout, "no byte for 0.2 s"),
        ([STREAM_HEAD, chunk(b"on"), Do.HANG], httpx.ReadTimeout, "no byte for 0.2 s"),
        ([STREAM_HEAD, *[chunk(b"x"), 0.1] * 20], TotalTimeout, "not finished after 0.6 s"),
    ],
)  # fmt: skip
def test_a_failure_is_named_and_never_retried(run: Run, steps: list[Step], error: type[Exception], says: str) -> None:
    async def test() -> None:
        arrival = Arrival()
        async with Scripted(answers(*steps)) as server:
            with pytest.raises(error, match=says) as raised:
                await ask(StreamTransport(), server.url, arrival, read=0.2, total=0.6)
            assert str(raised.value)
            assert len(server.requests) == server.connections == 1
        assert arrival.end_ns
        assert arrival.status == (200 if STREAM_HEAD in steps or b"length: 9" in str(steps).encode() else 0)
        if chunk(b"on") in steps:
            assert arrival.body() == b"on"  # what came before the failure is kept

    run(test())


def test_a_refused_connection_is_a_connect_error(run: Run, free_port: int) -> None:
    with pytest.raises(httpx.ConnectError, match=f"127.0.0.1:{free_port}"):
        run(ask(StreamTransport(), f"http://127.0.0.1:{free_port}"))


def test_a_cancelled_request_closes_its_connection(run: Run) -> None:
    async def test() -> None:
        client = StreamTransport()
        async with Scripted(lambda number: [Do.HANG] if number == 0 else ONE) as server:
            task = asyncio.create_task(ask(client, server.url))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await ask(client, server.url)).read() == b"one"
            assert server.connections == 2

    run(test())


def test_a_connection_that_closed_after_open_is_a_read_error(run: Run) -> None:
    async def test() -> None:
        client = StreamTransport()
        async with Scripted(answers(*ONE)) as server:
            request = httpx.Request("POST", server.url, content=b"{}")
            connection = await client.open(request.url, 5)
            connection.close()
            await asyncio.sleep(0)  # the loop reports the loss while no request is on it
            request.extensions = {"connection": connection, "timeout": {"total": 2}}
            with pytest.raises(httpx.ReadError, match="before any answer"):
                await client.handle_async_request(request)

    run(test())


def test_an_answer_that_has_ended_survives_a_cancellation(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        client = StreamTransport()
        asking: list[asyncio.Task[httpx.Response]] = []
        monkeypatch.setattr(client._turns, "add", lambda _: asking[0].cancel())  # instead of the turn
        async with Scripted(answers(*ONE)) as server:
            asking.append(asyncio.create_task(ask(client, server.url)))
            assert (await asking[0]).read() == b"one"

    run(test())


# ---- which connection


def test_a_server_that_keeps_connections_gets_one_a_user(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PROBATION_NS", 50_000_000)

    async def test() -> None:
        client = StreamTransport()
        async with Scripted(answers(*ONE)) as server:
            await ask(client, server.url)
            await asyncio.sleep(0.1)
            for _ in range(5):
                await ask(client, server.url)
            assert (server.connections, client.opened, client.replaced) == (1, 1, 0)

    run(test())


def test_connections_are_not_reused_before_the_server_has_shown_that_it_keeps_them(run: Run) -> None:
    async def test() -> None:
        client = StreamTransport()
        async with Scripted(answers(*ONE)) as server:
            for _ in range(3):
                await ask(client, server.url)
            assert server.connections == 3

    run(test())


def test_a_server_is_seen_to_keep_connections_however_long_a_request_takes(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "PROBATION_NS", 50_000_000)
    monkeypatch.setattr(transport, "IDLE_LIMIT_NS", 100_000_000)

    async def test() -> None:
        client = StreamTransport()
        async with Scripted(answers(0.15, *ONE)) as server:
            for _ in range(6):
                await ask(client, server.url)
            # The first is on probation during the second, too old for the third; the third's own is kept.
            assert server.connections == 3

    run(test())


@pytest.mark.parametrize("pause_s", [0.0, 0.05])
def test_a_server_that_closes_silently_after_each_answer_fails_nothing(run: Run, pause_s: float) -> None:
    """As llama.cpp: the head promises keep-alive, and the connection is closed once the body is out."""

    async def test() -> None:
        client = StreamTransport()
        head = STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nKeep-Alive: timeout=5, max=100\r\n\r\n")
        async with Scripted(answers(head, chunk(b"one"), END, 0.005, Do.CLOSE)) as server:
            for _ in range(10):
                assert (await ask(client, server.url)).read() == b"one"
                await asyncio.sleep(pause_s)
            assert len(server.requests) == server.connections == 10
            assert client.opened == 10
            assert client.replaced >= 8  # the second comes while the first is still on probation

    run(test())


def test_a_connection_marked_close_is_replaced_and_counted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PROBATION_NS", 0)

    async def test() -> None:
        client = StreamTransport()
        last = plain("200 OK", b"bye", b"connection: close")
        async with Scripted(lambda number: last if number == 1 else ONE) as server:
            for _ in range(4):
                await ask(client, server.url)
            assert (server.connections, client.opened, client.replaced) == (2, 2, 1)

    run(test())


@pytest.mark.parametrize("closing", ["server", "age"])
def test_an_idle_connection_is_replaced(run: Run, monkeypatch: pytest.MonkeyPatch, closing: str) -> None:
    monkeypatch.setattr(transport, "PROBATION_NS", 0)
    monkeypatch.setattr(transport, "IDLE_LIMIT_NS", 200_000_000)

    async def test() -> None:
        client = StreamTransport()
        late_close: list[Step] = [0.4 if closing == "server" else 5.0, Do.CLOSE]
        async with Scripted(lambda number: [*ONE, *late_close] if number == 1 else ONE) as server:
            await ask(client, server.url)
            await ask(client, server.url)
            assert server.connections == 1
            await asyncio.sleep(0.6)
            await ask(client, server.url)
            await ask(client, server.url)
            assert (len(server.requests), server.connections, client.replaced) == (4, 2, 1)

    run(test())


def test_an_end_of_stream_that_the_loop_has_not_read_yet_is_seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PROBATION_NS", 0)

    async def test() -> None:
        client = StreamTransport()
        async with Scripted(lambda number: [*ONE, 0.1, Do.CLOSE] if number == 1 else ONE) as server:
            await ask(client, server.url)
            await ask(client, server.url)
            request = httpx.Request("GET", server.url)
            await asyncio.sleep(0.099)
            # From here on nothing yields to the loop until the probe, which has to ask the kernel.
            kept = await client.open(request.url, 5)
            kept.close()
        assert len(server.requests) == 2

    run(test())


def test_bytes_that_nobody_asked_for_end_a_connection(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PROBATION_NS", 0)

    async def test() -> None:
        client = StreamTransport()
        async with Scripted(answers(ONE[0] + ONE[0])) as server:  # type: ignore[operator]
            assert (await ask(client, server.url)).read() == b"one"
            assert (await ask(client, server.url)).read() == b"one"
            assert server.connections == 2

    run(test())


# ---- headers, TLS, proxies


def test_a_header_cannot_smuggle_in_another(run: Run) -> None:
    async def test() -> None:
        async with Scripted(answers(*ONE)) as server:
            request = httpx.Request("GET", server.url, headers=[(b"authorization", b"Token x\r\nhost: evil")])
            with pytest.raises(httpx.LocalProtocolError, match="line break"):
                await StreamTransport().handle_async_request(request)
            assert server.requests == []

    run(test())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-made CA that is its own server certificate, for localhost."""
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "ca.pem"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def server_side(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "ca.pem", certificate / "key.pem")
    return context


def test_tls_is_verified_against_ssl_cert_file(run: Run, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PROBATION_NS", 0)

    async def test() -> None:
        async with Scripted(answers(*ONE), server_side(certificate)) as server:
            monkeypatch.delenv("SSL_CERT_FILE", raising=False)
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await ask(StreamTransport(), server.url)
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "ca.pem"))
            client = StreamTransport()
            for _ in range(3):
                assert (await ask(client, server.url)).read() == b"one"
            assert client.opened == 1
            with pytest.raises(httpx.ConnectError, match=r"127\.0\.0\.1"):
                await ask(StreamTransport(), server.url.replace("localhost", "127.0.0.1"))
            await client.aclose()
            assert len(server.requests) == 3

    run(test())


def test_an_unusable_ssl_cert_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    for name in ("ca.pem", "absent.pem"):
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / name))
        with pytest.raises(UserError, match=rf"SSL_CERT_FILE=.*{name}"):
            asyncio.run(ask(StreamTransport(), "https://localhost:1"))


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
            response = await ask(client, "http://service.test/v1", arrival)
            assert response.read() == b"one"
            assert proxy.requests[0].startswith(b"POST http://service.test/v1 HTTP/1.1\r\n")
            assert warning is not None and "NO_PROXY=service.test" in warning and "secret" not in warning
            assert [body for _, body in arrival.reads] == [b"on", b"e"]
            assert arrival.sent_ns < arrival.reads[0][0] < arrival.reads[1][0] <= arrival.end_ns
            await client.aclose()

    run(test())


@pytest.mark.parametrize(
    ("steps", "error"),
    [([Do.CLOSE], httpx.ReadError), ([STREAM_HEAD, Do.CLOSE], httpx.ReadError), ([Do.HANG], TotalTimeout)],
)
def test_failures_through_a_proxy_have_the_same_names(
    run: Run, no_proxies: pytest.MonkeyPatch, steps: list[Step], error: type[Exception]
) -> None:
    async def test() -> None:
        async with Scripted(answers(*steps)) as proxy:
            no_proxies.setenv("HTTP_PROXY", proxy.url)
            client, _ = transport_for("http://service.test")
            with pytest.raises(error):
                await ask(client, "http://service.test", total=0.3)
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
    ],
)
def test_which_proxy_variables_apply(no_proxies: pytest.MonkeyPatch, variables: dict[str, str], proxied: bool) -> None:
    for name, value in variables.items():
        no_proxies.setenv(name, value)
    client, warning = transport_for("https://service.test:8443/x")
    assert isinstance(client, ProxyTransport) is proxied
    assert (warning is not None) is proxied


def test_a_proxy_that_cannot_be_used_is_refused(no_proxies: pytest.MonkeyPatch) -> None:
    no_proxies.setenv("ALL_PROXY", "gopher://me:secret@p:70")
    with pytest.raises(UserError, match=r"gopher://p:70") as raised:
        transport_for("http://service.test")
    assert "secret" not in str(raised.value)


def test_connections_opened_ahead_are_used_once_each_by_users_that_start_together(run: Run) -> None:
    async def test() -> None:
        client = StreamTransport()
        async with Scripted(answers(0.05, *ONE)) as server:
            await client.open_ahead(httpx.URL(server.url), 4, 5)
            assert (client.opened, server.requests) == (4, [])
            await asyncio.gather(*(ask(client, server.url) for _ in range(4)))
            assert (client.opened, client.replaced, server.connections) == (4, 0, 4)

    run(test())


def test_a_server_that_cannot_be_reached_is_left_to_the_requests(run: Run, free_port: int) -> None:
    client = StreamTransport()
    run(client.open_ahead(httpx.URL(f"http://127.0.0.1:{free_port}"), 3, 5))
    assert client.opened == 0
