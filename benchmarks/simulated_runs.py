"""Result directories with known truth, in the format that bench.py writes.

    write_run(tmp_path / "ngram-c1", mode="ngram", effect={"copy": -0.4}, outputs=lambda case, repeat: f"answer {case}")

`effect` is the true difference of ln(E2EL) from the baseline, `deployment` the shift of this one deployment; the
noise is AR(`ar`) in schedule order. `edit` receives (manifest, summary, rows) to break something before it is written.
"""

import hashlib
import json
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np

NINE = [(f"{family}-{number}", family) for family in ("copy", "explain", "short") for number in (1, 2, 3)]
LEVEL_S = {"copy": 0.7, "explain": 0.9, "short": 0.12}
TOKENS = {"copy": 90, "explain": 128, "short": 12}
EPOCH = datetime(2026, 3, 2, 9, 0, tzinfo=timezone.utc)

Edit = Callable[[dict[str, Any], dict[str, Any], list[dict[str, Any]]], None]


def write_run(
    path: Path,
    *,
    mode: str = "baseline",
    cases: Sequence[tuple[str, str]] = NINE,
    repeats: int = 5,
    effect: float | Mapping[str, float] = 0.0,
    deployment: float = 0.0,
    noise: float = 0.03,
    ar: float = 0.0,
    spread: float = 0.0,
    seed: int = 1,
    schedule_seed: int = 0,
    order: int = 0,
    concurrency: int = 1,
    outputs: Callable[[str, int], str] = lambda case, repeat: f"The answer to {case}.",
    expect: Mapping[str, str] | None = None,
    token_ids: bool = True,
    summary: Mapping[str, Any] | None = None,
    edit: Edit | None = None,
) -> Path:
    """Write one result directory and return its path.

    Args:
        effect: true effect on ln(E2EL), one for all or per family (a family that is not named has none).
        deployment: this deployment's own shift of ln(E2EL).
        noise: standard deviation of ln(E2EL) within a case; `ar` its lag-1 correlation in schedule order.
        spread: standard deviation of the effects over cases, the same draw in every run (only where `effect` is given).
        seed: of the noise. `schedule_seed`: of the order of the requests; both runs of a pair have the same.
        order: hours after the epoch at which this deployment started.
        outputs: the text of a case's answer in a repeat; its token ids are made of it.
        summary: sections that replace the healthy ones, e.g. {"server": {"preemptions": 3}}, merged key by key.
    """
    schedule = _schedule(cases, repeats, schedule_seed)
    shifts = _effects(cases, effect, spread)
    errors = _autoregressive(len(schedule), noise, ar, seed)
    expect = dict(expect or {})
    rows = []
    start = 0.0
    for position, (case, family, repeat) in enumerate(schedule):
        text = outputs(case, repeat)
        log_e2el = np.log(LEVEL_S.get(family, 0.5)) + shifts[case] + deployment + errors[position]
        rows.append(_row(case, family, repeat, position, start, float(np.exp(log_e2el)), text, concurrency, token_ids))
        start += rows[-1]["e2el_s"] / concurrency
    manifest = _manifest(mode, cases, repeats, schedule, schedule_seed, concurrency, order, expect)
    whole = _summary(rows, mode)
    for section, values in (summary or {}).items():
        whole[section].update(values)
    if edit:
        edit(manifest, whole, rows)
    path.mkdir(parents=True)
    (path / "manifest.json").write_text(json.dumps(manifest, indent=1))
    (path / "requests.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    (path / "summary.json").write_text(json.dumps(whole, indent=1))
    return path


def _schedule(cases: Sequence[tuple[str, str]], repeats: int, seed: int) -> list[tuple[str, str, int]]:
    generator = random.Random(seed)
    items = []
    for repeat in range(repeats):
        shuffled = list(cases)
        generator.shuffle(shuffled)
        items += [(case, family, repeat) for case, family in shuffled]
    return items


def _effects(cases: Sequence[tuple[str, str]], effect: float | Mapping[str, float], spread: float) -> dict[str, float]:
    draws = np.random.default_rng(99).normal(0, spread, len(cases)) if spread and effect else np.zeros(len(cases))
    of = effect if isinstance(effect, Mapping) else dict.fromkeys((family for _, family in cases), effect)
    return {case: of.get(family, 0.0) + float(draw) for (case, family), draw in zip(cases, draws, strict=True)}


def _autoregressive(n: int, sd: float, ar: float, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    white = generator.normal(0, sd, n)
    out = np.empty(n)
    last = white[0] if n else 0.0
    for index in range(n):
        last = ar * last + np.sqrt(1 - ar * ar) * white[index]
        out[index] = last
    return out


def _row(
    case: str,
    family: str,
    repeat: int,
    position: int,
    start: float,
    e2el: float,
    text: str,
    concurrency: int,
    token_ids: bool,
) -> dict[str, Any]:
    tokens = TOKENS.get(family, 40) if text else 0
    ttft = min(0.02 * (e2el / LEVEL_S.get(family, 0.5)) ** 0.25, 0.4 * e2el)  # gains a quarter of what E2EL gains
    return {
        "case": case,
        "family": family,
        "repeat": repeat,
        "position": position,
        "user": position % concurrency,
        "phase": "measured",
        "start_s": round(start, 6),
        "ttft_s": ttft,
        "e2el_s": e2el,
        "decode_s": e2el - ttft,
        "prompt_tokens": 40,
        "completion_tokens": tokens,
        "first_tokens": 1,
        "chunks": tokens,
        "finish_reason": "stop",
        "stop_reason": None,
        "text": text,
        "token_ids": _token_ids(text) if token_ids else None,
        "outcome": "ok",
        "error": None,
        "http_status": 200,
        "response_id": f"chatcmpl-{position}",
        "prompt_sha256": _sha(case),
    }


def _token_ids(text: str) -> list[int]:
    """A made-up tokenizer: four characters a token, as English comes to."""
    return [zlib.crc32(text[at : at + 4].encode()) % 50_000 for at in range(0, len(text), 4)]


def _manifest(
    mode: str,
    cases: Sequence[tuple[str, str]],
    repeats: int,
    schedule: Sequence[tuple[str, str, int]],
    schedule_seed: int,
    concurrency: int,
    order: int,
    expect: Mapping[str, str],
) -> dict[str, Any]:
    started = EPOCH + timedelta(hours=order)
    stamp = started.timestamp()
    ngram = mode == "ngram"
    return {
        "format": 1,
        "tool": {"name": "specbench", "version": "1.0.0"},
        "command": ["bench.py", "--concurrency", str(concurrency), "--repeats", str(repeats)],
        "mode": mode,
        "mode_verified": {"how": "server record", "detail": f"GET /server-record says {mode}"},
        "service_run": None,
        "url": "http://127.0.0.1:8000",
        "server": {
            "engine": "vllm",
            "version": "0.11.2+cu129",
            "record": {
                "record": 1,
                "mode": mode,
                "engine": "vllm",
                "argv": ["vllm", "serve", "Qwen/Qwen3-4B", "--max-num-seqs", "8", "--max-cudagraph-capture-size", "48"]
                + (["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 5}'] if ngram else []),
                "version": "0.11.2+cu129",
                "model": "Qwen/Qwen3-4B",
                "revision": "1cfa9a7208912126459214e8b04321603b3df60c",
                "served_model_name": "Qwen/Qwen3-4B",
                "speculative_config": {"method": "ngram", "num_speculative_tokens": 5} if ngram else None,
                "prefix_caching": False,
                "cudagraph_mode": "full",
                "cudagraph_mode_ran": "FULL",
                "cudagraph_capture_size": 48,
                "max_num_seqs": 8,
                "max_model_len": 2048,
                "max_num_batched_tokens": 2048,
                "gpus": [{"name": "NVIDIA H200", "memory_mib": 143771}],
                "driver": "580.159.04",
                "cuda": "12.9",
                "boot_id": _sha(f"{mode} {order}")[:32],
                "started": stamp - 90,
                "compile_cache": "warm",
                "environment": {},
                "service_run": None,
            },
            "model": {"id": "Qwen/Qwen3-4B", "root": "Qwen/Qwen3-4B", "max_model_len": 2048},
            "cache_config": {"block_size": "16", "num_gpu_blocks": "51234", "enable_prefix_caching": "False"},
            "process_start_time": stamp - 80,
        },
        "request": {
            "model": "Qwen/Qwen3-4B",
            "temperature": 0,
            "max_tokens": 128,
            "stream": True,
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"enable_thinking": False},
            "return_token_ids": True,
            "seed": schedule_seed,
        },
        "inventory": {
            "name": "prompts.jsonl",
            "sha256": _sha(repr(list(cases)) + repr(sorted(expect.items()))),
            "cases": [
                {
                    "id": case,
                    "family": family,
                    "max_tokens": None,
                    "expect": expect.get(case),
                    "prompt_sha256": _sha(case),
                }
                for case, family in cases
            ],
        },
        "schedule": {
            "sha256": _sha(repr(schedule)), "requests": len(schedule), "repeats": repeats, "seed": schedule_seed,
        },
        "concurrency": concurrency,
        "timeout_s": 300.0,
        "inactivity_timeout_s": 60.0,
        "client": {
            "os": "Linux 6.1 x86_64",
            "python": "3.11.9",
            "packages": {"numpy": "2.2.0"},
            "cores": 8,
            "event_loop": "uvloop",
            "location": None,
        },
        "network": {"health_rtt_ms": {"n": 20, "min": 0.2, "p50": 0.3, "max": 0.9}, "proxies": []},
        "started": started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "ended": (started + timedelta(minutes=3)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "status": "complete",
        "stopped": None,
    }


def _summary(rows: Sequence[Mapping[str, Any]], mode: str) -> dict[str, Any]:
    tokens = sum(row["completion_tokens"] for row in rows)
    window = rows[-1]["start_s"] + rows[-1]["e2el_s"] if rows else 0.0
    ngram = mode == "ngram"
    return {
        "format": 1,
        "status": "complete",
        "requests": {
            "scheduled": len(rows),
            "measured": len(rows),
            "ok": len(rows),
            "outcomes": {"ok": len(rows)},
            "warmup": 12,
        },
        "metrics": {"overall": {}, "families": {}},
        "throughput": {"tokens_per_s": tokens / window if window else None, "tokens": tokens, "window_s": window},
        "tokens_per_chunk": {"overall": 1.0, "families": {}},
        "expect": {"checked": 0, "passed": 0, "cases": {}},
        "server": {
            "drafts": 400 if ngram else None,
            "draft_tokens": 2000 if ngram else None,
            "accepted_tokens": 900 if ngram else None,
            "accepted_per_position": [300, 220, 170, 120, 90] if ngram else [],
            "generation_tokens": tokens,
            "acceptance_rate": 0.45 if ngram else None,
            "mean_acceptance_length": 3.25 if ngram else None,
            "tokens_per_step": 1.3 if ngram else 1.0,
            "draft_coverage": 0.2 if ngram else None,
            "acceptance_per_position": [0.75, 0.55, 0.42, 0.3, 0.22] if ngram else [],
            "prefix_cache_queries": 0,
            "prefix_cache_hits": 0,
            "preemptions": 0,
            "queue_time_mean_s": 0.00001,
            "requests_succeeded": len(rows),
            "foreign_requests": 0,
            "restarted": False,
        },
        "client": {
            "cpu_share": 0.08,
            "loop_lag_p50_ms": 0.1,
            "loop_lag_p99_ms": 0.6,
            "connections_opened": 1,
            "connections_replaced": 0,
            "schedule_to_wire_p50_ms": 0.1,
            "schedule_to_wire_p99_ms": 0.3,
        },
        "warnings": [],
    }


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
