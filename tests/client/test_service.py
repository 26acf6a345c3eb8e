"""What a server says of itself, on recorded /metrics of both modes and on a stand-in over a real socket."""

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx
import pytest
from support.vllm_standin import RECORDINGS, StandIn, record

from specbench import UserError
from specbench.client import service
from specbench.client.service import Metrics, Server
from specbench.workload.inventory import Case

T = TypeVar("T")


def recorded(mode: str, when: str) -> Metrics:
    return Metrics((RECORDINGS / mode / f"metrics-{when}.txt").read_text())


def ask(server: StandIn, call: Callable[[httpx.AsyncClient], Awaitable[T]]) -> T:
    async def run() -> T:
        headers = {"Authorization": f"Token {server.token}"} if server.token else {}
        async with httpx.AsyncClient(base_url=server.url, headers=headers) as client:
            return await call(client)

    return asyncio.run(run())


# ---- counters


def test_deltas_of_the_recorded_ngram_run_are_what_grep_finds() -> None:
    def grep(name: str, when: str) -> float:
        path = str(RECORDINGS / "ngram" / f"metrics-{when}.txt")
        program = f'index($1, "{name}{{") == 1 {{sum += $NF}} END {{print sum}}'
        return float(subprocess.run(["awk", program, path], capture_output=True, text=True, check=True).stdout)

    def rise(name: str) -> float:
        return grep(name, "after-c8") - grep(name, "after-c1")

    drafts, accepted = rise("vllm:spec_decode_num_drafts_total"), rise("vllm:spec_decode_num_accepted_tokens_total")
    generated = rise("vllm:generation_tokens_total")
    found = service.deltas(recorded("ngram", "after-c1"), recorded("ngram", "after-c8"), 201)
    assert found["drafts"] == drafts > 0 and found["accepted_tokens"] == accepted > 0
    assert found["acceptance_rate"] == pytest.approx(accepted / rise("vllm:spec_decode_num_draft_tokens_total"))
    assert found["mean_acceptance_length"] == pytest.approx(1 + accepted / drafts)
    assert found["tokens_per_step"] == pytest.approx(generated / (generated - accepted))
    assert found["draft_coverage"] == pytest.approx(drafts / (generated - accepted))
    assert sum(found["accepted_per_position"]) == accepted and len(found["acceptance_per_position"]) == 5
    assert found["acceptance_per_position"] == sorted(found["acceptance_per_position"], reverse=True)
    assert (found["restarted"], found["preemptions"], found["prefix_cache_hits"]) == (False, 0, 0)
    assert found["requests_succeeded"] == rise("vllm:request_success_total")


def test_baseline_has_no_drafts_and_an_engine_all_the_same() -> None:
    found = service.deltas(recorded("baseline", "before"), recorded("baseline", "after-c8"), 0)
    assert found["drafts"] is None and found["acceptance_rate"] is None and found["acceptance_per_position"] == []
    assert found["tokens_per_step"] == 1.0
    assert recorded("baseline", "before").drafts_since(recorded("baseline", "before")) == 0.0
    assert found["foreign_requests"] == found["requests_succeeded"] > 0


def test_another_process_answers_so_nothing_is_counted() -> None:
    found = service.deltas(recorded("ngram", "after-c8"), recorded("baseline", "before"), 3)
    assert found["restarted"] is True
    assert {name for name, value in found.items() if value is not None} == {
        "restarted", "accepted_per_position", "acceptance_per_position",
    }  # fmt: skip
    assert service.warnings(found) == ["the server restarted during the run"]


@pytest.mark.parametrize("text", ["", "<html>", "vllm:x{ 3", "vllm:generation_tokens_total NaN\n", "a b c\n"])
def test_metrics_that_are_none_count_nothing(text: str) -> None:
    found = service.deltas(Metrics(text), Metrics(text), 0)
    assert found["acceptance_rate"] is None and found["foreign_requests"] is None


def test_created_samples_and_other_engines_labels_do_not_count() -> None:
    text = (
        'vllm:spec_decode_num_drafts_total{engine="0"} 3.0\nvllm:spec_decode_num_drafts_total{engine="1"} 4.0\n'
        'vllm:spec_decode_num_drafts_created{engine="0"} 1.7e9\n'
    )
    assert Metrics(text).total("vllm:spec_decode_num_drafts_total") == 7.0


# ---- identity and mode


def test_identify_reads_models_version_record_and_round_trip() -> None:
    with StandIn("ngram", record=record("ngram")) as server:
        found = ask(server, lambda client: service.identify(client, None))
    assert (found.engine, found.version) == ("vllm", "0.11.2")
    assert found.record == record("ngram")
    assert found.model == {"id": "m", "root": "smollm2", "max_model_len": 2048}
    assert found.cache_config == {"enable_prefix_caching": "False", "num_gpu_blocks": "344611"}
    assert found.health_rtt_ms["n"] == 10 and 0 < found.health_rtt_ms["min"] <= found.health_rtt_ms["max"]


def test_unknown_and_ambiguous_models_are_one_sentence() -> None:
    with StandIn() as server:
        with pytest.raises(UserError, match="does not serve --model x; it serves m"):
            ask(server, lambda client: service.identify(client, "x"))
        server.models = [*server.models, {"id": "other\x1b[2J"}]
        with pytest.raises(UserError, match=r"offers 2 models \(m, other\\x1b\[2J\); choose one with --model"):
            ask(server, lambda client: service.identify(client, None))
        server.models = [{"no": "id"}]
        with pytest.raises(UserError, match="no list of models"):
            ask(server, lambda client: service.identify(client, None))


def a_server(**changes: Any) -> Server:
    model = {"id": "m", "root": "r", "max_model_len": 2048}
    says: dict[str, Any] = {"engine": "vllm", "version": "0.11.2", "record": record("ngram"), "model": model}
    values = {**says, "cache_config": None, "process_start_time": 1.0, "health_rtt_ms": {}}
    return Server(**{**values, **changes})


@pytest.mark.parametrize(
    ("server", "mode", "values"),
    [
        (a_server(), "baseline", ("baseline", "ngram")),
        (a_server(version="0.12.0"), None, ("0.12.0", "0.11.2")),
        (a_server(record=record("ngram", served_model_name="q")), None, ("m", "q")),
        (a_server(record=record("ngram", max_model_len=4096)), None, ("2048", "4096")),
    ],
)
def test_a_contradiction_shows_both_values(server: Server, mode: str | None, values: tuple[str, str]) -> None:
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
    server: Server, asked: str | None, drafts: float | None, mode: str | None, how: str
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


def test_tokenize_counts_each_case_or_says_none() -> None:
    cases = [
        Case(name, "f", [{"role": "user", "content": "x" * size}], None, None) for name, size in (("a", 40), ("b", 8))
    ]
    request = {"model": "m", "chat_template_kwargs": {"enable_thinking": False}}
    with StandIn() as server:
        assert ask(server, lambda client: service.count_prompt_tokens(client, cases, request)) == {"a": 10, "b": 2}
        sent = json.loads(server.seen[0][2])
        assert sent["chat_template_kwargs"] == {"enable_thinking": False} and sent["add_generation_prompt"] is True
        server.tokenize = False
        assert ask(server, lambda client: service.count_prompt_tokens(client, cases, request)) is None


# ---- address and token


@pytest.mark.parametrize(
    ("url", "changes", "says"),
    [
        (None, {}, "set SERVICE_URL or give --url"),
        ("", {}, "set SERVICE_URL or give --url"),
        ("localhost:8000", {}, "is not a URL"),
        ("ftp://h/", {}, "is not a URL"),
        ("http://", {}, "is not a URL"),
        ("http://[::1", {}, "is not a URL"),
        ("http://h:abc", {}, "is not a URL"),
        ("http://a\x7fb", {}, "is not a URL"),
        ("http://:secret@h", {}, "may hold no user name"),
        ("http://a:secret/@h", {}, "may hold no user name"),
        ("https://h", {"token": "secret\n"}, "the token holds"),
        ("https://h", {"token": "my secret"}, "the token holds"),
        ("https://h", {"token": "secrét"}, "the token holds"),
        ("http://user:secret@h/", {}, "may hold no user name"),
        ("http://h/?token=secret", {}, "may hold no user name"),
        ("https://h/services/v1/n/o/p/runs/aaaa/8000/", {"service_run": "bbbb"}, "earlier run"),
        ("http://gpu-host:8000", {"token": "secret"}, "--insecure-http"),
    ],
)
def test_a_url_that_may_not_be_measured_is_one_sentence(url: str | None, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as error:
        service.check_url(url, **{"service_run": None, "token": None, "insecure_http": False, **changes})
    assert says in str(error.value) and "secret" not in str(error.value)


def test_urls_that_may_be_measured() -> None:
    free = {"service_run": None, "token": None, "insecure_http": False}
    assert service.check_url("http://h:8/a/b/", **free) == "http://h:8/a/b"
    assert service.check_url("http://127.0.0.1:8000", **{**free, "token": "t"})
    assert service.check_url("http://[::1]:8000", **{**free, "token": "t"})
    assert service.check_url("http://gpu:8", **{**free, "token": "t", "insecure_http": True})
    run = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
    url = f"https://h/services/v1/n/o/p/runs/{run.replace('-', '')}/8000"
    assert service.check_url(url, **{**free, "service_run": run}) == url
    assert service.run_in_url(url) == run.replace("-", "")


def test_a_server_that_never_gets_ready_says_the_last_answer() -> None:
    with StandIn() as server:
        server.health = 503
        with pytest.raises(UserError, match=r"not ready within 0.2 s \(last: HTTP 503\).*--ready-timeout"):
            ask(server, lambda client: service.wait_until_ready(client, 0.2))
        server.health = 403
        with pytest.raises(UserError, match="HTTP 403: set POLYAXON_TOKEN"):
            ask(server, lambda client: service.wait_until_ready(client, 5))


def test_the_run_in_the_record_is_held_against_service_run() -> None:
    run = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
    server = a_server(record=record("ngram", service_run=run.replace("-", "")))
    service.check_record(server, "ngram", run)
    service.check_record(server, "ngram", None)
    service.check_record(a_server(record=record("ngram", service_run=None)), "ngram", run)
    with pytest.raises(UserError, match=f"--service-run says c0ffee and .* service_run {run.replace('-', '')}"):
        service.check_record(server, "ngram", "c0-ffee")
