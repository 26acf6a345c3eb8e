"""What other than the mode could explain a difference: each gate is held against numbers that were recorded."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from specbench.comparison.audit import audit_drafting
from specbench.comparison.format import Gate
from specbench.comparison.pairing import Pair
from specbench.comparison.sides import Run
from specbench.comparison.steps import Steps, Unknown, count_steps
from specbench.record.format import Speculation
from specbench.words import some

_NAMED = 12  # runs that one sentence names


_RECORD = "start the server with launch_vllm.py, which answers GET /server-record"
_METRICS = "run bench.py against a server whose /metrics says it"


def check_gates(pair: Pair, counted: Mapping[str, Steps | Unknown] | None = None) -> list[Gate]:
    """Every gate once, in the order in which a reader should look. `counted`: the steps of every run, if known."""
    first, *others = (gate(pair) for gate in _GATES)
    return [first, audit_drafting(pair, count_steps(pair) if counted is None else counted), *others]


def _drafts_in_ngram(pair: Pair) -> Gate:
    runs = [run for run in pair.runs if run.mode == "ngram"]
    if not runs:
        return Gate("drafts in ngram", "ok", None, None, "no side is ngram", None)
    action = "look at --speculative-config in the server's log, and at logprobs and penalties in the requests"
    for run in runs:
        if run.summary.server.drafts == 0:
            return Gate("drafts in ngram", "fired", 0, 1, f"{run.name} drafted nothing: ngram was not at work", action)
    if silent := [run.name for run in runs if run.summary.server.drafts is None]:
        return Gate("drafts in ngram", "not checked", None, 1, f"{some(silent, _NAMED)}: no draft counter", _METRICS)
    least = min(run.summary.server.drafts or 0 for run in runs)
    return Gate("drafts in ngram", "ok", least, 1, f"ngram drafted, at least {least:,.0f} times a run", None)


def _kv_blocks(pair: Pair) -> Gate:
    """Deployments differ by a few blocks of memory each time; that matters once a cache could not hold every user."""
    action = "free the GPU of other processes before each deployment, or lower --concurrency"
    blocks: dict[str, float] = {}
    for run in pair.runs:
        labels = run.manifest.server.cache_config or {}
        count, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
        limit = run.manifest.server.model.max_model_len
        # The labels are text, and "None" is one that vLLM writes.
        if limit is None or not count.isdecimal() or not size.isdecimal() or int(size) == 0:
            return Gate("kv blocks", "not checked", None, None, f"{run.name} does not say its KV blocks", _METRICS)
        blocks[run.name] = float(count)
        needed = pair.concurrency * math.ceil(float(limit) / float(size))
    fewest, most = min(blocks, key=blocks.__getitem__), max(blocks, key=blocks.__getitem__)
    few, many = blocks[fewest], blocks[most]
    if few != many and few < needed:
        sentence = (
            f"kv blocks differ, {fewest} has {few:,.0f} and {most} {many:,.0f}, and "
            f"{pair.concurrency} users at full length need {needed:,.0f}"
        )
        return Gate("kv blocks", "fired", few, needed, sentence, action)
    return Gate("kv blocks", "ok", few, needed, f"the KV cache of every deployment has {few:,.0f} blocks or more", None)


def _capture_size(pair: Pair) -> Gate:
    """ngram decodes concurrency × (k + 1) tokens a step; steps beyond the capture size run without a CUDA graph."""
    action = "deploy both modes with --max-cudagraph-capture-size {needed} or more (launch_vllm.py does)"
    tightest: tuple[int, int, str] | None = None  # captured tokens, needed tokens, run
    for run in pair.runs:
        if run.mode != "ngram" or run.manifest.server.engine == "llama.cpp":
            continue
        k = (run.launched.speculative_config or Speculation()).num_speculative_tokens
        seqs, cap = run.launched.max_num_seqs, run.launched.cudagraph_capture_size
        if k is None or seqs is None or "cudagraph_capture_size" not in run.record:
            return Gate("capture size", "not checked", None, None, f"{run.name} does not say its capture size", _RECORD)
        captured = min(2 * seqs, 512) if cap is None else cap  # vLLM's own default
        needed = min(pair.concurrency, seqs) * (k + 1)
        if tightest is None or captured - needed < tightest[0] - tightest[1]:
            tightest = captured, needed, run.name
    if tightest is None:
        return Gate("capture size", "ok", None, None, "no side captures CUDA graphs for drafts", None)
    captured, needed, name = tightest
    if captured < needed:
        sentence = (
            f"{name} captures CUDA graphs up to {captured} tokens and {pair.concurrency} users need {needed}: "
            "the cap was measured, not the method"
        )
        return Gate("capture size", "fired", captured, needed, sentence, action.format(needed=needed))
    return Gate("capture size", "ok", captured, needed, f"CUDA graphs up to {captured} tokens, {needed} needed", None)


def _graph_mode(pair: Pair) -> Gate:
    """Unless vLLM ran FULL, an ngram step that is not fully drafted has no full CUDA graph; a baseline step has one.

    A card whose attention backend cannot run FULL falls back: that is named, and does not fire, since nothing helps.
    """
    runs = [run for run in pair.runs if run.mode == "ngram" and run.manifest.server.engine != "llama.cpp"]
    if not runs:
        return Gate("graph mode", "ok", None, None, "no side captures CUDA graphs for drafts", None)
    if silent := [run.name for run in runs if run.launched.cudagraph_mode_ran is None]:
        sentence = f"{some(silent, _NAMED)}: which CUDA-graph mode ran is not known"
        return Gate("graph mode", "not checked", None, 0, sentence, _RECORD)
    ragged = [run for run in runs if run.launched.cudagraph_mode_ran != "FULL"]
    if not ragged:
        return Gate("graph mode", "ok", 0, 0, "every decode step of ngram may have a full CUDA graph", None)
    if {run.launched.cudagraph_mode_ran for run in pair.runs} in ({"PIECEWISE"}, {"NONE"}):
        return Gate("graph mode", "ok", 0, 0, "neither mode has full CUDA graphs", None)
    share, run = max(((1 - (run.summary.server.draft_coverage or 0), run) for run in ragged), key=lambda item: item[0])
    sentence = (
        f"{run.name} ran the graph mode {run.launched.cudagraph_mode_ran}: {share:.0%} of its steps drafted nothing "
        "and had no full CUDA graph, while every baseline step has one; on an H200 at Qwen3-4B's size such a step took "
        "1.7 to 1.8 times as long as a baseline step, with full graphs 1.0 to 1.5 times"
    )
    if all(run.launched.cudagraph_mode == "full" for run in ragged):
        sentence += "; full graphs were asked for, and this card's attention backend cannot run them"
        return Gate("graph mode", "ok", share, None, sentence, None)
    action = "deploy both modes with --cudagraph-mode full"
    return Gate("graph mode", "fired", share, 0, sentence, action)


def _compile_cache(pair: Pair) -> Gate:
    states = [(run, run.launched.compile_cache) for run in pair.runs]
    if silent := [run.name for run, state in states if state not in ("cold", "warm")]:
        sentence = f"{some(silent, _NAMED)}: cold or warm is not known"
        return Gate("compile cache", "not checked", None, 0, sentence, _RECORD)
    cold = [run for run, state in states if state == "cold"]
    number = abs(sum(1 if run.side == "base" else -1 for run in cold))
    if number:
        names = some([run.name for run in cold], _NAMED)
        sentence = f"{names} compiled at start and the other side loaded a warm cache"
        action = "deploy both modes once to fill the compile cache, then measure again"
        return Gate("compile cache", "fired", number, 0, sentence, action)
    return Gate("compile cache", "ok", 0, 0, "cold and warm starts are alike on both sides", None)


def _baseline_drafts(run: Run) -> float | None:
    """vLLM has no draft counter at all without speculation: None beside other counters is its way to say 0."""
    number = run.summary.server.drafts
    silent = number is None and run.summary.server.generation_tokens is not None
    return 0 if run.mode != "baseline" or silent else number


def _restarts(run: Run) -> int | None:
    restarted = run.summary.server.restarted
    return None if restarted is None else int(restarted)


def _cache_hits(run: Run) -> float | None:
    return 0 if prefix_caching(run) else run.summary.server.prefix_cache_hits


def _lag_share(run: Run) -> float | None:
    """Loop lag (p99) over the median E2EL; harmless, so at most the limit of 1%, where it is below 2 ms."""
    lag = run.summary.client.loop_lag_p99_ms
    if lag is None:
        return None
    share = lag / (1000 * float(np.median(run.times["e2el"])))
    return float(share) if lag > 2 else min(float(share), 0.01)


def _driver(run: Run) -> Any:
    driver = run.launched.driver
    return None if driver is None else [driver, run.launched.cuda]


def public_version(run: Run) -> str | None:
    """The image says 0.11.2+cu129 and the wheel 0.11.2: the public part is what is compared."""
    return str(run.manifest.server.version or "").partition("+")[0] or None


def comparable_flags(run: Run) -> list[str] | None:
    """Arguments, environment and settings that must be alike; None where the server gave no record."""
    argv = run.launched.argv
    if argv is None:
        return None
    named = {**(run.launched.environment or {}), **(run.launched.settings or {})}
    return _flags_in(argv) + [f"{name}={value}" for name, value in sorted(named.items())]


def _difference(one: Any, two: Any) -> str:
    """Two values, reduced to the parts in which they differ."""
    if isinstance(one, list) and isinstance(two, list):
        only = [[str(item) for item in a if item not in b] for a, b in ((one, two), (two, one))]
        return " and ".join(" ".join(items) or "nothing" for items in only)
    return f"{one} and {two}"


def prefix_caching(run: Run) -> bool | None:
    """Whether prefix caching is said to be on."""
    if run.launched.prefix_caching is not None:
        return run.launched.prefix_caching
    label = (run.manifest.server.cache_config or {}).get("enable_prefix_caching")
    return None if label is None else label == "True"


def _flags_in(argv: Sequence[str]) -> list[str]:
    """Flags with their values, without those that may differ: the speculative ones and the address."""
    flags: list[str] = []
    for argument in argv:
        if argument.startswith("--") or not flags:
            flags.append(argument)
        else:
            flags[-1] += f" {argument}"
    return sorted(flag for flag in flags if not flag.startswith(("--speculative", "--mode", "--host", "--port")))


def _above(
    name: str,
    value_of: Callable[[Run], float | None],
    threshold: float,
    *,
    fired: str,
    ok: str,
    action: str,
    unknown: str,
) -> Callable[[Pair], Gate]:
    """A gate that fires when any deployment's number is above the threshold."""

    def check(pair: Pair) -> Gate:
        values = [(value_of(run), run.name) for run in pair.runs]
        known = [(number, run) for number, run in values if number is not None]
        number, worst = max(known, default=(0.0, ""), key=lambda item: item[0])
        if number > threshold:
            return Gate(name, "fired", number, threshold, fired.format(run=worst, number=number), action)
        if silent := [run for value, run in values if value is None]:
            return Gate(name, "not checked", None, threshold, f"{some(silent, _NAMED)}: no {unknown}", _METRICS)
        return Gate(name, "ok", number, threshold, ok.format(number=number), None)

    return check


def _differs(
    name: str, value_of: Callable[[Run], Any], *, ok: str, action: str, to_check: str = _RECORD
) -> Callable[[Pair], Gate]:
    """A gate that fires when a setting is not the same in all deployments; `number` counts its values."""

    def check(pair: Pair) -> Gate:
        values: dict[str, str] = {}
        silent = []
        for run in pair.runs:
            value = value_of(run)
            if value is None:
                silent.append(run.name)
            else:
                values.setdefault(json.dumps(value, sort_keys=True), run.name)
        if len(values) > 1:
            (one, first), (two, second), *_ = values.items()
            sentence = f"{name} differs: {first} and {second}: {_difference(json.loads(one), json.loads(two))}"
            return Gate(name, "fired", len(values), 1, sentence, action)
        if silent:
            return Gate(name, "not checked", None, 1, f"{some(silent, _NAMED)}: {name} not said", to_check)
        return Gate(name, "ok", 1, 1, ok, None)

    return check


_GATES: tuple[Callable[[Pair], Gate], ...] = (
    _drafts_in_ngram,
    _above(
        "drafts in baseline",
        _baseline_drafts,
        0,
        fired="{run} drafted {number:,.0f} times",
        ok="the baseline drafted nothing",
        action="deploy the baseline with mode=baseline",
        unknown="draft counter",
    ),
    _above(
        "server restarted",
        _restarts,
        0,
        fired="{run}: the server restarted during the run",
        ok="no server restarted",
        action="read the server's log for why it ended, and measure again",
        unknown="process start time",
    ),
    _above(
        "foreign requests",
        lambda run: run.summary.server.foreign_requests,
        0,
        fired="{run}: the server answered {number:,.0f} requests that bench.py did not send",
        ok="nobody else used the server",
        action="keep everybody else off the service and measure again",
        unknown="count of answered requests",
    ),
    _above(
        "prefix cache hits",
        _cache_hits,
        0,
        fired="{run} reused {number:,.0f} cached prompt tokens although prefix caching is not said to be on, so a "
        "repeated prompt cost less than a new one",
        ok="no prompt was answered from a cache that is said to be off",
        action="deploy both modes with prefix_caching off, or with it on in both",
        unknown="prefix-cache counter",
    ),
    _differs(
        "prefix caching",
        prefix_caching,
        ok="prefix caching is the same everywhere",
        action="deploy both modes with one prefix_caching",
    ),
    _above(
        "preemptions",
        lambda run: run.summary.server.preemptions,
        0,
        fired="{run}: the server preempted requests {number:,.0f} times for lack of KV blocks",
        ok="nothing was preempted",
        action="lower --concurrency or raise --gpu-memory-utilization, and measure both modes again",
        unknown="preemption counter",
    ),
    _above(
        "client cpu",
        lambda run: run.summary.client.cpu_share,
        0.5,
        fired="{run}: the client used {number:.0%} of its core, so its own work is in the times",
        ok="the client had its core to itself, at most {number:.0%} used",
        action="give the client a core of its own, or lower --concurrency",
        unknown="CPU share of the client",
    ),
    _above(
        "client lag",
        _lag_share,
        0.01,
        fired="{run}: the client's event loop lagged (p99) by {number:.1%} of the median E2EL",
        ok="the client's event loop lagged (p99) by at most 2 ms or {number:.2%} of the median E2EL",
        action="run bench.py on a machine that does nothing else, or lower --concurrency",
        unknown="lag of the event loop",
    ),
    _capture_size,
    _graph_mode,
    _kv_blocks,
    _differs(
        "gpu",
        lambda run: run.launched.gpus or None,  # an empty list is nvidia-smi's silence
        ok="one kind of GPU",
        action="deploy both modes on the same kind and number of GPUs",
    ),
    _differs("driver", _driver, ok="one driver and CUDA version", action="deploy both modes on nodes with one driver"),
    _differs(
        "version",
        public_version,
        ok="one server version",
        action="deploy both modes from one image",
        to_check=_METRICS,
    ),
    _differs(
        "flags",
        comparable_flags,
        ok="the same flags but for the speculative ones",
        action="deploy both modes with the same flags and environment but --speculative-config",
    ),
    _compile_cache,
)
