"""One client, one setting, one process: measures the known-answer server and prints a JSON object.

    python benchmarks/streaming/clients.py '{"client": "specbench", "url": …, "users": 8, "requests": 80, …}'

Clients: `specbench` (bench.py's loop, rows written to disk as in a run), `vllm` (the request function of vLLM
0.11.2's own benchmark), `aiohttp` and `httpx` (what one writes with each in ten lines). All on the same event loop.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

TEXT = "Tell me about the sea."


@dataclass
class Answered:
    """What a client says of one request; times in seconds."""

    text: str
    ttft_s: float
    e2el_s: float
    tokens: int
    is_ok: bool
    error: str | None = None


Ask = Callable[[], Awaitable[Answered]]


async def run(task: dict[str, Any]) -> dict[str, Any]:
    """Warm up with one request a user, then measure each URL's requests in turn."""
    if task["client"] == "specbench":
        return await _run_specbench(task)
    async with _session(task["client"], task["users"]) as ask:
        await _closed_loop(ask, task["warmup"], task["users"], task["users"])
        return {"parts": [await _part(ask, url, task) for url in task["urls"]]}


async def _part(ask: Callable[[str], Awaitable[Answered]], url: str, task: dict[str, Any]) -> dict[str, Any]:
    cpu, start = time.process_time(), perf_counter()
    answers = await _closed_loop(ask, url, task["requests"], task["users"])
    return _summary(answers, perf_counter() - start, time.process_time() - cpu)


def _summary(answers: list[Answered], elapsed_s: float, cpu_s: float) -> dict[str, Any]:
    return {
        "elapsed_s": elapsed_s,
        "cpu_s": cpu_s,
        "answers": [[a.text.split(" ")[0], a.ttft_s, a.e2el_s, a.tokens, a.is_ok, a.error] for a in answers],
    }


async def _closed_loop(
    ask: Callable[[str], Awaitable[Answered]], url: str, requests: int, users: int
) -> list[Answered]:
    answers: list[Answered] = []
    schedule = iter(range(requests))

    async def user() -> None:
        for _ in schedule:
            answers.append(await ask(url))

    await asyncio.gather(*(user() for _ in range(users)))
    return answers


@contextlib.asynccontextmanager
async def _session(client: str, users: int) -> Any:
    if client == "httpx":
        import httpx

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=None) as session:
            yield lambda url: _ask_httpx(session, url)
        return
    import aiohttp

    connector = aiohttp.TCPConnector(limit=users, limit_per_host=users, keepalive_timeout=60)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=3600)) as session:
        if client == "aiohttp":
            yield lambda url: _ask_aiohttp(session, url)
        else:
            module = _vllm_module()
            yield lambda url: _ask_vllm(module, session, url)


# ---- specbench


async def _run_specbench(task: dict[str, Any]) -> dict[str, Any]:
    import msgspec

    from specbench.client.load import ClosedLoop, Phase
    from specbench.client.request import RequestSettings
    from specbench.client.transport import StreamTransport
    from specbench.record.directory import ResultDirectory, read_requests
    from specbench.workload.case import Case
    from specbench.workload.schedule import Item

    case = Case("c", "f", [{"role": "user", "content": TEXT}], None, None)
    transport = StreamTransport()
    parts = []
    with tempfile.TemporaryDirectory() as folder:

        async def load(url: str, requests: int, phase: Phase) -> dict[str, Any]:
            directory = ResultDirectory(Path(folder) / str(perf_counter_ns()))
            settings = RequestSettings(url=url, model="m")
            items = [Item(case, 0, position) for position in range(requests)]
            cpu = time.process_time()
            loop = ClosedLoop(
                items, phase=phase, concurrency=task["users"], transport=transport, settings=settings,
                zero_ns=perf_counter_ns(), sink=directory.append,
            )  # fmt: skip
            result = await loop.run()
            cpu = time.process_time() - cpu
            directory.close()
            peak = peak_memory_mb()
            rows = list(read_requests(directory.path))
            answers = [
                Answered(row.text, row.ttft_s or 0, row.e2el_s or 0, row.completion_tokens or 0, row.outcome == "ok",
                         f"{row.outcome}: {row.error}")
                for row in rows
            ]  # fmt: skip
            elapsed_s = max(row.start_s + (row.e2el_s or 0) for row in rows) - min(row.start_s for row in rows)
            client = msgspec.structs.asdict(result.client)
            return _summary(answers, elapsed_s, cpu) | {"client": client, "peak_mb": peak}

        await load(task["warmup"], task["users"], "warmup")
        for url in task["urls"]:
            parts.append(await load(url, task["requests"], "measured"))
    await transport.aclose()
    return {"parts": parts}


# ---- the others


def _vllm_module() -> Any:
    """vLLM's file, loaded from where fidelity.py put it: it needs nothing else of vLLM."""
    path = os.environ["VLLM_REQUEST_FUNCTION"]
    spec = importlib.util.spec_from_file_location("endpoint_request_func", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["endpoint_request_func"] = module
    spec.loader.exec_module(module)
    return module


async def _ask_vllm(module: Any, session: Any, url: str) -> Answered:
    request = module.RequestFuncInput(
        prompt=TEXT, api_url=f"{url}/v1/chat/completions", prompt_len=7, output_len=128, model="m"
    )
    out = await module.async_request_openai_chat_completions(request, session)
    return Answered(out.generated_text, out.ttft, out.latency, out.output_tokens, out.success, out.error)


_BODY = {
    "model": "m", "messages": [{"role": "user", "content": TEXT}], "temperature": 0, "max_tokens": 128,
    "stream": True, "stream_options": {"include_usage": True},
}  # fmt: skip


async def _ask_httpx(session: Any, url: str) -> Answered:
    answer = Answered("", 0, 0, 0, False)
    start = perf_counter()
    try:
        async with session.stream("POST", f"{url}/v1/chat/completions", json=_BODY) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                _take(answer, line, start)
    except Exception as error:
        answer.is_ok, answer.error = False, repr(error)
    return answer


async def _ask_aiohttp(session: Any, url: str) -> Answered:
    answer = Answered("", 0, 0, 0, False)
    start = perf_counter()
    try:
        async with session.post(f"{url}/v1/chat/completions", json=_BODY) as response:
            response.raise_for_status()
            async for line in response.content:
                _take(answer, line.decode(), start)
    except Exception as error:
        answer.is_ok, answer.error = False, repr(error)
    return answer


def _take(answer: Answered, line: str, start: float) -> None:
    if not line.startswith("data: "):
        return
    now = perf_counter() - start
    data = line[6:].strip()
    if data == "[DONE]":
        answer.e2el_s, answer.is_ok = now, True
        return
    event = json.loads(data)
    for choice in event.get("choices", ()):
        text = choice["delta"].get("content")
        if text:
            answer.ttft_s = answer.ttft_s or now
            answer.text += text
    if event.get("usage"):
        answer.tokens = event["usage"]["completion_tokens"]


def peak_memory_mb() -> float | None:
    """VmHWM of this process: ru_maxrss would include what its parent had."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    task = json.loads(sys.argv[1])
    if task["core"] is not None:
        os.sched_setaffinity(0, {task["core"]})
    try:
        import uvloop

        result = uvloop.run(run(task))
    except ImportError:
        result = asyncio.run(run(task))
    result.setdefault("peak_mb", peak_memory_mb())
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
