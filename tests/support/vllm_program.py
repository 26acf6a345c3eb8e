"""What tests give launch_vllm.py as `--vllm`: takes vLLM's command line and serves recorded streams (vllm_standin.py).

    python vllm_program.py [--fail-at-start | --never-healthy | --die-at N | --sick-at N] [--once FILE] serve MODEL ...

With --once the trouble comes only while FILE does not exist, and makes it.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from launch_vllm import RECORD_VARIABLE  # noqa: E402
from support.vllm_standin import StandIn  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fail-at-start", action="store_true", help="end as vLLM does when the GPU is too small")
    parser.add_argument("--never-healthy", action="store_true")
    parser.add_argument("--die-at", type=int, metavar="N", help="end without a word at the Nth chat request")
    parser.add_argument("--sick-at", type=int, metavar="N", help="as with a dead engine: 500 from the Nth request on")
    parser.add_argument("--once", type=Path, metavar="FILE")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between chunks")
    parser.add_argument("serve")
    parser.add_argument("model")
    parser.add_argument("--port", type=int)
    parser.add_argument("--served-model-name")
    parser.add_argument("--speculative-config", type=json.loads)
    options, _ = parser.parse_known_args()
    trouble = options.once is None or not options.once.exists()

    def in_trouble() -> bool:
        if trouble and options.once:
            options.once.touch()
        return trouble

    if options.fail_at_start and in_trouble():
        print("loading weights\ntorch.OutOfMemoryError: CUDA out of memory.", file=sys.stderr)
        raise SystemExit(1)

    def fault(number: int) -> str | None:
        if options.die_at is not None and number >= options.die_at and in_trouble():
            os._exit(1)
        if options.sick_at is not None and number >= options.sick_at and in_trouble():
            server.health = 503
            return "500"
        return None

    record = json.loads(os.environ[RECORD_VARIABLE]) | {"version": "0.11.2", "compile_cache": "warm"}
    mode = "ngram" if options.speculative_config else "baseline"
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    server = StandIn(mode, record=record, fault=fault, port=options.port)
    server.models[0]["id"] = options.served_model_name
    server.pause_s = options.pause
    server.start_time = time.time()
    if options.never_healthy:
        server.health = 503
    with server:
        signal.sigwait({signal.SIGTERM})
    os._exit(0)


if __name__ == "__main__":
    main()
