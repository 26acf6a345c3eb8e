"""What a server says of itself, on a stand-in over a real socket."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from support.vllm_standin import StandIn, record

from specbench import UserError
from specbench.client import service
from specbench.client.control import ControlClient
from specbench.record.format import Model, ServerIdentity
from specbench.workload.case import Case

T = TypeVar("T")


def ask(server: StandIn, call: Callable[[ControlClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with ControlClient(server.url, server.token) as client:
            return await call(client)

    return asyncio.run(run())


# ---- identity and mode


def test_identify_reads_models_version_and_record() -> None:
    with StandIn("ngram", record=record("ngram")) as server:
        found = ask(server, lambda client: service.identify(client, None))
    assert (found.engine, found.version) == ("vllm", "0.11.2")
    assert found.record == record("ngram")
    assert found.model == Model("m", "smollm2", 2048)
    assert found.cache_config == {"enable_prefix_caching": "False", "num_gpu_blocks": "344611"}


def test_round_trips_are_those_of_an_open_connection() -> None:
    with StandIn() as server:
        found = ask(server, service.round_trips)
    assert found.n == 10 and 0 < found.min <= found.p50 <= found.max


def test_unknown_and_ambiguous_models_are_one_sentence() -> None:
    with StandIn() as server:
        with pytest.raises(UserError, match="does not serve --model x; it serves m"):
            ask(server, lambda client: service.identify(client, "x"))
        server.models = [*server.models, {"id": "other\x1b[2J"}]
        with pytest.raises(UserError, match=r"offers 2 models \(m, other\\x1b\[2J\); choose one with --model"):
            ask(server, lambda client: service.identify(client, None))
        server.models = [{"no": "id"}]
        with pytest.raises(UserError, match=r":\d+/v1/models answered HTTP 200 and no list of models"):
            ask(server, lambda client: service.identify(client, None))


def a_server(**changes: Any) -> ServerIdentity:
    model = Model("m", "r", 2048)
    says: dict[str, Any] = {"engine": "vllm", "version": "0.11.2", "record": record("ngram"), "model": model}
    values = {**says, "cache_config": None, "process_start_time": 1.0}
    return ServerIdentity(**{**values, **changes})


@pytest.mark.parametrize(
    ("server", "mode", "values"),
    [
        (a_server(), "baseline", ("baseline", "ngram")),
        (a_server(version="0.12.0"), None, ("0.12.0", "0.11.2")),
        (a_server(record=record("ngram", served_model_name="q")), None, ("m", "q")),
        (a_server(record=record("ngram", max_model_len=4096)), None, ("2048", "4096")),
    ],
)
def test_a_contradiction_shows_both_values(server: ServerIdentity, mode: str | None, values: tuple[str, str]) -> None:
    with pytest.raises(UserError) as error:
        service.check_record(server, mode)
    assert all(value in str(error.value) for value in values)


def test_the_build_suffix_of_a_version_is_no_contradiction() -> None:
    service.check_record(a_server(version="0.11.2"), "ngram")
    service.check_record(a_server(version="0.11.2+cpu"), None)
    service.check_record(a_server(record=None, version="9"), "baseline")


@pytest.mark.parametrize(
    ("server", "asked", "drafts", "mode", "how"),
    [
        (a_server(), None, 5.0, "ngram", "server record"),
        (a_server(record=record("baseline")), "baseline", 0.0, "baseline", "server record"),
        (a_server(record=None), "ngram", 5.0, "ngram", "draft counter"),
        (a_server(record=None), None, 5.0, "ngram", "draft counter"),
        (a_server(record=None), None, 0.0, "baseline", "draft counter"),
        (a_server(record=None, engine=None), "ngram", None, "ngram", "not verified"),
        (a_server(record=None, engine=None), None, None, None, "not verified"),
    ],
)
def test_the_mode_and_how_it_is_known(
    server: ServerIdentity, asked: str | None, drafts: float | None, mode: str | None, how: str
) -> None:
    found, verified = service.verified_mode(server, asked, drafts)
    assert (found, verified["how"]) == (mode, how) and verified["detail"]


def test_drafts_that_contradict_the_mode_are_refused() -> None:
    with pytest.raises(UserError, match="drafted nothing"):
        service.verified_mode(a_server(), None, 0.0)
    with pytest.raises(UserError, match="it speculates"):
        service.verified_mode(a_server(record=record("baseline")), None, 3.0)
    with pytest.raises(UserError, match="it speculates"):
        service.verified_mode(a_server(record=None), "baseline", 3.0)


# ---- room


def test_room_counts_prompt_answer_and_draft() -> None:
    case = Case("long", "f", [], None, None)
    service.check_room(a_server(), [case], {"long": 2048 - 128 - 5}, 128)
    with pytest.raises(
        UserError, match=r"case long does not fit: 1916 prompt tokens \+ 128 max_tokens \+ 5 drafted > 2048"
    ):
        service.check_room(a_server(), [case], {"long": 2048 - 128 - 4}, 128)
    own = Case("own", "f", [], 1000, None)
    with pytest.raises(UserError, match="case own"):
        service.check_room(a_server(), [own], {"own": 1044}, 128)


def test_baseline_leaves_the_room_that_ngram_will_need() -> None:
    server = a_server(record={**record("baseline"), "speculative_config": None, "num_speculative_tokens": 5})
    with pytest.raises(UserError, match="5 drafted > 2048"):
        service.check_room(server, [Case("long", "f", [], None, None)], {"long": 2048 - 128 - 4}, 128)


def test_the_run_in_the_record_is_held_against_service_run() -> None:
    run = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
    server = a_server(record=record("ngram", service_run=run.replace("-", "")))
    service.check_record(server, "ngram", run)
    service.check_record(server, "ngram", None)
    service.check_record(a_server(record=record("ngram", service_run=None)), "ngram", run)
    with pytest.raises(UserError, match=f"--service-run says c0ffee and .* service_run {run.replace('-', '')}"):
        service.check_record(server, "ngram", "c0-ffee")
