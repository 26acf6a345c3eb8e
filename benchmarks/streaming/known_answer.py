"""A server whose answers are known: it streams made-up chat completions and logs when it sent what.

    python benchmarks/streaming/known_answer.py          # prints its port; ends with its standard input

The path says what to send, before `/v1/chat/completions`:

    /paced/TTFT_MS/GAP_MS/CHUNKS/TOKENS     the first chunk after TTFT_MS, the others GAP_MS apart, TOKENS in each;
                                            the end comes one gap after the last chunk
    /unpaced/CHUNKS/TOKENS/GROUP            as fast as the sockets take them, GROUP chunks a write, streams in turn
    /fault/NAME                             see FAULTS

The text of an answer starts with its number. `GET /log` gives, and forgets, per number the perf_counter_ns (on Linux
and macOS one clock for all processes) of the request's arrival, of the write of the first content and of the write of
the end: finish_reason, usage and `[DONE]` leave in one write, so that clients that mean different ends mean one moment.

One thread, no event loop library, and it spins while something is due within a millisecond: a stamp is taken just
before its write, and writes are not delayed by timers.
"""

import heapq
import json
import os
import selectors
import socket
import sys
from collections import deque
from itertools import count
from time import perf_counter_ns
from typing import Any

TOKEN = " sea"
PROMPT_TOKENS = 7
SPIN_NS = 1_200_000
WRITES_A_TURN = 4
FAULTS = {
    "role-first": "the role chunk 100 ms before the first content",
    "error-event": "an error event in the middle",
    "cut": "the connection is cut in the middle",
    "no-done": "a proper end without [DONE]",
    "no-usage": "no usage",
    "no-finish": "no finish_reason",
    "malformed": "one event is not JSON",
    "http-500": "HTTP 500 with a message",
    "json": "200 with plain JSON",
}
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_END = b"0\r\n\r\n"


def event(choice: dict[str, Any] | None, **more: Any) -> bytes:
    """One server-sent event as vLLM writes it, without the HTTP chunk around it."""
    choices = [] if choice is None else [{"index": 0, "logprobs": None, "finish_reason": None, **choice}]
    body = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 1796030274, "model": "m"}
    return b"data: " + json.dumps(body | {"choices": choices} | more, separators=(",", ":")).encode() + b"\n\n"


def content(text: str, tokens: int) -> bytes:
    return event({"delta": {"content": text, "reasoning_content": None}, "token_ids": [5] * tokens})


def chunk(data: bytes) -> bytes:
    """`data` as one HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


ROLE = event({"delta": {"role": "assistant", "content": "", "reasoning_content": None}}, prompt_token_ids=[1] * 7)
FINISH = event({"delta": {"content": "", "reasoning_content": None}, "finish_reason": "stop", "token_ids": []})
DONE = b"data: [DONE]\n\n"


def usage(tokens: int) -> bytes:
    total = PROMPT_TOKENS + tokens
    return event(None, usage={"prompt_tokens": PROMPT_TOKENS, "total_tokens": total, "completion_tokens": tokens})


class Answer:
    """What is still to be written on one connection: (due ns, bytes) in order."""

    __slots__ = ("connection", "first", "last", "number", "position", "writes")

    def __init__(self, connection: socket.socket, number: int, writes: list[tuple[int, bytes]]) -> None:
        self.connection, self.number, self.writes = connection, number, writes
        self.position = 0


class Server:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        self._received: dict[socket.socket, bytes] = {}
        self._due: list[tuple[int, int, Answer]] = []
        self._eager: deque[Answer] = deque()
        self._numbers, self._order = count(), count()
        self._log: dict[int, list[int]] = {}
        self._templates: dict[tuple[int, int], list[bytes]] = {}

    def run(self) -> None:
        """Serve until standard input ends."""
        while True:
            for key, _ in self._selector.select(self._patience()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is sys.stdin:
                    return
                else:
                    self._receive(key.fileobj)  # type: ignore[arg-type]
            self._write_due()
            for _ in range(min(WRITES_A_TURN, len(self._eager))):
                self._write_eagerly(self._eager.popleft())

    def _patience(self) -> float | None:
        if self._eager:
            return 0
        if not self._due:
            return None
        wait_ns = self._due[0][0] - perf_counter_ns()
        return (wait_ns - SPIN_NS) / 1e9 if wait_ns > SPIN_NS else 0

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received[connection] = b""
        self._selector.register(connection, selectors.EVENT_READ)

    def _receive(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(65536)
        except OSError:
            data = b""
        now = perf_counter_ns()
        if not data:
            self._close(connection)
            return
        received = self._received[connection] + data
        head, separator, body = received.partition(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        if not separator or len(body) < length:
            self._received[connection] = received
            return
        self._received[connection] = b""
        self._answer(connection, head.split(b" ", 2)[1].decode(), now)

    def _answer(self, connection: socket.socket, path: str, now: int) -> None:
        kind, *values = path.removesuffix("/v1/chat/completions").strip("/").split("/")
        if kind == "log":
            body = json.dumps(self._log).encode()
            self._log = {}
            connection.setblocking(True)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            connection.setblocking(False)
            return
        number = next(self._numbers)
        self._log[number] = [now, 0, 0]
        if kind == "paced":
            ttft, gap = (round(float(value) * 1e6) for value in values[:2])
            parts = self._parts(number, int(values[2]), int(values[3]))
            writes = [(now + ttft + index * gap, part) for index, part in enumerate(parts)]
            self._plan(Answer(connection, number, writes))
        elif kind == "unpaced":
            parts, group = self._parts(number, int(values[0]), int(values[1])), int(values[2])
            parts = [b"".join(parts[index : index + group]) for index in range(0, len(parts), group)]
            self._eager.append(Answer(connection, number, [(0, part) for part in parts]))
        else:
            self._plan(Answer(connection, number, fault(values[0], number, now)))

    def _parts(self, number: int, chunks: int, tokens: int) -> list[bytes]:
        """The writes of one answer; only the first differs between answers."""
        template = self._templates.get((chunks, tokens))
        if template is None:
            middle = chunk(content(TOKEN * tokens, tokens))
            end = chunk(FINISH) + chunk(usage(chunks * tokens)) + chunk(DONE) + _END
            template = self._templates[chunks, tokens] = [middle] * (chunks - 1) + [end]
        return [_HEAD + chunk(ROLE) + chunk(content(f"{number}{TOKEN * tokens}", tokens)), *template]

    def _plan(self, answer: Answer) -> None:
        heapq.heappush(self._due, (answer.writes[answer.position][0], next(self._order), answer))

    def _write_due(self) -> None:
        """A few writes only, then look for requests again: those must not wait behind a burst."""
        for _ in range(WRITES_A_TURN):
            if not self._due or self._due[0][0] > perf_counter_ns():
                return
            answer = heapq.heappop(self._due)[2]
            if self._write(answer):
                self._plan(answer)

    def _write_eagerly(self, answer: Answer) -> None:
        if self._write(answer):
            self._eager.append(answer)

    def _write(self, answer: Answer) -> bool:
        """Write the next part; False once nothing is left to write."""
        part = answer.writes[answer.position][1]
        now = perf_counter_ns()
        try:
            sent = answer.connection.send(part) if part else 0
        except BlockingIOError:
            return True
        except OSError:
            return False
        if answer.position == 0 and not self._log[answer.number][1]:
            self._log[answer.number][1] = now
        if not part:  # a fault's cut
            self._close(answer.connection)
            return False
        if sent < len(part):
            answer.writes[answer.position] = (0, part[sent:])
            return True
        answer.position += 1
        if answer.position < len(answer.writes):
            return True
        self._log[answer.number][2] = now
        return False

    def _close(self, connection: socket.socket) -> None:
        if self._received.pop(connection, None) is not None:
            self._selector.unregister(connection)
            connection.close()


def fault(name: str, number: int, now: int) -> list[tuple[int, bytes]]:
    """The writes of one broken answer; an empty write closes the connection."""
    middle = [content(TOKEN, 1)] * 8
    whole = [ROLE, *middle, FINISH, usage(8), DONE]
    if name == "http-500":
        body = b'{"error":{"message":"EngineCore encountered an issue","type":"InternalServerError","code":500}}'
        head = b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        return [(now, head % len(body) + body)]
    if name == "json":
        body = b'{"object":"chat.completion","choices":[{"message":{"content":"sea"},"finish_reason":"stop"}]}'
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        return [(now, head % len(body) + body)]
    error = b'data: {"error":{"message":"engine died","type":"InternalServerError","code":500}}\n\n'
    events = {
        "role-first": whole,
        "error-event": [ROLE, *middle[:4], error, DONE],
        "cut": [ROLE, *middle[:4]],
        "no-done": whole[:-1],
        "no-usage": [ROLE, *middle, FINISH, DONE],
        "no-finish": [ROLE, *middle, usage(8), DONE],
        "malformed": [ROLE, *middle[:4], b'data: {"id": \n\n', *middle[4:], FINISH, usage(8), DONE],
    }[name]
    late = now + 100_000_000
    writes = [(now if index == 0 else late + index * 2_000_000, chunk(data)) for index, data in enumerate(events)]
    writes[0] = (now, _HEAD + writes[0][1])
    return [*writes, (late + 50_000_000, b"" if name == "cut" else _END)]


def main() -> None:
    if len(sys.argv) > 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(sys.argv[1])})
    server = Server()
    print(server.port, flush=True)
    server.run()


if __name__ == "__main__":
    main()
