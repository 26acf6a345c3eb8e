"""What a server says of itself: readiness, identity, mode, room for the requests. Labels lie; this asks."""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from specbench import UserError
from specbench.client.control import ControlClient
from specbench.client.metrics import Metrics, answer_in_turn, scrape
from specbench.client.readiness import refuse_unauthorized
from specbench.client.target import plain_uuid
from specbench.record.format import MODES, Mode, Model, RoundTrips, ServerIdentity
from specbench.words import printable, some
from specbench.workload.case import Case

HEALTH_PROBES = 10


async def identify(client: ControlClient, wanted_model: str | None) -> ServerIdentity:
    """Ask a ready server for its models, version, record and counters. What it does not say is None.

    Raises UserError for a server that cannot be one of these, and for several that answer in turn.
    """
    model = await _model(client, wanted_model)
    metrics = Metrics(await scrape(client))
    if await answer_in_turn(client, [metrics.start_time]):
        raise UserError(f"several servers answer at {client.url} in turn; give the URL of one of them")
    version = await _object(client, "version")
    record = await _object(client, "server-record")
    try:
        return ServerIdentity(
            engine=metrics.engine,
            version=str(version["version"]) if "version" in version else None,
            record=record if "record" in record else None,
            model=model,
            cache_config=metrics.labels("vllm:cache_config_info"),
            process_start_time=metrics.start_time,
        )
    except msgspec.ValidationError as error:
        raise UserError(f"GET /server-record holds what launch_vllm.py never writes: {error}") from None


async def _model(client: ControlClient, wanted: str | None) -> Model:
    answer = await client.get("v1/models")
    refuse_unauthorized(client, answer, is_healthy=True)
    address = f"{client.url}/v1/models"
    try:
        by_id = {str(entry["id"]): entry for entry in answer.json["data"]}
    except (KeyError, TypeError):
        raise UserError(
            f"{address} answered HTTP {answer.status} and no list of models: is this an OpenAI-compatible server?"
        ) from None
    if not by_id:
        raise UserError(f"the server at {client.url} offers no model: see its log")
    names = some([printable(name) for name in by_id])
    if wanted is None and len(by_id) != 1:
        raise UserError(f"the server offers {len(by_id)} models ({names}); choose one with --model")
    if wanted is not None and wanted not in by_id:
        raise UserError(f"the server does not serve --model {wanted}; it serves {names}")
    name = wanted if wanted is not None else next(iter(by_id))
    try:
        return msgspec.convert({**by_id[name], "id": name}, Model)
    except msgspec.ValidationError as error:
        raise UserError(f"{address} describes no model: {error}; see the server's log") from None


async def round_trips(client: ControlClient) -> RoundTrips:
    """How long GET /health takes from here and back, HEALTH_PROBES times on an open connection."""
    times = []
    for _ in range(HEALTH_PROBES + 1):
        start = time.perf_counter_ns()
        await client.get("health")
        times.append((time.perf_counter_ns() - start) / 1e6)
    times = times[1:]  # the first opens the connection
    return RoundTrips(n=len(times), min=min(times), p50=statistics.median(times), max=max(times))


async def _object(client: ControlClient, path: str) -> dict[str, Any]:
    """The JSON object that GET `path` answers with; empty where it answers with something else."""
    answer = await client.get(path)
    return answer.json if answer.status == 200 and isinstance(answer.json, dict) else {}


# ---- mode, and what the server says against it


def check_record(server: ServerIdentity, mode: str | None, service_run: str | None = None) -> None:
    """Hold the server record against /version, /v1/models, --mode and --service-run.

    Raises UserError showing both values of a contradiction.
    """
    if server.record is None:
        return
    launched = server.launched
    asked_run, recorded_run = (plain_uuid(run) if run else None for run in (service_run, launched.service_run))
    recorded = [
        ("--service-run", asked_run, "service_run", recorded_run),
        ("--mode", mode, "mode", launched.mode),
        ("/version", _public(server.version), "version", _public(launched.version)),
        ("/v1/models", server.model.id, "served_model_name", launched.served_model_name),
        ("/v1/models", server.model.max_model_len, "max_model_len", launched.max_model_len),
    ]
    for source, stated, name, value in recorded:
        if stated is not None and value is not None and stated != value:
            raise UserError(
                f"{source} says {printable(str(stated))} and the server's own record says {name} "
                f"{printable(str(value))}; measure the server you mean"
            )


def verified_mode(
    server: ServerIdentity, asked: Mode | None, drafts: float | None
) -> tuple[Mode | None, dict[str, str]]:
    """The mode of the server and how that is known.

    Args:
        server: its identity; a record has been checked against `asked`.
        asked: --mode, or the input of the Polyaxon run, or None.
        drafts: what the draft counter rose by in the warm-up; None where the server has no such counter.

    Raises UserError when the drafts contradict the mode.
    """
    mode = _recorded_mode(server) or asked
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
    if server.launched.mode:
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


def _recorded_mode(server: ServerIdentity) -> Mode | None:
    mode = server.launched.mode
    if mode is None or mode in MODES:
        return mode
    raise UserError(f"the server's own record says mode {printable(mode)}, which is none of {', '.join(MODES)}")


def _public(version: str | None) -> str | None:
    return version.partition("+")[0] if version else None


# ---- room


def check_room(
    server: ServerIdentity, cases: Sequence[Case], prompt_tokens: Mapping[str, int], max_tokens: int
) -> None:
    """Refuse a case whose prompt + max_tokens + k does not fit: past that vLLM stops drafting for the whole batch.

    Raises UserError naming the case and the four numbers.
    """
    launched = server.launched
    limit = server.model.max_model_len or launched.max_model_len
    if not limit:
        return
    speculation = launched.speculative_config
    k = launched.num_speculative_tokens or (speculation and speculation.num_speculative_tokens) or 0
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
