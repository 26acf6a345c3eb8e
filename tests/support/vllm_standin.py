"""A stand-in for vLLM over a real socket: it replays the recorded streams and counts as vLLM's /metrics does.

with StandIn("ngram") as server:
    subprocess.run([..., "bench.py", "--url", server.url, ...])
"""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

from support import HANG_S, RECORDINGS

K = 5
# fault(number of the chat request, counted from 0) -> what to do with it: None, "500", "error event", "cut" or "hang"
Fault = Callable[[int], str | None]


def recorded_stream(mode: str, case: str = "copy-1") -> list[bytes]:
    """The reads of one recorded response body with token ids, without their times."""
    lines = (RECORDINGS / mode / "streams" / f"{case}.token-ids.jsonl").read_text().splitlines()
    return [json.loads(line)[1].encode() for line in lines]


def record(mode: str, **changes: Any) -> dict[str, Any]:
    """What launch_vllm.py's middleware would answer for this server."""
    speculation = {"method": "ngram", "num_speculative_tokens": K} if mode == "ngram" else None
    server = {"record": 1, "mode": mode, "engine": "vllm", "version": "0.11.2+cu129", "model": "m"}
    return {**server, "served_model_name": "m", "max_model_len": 2048, "speculative_config": speculation, **changes}


class StandIn:
    """Serves on 127.0.0.1 from a thread until the with block ends. Attributes may be changed while it runs."""

    def __init__(
        self,
        mode: str = "baseline",
        *,
        record: dict[str, Any] | None = None,
        fault: Fault = lambda _: None,
        port: int = 0,
    ) -> None:
        self.port = port
        self.mode, self.record, self.fault = mode, record, fault
        self.health = 200
        self.token: str | None = None  # when set, every path wants `Authorization: Token <token>`
        self.models = [{"id": "m", "object": "model", "root": "smollm2", "max_model_len": 2048}]
        self.drafts_per_request = 8 if mode == "ngram" else 0
        self.foreign = 0
        self.pause_s = 0.0
        self.start_time = 1_000.0
        self.start_times: list[float] = []  # of several servers behind one address, which answer in turn
        self.metrics_tail = ""
        self.has_metrics = True
        self.error_text = "the engine died"
        self.tokenize = True
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self._chats = self._finished = 0
        self._stream = recorded_stream(mode)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def chats(self) -> int:
        """Chat requests received."""
        return self._chats

    def __enter__(self) -> "StandIn":
        self._thread.start()
        assert self._ready.wait(HANG_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                path = line.split()[1].decode()
                headers = {}
                while (header := await reader.readline()).strip():
                    name, _, value = header.decode("latin-1").partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.seen.append((path, headers, body))
                if not await self._answer(path, headers, body, writer):
                    break
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        writer.close()

    async def _answer(self, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False when the connection is to be cut."""
        if self.token and headers.get("authorization") != f"Token {self.token}":
            return _plain(writer, 401, "application/json", '{"errors": "unauthorized"}')
        if path == "/v1/chat/completions":
            return await self._chat(json.loads(body), writer)
        answers: dict[str, tuple[int, str, Any]] = {
            "/health": (self.health, "text/plain", ""),
            "/v1/models": (200, "application/json", {"object": "list", "data": self.models}),
            "/version": (200, "application/json", {"version": "0.11.2"}),
            "/metrics": (200 if self.has_metrics else 404, "text/plain", self._metrics()),
        }
        if self.record is not None:
            answers["/server-record"] = (200, "application/json", self.record)
        if self.tokenize and path == "/tokenize":
            count = sum(len(message["content"]) for message in json.loads(body)["messages"]) // 4
            tokens = list(range(count))
            answers["/tokenize"] = (200, "application/json", {"count": count, "max_model_len": 2048, "tokens": tokens})
        status, kind, value = answers.get(path, (404, "application/json", {"detail": "Not Found"}))
        return _plain(writer, status, kind, value if isinstance(value, str) else json.dumps(value))

    async def _chat(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        fault = self.fault(self._chats)
        self._chats += 1
        if body["model"] not in {model["id"] for model in self.models}:
            error = {"message": f"The model `{body['model']}` does not exist.", "type": "NotFoundError", "code": 404}
            return _plain(writer, 404, "application/json", json.dumps({"error": error}))
        if fault == "500":
            error = {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}
            return _plain(writer, 500, "application/json", json.dumps({"error": error}))
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for number, read in enumerate(self._stream):
            if fault and number == 5:
                if fault == "cut":
                    return False
                if fault == "hang":
                    await asyncio.Event().wait()
                error = {"error": {"message": self.error_text, "type": "x", "code": 500}}
                _chunk(writer, b"data: " + json.dumps(error).encode() + b"\n\n")
                _chunk(writer, b"data: [DONE]\n\n")
                break
            _chunk(writer, read)
            await writer.drain()
            await asyncio.sleep(self.pause_s)
        else:
            self._finished += 1
        writer.write(b"0\r\n\r\n")
        return True

    def _metrics(self) -> str:
        finished = float(self._finished + self.foreign)
        if self.start_times:
            self.start_time, self.start_times = self.start_times[0], [*self.start_times[1:], self.start_times[0]]
        drafts = self.drafts_per_request * finished
        label = 'model_name="m"'
        lines = [
            f"process_start_time_seconds {self.start_time}",
            f"vllm:generation_tokens_total{{{label}}} {67 * finished}",
            f'vllm:request_success_total{{finished_reason="stop",{label}}} {finished}',
            f"vllm:num_preemptions_total{{{label}}} 0.0",
            f"vllm:prefix_cache_queries_total{{{label}}} 0.0",
            f"vllm:prefix_cache_hits_total{{{label}}} 0.0",
            'vllm:cache_config_info{enable_prefix_caching="False",num_gpu_blocks="344611"} 1.0',
        ]
        if self.drafts_per_request:
            position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            lines += [
                f"vllm:spec_decode_num_drafts_total{{{label}}} {drafts}",
                f"vllm:spec_decode_num_draft_tokens_total{{{label}}} {K * drafts}",
                f"vllm:spec_decode_num_accepted_tokens_total{{{label}}} {3 * drafts}",
                *(f'{position}{{{label},position="{number}"}} {drafts if number < 3 else 0.0}' for number in range(K)),
            ]
        return "\n".join(lines) + "\n" + self.metrics_tail


def _plain(writer: asyncio.StreamWriter, status: int, kind: str, text: str) -> bool:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(text.encode())}\r\n\r\n"
    writer.write(head.encode() + text.encode())
    return True


def _chunk(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(content), content))
