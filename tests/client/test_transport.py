"""The transport against real sockets: what it collects, when it connects anew, what it never does."""

import asyncio
import socket
import ssl
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from support import HANG_S
from support.asking import Run, answers, ask, post
from support.scripted_server import END, STREAM_HEAD, Do, Scripted, Step, chunk, plain

from specbench import UserError
from specbench.client import connection, transport
from specbench.client.connection import Arrival, Limits, TotalTimeout
from specbench.client.transport import StreamTransport

UPGRADE = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"
ONE = plain("200 OK", b"one")


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
            assert await ask(StreamTransport(), server.url, arrival) == body
        assert arrival.status in (200, 204) and arrival.header(b"link") is None
        stamps = [arrival.sent_ns, *(stamp for stamp, _ in arrival.reads), arrival.end_ns]
        assert stamps == sorted(stamps)

    run(test())


def test_each_part_has_the_stamp_of_its_own_read(run: Run) -> None:
    async def test() -> None:
        arrival = Arrival()

        async def everything_is_read() -> None:
            count = len(arrival.reads)
            while len(arrival.reads) == count:
                await asyncio.sleep(0.001)

        steps = [STREAM_HEAD, chunk(b"a") + chunk(b"b"), everything_is_read, chunk(b"c"), everything_is_read, END]
        async with Scripted(answers(*steps)) as server:
            await ask(StreamTransport(), server.url, arrival)
        (a, _), (b, _), (c, _) = arrival.reads
        assert a == b < c < arrival.end_ns

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
    ],
)  # fmt: skip
def test_a_failure_is_named_and_never_retried(run: Run, steps: list[Step], error: type[Exception], says: str) -> None:
    run(fails(steps, error, says, Limits(HANG_S, HANG_S)))


@pytest.mark.parametrize(
    ("steps", "error", "says", "limits"),
    [
        ([Do.HANG], httpx.ReadTimeout, "no byte for 0.2 s", Limits(0.2, HANG_S)),
        ([STREAM_HEAD, chunk(b"on"), Do.HANG], httpx.ReadTimeout, "no byte for 1 s", Limits(1, HANG_S)),
        ([STREAM_HEAD, *[chunk(b"x"), 0.02] * 50, Do.HANG], TotalTimeout, "not finished after 1 s", Limits(None, 1)),
    ],
)
def test_an_answer_that_takes_too_long_is_named(
    run: Run, steps: list[Step], error: type[Exception], says: str, limits: Limits
) -> None:
    run(fails(steps, error, says, limits))


async def fails(steps: list[Step], error: type[Exception], says: str, limits: Limits) -> None:
    arrival = Arrival()
    async with Scripted(answers(*steps)) as server:
        with pytest.raises(error, match=says) as raised:
            await ask(StreamTransport(), server.url, arrival, limits)
        assert str(raised.value)
        assert len(server.requests) == server.connections == 1
    assert arrival.end_ns
    if chunk(b"on") in steps:
        assert (arrival.status, arrival.body()) == (200, b"on")  # what came before the failure is kept


def test_a_refused_connection_is_a_connect_error(run: Run, free_port: int) -> None:
    with pytest.raises(httpx.ConnectError, match=f"127.0.0.1:{free_port}"):
        run(ask(StreamTransport(), f"http://127.0.0.1:{free_port}"))


def test_a_cancelled_request_closes_its_connection(run: Run) -> None:
    async def test() -> None:
        client = StreamTransport()
        async with Scripted(lambda number: [Do.HANG] if number == 0 else ONE) as server:
            task = asyncio.create_task(ask(client, server.url))
            while not server.requests:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await ask(client, server.url) == b"one"
            assert server.connections == 2

    run(test())


def test_a_connection_that_closed_after_open_is_a_read_error(run: Run) -> None:
    async def test() -> None:
        client = StreamTransport()
        async with Scripted(answers(*ONE)) as server:
            request = post(server.url)
            opened = await client.open(request.url)
            opened.close()
            await asyncio.sleep(0)  # the loop reports the loss while no request is on it
            with pytest.raises(httpx.ReadError, match="before any answer"):
                await opened.exchange(request, Arrival(), Limits(total_s=HANG_S))

    run(test())


def test_an_answer_that_has_ended_survives_a_cancellation(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        client = StreamTransport()
        asking: list[asyncio.Task[bytes]] = []
        monkeypatch.setattr(client._turns, "add", lambda _: asking[0].cancel())  # instead of the turn
        async with Scripted(answers(*ONE)) as server:
            asking.append(asyncio.create_task(ask(client, server.url)))
            assert await asking[0] == b"one"

    run(test())


# ---- which connection


class Clock:
    """A clock that stands still but for `advance`, so that no machine is too slow for what a test says."""

    def __init__(self) -> None:
        self.now_ns = 1

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the transport and its connections."""
    clock = Clock()
    for module in (connection, transport):
        monkeypatch.setattr(module, "perf_counter_ns", clock)
    return clock


PROBATION_S, IDLE_LIMIT_S = transport.PROBATION_NS / 1e9, transport.IDLE_LIMIT_NS / 1e9


def test_a_server_that_keeps_connections_gets_one_a_user(run: Run, clock: Clock) -> None:
    async def test() -> None:
        client = StreamTransport()
        async with Scripted(answers(*ONE)) as server:
            await ask(client, server.url)
            clock.advance(PROBATION_S)
            for _ in range(5):
                await ask(client, server.url)
            assert (server.connections, client.opened, client.replaced) == (1, 1, 0)

    run(test())


def test_connections_are_not_reused_before_the_server_has_shown_that_it_keeps_them(run: Run, clock: Clock) -> None:
    async def test() -> None:
        client = StreamTransport()
        async with Scripted(answers(*ONE)) as server:
            for _ in range(3):
                await ask(client, server.url)
            assert server.connections == 3

    run(test())


def test_a_server_is_seen_to_keep_connections_however_long_a_request_takes(run: Run, clock: Clock) -> None:
    def slow(_: int) -> Sequence[Step]:
        clock.advance(2 * IDLE_LIMIT_S)
        return ONE

    async def test() -> None:
        client = StreamTransport()
        async with Scripted(slow) as server:
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
                assert await ask(client, server.url) == b"one"
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


def test_a_connection_that_idled_too_long_is_replaced(run: Run, clock: Clock) -> None:
    async def test() -> None:
        client = StreamTransport()
        async with Scripted(answers(*ONE)) as server:
            await ask(client, server.url)
            clock.advance(PROBATION_S)
            await ask(client, server.url)
            assert server.connections == 1
            clock.advance(IDLE_LIMIT_S + 0.001)
            await ask(client, server.url)
            await ask(client, server.url)
            assert (len(server.requests), server.connections, client.replaced) == (4, 2, 1)

    run(test())


def test_an_end_of_stream_that_the_loop_has_not_read_yet_is_seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server closes while the loop is held, so only the kernel knows when the next connection is asked for."""
    monkeypatch.setattr(transport, "PROBATION_NS", 0)
    may_close, is_closed = threading.Event(), threading.Event()

    def serve(listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        accepted.recv(65536)
        accepted.sendall(ONE[0])  # type: ignore[arg-type]
        may_close.wait(HANG_S)
        accepted.close()
        is_closed.set()

    async def test() -> None:
        client = StreamTransport()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = threading.Thread(target=serve, args=[listener])
            server.start()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            assert await ask(client, url) == b"one"
            may_close.set()
            assert is_closed.wait(HANG_S)
            await client.open(httpx.URL(url))  # yields to the loop only where it has to connect
            assert (client.opened, client.replaced) == (2, 1)
            server.join(HANG_S)

    run(test())


def test_bytes_that_nobody_asked_for_end_a_connection(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PROBATION_NS", 0)

    async def test() -> None:
        client = StreamTransport()
        async with Scripted(answers(ONE[0] + ONE[0])) as server:  # type: ignore[operator]
            assert await ask(client, server.url) == b"one"
            assert await ask(client, server.url) == b"one"
            assert server.connections == 2

    run(test())


# ---- headers and TLS


def test_a_header_cannot_smuggle_in_another() -> None:
    with pytest.raises(httpx.LocalProtocolError, match="line break"):
        post("http://127.0.0.1:1", (b"authorization", b"Token x\r\nhost: evil"))


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
                assert await ask(client, server.url) == b"one"
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


def test_connections_opened_ahead_are_used_once_each_by_users_that_start_together(run: Run) -> None:
    async def test() -> None:
        client = StreamTransport()
        async with Scripted(answers(0.05, *ONE)) as server:
            await client.open_ahead(httpx.URL(server.url), 4)
            assert (client.opened, server.requests) == (4, [])
            await asyncio.gather(*(ask(client, server.url) for _ in range(4)))
            assert (client.opened, client.replaced, server.connections) == (4, 0, 4)

    run(test())


def test_a_server_that_cannot_be_reached_is_left_to_the_requests(run: Run, free_port: int) -> None:
    client = StreamTransport()
    run(client.open_ahead(httpx.URL(f"http://127.0.0.1:{free_port}"), 3))
    assert client.opened == 0
