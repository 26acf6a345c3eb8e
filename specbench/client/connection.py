"""One HTTP/1.1 connection that stamps every read before anything else happens to it, and what goes over it.

    connection = await transport.open(post.url)
    arrival = Arrival()
    await connection.exchange(post, arrival, Limits(inactivity_s=60, total_s=600))      # until the body has ended

- A read is stamped with `perf_counter_ns` in the event loop's read callback, before it is parsed and before any task
  wakes. Nothing a task does can make an arrival look late, except by holding the loop.
- The body is collected as (stamp, bytes) and the caller is woken once, at its end.
- Finished requests are handed to their tasks one a loop turn, so that other sockets are read (and stamped) in between.
- Reads land in one shared buffer: asyncio's plain Protocol allocates 256 KiB for each.
- What arrived before a failure stays in the caller's Arrival. Failures are httpx's exceptions, never empty:
  ReadError (the connection ended early), RemoteProtocolError (not HTTP), ReadTimeout (no byte for `inactivity_s`) and
  TotalTimeout (not finished within `total_s`).
"""

import asyncio
import select
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import cast

import httptools
import httpx

_NEVER_NS = 10**18
# Filled and consumed within one read callback, so one serves every connection.
_BUFFER = memoryview(bytearray(256 * 1024))


@dataclass(frozen=True, slots=True)
class Post:
    """One POST request.

    Attributes:
        url: where it goes.
        headers: all of them but Content-Length.
        body: the content.
        payload: the bytes that go on the wire over HTTP/1.1, made from the three above.
    """

    url: httpx.URL
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    payload: bytes


def head_of_post(url: httpx.URL, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Request line and headers, all but Content-Length. A header that would smuggle in another line is refused."""
    lines = [b"POST %s HTTP/1.1" % url.raw_path, *(b"%s: %s" % header for header in headers)]
    if any(b"\r" in line or b"\n" in line for line in lines):
        raise httpx.LocalProtocolError("a request header holds a line break")
    return b"\r\n".join(lines)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long an answer may take (s): without a byte, the first included, and as a whole. None is no limit."""

    inactivity_s: float | None = None
    total_s: float | None = None


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
        "_arrival", "_done", "_error", "_inactivity_ns", "_loop", "_now", "_parser", "_poll", "_put_back", "_timer",
        "_total_ns", "_transport", "_turns", "closed", "closed_ns", "idle_since", "used",
    )  # fmt: skip

    def __init__(self, turns: Turns, put_back: "Callable[[Connection], object]") -> None:
        self._turns, self._put_back = turns, put_back
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

    async def exchange(self, post: Post, arrival: Arrival, limits: Limits) -> None:
        """Write `post`, fill `arrival` as the answer arrives, and return once it has ended.

        Raises an httpx.TransportError when it fails. A cancelled call closes the connection, unless the answer has
        ended and only its turn had not come: it then returns as if not cancelled, so that no finished request is lost.
        """
        try:
            await self._exchange(post.payload, arrival, limits)
        finally:
            self._put_back(self)

    async def _exchange(self, payload: bytes, arrival: Arrival, limits: Limits) -> None:
        if self.closed or self._transport.is_closing():  # since open() returned it
            raise httpx.ReadError("the server closed the connection before any answer")
        self._arrival, self._error, self.used = arrival, None, True
        self._parser = httptools.HttpResponseParser(self)
        self._done = self._loop.create_future()
        arrival.sent_ns = self._now = perf_counter_ns()
        self._transport.write(payload)
        self._inactivity_ns, self._total_ns = _ns(limits.inactivity_s), _ns(limits.total_s)
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


def _ns(seconds: float | None) -> int:
    return round(seconds * 1e9) if seconds else _NEVER_NS
