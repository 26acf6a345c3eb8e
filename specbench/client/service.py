"""What a server says of itself: readiness, identity, mode, room for the requests, counters. Labels lie; this asks.

These calls go through plain httpx, before and after the measured requests and never among them.
"""

import asyncio
import ipaddress
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
from prometheus_client.parser import text_string_to_metric_families

from specbench import UserError
from specbench.words import printable
from specbench.workload.inventory import Case

MODES = ("baseline", "ngram")
HEALTH_PROBES = 10
SETTLE_S = 2.0
_PREFIXES = {"vllm": "vllm:", "llama.cpp": "llamacpp:"}
_GENERATED = {"vllm": "vllm:generation_tokens_total", "llama.cpp": "llamacpp:tokens_predicted_total"}
_RUN_IN_PATH = re.compile(r"/runs/([^/]+)(?:/|$)")


# ---- address and token


def check_url(url: str | None, *, service_run: str | None, token: str | None, insecure_http: bool) -> str:
    """`url` without a final slash, once it is one that may be measured.

    Raises UserError for no URL, one that cannot be used, another run's URL, a token that cannot be a header's value,
    and one that would travel in the clear. Neither the token nor a user name and password is shown.
    """
    if not url:
        raise UserError("no service to measure: set SERVICE_URL or give --url")
    if "@" in url or "?" in url or "#" in url:
        raise UserError(
            "the service URL may hold no user name, password, query or fragment; give scheme, host and path alone"
        )
    try:
        parts, host = urlsplit(url), httpx.URL(url).host
        parts.port  # noqa: B018 - raises where it is none
    except (ValueError, httpx.InvalidURL):  # brackets or a port that are none
        parts, host = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not host or not parts.hostname or re.search(r"\s", url):
        raise UserError(f"{url!r} is not a URL with http:// or https:// and a host; check SERVICE_URL or --url")
    if token and not re.fullmatch("[!-~]+", token):
        raise UserError("the token holds a blank, a line break or a letter beyond ASCII: set POLYAXON_TOKEN again")
    named = _RUN_IN_PATH.search(parts.path)
    if named and service_run and _uuid(named[1]) != _uuid(service_run):
        raise UserError(
            f"the URL is of run {named[1]} and --service-run says {service_run}: "
            "SERVICE_URL is probably from an earlier run"
        )
    if token and parts.scheme == "http" and not _is_loopback(parts.hostname) and not insecure_http:
        raise UserError(
            f"the token would travel unencrypted to {parts.hostname}: "
            "use https://, unset POLYAXON_TOKEN, or give --insecure-http"
        )
    return url.rstrip("/")


def run_in_url(url: str) -> str | None:
    """The run UUID in a gateway URL `…/runs/UUID/…`, else None."""
    named = _RUN_IN_PATH.search(urlsplit(url).path)
    return named[1] if named else None


def _uuid(text: str) -> str:
    return text.replace("-", "").lower()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


# ---- readiness and identity


@dataclass(frozen=True, slots=True)
class Server:
    """What a ready server says it is. Everything it does not say is None."""

    engine: str | None
    version: str | None
    record: dict[str, Any] | None
    model: dict[str, Any]
    cache_config: dict[str, str] | None
    process_start_time: float | None
    health_rtt_ms: dict[str, float]

    def manifest(self) -> dict[str, Any]:
        """The part that manifest.json holds under "server"."""
        names = ("engine", "version", "record", "model", "cache_config", "process_start_time")
        return {name: getattr(self, name) for name in names}


async def wait_until_ready(client: httpx.AsyncClient, deadline_s: float) -> None:
    """Poll GET /health until it answers 200.

    Raises UserError when the gateway refuses the token, or after `deadline_s` seconds with the last answer.
    """
    end = time.monotonic() + deadline_s
    last = "no answer yet"
    while True:
        try:
            answer = await client.get("health", timeout=5.0)
            if answer.status_code == 200:
                return
            refuse_unauthorized(answer.status_code)
            last = f"HTTP {answer.status_code}"
        except httpx.HTTPError as error:
            last = f"{type(error).__name__} {error}".strip()
        if time.monotonic() >= end:
            raise UserError(
                f"the server at {client.base_url} was not ready within {deadline_s:g} s (last: {last}); "
                "see its log, or give it longer with --ready-timeout"
            )
        await asyncio.sleep(min(1.0, max(0.05, end - time.monotonic())))


def refuse_unauthorized(status: int) -> None:
    """Raise UserError for the answers of a gateway that does not take the token."""
    if status in (401, 403):
        raise UserError(
            f"the service answered HTTP {status}: "
            "set POLYAXON_TOKEN (or POLYAXON_AUTH_TOKEN) to a token that may use this run"
        )


async def identify(client: httpx.AsyncClient, wanted_model: str | None) -> Server:
    """Ask a ready server for its models, version, record, counters and round trip."""
    model = await _model(client, wanted_model)
    metrics = Metrics(await scrape(client))
    version = await _json_or_none(client, "version")
    record = await _json_or_none(client, "server-record")
    if record is not None and "record" not in record:
        record = None
    return Server(
        engine=metrics.engine,
        version=str(version["version"]) if version and "version" in version else None,
        record=record,
        model=model,
        cache_config=metrics.labels("vllm:cache_config_info"),
        process_start_time=metrics.total("process_start_time_seconds"),
        health_rtt_ms=await _health_round_trips(client),
    )


async def _model(client: httpx.AsyncClient, wanted: str | None) -> dict[str, Any]:
    answer = await _get(client, "v1/models")
    refuse_unauthorized(answer.status_code)
    try:
        offered = answer.raise_for_status().json()["data"]
        by_id = {str(entry["id"]): entry for entry in offered}
    except (httpx.HTTPStatusError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{client.base_url}v1/models answered HTTP {answer.status_code} and no list of models: "
            "is this an OpenAI-compatible server?"
        ) from None
    if not by_id:
        raise UserError(f"the server at {client.base_url} offers no model: see its log")
    names = ", ".join(map(printable, by_id))
    if wanted is None and len(by_id) != 1:
        raise UserError(f"the server offers {len(by_id)} models ({names}); choose one with --model")
    if wanted is not None and wanted not in by_id:
        raise UserError(f"the server does not serve --model {wanted}; it serves {names}")
    entry = by_id[wanted] if wanted is not None else next(iter(by_id.values()))
    return {"id": str(entry["id"]), "root": entry.get("root"), "max_model_len": entry.get("max_model_len")}


async def _health_round_trips(client: httpx.AsyncClient) -> dict[str, float]:
    times = []
    for _ in range(HEALTH_PROBES + 1):
        start = time.perf_counter_ns()
        await _get(client, "health")
        times.append((time.perf_counter_ns() - start) / 1e6)
    times = times[1:]  # the first opens the connection
    return {"n": len(times), "min": min(times), "p50": statistics.median(times), "max": max(times)}


async def scrape(client: httpx.AsyncClient) -> str:
    """The raw text of /metrics; empty where the server has none."""
    answer = await _get(client, "metrics")
    return answer.text if answer.status_code == 200 else ""


async def scrape_when_settled(client: httpx.AsyncClient, before: str, finished: int) -> str:
    """The scrape after the run: a server may count the last request a moment after the client saw its end."""
    end = time.monotonic() + SETTLE_S
    while True:
        text = await scrape(client)
        counted = Metrics(text).since(Metrics(before), "vllm:request_success_total")
        if counted is None or counted >= finished or time.monotonic() >= end:
            return text
        await asyncio.sleep(0.05)


async def _get(client: httpx.AsyncClient, path: str) -> httpx.Response:
    try:
        return await client.get(path)
    except httpx.HTTPError as error:
        raise UserError(f"the server stopped answering GET /{path}: {type(error).__name__} {error}".rstrip()) from None


async def _json_or_none(client: httpx.AsyncClient, path: str) -> dict[str, Any] | None:
    answer = await _get(client, path)
    try:
        value = answer.json() if answer.status_code == 200 else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


# ---- mode, and what the server says against it


def check_record(server: Server, mode: str | None, service_run: str | None = None) -> None:
    """Hold the server record against /version, /v1/models, --mode and --service-run.

    Raises UserError showing both values of a contradiction.
    """
    if server.record is None:
        return
    recorded_run = server.record.get("service_run")
    recorded = [
        ("--service-run", _uuid(service_run or "") or None, "service_run", _uuid(str(recorded_run or "")) or None),
        ("--mode", mode, "mode", server.record.get("mode")),
        ("/version", _public(server.version), "version", _public(server.record.get("version"))),
        ("/v1/models", server.model["id"], "served_model_name", server.record.get("served_model_name")),
        ("/v1/models", server.model["max_model_len"], "max_model_len", server.record.get("max_model_len")),
    ]
    for source, stated, name, value in recorded:
        if stated is not None and value is not None and stated != value:
            raise UserError(
                f"{source} says {printable(str(stated))} and the server's own record says {name} "
                f"{printable(str(value))}; measure the server you mean"
            )


def verified_mode(server: Server, asked: str | None, drafts: float | None) -> tuple[str | None, dict[str, str]]:
    """The mode of the server and how that is known.

    Args:
        server: its identity; a record has been checked against `asked`.
        asked: --mode, or the input of the Polyaxon run, or None.
        drafts: what the draft counter rose by in the warm-up; None where the server has no such counter.

    Raises UserError when the drafts contradict the mode.
    """
    mode = (server.record or {}).get("mode") or asked
    rose = bool(drafts)
    if mode == "ngram" and not rose and server.engine is not None:
        raise UserError(
            "mode ngram, but the server drafted nothing for three repetitive prompts: check its --speculative-config, "
            "and that no request parameter switches drafting off"
        )
    if mode == "baseline" and rose:
        raise UserError(
            f"mode baseline, but the server drafted {drafts:g} times in the warm-up: it speculates; check its mode"
        )
    if server.record is not None and server.record.get("mode"):
        return mode, {
            "how": "server record",
            "detail": f"GET /server-record says {mode}; drafts in the warm-up: {drafts or 0:g}",
        }
    if server.engine is None:
        return mode, {
            "how": "not verified",
            "detail": "the server has neither /server-record nor known counters",
        }
    detail = f"no /server-record; drafts in the warm-up: {drafts or 0:g}"
    return mode or ("ngram" if rose else "baseline"), {"how": "draft counter", "detail": detail}


def _public(version: str | None) -> str | None:
    return version.partition("+")[0] if version else None


# ---- room


async def count_prompt_tokens(
    client: httpx.AsyncClient, cases: Sequence[Case], request: Mapping[str, Any]
) -> dict[str, int] | None:
    """Prompt tokens per case id by the server's own POST /tokenize; None where it does not take conversations."""
    shared = {"model": request["model"], "chat_template_kwargs": request["chat_template_kwargs"]}
    counts: dict[str, int] = {}
    for case in cases:
        body = {**shared, "messages": case.messages, "add_generation_prompt": True}
        try:
            answer = await client.post("tokenize", json=body)
            counts[case.id] = int(answer.raise_for_status().json()["count"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None
    return counts


def check_room(server: Server, cases: Sequence[Case], prompt_tokens: Mapping[str, int], max_tokens: int) -> None:
    """Refuse a case whose prompt + max_tokens + k does not fit: past that vLLM stops drafting for the whole batch.

    Raises UserError naming the case and the four numbers.
    """
    limit = server.model["max_model_len"] or (server.record or {}).get("max_model_len")
    if not limit:
        return
    speculation = (server.record or {}).get("speculative_config") or {}
    k = int((server.record or {}).get("num_speculative_tokens") or speculation.get("num_speculative_tokens", 0))
    for case in cases:
        tokens = prompt_tokens.get(case.id, 1)  # before any is counted: no prompt is shorter
        least = "" if case.id in prompt_tokens else "at least "
        wanted = case.max_tokens or max_tokens
        if tokens + wanted + k > limit:
            raise UserError(
                f"case {case.id} does not fit: {least}{tokens} prompt tokens + {wanted} max_tokens + {k} drafted > "
                f"{limit} (the server's max_model_len), "
                "and past it drafting stops for the whole batch; shorten it or lower --max-tokens"
            )


# ---- counters


@dataclass(slots=True)
class Metrics:
    """One scrape of /metrics."""

    text: str
    _samples: dict[str, list[tuple[dict[str, str], float]]] = field(init=False)

    def __post_init__(self) -> None:
        self._samples = {}
        try:
            for family in text_string_to_metric_families(self.text):
                for sample in family.samples:
                    self._samples.setdefault(sample.name, []).append((sample.labels, float(sample.value)))
        except ValueError:
            self._samples = {}  # not Prometheus text: a server without usable counters

    @property
    def engine(self) -> str | None:
        """Which engine names its counters so."""
        for engine, prefix in _PREFIXES.items():
            if any(name.startswith(prefix) for name in self._samples):
                return engine
        return None

    def total(self, name: str) -> float | None:
        """Sum of a counter over its labels; None where the server has none of that name."""
        samples = self._samples.get(name)
        return sum(value for _, value in samples) if samples else None

    def labels(self, name: str) -> dict[str, str] | None:
        """Labels of an info metric."""
        samples = self._samples.get(name)
        return dict(samples[0][0]) if samples else None

    def by_position(self) -> dict[int, float]:
        """Accepted tokens by position in the draft."""
        name = f"{_PREFIXES.get(self.engine or '', '')}spec_decode_num_accepted_tokens_per_pos_total"
        positions: dict[int, float] = {}
        for labels, value in self._samples.get(name, []):
            if labels.get("position", "").isdigit():
                position = int(labels["position"])
                positions[position] = positions.get(position, 0.0) + value
        return positions

    def since(self, before: "Metrics", name: str) -> float | None:
        """How much a counter rose; one that appears only with its first event rose from 0."""
        value = self.total(name)
        return None if value is None else value - (before.total(name) or 0.0)

    def drafts_since(self, before: "Metrics") -> float | None:
        """How often the server drafted; None where no engine is known."""
        prefix = _PREFIXES.get(self.engine or "")
        return None if prefix is None else self.since(before, f"{prefix}spec_decode_num_drafts_total") or 0.0


def deltas(before: Metrics, after: Metrics, own_requests: int) -> dict[str, Any]:
    """What the server did between two scrapes, as summary.json holds it; None where it does not say.

    acceptance rate        = accepted / drafted tokens
    mean acceptance length = 1 + accepted / drafts: tokens of a step that had a draft, so it flatters speculation
    tokens per step        = generated / (generated - accepted), over all steps of all requests
    draft coverage         = drafts / (generated - accepted): the share of steps that had a draft
    (names and formulas of vLLM's own spec_decode metrics; the last two count steps as generated - accepted tokens)

    Args:
        before, after: the scrapes.
        own_requests: the most requests of this client that the server can have finished between them.
    """
    restarted = _restarted(before, after)
    empty = Metrics("")
    source = empty if restarted else after
    prefix = _PREFIXES.get(source.engine or "", "")

    def rise(name: str) -> float | None:
        return source.since(before, f"{prefix}{name}")

    drafts, draft_tokens = rise("spec_decode_num_drafts_total"), rise("spec_decode_num_draft_tokens_total")
    accepted = rise("spec_decode_num_accepted_tokens_total")
    generated = source.since(before, _GENERATED.get(source.engine or "", ""))
    earlier = before.by_position()
    positions = [value - earlier.get(position, 0.0) for position, value in sorted(source.by_position().items())]
    steps = None if generated is None else generated - (accepted or 0.0)
    succeeded = rise("request_success_total")
    waited, waits = rise("request_queue_time_seconds_sum"), rise("request_queue_time_seconds_count")
    return {
        "drafts": drafts,
        "draft_tokens": draft_tokens,
        "accepted_tokens": accepted,
        "accepted_per_position": positions,
        "generation_tokens": generated,
        "acceptance_rate": _ratio(accepted, draft_tokens),
        "mean_acceptance_length": None if not drafts or accepted is None else 1 + accepted / drafts,
        "tokens_per_step": _ratio(generated, steps),
        "draft_coverage": _ratio(drafts, steps),
        "acceptance_per_position": [value / drafts for value in positions] if drafts else [],
        "prefix_cache_queries": rise("prefix_cache_queries_total"),
        "prefix_cache_hits": rise("prefix_cache_hits_total"),
        "preemptions": rise("num_preemptions_total"),
        "queue_time_mean_s": _ratio(waited, waits),
        "requests_succeeded": succeeded,
        "foreign_requests": None if succeeded is None else max(0.0, succeeded - own_requests),
        "restarted": restarted,
    }


def warnings(server: Mapping[str, Any]) -> list[str]:
    """Sentences for what must not happen between two scrapes; compare.py turns the same numbers into gates."""
    sentences = {
        "restarted": "the server restarted during the run",
        "foreign_requests": "someone else sent {:g} requests to this server during the run: use a server of your own",
        "preemptions": "the server preempted {:g} times: its KV cache is too small for this load",
    }
    return [sentence.format(server[name]) for name, sentence in sentences.items() if server[name]]


def _restarted(before: Metrics, after: Metrics) -> bool | None:
    """Whether another process answers: by its start time, else by a counter that fell. None where neither is told."""
    start, later = before.total("process_start_time_seconds"), after.total("process_start_time_seconds")
    if start is not None and later is not None:
        return start != later
    name = _GENERATED.get(after.engine or "", "")
    first, last = before.total(name), after.total(name)
    return None if first is None or last is None else last < first


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator
