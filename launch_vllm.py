#!/usr/bin/env python3
"""Turn a mode into the pinned `vllm serve` command line, and become it.

    python launch_vllm.py --mode ngram --print      # show the command and exit
    python launch_vllm.py --mode baseline           # serve on http://127.0.0.1:8000

Runs where vLLM runs: in the container that service.yaml describes, or on a GPU host. It needs Python's standard
library and, beside it, specbench/__init__.py, words.py and redaction.py, which need no more either. Every pin of
the experiment is a constant below. The two modes differ in `--speculative-config` and in nothing else.

The server also answers `GET /server-record`: what was started, on what, and when. `ServerRecord` below is an
ASGI middleware that vLLM loads by name; it answers that one path and hands everything else through untouched.
It never reads a request header, and the record holds no secret: command lines are redacted, and the
environment is an allow-list. `WorkerRecord` tells it the CUDA-graph mode that the engine settled on.
"""

import argparse
import asyncio
import json
import math
import os
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from specbench import Parser, UserError
from specbench.redaction import redacted, without_userinfo

# The pins. tests/launchers/test_contract.py holds them against the source of this vLLM version, and
# tests/polyaxon/test_service_yaml.py holds service.yaml against them.
VLLM_VERSION = "0.11.2"
# The index digest of vllm/vllm-openai:v0.11.2.
IMAGE = "vllm/vllm-openai@sha256:2c908d5a84ed251b6a17d179f42d06df1aff353007779ac5eecd8a0ea3fe9331"
MODEL = "Qwen/Qwen3-4B"
REVISION = "1cfa9a7208912126459214e8b04321603b3df60c"
MAX_MODEL_LEN = 2048
MAX_NUM_SEQS = 8
# vLLM's own default is 2048 or 8192 by card. The larger one lets eight prompts of a thousand tokens prefill
# in one step: 0.11.2 loses ngram drafts in a step that holds a partial prefill (docs/confounds.md).
MAX_NUM_BATCHED_TOKENS = 8192
GPU_MEMORY_UTILIZATION = 0.85
SEED = 0
NUM_SPECULATIVE_TOKENS = 5
PROMPT_LOOKUP_MIN = 2
PROMPT_LOOKUP_MAX = 4
MAX_SPECULATIVE_TOKENS = 128  # vLLM's rejection sampler asserts this at run time, in the middle of a request
MAX_TOKENS = 128  # what bench.py asks of every request by default

MODES = ("baseline", "ngram")
# vLLM's own mode, FULL_AND_PIECEWISE, has a full graph for every baseline step, and in ngram only for steps in which
# every sequence brings k+1 tokens (docs/confounds.md, the graph-mode trap). FULL has one for every step of both.
CUDAGRAPH_MODES = ("full", "vllm-default")
COMPILATION_CONFIG = {"cudagraph_mode": "FULL"}
MIDDLEWARE = "launch_vllm.ServerRecord"
WORKER_EXTENSION = "launch_vllm.WorkerRecord"
ENGINE_ANSWER_S = 10.0  # an engine that has died never answers
RECORD_PATH = "/server-record"
RECORD_VARIABLE = "SPECBENCH_SERVER_RECORD"  # carries the launcher's part of the record across exec
# What changes speed or output and holds no secret.
RECORDED_ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "NUMBA_NUM_THREADS",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCHINDUCTOR_CACHE_DIR",
    "VLLM_ATTENTION_BACKEND",
    "VLLM_CACHE_ROOT",
    "VLLM_DISABLE_COMPILE_CACHE",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE",
    "VLLM_LOGGING_LEVEL",
    "VLLM_USE_FLASHINFER_SAMPLER",
)
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Launch:
    """One deployment, checked.

    `cudagraph_mode` is one of CUDAGRAPH_MODES; `capture_size` is in tokens, None for vLLM's own; `revision` is None
    where nothing pins it.
    """

    mode: str
    num_speculative_tokens: int
    prompt_lookup_min: int
    prompt_lookup_max: int
    prefix_caching: bool
    cudagraph_mode: str
    capture_size: int | None
    model: str
    revision: str | None
    served_model_name: str
    max_model_len: int
    host: str
    port: int

    @property
    def speculative_config(self) -> dict[str, Any] | None:
        """The value of --speculative-config, None in baseline."""
        if self.mode == "baseline":
            return None
        return {
            "method": "ngram",
            "num_speculative_tokens": self.num_speculative_tokens,
            "prompt_lookup_min": self.prompt_lookup_min,
            "prompt_lookup_max": self.prompt_lookup_max,
        }

    @property
    def max_num_batched_tokens(self) -> int:
        """The step's token budget: vLLM cuts a larger capture size down to it without a word."""
        return max(MAX_NUM_BATCHED_TOKENS, self.capture_size or 0)


def capture_size(num_speculative_tokens: int, max_num_seqs: int = MAX_NUM_SEQS) -> int:
    """The CUDA-graph cap in tokens that gives every decode step of both modes a graph.

    A step of n sequences holds n tokens in baseline and up to n·(k+1) in ngram. vLLM captures multiples of
    8 below 256 and of 16 from there; with speculation it rounds each size up to a multiple of k+1 and drops
    those above the cap. So the cap must be a size of vLLM's and a multiple of k+1, or the two modes end up
    with different caps.
    """
    tokens = num_speculative_tokens + 1
    needed = max_num_seqs * tokens
    size = _round_up(needed, math.lcm(8, tokens))
    return size if size < 256 else _round_up(needed, math.lcm(16, tokens))


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def is_capture_size(size: int) -> bool:
    """Whether vLLM takes this cap as it is; it cuts any other down to the next size below."""
    return size in (1, 2, 4) or (size > 0 and size % (8 if size < 256 else 16) == 0)


def arguments(launch: Launch) -> list[str]:
    """The arguments of `vllm` for this deployment, the mode's own at the end."""
    caching = "--enable-prefix-caching" if launch.prefix_caching else "--no-enable-prefix-caching"
    result = ["serve", launch.model]
    if launch.revision is not None:
        result += ["--revision", launch.revision, "--tokenizer-revision", launch.revision]
    result += ["--served-model-name", launch.served_model_name]
    result += ["--host", launch.host, "--port", str(launch.port)]
    result += ["--max-model-len", str(launch.max_model_len)]
    result += ["--max-num-seqs", str(MAX_NUM_SEQS)]
    result += ["--max-num-batched-tokens", str(launch.max_num_batched_tokens)]
    result += ["--gpu-memory-utilization", str(GPU_MEMORY_UTILIZATION)]
    result += [caching]
    result += ["--generation-config", "vllm"]  # else the model's repository sets sampling defaults
    result += ["--seed", str(SEED)]
    if launch.cudagraph_mode == "full":
        result += ["--compilation-config", json.dumps(COMPILATION_CONFIG)]
    if launch.capture_size is not None:
        result += ["--max-cudagraph-capture-size", str(launch.capture_size)]
    result += ["--middleware", MIDDLEWARE, "--worker-extension-cls", WORKER_EXTENSION]
    if launch.speculative_config is not None:
        result += ["--speculative-config", json.dumps(launch.speculative_config)]
    return result


def server_record(launch: Launch, argv: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """What is known before vLLM starts; ServerRecord adds what only vLLM's own process can tell."""
    gpus, driver = graphics_cards(environment)
    return {
        "record": 1,
        "mode": launch.mode,
        "engine": "vllm",
        "argv": redacted(argv),
        "model": without_userinfo(launch.model),
        "revision": launch.revision or "unpinned",
        "served_model_name": without_userinfo(launch.served_model_name),
        "speculative_config": launch.speculative_config,
        "num_speculative_tokens": launch.num_speculative_tokens,  # planned in both modes: both need its room
        "prefix_caching": launch.prefix_caching,
        "cudagraph_mode": launch.cudagraph_mode,
        "cudagraph_capture_size": launch.capture_size,
        "max_num_seqs": MAX_NUM_SEQS,
        "max_model_len": launch.max_model_len,
        "max_num_batched_tokens": launch.max_num_batched_tokens,
        "gpus": gpus,
        "driver": driver,
        "boot_id": uuid.uuid4().hex,
        "started": time.time(),
        "service_run": polyaxon_run(environment),
    }


def graphics_cards(environment: Mapping[str, str]) -> tuple[list[dict[str, Any]], str | None]:
    """The GPUs this process may use and their driver; ([], None) where nvidia-smi cannot say."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    if environment.get("CUDA_VISIBLE_DEVICES"):
        command.append(f"--id={environment['CUDA_VISIBLE_DEVICES']}")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        rows = [[field.strip() for field in line.rsplit(",", 2)] for line in answer.strip().splitlines()]
        return [{"name": name, "memory_mib": int(memory)} for name, memory, _ in rows], rows[0][2]
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return [], None


def polyaxon_run(environment: Mapping[str, str]) -> str | None:
    """The UUID in POLYAXON_RUN_INSTANCE (owner.project.runs.UUID), None outside Polyaxon."""
    _, found, run = environment.get("POLYAXON_RUN_INSTANCE", "").rpartition(".runs.")
    return run if found and run else None


def compile_cache(started: float, environment: Mapping[str, str]) -> str:
    """`cold` if this start compiled, `warm` if it loaded what an earlier one compiled, `unknown` if nothing tells.

    vLLM chooses the cache key itself, and the modes have different keys, so a cache that is merely not empty
    proves nothing. But vLLM writes an index file whenever it compiled, and leaves it alone when every graph
    was loaded. So, once the engine is up, an index younger than this start means cold. Assumes one server at
    a time on a cache folder.
    """
    if environment.get("VLLM_DISABLE_COMPILE_CACHE", "0") not in ("", "0"):
        return "cold"
    home = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    root = Path(environment.get("VLLM_CACHE_ROOT") or os.path.join(home, "vllm"))
    try:
        indexes = root.glob("torch_compile_cache/*/rank_*/**/vllm_compile_cache.py")
        times = [index.stat().st_mtime for index in indexes]
    except OSError:  # gone in between, or not ours to read
        return "unknown"
    if not times:
        return "unknown"
    return "cold" if max(times) >= started else "warm"


class ServerRecord:
    """ASGI middleware: answers GET and HEAD of /server-record; all else gets the very same receive and send.

    vLLM builds its application after the engine is up, so the record can say how long that took and whether
    it compiled. Without the launcher's variable there is nothing to tell, and the path is handed on like any
    other. The engine is asked for its graph mode at the first request, and again only while it has not answered.
    """

    def __init__(self, app: App) -> None:
        self.app = app
        carried = os.environ.get(RECORD_VARIABLE)
        try:
            self.record = _complete(json.loads(carried)) if carried else None
        except Exception as problem:  # whatever it is: a server without a record is better than no server
            print(f"launch_vllm.py: no server record ({type(problem).__name__}: {problem})", file=sys.stderr)
            self.record = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if self.record is None or not _asks_for_record(scope):
            await self.app(scope, receive, send)
            return
        if self.record["cudagraph_mode_ran"] is None:
            self.record["cudagraph_mode_ran"] = await _graph_mode_of_engine(scope)
        body = json.dumps(self.record).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


class WorkerRecord:
    """What vLLM adds to its worker class (--worker-extension-cls), so that the record can ask the engine.

    The worker resolves the graph mode when it knows its attention backend, in the engine's process. The API
    server's process, where ServerRecord runs, has its own copy of the configuration, which keeps what was asked for:
    the engine's READY message brings back its number of KV blocks and nothing else.
    """

    vllm_config: Any  # the worker's own

    def resolved_cudagraph_mode(self) -> str:
        """The name of vLLM's CUDAGraphMode that this worker captured and dispatches to."""
        return str(self.vllm_config.compilation_config.cudagraph_mode.name)


async def _graph_mode_of_engine(scope: MutableMapping[str, Any]) -> str | None:
    """What the engine's worker says of itself; None where there is no engine or it does not answer."""
    try:
        engine = scope["app"].state.engine_client
        answers = await asyncio.wait_for(engine.collective_rpc("resolved_cudagraph_mode"), ENGINE_ANSWER_S)
        return str(answers[0])
    except Exception as problem:  # whatever it is: the rest of the record is worth having
        print(f"launch_vllm.py: the engine does not tell its graph mode ({problem!r})", file=sys.stderr)
        return None


def _asks_for_record(scope: MutableMapping[str, Any]) -> bool:
    return scope["type"] == "http" and scope["path"] == RECORD_PATH and scope["method"] in ("GET", "HEAD")


def _complete(record: dict[str, Any]) -> dict[str, Any]:
    """Add what only the serving process knows. Imports nothing: vLLM has these modules already."""
    vllm, torch = sys.modules.get("vllm"), sys.modules.get("torch")
    return record | {
        "version": getattr(vllm, "__version__", None),
        "cuda": getattr(getattr(torch, "version", None), "cuda", None),
        "cudagraph_mode_ran": None,
        "compile_cache": compile_cache(record["started"], os.environ),
        "healthy_after_s": round(time.time() - record["started"], 3),
        "environment": {name: os.environ[name] for name in RECORDED_ENVIRONMENT if name in os.environ},
    }


def parser() -> Parser:
    description = "Start the pinned vLLM in one of two modes."
    door = Parser(prog="launch_vllm.py", allow_abbrev=False, description=description)
    add = door.add_argument
    add("--mode", required=True, choices=MODES)
    add("--num-speculative-tokens", type=int, default=NUM_SPECULATIVE_TOKENS, metavar="K",
        help="drafts per step; sizes the CUDA graphs of both modes")  # fmt: skip
    add("--prompt-lookup-min", type=int, default=PROMPT_LOOKUP_MIN, metavar="N", help="shortest n-gram")
    add("--prompt-lookup-max", type=int, default=PROMPT_LOOKUP_MAX, metavar="N", help="longest n-gram")
    add("--prefix-caching", choices=("on", "off"), default="off", help="the same in both modes of a pair")
    add("--cudagraph-mode", choices=CUDAGRAPH_MODES, default="full",
        help="full: every step of both modes may have a full graph, where the attention backend can")  # fmt: skip
    add("--cudagraph-capture-size", metavar="N|vllm-default", help="in tokens; default: enough for both modes")
    add("--model", default=MODEL, help="another model, or a folder, drops the pinned revision")
    add("--revision", help="commit of --model")
    add("--served-model-name", help="default: --model")
    add("--max-model-len", type=int, default=MAX_MODEL_LEN, metavar="N")
    add("--host", default="127.0.0.1", help="0.0.0.0 only behind a gateway: vLLM lets anyone in")
    add("--port", type=int, default=8000)
    add("--vllm", default="vllm", metavar="CMD", help="what to run as `vllm`, split as a shell would")
    add("--print", action="store_true", help="print the command and exit")
    return door


def checked(options: argparse.Namespace) -> Launch:
    """Refuse, as UserError, what vLLM would refuse, or silently bend, minutes later."""
    k, low, high = options.num_speculative_tokens, options.prompt_lookup_min, options.prompt_lookup_max
    if not 1 <= k <= MAX_SPECULATIVE_TOKENS:
        raise UserError(f"--num-speculative-tokens {k} must be from 1 to {MAX_SPECULATIVE_TOKENS}")
    if low < 1:
        raise UserError(f"--prompt-lookup-min {low} must be at least 1")
    if low > high:
        raise UserError(f"--prompt-lookup-min {low} must not exceed --prompt-lookup-max {high}")
    if options.max_model_len <= MAX_TOKENS + k:
        raise UserError(
            f"--max-model-len {options.max_model_len} leaves no room for a prompt beside {MAX_TOKENS} answer "
            f"tokens and {k} drafts: raise it or lower --num-speculative-tokens"
        )
    if not 1 <= options.port <= 65535:
        raise UserError(f"--port {options.port} must be from 1 to 65535")
    if not options.host:
        raise UserError("--host is empty, which vLLM takes for every interface: give an address")
    if not options.model or options.model.startswith("-"):
        raise UserError(f"--model {options.model!r} names no model: give a model's id or a folder")
    return Launch(
        mode=options.mode,
        num_speculative_tokens=k,
        prompt_lookup_min=low,
        prompt_lookup_max=high,
        prefix_caching=options.prefix_caching == "on",
        cudagraph_mode=options.cudagraph_mode,
        capture_size=_chosen_capture_size(options.cudagraph_capture_size, k),
        model=options.model,
        revision=options.revision or (REVISION if options.model == MODEL else None),
        served_model_name=options.served_model_name or options.model,
        max_model_len=options.max_model_len,
        host=options.host,
        port=options.port,
    )


def _chosen_capture_size(text: str | None, k: int) -> int | None:
    if text is None:
        return capture_size(k)
    if text == "vllm-default":
        return None
    if not (text.isascii() and text.isdigit() and is_capture_size(int(text))):
        raise UserError(
            f"--cudagraph-capture-size {text} is no size of vLLM's: give 1, 2, 4, a multiple of 8 below 256 "
            "or of 16 from there, or vllm-default"
        )
    return int(text)


def vllm_command(text: str) -> list[str]:
    """The words of --vllm; UserError where a shell could not split it."""
    try:
        command = shlex.split(text)
    except ValueError as problem:
        raise UserError(f"--vllm cannot be split into words ({problem}): check its quotes") from None
    if not command:
        raise UserError("--vllm is empty: give the command that runs vLLM, or leave the flag out")
    return command


def become_vllm(launch: Launch, argv: list[str]) -> NoReturn:
    """Replace this process by vLLM's, so that SIGTERM reaches it; UserError where it cannot be started."""
    # vLLM's console script does not look in the working directory, so the middleware's folder goes on PYTHONPATH.
    folder = str(Path(__file__).resolve().parent)
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, environment.get("PYTHONPATH")]))
    environment[RECORD_VARIABLE] = json.dumps(server_record(launch, argv, environment))
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as problem:
        raise UserError(
            f"cannot start {argv[0]} ({problem.strerror}): install vLLM {VLLM_VERSION} or give its command to --vllm"
        ) from None


def main(argv: Sequence[str] | None = None) -> None:
    """Print the command of `argv` (default: the process's own), and become it unless --print is there."""
    options = parser().parse_args(argv)
    try:
        launch = checked(options)
        command = [*vllm_command(options.vllm), *arguments(launch)]
        print(json.dumps(redacted(command)), flush=True)
        if not options.print:
            become_vllm(launch, command)
    except UserError as problem:
        print(f"launch_vllm.py: {problem}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
