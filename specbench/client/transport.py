"""Connections that are open before a request needs them, and never one that the server is about to close.

- `open()` gives a connection that can be used at once, so that connecting stays out of the measured time. A kept
  connection is probed for an end of stream and replaced when it has one, was marked `Connection: close`, or idled for
  more than 2 s.
- Some servers promise keep-alive and close after each stream (llama.cpp's); a request written just before such a close
  would be lost. So an origin's connections are reused only after one of them has been seen to stay open for 0.25 s
  after an answer, and never again once one has been closed early.
- It never retries and never follows a redirect: the one request that was asked for is the one that is measured.
- It knows no method but POST, no HTTP/2, no pipelining, no streaming of request or response bodies, no content decoding
  (say `Accept-Encoding: identity`), no limit on the number of connections, no cookies, no proxy (proxy.py).
- TLS is verified with the system's certificates, or SSL_CERT_FILE and SSL_CERT_DIR; it cannot be switched off.
- It works on Linux and macOS only: the probe needs poll().
"""

import asyncio
import resource
import ssl
from collections.abc import Coroutine
from functools import partial
from time import perf_counter_ns
from typing import Any, Protocol, TypeVar

import httpx

from specbench import UserError
from specbench.client.connection import Arrival, Connection, Limits, Post, Turns
from specbench.tls import tls_context
from specbench.words import count

CONNECT_TIMEOUT_S = 10.0
IDLE_LIMIT_NS = 2_000_000_000
PROBATION_NS = 250_000_000
FILES_BESIDE_CONNECTIONS = 64
T = TypeVar("T")


class Opened(Protocol):
    """What `open` of a transport gives: something that one request can be sent on."""

    async def exchange(self, post: Post, arrival: Arrival, limits: Limits) -> None:
        """Send `post` and fill `arrival` until the answer has ended; raises an httpx.TransportError if it fails."""


class Transport(Protocol):
    """What the closed loop needs of a transport: StreamTransport, or ProxyTransport where a proxy is in between.

    Attributes:
        opened: connections made.
        replaced: those of them that took the place of one that could not be used again.
        proxies: addresses of the proxies in between.
    """

    opened: int
    replaced: int
    proxies: list[str]

    async def open(self, url: httpx.URL) -> Opened:
        """What the next request to the origin of `url` can be sent on; raises an httpx.TransportError."""

    async def open_ahead(self, url: httpx.URL, count: int) -> None:
        """Have `count` connections ready, so that users that start together do not wait for each other's handshakes."""

    async def aclose(self) -> None:
        """Close every idle connection."""


class _Origin:
    """The idle connections of one scheme, host and port, and whether its server keeps them."""

    __slots__ = ("idle", "keeps", "lost")

    def __init__(self) -> None:
        self.idle: list[Connection] = []
        self.keeps: bool | None = None  # None until one connection has outlived its probation
        self.lost = 0  # connections that are gone and not yet replaced


class StreamTransport:
    """The transport of a run without a proxy; see the module's docstring and `Transport`."""

    def __init__(self) -> None:
        self.opened = 0
        self.replaced = 0
        self.proxies: list[str] = []
        self._turns = Turns()
        self._origins: dict[tuple[str, str, int], _Origin] = {}
        self._tls: ssl.SSLContext | None = None

    async def open(self, url: httpx.URL) -> Connection:
        """A connection to the origin of `url` that is open now. Use it before the next await.

        Raises httpx.ConnectError or httpx.ConnectTimeout.
        """
        origin = self._origin(url)
        return self._kept(origin) or await self._open_new(origin, url)

    async def open_ahead(self, url: httpx.URL, count: int) -> None:
        """Have `count` connections ready; one that cannot be made is left to the request that needs it."""
        origin = self._origin(url)
        kept = [connection for connection in iter(lambda: self._kept(origin), None) if connection is not None]
        opening = [self._open_new(origin, url) for _ in range(count - len(kept))]
        opened = await asyncio.gather(*opening, return_exceptions=True)
        origin.idle += kept + [connection for connection in opened if isinstance(connection, Connection)]

    async def aclose(self) -> None:
        """Close every idle connection."""
        for origin in self._origins.values():
            for connection in origin.idle:
                connection.close()
            origin.idle.clear()

    async def _open_new(self, origin: _Origin, url: httpx.URL) -> Connection:
        connection = await self._connect(url)
        self.opened += 1
        if origin.lost:
            origin.lost -= 1
            self.replaced += 1
        return connection

    def _origin(self, url: httpx.URL) -> _Origin:
        return self._origins.setdefault((url.scheme, url.host, port_of(url)), _Origin())

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

    async def _connect(self, url: httpx.URL) -> Connection:
        if url.scheme not in ("http", "https"):
            raise httpx.UnsupportedProtocol(f"{url.scheme!r} is neither http nor https")
        loop = asyncio.get_running_loop()
        host, port = url.raw_host.decode("ascii"), port_of(url)
        tls: dict[str, Any] = {}
        if url.scheme == "https":
            self._tls = self._tls or tls_context()
            tls = {"ssl": self._tls, "server_hostname": host}
        try:
            put_back = partial(self._put_back, self._origin(url))
            connecting = loop.create_connection(lambda: Connection(self._turns, put_back), host, port, **tls)
            _, connection = await within(CONNECT_TIMEOUT_S, connecting)
        except asyncio.TimeoutError:
            raise httpx.ConnectTimeout(f"no connection to {host}:{port} within {CONNECT_TIMEOUT_S:g} s") from None
        except OSError as error:  # refused, unreachable, unknown host, and every ssl.SSLError
            raise httpx.ConnectError(f"no connection to {host}:{port}: {error}") from error
        return connection


async def within(seconds: float | None, work: Coroutine[Any, Any, T]) -> T:
    """asyncio.wait_for, which before Python 3.12 can lose a cancellation: a stopped run would go on."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise asyncio.TimeoutError
    finally:
        task.cancel()
    return task.result()


def port_of(url: httpx.URL) -> int:
    """The port of `url`, the scheme's own where it names none."""
    return url.port or (443 if url.scheme == "https" else 80)


def make_room_for_connections(users: int) -> None:
    """Raise this process's limit of open files to what `users` connections need; UserError where that is refused."""
    needed = users + FILES_BESIDE_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (ValueError, OSError):
        raise UserError(
            f"{count(users, 'user')} need {needed:,} open files and this shell allows {hard:,}: lower --concurrency, "
            f"or raise the limit (ulimit -n {needed})"
        ) from None
