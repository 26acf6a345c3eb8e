"""A server that writes exactly what a test says, on a real socket, and keeps count of what it was sent."""

import asyncio
import enum
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Sequence

from support import RECORDINGS

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class Do(enum.Enum):
    """What an answer can do beside writing bytes and sleeping."""

    CLOSE = "close the connection"
    RESET = "reset the connection"
    HANG = "say no more, and keep the connection"


# Bytes are written, a number is slept (s), a function is awaited.
Step = bytes | float | Do | Callable[[], Awaitable[object]]


def chunk(data: bytes) -> bytes:
    """`data` as one HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def stream(*parts: bytes) -> list[Step]:
    """A whole chunked answer, an HTTP chunk a part."""
    return [STREAM_HEAD, *(chunk(part) for part in parts), END]


def plain(status: str, body: bytes, *headers: bytes) -> list[Step]:
    """An answer with a length."""
    lines = [f"HTTP/1.1 {status}".encode(), *headers, b"content-length: %d" % len(body)]
    return [b"\r\n".join(lines) + b"\r\n\r\n" + body]


def event(text: str | None = None, **more: object) -> bytes:
    """A stream event with `text` as its content delta; `more` goes into the choice."""
    choice = {"index": 0, "delta": {} if text is None else {"content": text}, **more}
    return b"data: " + json.dumps({"id": "r1", "choices": [choice]}).encode() + b"\n\n"


def usage(tokens: int) -> bytes:
    body = {"id": "r1", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


ROLE = b'data: {"id":"r1","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
FINISH = event("", finish_reason="stop")
DONE = b"data: [DONE]\n\n"
# The shortest answer that is ok.
GOOD = (ROLE, event("sea"), FINISH, usage(2), DONE)


def recorded(mode: str, name: str) -> list[bytes]:
    """The reads of one recorded response body."""
    lines = (RECORDINGS / mode / "streams" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line)[1].encode() for line in lines]


class Scripted:
    """`async with Scripted(answer) as server`: `answer(n)` gives the steps of the nth request, counted from 0.

    Attributes:
        url: base URL.
        requests: each request as it came, head and body.
        connections: how many were accepted.
    """

    def __init__(self, answer: Callable[[int], Sequence[Step]], tls: ssl.SSLContext | None = None) -> None:
        self._answer, self._tls = answer, tls
        self.requests: list[bytes] = []
        self.connections = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Scripted":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"https://localhost:{port}" if self._tls else f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._tasks.add(asyncio.ensure_future(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(lengths[0].split(b":")[1]) if lengths else 0)
                self.requests.append(head + body)
                for step in self._answer(len(self.requests) - 1):
                    if isinstance(step, bytes):
                        writer.write(step)
                        await writer.drain()
                    elif isinstance(step, Do):
                        await self._do(step, writer)
                        return
                    elif callable(step):
                        await step()
                    else:
                        await asyncio.sleep(step)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    async def _do(self, step: Do, writer: asyncio.StreamWriter) -> None:
        if step is Do.HANG:
            await asyncio.Event().wait()
        if step is Do.RESET:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        writer.close()
        await writer.wait_closed()
