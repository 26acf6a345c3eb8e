"""ServerRecord: answers /server-record, touches nothing else, and tells no secret.

The server is real: uvicorn and FastAPI behind a console script in another folder, which loads the middleware by name as
vLLM's does, started by launch_vllm.py itself.
"""

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import ROOT, find_free_port

import launch_vllm
from launch_vllm import RECORD_PATH, RECORD_VARIABLE, ServerRecord
from specbench.redaction import REDACTED

RECORD_KEYS = {
    *("record", "mode", "engine", "argv", "version", "model", "revision", "served_model_name", "speculative_config"),
    *("cudagraph_mode", "cudagraph_mode_ran"),
    *("prefix_caching", "cudagraph_capture_size", "max_num_seqs", "max_model_len", "max_num_batched_tokens"),
    *("gpus", "driver", "cuda", "boot_id", "started", "healthy_after_s", "compile_cache", "environment"),
    *("service_run", "num_speculative_tokens"),
}
SECRETS = {
    "HF_TOKEN": "hf_secret-of-the-hub",
    "VLLM_API_KEY": "secret-of-the-server",
    "POLYAXON_TOKEN": "secret-of-polyaxon",
    "POLYAXON_AUTH_TOKEN": "secret-of-polyaxon-too",
    "POLYAXON_SECRET_INTERNAL_TOKEN": "secret-inside-polyaxon",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-cloud",
    "AWS_SESSION_TOKEN": "secret-of-the-cloud-too",
}
SECRETS_IN_ARGV = ["secret-of-the-flag", "secret-of-the-second-flag=", "secret-of-the-url", "secret-of-the-assignment"]

# What the `vllm` console script does with --middleware and --worker-extension-cls, around an application that streams.
CONSOLE_SCRIPT = f"""#!{sys.executable}
import argparse, asyncio, importlib, inspect, os, types
import fastapi, uvicorn
from fastapi.responses import StreamingResponse

parser = argparse.ArgumentParser()
parser.add_argument("--middleware", action="append")
parser.add_argument("--worker-extension-cls")
parser.add_argument("--compilation-config")
parser.add_argument("--host")
parser.add_argument("--port", type=int)
args, _ = parser.parse_known_args()

app = fastapi.FastAPI()
may_go_on = asyncio.Event()

@app.get("/health")
def health():
    return fastapi.Response()

@app.post("/v1/chat/completions")
async def stream():
    async def events():
        yield 'data: {{"first": true}}\\n\\n'
        await may_go_on.wait()
        yield "data: [DONE]\\n\\n"
    return StreamingResponse(events(), media_type="text/event-stream")

@app.post("/go-on")
async def go_on():
    may_go_on.set()

def load(path):
    module, name = path.rsplit(".", 1)
    imported = getattr(importlib.import_module(module), name)
    assert inspect.isclass(imported)
    return imported

class WorkerBase: ...
class Worker(WorkerBase): ...
Worker.__bases__ += (load(args.worker_extension_cls),)

class Engine:
    # Falls back, as a card does whose attention backend has no full graph for ragged batches.
    def __init__(self):
        assert args.compilation_config == '{{"cudagraph_mode": "FULL"}}'
        self.worker = Worker()
        mode = types.SimpleNamespace(name="FULL_AND_PIECEWISE")
        self.worker.vllm_config = types.SimpleNamespace(compilation_config=types.SimpleNamespace(cudagraph_mode=mode))

    async def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        await asyncio.sleep(0)
        return [getattr(self.worker, method)()]

for path in args.middleware:
    app.add_middleware(load(path))
app.state.engine_client = Engine()
uvicorn.run(app, host=args.host, port=args.port, log_level="error")
"""


@dataclass
class Server:
    url: str
    run: str
    launched: float
    announced: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("elsewhere")
    script = folder / "vllm"
    script.write_text(CONSOLE_SCRIPT)
    script.chmod(0o755)
    port, run = find_free_port(), uuid.uuid4().hex
    flag, second, url, assignment = SECRETS_IN_ARGV
    prefix = [str(shutil.which("env")), f"MY_TOKEN={assignment}", f"CATALOG=https://me:{url}@hub"]
    prefix += [str(script), "--api-key", flag, second]
    command = [sys.executable, str(ROOT / "launch_vllm.py"), "--mode", "ngram", "--port", str(port)]
    command += ["--model", f"https://me:{url}@hub/model", "--vllm", shlex.join(prefix)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= SECRETS | {
        "PATH": str(folder),  # no nvidia-smi here
        "POLYAXON_RUN_INSTANCE": f"me.demo.runs.{run}",
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    launched = time.time()
    process = subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        announced = process.stdout.readline()
        base = f"http://127.0.0.1:{port}"
        wait_until_healthy(base, process)
        yield Server(base, run, launched, announced)
    finally:
        process.terminate()
        process.wait(timeout=30)
        assert process.stdout is not None
        process.stdout.close()


def wait_until_healthy(base: str, process: subprocess.Popen[str]) -> None:
    for _ in range(600):
        assert process.poll() is None, "the server ended"
        try:
            if httpx.get(f"{base}/health", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    pytest.fail("the server did not become healthy")


def ask(server: Server, method: str, path: str, **options: Any) -> httpx.Response:
    return httpx.request(method, server.url + path, trust_env=False, timeout=30, **options)


def test_the_record(server: Server) -> None:
    answer = ask(server, "GET", RECORD_PATH)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    record = answer.json()
    assert set(record) == RECORD_KEYS
    assert (record["record"], record["mode"], record["engine"]) == (1, "ngram", "vllm")
    assert record["service_run"] == server.run
    assert record["revision"] == "unpinned"
    assert record["gpus"] == [] and record["driver"] is None
    assert record["version"] is None and record["cuda"] is None  # this server is not vLLM
    assert record["compile_cache"] == "unknown"
    assert (record["cudagraph_mode"], record["cudagraph_mode_ran"]) == ("full", "FULL_AND_PIECEWISE")
    assert server.launched <= record["started"] <= time.time()
    assert 0 < record["healthy_after_s"] < 60
    assert record["environment"]["OMP_NUM_THREADS"] == "1"
    assert set(record["environment"]) <= set(launch_vllm.RECORDED_ENVIRONMENT)
    assert record["argv"][-2:] == ["--speculative-config", json.dumps(record["speculative_config"])]


def test_the_record_is_the_same_at_every_request(server: Server) -> None:
    assert ask(server, "GET", RECORD_PATH).content == ask(server, "GET", RECORD_PATH, headers={"X-Any": "1"}).content


def test_no_secret_is_told(server: Server) -> None:
    record = ask(server, "GET", RECORD_PATH, headers={"Authorization": "Token secret-of-the-client"}).text
    for secret in [*SECRETS.values(), *SECRETS_IN_ARGV, "secret-of-the-client"]:
        assert secret not in record
        assert secret not in server.announced
    assert record.count(REDACTED) >= 5


def test_head(server: Server) -> None:
    head, get = ask(server, "HEAD", RECORD_PATH), ask(server, "GET", RECORD_PATH)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"] == str(len(get.content))


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", RECORD_PATH), ("GET", RECORD_PATH + "/"), ("GET", "/v1" + RECORD_PATH), ("GET", "/nothing")],
)
def test_other_methods_and_paths_are_the_applications(method: str, path: str, server: Server) -> None:
    answer = ask(server, method, path)
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


def test_a_stream_is_not_held_back(server: Server) -> None:
    """The first event is here while the application still waits for us before it sends the second."""
    with httpx.stream("POST", server.url + "/v1/chat/completions", trust_env=False, timeout=30) as answer:
        lines = answer.iter_lines()
        assert next(lines) == 'data: {"first": true}'
        assert ask(server, "POST", "/go-on").status_code == 200
        assert [line for line in lines if line] == ["data: [DONE]"]


class Unreadable(dict[str, Any]):
    """An ASGI scope whose request headers must not be looked at."""

    def __getitem__(self, key: str) -> Any:
        assert key not in ("headers", "query_string", "client"), f"the middleware read {key}"
        return super().__getitem__(key)

    get = None  # type: ignore[assignment]


def http_scope(path: str, method: str = "GET") -> Unreadable:
    return Unreadable(type="http", path=path, method=method, headers=[(b"authorization", b"secret")])


async def never_received() -> Any:
    raise AssertionError("the middleware read the request's body")


@pytest.mark.parametrize(
    "scope",
    [
        http_scope("/v1/chat/completions", "POST"),
        http_scope(RECORD_PATH, "POST"),
        Unreadable(type="lifespan"),
        Unreadable(type="websocket", path=RECORD_PATH),
    ],
    ids=lambda scope: f"{dict(scope)['type']} {dict(scope).get('path', '')}",
)
def test_identical_receive_and_send(scope: Unreadable, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        given.extend((scope, receive, send))

    async def send(message: Any) -> None:
        raise AssertionError("the middleware answered")

    monkeypatch.setenv(RECORD_VARIABLE, json.dumps({"started": time.time()}))
    asyncio.run(ServerRecord(application)(scope, never_received, send))
    assert len(given) == 3
    assert given[0] is scope and given[1] is never_received and given[2] is send


def test_the_record_needs_neither_headers_nor_body(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("passed on")

    async def send(message: Any) -> None:
        sent.append(message)

    monkeypatch.setenv(RECORD_VARIABLE, json.dumps({"started": time.time(), "mode": "ngram"}))
    asyncio.run(ServerRecord(application)(http_scope(RECORD_PATH), never_received, send))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert json.loads(sent[1]["body"])["mode"] == "ngram"


def test_without_the_launcher_there_is_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RECORD_VARIABLE, raising=False)
    passed: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope)

    asyncio.run(ServerRecord(application)(http_scope(RECORD_PATH), never_received, never_received))
    assert len(passed) == 1


class Asked:
    """An application as the scope names it, whose engine gives these answers in turn; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.state, self.engine_client, self.answers, self.methods = self, self, list(answers), []

    async def collective_rpc(self, method: str) -> Any:
        self.methods.append(method)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def recorded_modes(app: Asked, times: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `times` requests for the record say of the mode that ran."""
    bodies: list[bytes] = []

    async def send(message: Any) -> None:
        bodies.extend(filter(None, [message.get("body")]))

    async def ask_all() -> None:
        middleware = ServerRecord(app)  # type: ignore[arg-type]
        for _ in range(times):
            await middleware(http_scope(RECORD_PATH) | {"app": app}, never_received, send)

    monkeypatch.setenv(RECORD_VARIABLE, json.dumps({"started": time.time(), "cudagraph_mode": "full"}))
    asyncio.run(ask_all())
    return [json.loads(body)["cudagraph_mode_ran"] for body in bodies]


def test_the_engine_is_asked_until_it_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Asked(RuntimeError("starting"), ["FULL", "FULL"], ["never asked"])
    assert recorded_modes(app, 3, monkeypatch) == [None, "FULL", "FULL"]
    assert app.methods == ["resolved_cudagraph_mode"] * 2


def test_an_engine_that_never_answers_leaves_the_mode_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silence(_: str) -> None:
        await asyncio.Event().wait()

    app = Asked()
    monkeypatch.setattr(app, "collective_rpc", silence)
    monkeypatch.setattr(launch_vllm, "ENGINE_ANSWER_S", 0.01)
    assert recorded_modes(app, 1, monkeypatch) == [None]


@pytest.mark.parametrize("carried", ["{", "[]", "{}", '{"started": "noon"}'])
def test_a_record_that_cannot_be_made_does_not_end_the_server(carried: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RECORD_VARIABLE, carried)

    async def app(*_: Any) -> None:
        raise AssertionError

    assert ServerRecord(app).record is None


def test_what_the_serving_process_adds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """vLLM's version and CUDA come from its own modules; a secret variable is not in the allow-list."""

    class Vllm:
        __version__ = "0.11.2+cu129"

    class Torch:
        class version:
            cuda = "12.9"

    monkeypatch.setitem(sys.modules, "vllm", Vllm)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "torch", Torch)  # type: ignore[arg-type]
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "secret")
    index = tmp_path / "torch_compile_cache" / "0a1b" / "rank_0_0" / "backbone" / "vllm_compile_cache.py"
    index.parent.mkdir(parents=True)
    started = time.time() - 60
    index.write_text("{}")
    monkeypatch.setenv(RECORD_VARIABLE, json.dumps({"started": started}))

    async def application(scope: Any, receive: Any, send: Any) -> None: ...

    record = ServerRecord(application).record
    assert record is not None
    assert (record["version"], record["cuda"], record["compile_cache"]) == ("0.11.2+cu129", "12.9", "cold")
    assert record["healthy_after_s"] >= 60
    assert record["environment"]["VLLM_CACHE_ROOT"] == str(tmp_path) and "HF_TOKEN" not in record["environment"]
