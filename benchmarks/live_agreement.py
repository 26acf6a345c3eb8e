#!/usr/bin/env python3
"""bench.py's client beside the request function of vLLM's own benchmark, on one live server: do they agree?

    python benchmarks/live_agreement.py --url http://127.0.0.1:8000 --concurrency 1,8 --repeats 10 --json FILE
    python benchmarks/live_agreement.py --url … --vllm-file PATH/vllm/benchmarks/lib/endpoint_request_func.py

Both send the same prompts with the same parameters. A block is every case once by each, in alternating order: case by
case at one user, so that a server that slows touches both alike, and the whole inventory in turn at more. The ratio is
ours / vLLM's: the geometric mean over cases and blocks, with the standard error over blocks. vLLM's latency ends with
the usage event and ours with `[DONE]`, its TTFT with the empty role chunk and ours with the first content.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent), str(Path(__file__).parent / "streaming")]
import clients  # noqa: E402 - scripts, not packages
import fidelity  # noqa: E402

from specbench.client.load import ClosedLoop, run_event_loop  # noqa: E402
from specbench.client.request import RequestSettings  # noqa: E402
from specbench.client.transport import StreamTransport  # noqa: E402
from specbench.record.format import Request  # noqa: E402
from specbench.workload.case import Case  # noqa: E402
from specbench.workload.inventory import read_inventory  # noqa: E402
from specbench.workload.schedule import Item  # noqa: E402

Times = dict[str, dict[str, float]]  # case -> e2el and ttft in seconds


async def ours(settings: RequestSettings, transport: StreamTransport, cases: Sequence[Case], users: int) -> Times:
    """`cases` through our closed loop."""
    rows: list[Request] = []
    items = [Item(case, 0, position) for position, case in enumerate(cases)]
    loop = ClosedLoop(
        items, phase="measured", concurrency=users, transport=transport, settings=settings, zero_ns=perf_counter_ns(),
        sink=rows.append,
    )  # fmt: skip
    await loop.run()
    failed = [row for row in rows if row.outcome != "ok"]
    if failed:
        raise SystemExit(f"our request {failed[0].case} ended as {failed[0].outcome}: {failed[0].error}")
    return {row.case: {"e2el": row.e2el_s or math.nan, "ttft": row.ttft_s or math.nan} for row in rows}


async def theirs(module: Any, session: Any, settings: RequestSettings, cases: Sequence[Case], users: int) -> Times:
    """`cases` through vLLM's function."""
    schedule = iter(cases)
    times: Times = {}
    shared = {name: value for name, value in settings.body().items() if name not in ("model", "max_tokens", "stream")}

    async def user() -> None:
        for case in schedule:
            request = module.RequestFuncInput(
                prompt=case.messages[-1]["content"], api_url=str(settings.endpoint), prompt_len=0,
                output_len=case.max_tokens or settings.max_tokens, model=settings.model, extra_body=shared,
            )  # fmt: skip
            output = await module.async_request_openai_chat_completions(request, session)
            if not output.success:
                raise SystemExit(f"vLLM's request {case.id} failed: {output.error}")
            times[case.id] = {"e2el": output.latency, "ttft": output.ttft}

    await asyncio.gather(*(user() for _ in range(users)))
    return times


async def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A record per concurrency: the ratio ours / vLLM's of E2EL and TTFT."""
    import aiohttp

    os.environ["VLLM_REQUEST_FUNCTION"] = str(arguments.vllm_file or fidelity.vllm_request_function())
    module = clients._vllm_module()
    cases = read_inventory(arguments.prompts).cases
    records = []
    async with aiohttp.ClientSession() as session, contextlib.aclosing(StreamTransport()) as transport:
        async with session.get(arguments.url + "/v1/models") as answer:
            model = (await answer.json())["data"][0]["id"]
        settings = RequestSettings(url=arguments.url, model=model)
        for users in arguments.concurrency:
            await ours(settings, transport, cases, users)
            await theirs(module, session, settings, cases, users)
            turns = [[case] for case in cases] if users == 1 else [cases]
            logs = []
            for block in range(arguments.repeats):
                results: dict[str, Times] = {"ours": {}, "vllm": {}}
                for number, turn in enumerate(turns):
                    for name in ("ours", "vllm") if (block + number) % 2 == 0 else ("vllm", "ours"):
                        results[name] |= (
                            await ours(settings, transport, turn, users)
                            if name == "ours"
                            else await theirs(module, session, settings, turn, users)
                        )
                logs.append(
                    [
                        [math.log(results["ours"][case.id][name] / results["vllm"][case.id][name]) for case in cases]
                        for name in ("e2el", "ttft")
                    ]
                )
            means = np.array(logs).mean(axis=2)  # [blocks, 2]
            ratio, error = np.exp(means.mean(axis=0)), means.std(axis=0, ddof=1) / math.sqrt(len(means))
            record = {"concurrency": users, "blocks": len(means), "cases": len(cases)}
            for index, name in enumerate(("e2el", "ttft")):
                record |= {f"{name}_ratio": float(ratio[index]), f"{name}_standard_error": float(error[index])}
            print(
                f"{users} users: E2EL ratio {ratio[0]:.4f} ± {error[0]:.4f} (standard error over blocks), "
                f"TTFT ratio {ratio[1]:.4f} ± {error[1]:.4f}",
                flush=True,
            )
            records.append(record)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--concurrency", type=lambda text: [int(part) for part in text.split(",")], default=[1, 8])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--prompts", type=Path, default=ROOT / "prompts.jsonl")
    parser.add_argument("--vllm-file", type=Path, help="endpoint_request_func.py of the server's own vLLM")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    records = run_event_loop(lambda: measure(arguments))
    if arguments.json:
        arguments.json.write_text(json.dumps(records, indent=2) + "\n")


if __name__ == "__main__":
    main()
