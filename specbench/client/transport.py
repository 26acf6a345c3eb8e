"""HTTP/1.1 for measuring streams: an httpx transport that stamps every read before anything else happens to it.

    transport, warning = transport_for("https://service.example/v1")
    request = httpx.Request("POST", url, content=body)
    request.extensions["connection"] = await transport.open(request.url, timeout=10)
    request.extensions["arrival"] = arrival = Arrival()
    response = await transport.handle_async_request(request)      # returns once the body has ended

It also works as `httpx.AsyncClient(transport=StreamTransport())`, but the client object costs about 0.2 ms a request.

What it does, each because leaving it out showed up in the figures of docs/fidelity.md:

- A read is stamped with `perf_counter_ns` in the event loop's read callback, before it is parsed and before any task
  wakes. Nothing a task does can make an arrival look late, except by holding the loop.
- The body is collected as (stamp, bytes) and the caller is woken once, at its end.
- Finished requests are handed to their tasks one a loop turn, so that other sockets are read (and stamped) in between.
- Reads land in one shared buffer: asyncio's plain Protocol allocates 256 KiB for each.
- `open()` gives a connection that can be used at once, so that connecting stays out of the measured time. A kept
  connection is probed for an end of stream and replaced when it has one, was marked `Connection: close`, or idled for
  more than 2 s. Some servers promise keep-alive and close after each stream (llama.cpp's); a request written just
  before such a close would be lost. So an origin's connections are reused only after one of them has been seen to
  stay open for 0.25 s after an answer, and never again once one has been closed early.
- What arrived before a failure stays in the caller's Arrival. Failures are httpx's exceptions, never empty:
  ConnectError, ConnectTimeout, ReadError (the connection ended early), RemoteProtocolError (not HTTP),
  ReadTimeout (no byte for timeout["read"]) and TotalTimeout (not finished within timeout["total"]).

What it does not do:

- It never retries and never follows a redirect: the one request that was asked for is the one that is measured.
- No HTTP/2, no HEAD, no pipelining, no streaming of request or response bodies, no content decoding (say
  `Accept-Encoding: identity`), no limit on the number of connections, no cookies, no authentication of its own.
- No proxies. `transport_for` honours the proxy variables through httpx's own transport, which is less faithful, and
  says so. `AsyncClient(transport=…, proxy=…)` would bypass this one silently: do not combine them.
- TLS is verified with the system's certificates, or SSL_CERT_FILE and SSL_CERT_DIR; it cannot be switched off.
- Linux and macOS only: the probe needs poll().
"""

import asyncio
import select
import ssl
from collections import deque
from collections.abc import Callable, Coroutine
from time import perf_counter_ns
from typing import Any, TypeVar, cast
from urllib.request import getproxies, proxy_bypass

import httptools
import httpx

from specbench import UserError
from specbench.tls import tls_context

IDLE_LIMIT_NS = 2_000_000_000
PROBATION_NS = 250_000_000
_NEVER_NS = 10**18
T = TypeVar("T")
# Filled and consumed within one read callback, so one serves every connection.
_BUFFER = memoryview(bytearray(256 * 1024))


class TotalTimeout(httpx.TimeoutException):
    """The answer did not end within its total time."""


class Arrival:
    """What has arrived of one answer so far. The caller's own, so what came before a failure survives it.

    Attributes:
        sent_ns: when the request was written.
        reads: (perf_counter_ns, body bytes) of every read that held a part of the body; a read that held several
            HTTP chunks is several entries with one stamp.
        end_ns: when the body ended, or failed; 0 until then.
        status: HTTP status, 0 until the head is complete.
        headers: response headers as sent.
    """

    __slots__ = ("end_ns", "headers", "reads", "sent_ns", "status")

    def __init__(self) -> None:
        self.sent_ns = 0
        self.reads: list[tuple[int, bytes]] = []
        self.end_ns = 0
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []

    def body(self) -> bytes:
        """The body so far."""
        return b"".join([part for _, part in self.reads])

    def header(self, name: bytes) -> str | None:
        """The first response header `name` (lower case), or None."""
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == name), None)


class Turns:
    """Runs callbacks one per turn of the event loop, so that sockets are read between them."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._scheduled = False

    def add(self, callback: Callable[[], object]) -> None:
        """Run `callback` in a turn of its own, after those that wait already."""
        self._waiting.append(callback)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        callback = self._waiting.popleft() if self._waiting else None
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._run)
        else:
            self._scheduled = False
        if callback is not None:
            callback()


class Connection(asyncio.BufferedProtocol):
    """One connection: idle, or with one request on it. Stamps, parses, collects; wakes the caller at the end."""

    __slots__ = (
        "_arrival", "_done", "_error", "_inactivity_ns", "_loop", "_now", "_parser", "_poll", "_timer", "_total_ns",
        "_transport", "_turns", "closed", "closed_ns", "idle_since", "used",
    )  # fmt: skip

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._arrival: Arrival | None = None
        self._done: asyncio.Future[None] | None = None
        self._error: httpx.TransportError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._now = 0
        self.closed = False
        self.closed_ns = 0
        self.idle_since = perf_counter_ns()
        self.used = False

    # ---- what the caller does

    async def exchange(self, payload: bytes, arrival: Arrival, limits: dict[str, float | None]) -> None:
        """Write `payload` and return once the answer has ended.

        Args:
            payload: the whole request.
            arrival: filled as the answer arrives.
            limits: `read` (s without a byte) and `total` (s), each None or absent for no limit.

        Raises an httpx.TransportError when it fails. A cancelled call closes the connection, unless the answer has
        ended and only its turn had not come: it then returns as if not cancelled, so that no finished request is lost.
        """
        if self.closed or self._transport.is_closing():  # since open() returned it
            raise httpx.ReadError("the server closed the connection before any answer")
        self._arrival, self._error, self.used = arrival, None, True
        self._parser = httptools.HttpResponseParser(self)
        self._done = self._loop.create_future()
        arrival.sent_ns = self._now = perf_counter_ns()
        self._transport.write(payload)
        self._inactivity_ns, self._total_ns = (_ns(limits.get(name)) for name in ("read", "total"))
        self._watch()
        try:
            await self._done
        except asyncio.CancelledError:
            if not arrival.end_ns:
                self._arrival = None
                self.close()
                raise
        finally:
            if self._timer:
                self._timer.cancel()
        if self._error:
            raise self._error

    def is_stale(self) -> bool:
        """True when the peer has closed, or sent something nobody asked for, even if the loop has not read it yet."""
        return self.closed or self._transport.is_closing() or bool(self._poll.poll(0))

    def close(self) -> None:
        """Close at once; nothing that still arrives matters."""
        self.closed = True
        self._transport.abort()

    # ---- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        self._now = perf_counter_ns()
        if self._arrival is None:
            self.closed_ns = self.closed_ns or self._now
            self.close()
            return
        try:
            self._parser.feed_data(_BUFFER[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(httpx.RemoteProtocolError(f"the answer is not HTTP/1.1: {error or type(error).__name__}"))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.closed_ns = self.closed_ns or perf_counter_ns()
        if self._arrival is None:
            return
        if exc is None and self._arrival.status and not self._is_framed():
            self._now = perf_counter_ns()
            self._finish()  # a body without a length ends where the connection does
            return
        where = "in the middle of the answer" if self._arrival.status else "before any answer"
        self._fail(httpx.ReadError(f"the server closed the connection {where}" + (f": {exc}" if exc else "")))

    # ---- what httptools calls

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._arrival is not None:
            self._arrival.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._arrival is None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._arrival.headers.clear()  # 100 Continue and its like: the answer is still to come
        else:
            self._arrival.status = status

    def on_body(self, body: bytes) -> None:
        if self._arrival is not None:
            self._arrival.reads.append((self._now, body))

    def on_message_complete(self) -> None:
        if self._arrival is None:
            self.closed_ns = self.closed_ns or self._now
            self.close()  # a second answer that nobody asked for
        elif self._arrival.status:
            if not self._parser.should_keep_alive() or not self._is_framed():
                self.close()
            self._finish()

    # ---- the end of an exchange

    def _finish(self) -> None:
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            arrival.end_ns = self.idle_since = self._now
            self._turns.add(self._release)

    def _fail(self, error: httpx.TransportError) -> None:
        self._error = error
        self._now = perf_counter_ns()
        self._finish()
        self.close()

    def _release(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _is_framed(self) -> bool:
        assert self._arrival is not None
        names = {name.lower() for name, _ in self._arrival.headers}
        return self._arrival.status in (204, 304) or b"content-length" in names or b"transfer-encoding" in names

    def _watch(self) -> None:
        """One timer an exchange, set again when it fires early: reads do not touch it."""
        if self._arrival is None:
            return
        now, sent = perf_counter_ns(), self._arrival.sent_ns
        if now - sent >= self._total_ns:
            self._fail(TotalTimeout(f"not finished after {self._total_ns / 1e9:g} s"))
        elif now - self._now >= self._inactivity_ns:
            self._fail(httpx.ReadTimeout(f"no byte for {self._inactivity_ns / 1e9:g} s"))
        else:
            due = min(sent + self._total_ns, self._now + self._inactivity_ns)
            # Timers count in milliseconds under uvloop: never fire just before the moment.
            self._timer = self._loop.call_later((due - now) / 1e9 + 0.002, self._watch)


class _Origin:
    """The idle connections of one scheme, host and port, and whether its server keeps them."""

    __slots__ = ("idle", "keeps", "lost")

    def __init__(self) -> None:
        self.idle: list[Connection] = []
        self.keeps: bool | None = None  # None until one connection has outlived its probation
        self.lost = 0  # connections that are gone and not yet replaced


class StreamTransport(httpx.AsyncBaseTransport):
    """See the module's docstring.

    Attributes:
        opened: connections made.
        replaced: those of them that took the place of one that could not be used again.
        proxies: addresses of the proxies in between: none here.
    """

    def __init__(self) -> None:
        self.opened = 0
        self.replaced = 0
        self.proxies: list[str] = []
        self._turns = Turns()
        self._origins: dict[tuple[str, str, int], _Origin] = {}
        self._tls: ssl.SSLContext | None = None

    async def open(self, url: httpx.URL, timeout: float | None) -> Connection:
        """A connection to the origin of `url` that is open now. Use it before the next await.

        Raises httpx.ConnectError or httpx.ConnectTimeout.
        """
        origin = self._origin(url)
        return self._kept(origin) or await self._open_new(origin, url, timeout)

    async def open_ahead(self, url: httpx.URL, count: int, timeout: float | None) -> None:
        """Have `count` connections ready, so that users that start together do not wait for each other's handshakes.

        A connection that cannot be made is left to the request that needs it.
        """
        origin = self._origin(url)
        kept = [connection for connection in iter(lambda: self._kept(origin), None) if connection is not None]
        opening = [self._open_new(origin, url, timeout) for _ in range(count - len(kept))]
        opened = await asyncio.gather(*opening, return_exceptions=True)
        origin.idle += kept + [connection for connection in opened if isinstance(connection, Connection)]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send `request` and return its answer, whole.

        Extensions read: `timeout` (httpx's connect and read, and total; seconds), `connection` (from open), `arrival`.
        """
        body = await request.aread()
        payload = _payload(request, body)
        limits: dict[str, float | None] = request.extensions.get("timeout", {})
        arrival: Arrival = request.extensions.get("arrival") or Arrival()
        connection: Connection | None = request.extensions.get("connection")
        if connection is None:
            connection = await self.open(request.url, limits.get("connect"))
        try:
            await connection.exchange(payload, arrival, limits)
        finally:
            self._put_back(self._origin(request.url), connection)
        return _response(request, arrival)

    async def aclose(self) -> None:
        """Close every idle connection."""
        for origin in self._origins.values():
            for connection in origin.idle:
                connection.close()
            origin.idle.clear()

    async def _open_new(self, origin: _Origin, url: httpx.URL, timeout: float | None) -> Connection:
        connection = await self._connect(url, timeout)
        self.opened += 1
        if origin.lost:
            origin.lost -= 1
            self.replaced += 1
        return connection

    def _origin(self, url: httpx.URL) -> _Origin:
        return self._origins.setdefault((url.scheme, url.host, _port(url)), _Origin())

    def _kept(self, origin: _Origin) -> Connection | None:
        """The idle connection used last, if it is fit; those that are not are closed."""
        while origin.idle:
            connection = origin.idle.pop()
            now = perf_counter_ns()
            age = now - connection.idle_since
            if connection.is_stale():
                if connection.used and (connection.closed_ns or now) - connection.idle_since < IDLE_LIMIT_NS:
                    origin.keeps = False
            else:
                if connection.used and origin.keeps is None and age >= PROBATION_NS:
                    origin.keeps = True  # even where it is too old by now to be used itself
                if age <= IDLE_LIMIT_NS and (origin.keeps or not connection.used):
                    return connection
                if origin.keeps is None and connection.used:
                    origin.idle.append(connection)  # on probation: leave it and see
                    return None
            connection.close()
            origin.lost += 1
        return None

    def _put_back(self, origin: _Origin, connection: Connection) -> None:
        on_probation = origin.keeps is None and not any(idle.used for idle in origin.idle)
        if not connection.closed and (origin.keeps or on_probation):
            # One on probation lies below those that were opened ahead.
            origin.idle.insert(len(origin.idle) if origin.keeps else 0, connection)
        else:
            connection.close()
            origin.lost += 1

    async def _connect(self, url: httpx.URL, timeout: float | None) -> Connection:
        if url.scheme not in ("http", "https"):
            raise httpx.UnsupportedProtocol(f"{url.scheme!r} is neither http nor https")
        loop = asyncio.get_running_loop()
        host = url.raw_host.decode("ascii")
        tls: dict[str, Any] = {}
        if url.scheme == "https":
            self._tls = self._tls or tls_context()
            tls = {"ssl": self._tls, "server_hostname": host}
        try:
            connecting = loop.create_connection(lambda: Connection(self._turns), host, _port(url), **tls)
            _, connection = await _within(timeout, connecting)
        except asyncio.TimeoutError:
            raise httpx.ConnectTimeout(f"no connection to {host}:{_port(url)} within {timeout:g} s") from None
        except OSError as error:  # refused, unreachable, unknown host, and every ssl.SSLError
            raise httpx.ConnectError(f"no connection to {host}:{_port(url)}: {error}") from error
        return connection


class ProxyTransport(httpx.AsyncBaseTransport):
    """The same through a proxy, on httpx's own transport: a read is stamped when the task gets it, later than it came.

    A fresh connection for each request, made inside the measured time: through a proxy a kept one cannot be probed.
    """

    def __init__(self, proxy: str) -> None:
        self.opened = 0
        self.replaced = 0
        self.proxies = [_public(proxy)]
        try:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
            self._inner = httpx.AsyncHTTPTransport(proxy=proxy, verify=tls_context(), limits=limits)
        except (ImportError, ValueError) as error:
            raise UserError(f"the proxy variables name {_public(proxy)}, which cannot be used: {error}") from None

    async def open(self, url: httpx.URL, timeout: float | None) -> None:
        """Nothing: httpx connects by itself."""

    async def open_ahead(self, url: httpx.URL, count: int, timeout: float | None) -> None:
        """Nothing, as open."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As StreamTransport.handle_async_request."""
        arrival: Arrival = request.extensions.get("arrival") or Arrival()
        total = request.extensions.get("timeout", {}).get("total")
        self.opened += 1
        try:
            return await _within(total, self._exchange(request, arrival))
        except asyncio.TimeoutError:
            raise TotalTimeout(f"not finished after {total:g} s") from None
        finally:
            arrival.end_ns = perf_counter_ns()

    async def aclose(self) -> None:
        """Close httpx's own transport."""
        await self._inner.aclose()

    async def _exchange(self, request: httpx.Request, arrival: Arrival) -> httpx.Response:
        arrival.sent_ns = perf_counter_ns()
        try:
            response = await self._inner.handle_async_request(request)
            arrival.status, arrival.headers = response.status_code, response.headers.raw
            try:
                async for part in cast(httpx.AsyncByteStream, response.stream):
                    arrival.reads.append((perf_counter_ns(), part))
            finally:
                await response.aclose()
        except httpx.RemoteProtocolError as error:  # httpx's word for an answer that was cut off
            raise httpx.ReadError(str(error)) from error
        return _response(request, arrival)


def transport_for(url: str) -> tuple[StreamTransport | ProxyTransport, str | None]:
    """The transport to measure `url` with, and a warning when the environment sends it through a proxy."""
    parsed = httpx.URL(url)
    proxies = getproxies()
    proxy = proxies.get(parsed.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(f"{parsed.host}:{_port(parsed)}") or proxy_bypass(parsed.host):
        return StreamTransport(), None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    return ProxyTransport(proxy), (
        f"requests to {parsed.host} go through the proxy {_public(proxy)}, so times are less exact and include "
        f"connecting; set NO_PROXY={parsed.host} where the service can be reached directly"
    )


def _payload(request: httpx.Request, body: bytes) -> bytes:
    """The request as it goes on the wire; a header that would smuggle in another line is refused."""
    lines = [b"%s %s HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    has_length = False
    for name, value in request.headers.raw:
        lower = name.lower()
        has_length |= lower == b"content-length"
        if lower != b"transfer-encoding":
            lines.append(b"%s: %s" % (name, value))
    if body and not has_length:
        lines.append(b"Content-Length: %d" % len(body))
    head = b"\r\n".join(lines)
    if head.count(b"\r") != len(lines) - 1 or head.count(b"\n") != len(lines) - 1:
        raise httpx.LocalProtocolError("a request header holds a line break")
    return b"%s\r\n\r\n%s" % (head, body)


def _response(request: httpx.Request, arrival: Arrival) -> httpx.Response:
    body = httpx.ByteStream(arrival.body())
    return httpx.Response(arrival.status, headers=arrival.headers, stream=body, request=request)


async def _within(seconds: float | None, work: Coroutine[Any, Any, T]) -> T:
    """asyncio.wait_for, which before Python 3.12 can lose a cancellation: a stopped run would go on."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise asyncio.TimeoutError
    finally:
        task.cancel()
    return task.result()


def _ns(seconds: float | None) -> int:
    return round(seconds * 1e9) if seconds else _NEVER_NS


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _public(proxy: str) -> str:
    """A proxy's address without its user and password."""
    url = httpx.URL(proxy)
    return f"{url.scheme}://{url.host}:{_port(url)}"
