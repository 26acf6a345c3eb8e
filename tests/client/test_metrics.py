"""What a server counts: recorded /metrics of both modes, held against what grep finds in them."""

import asyncio
import subprocess

import msgspec
import pytest
from support import RECORDINGS
from support.vllm_standin import StandIn

from specbench.client import metrics
from specbench.client.control import ControlClient
from specbench.client.metrics import Metrics


def recorded(mode: str, when: str) -> Metrics:
    return Metrics((RECORDINGS / mode / f"metrics-{when}.txt").read_text())


def test_deltas_of_the_recorded_ngram_run_are_what_grep_finds() -> None:
    def grep(name: str, when: str) -> float:
        path = str(RECORDINGS / "ngram" / f"metrics-{when}.txt")
        program = f'index($1, "{name}{{") == 1 {{sum += $NF}} END {{print sum}}'
        return float(subprocess.run(["awk", program, path], capture_output=True, text=True, check=True).stdout)

    def rise(name: str) -> float:
        return grep(name, "after-c8") - grep(name, "after-c1")

    drafts, accepted = rise("vllm:spec_decode_num_drafts_total"), rise("vllm:spec_decode_num_accepted_tokens_total")
    generated = rise("vllm:generation_tokens_total")
    found = metrics.deltas(recorded("ngram", "after-c1"), recorded("ngram", "after-c8"), 201)
    assert found.drafts == drafts > 0 and found.accepted_tokens == accepted > 0
    assert found.acceptance_rate == pytest.approx(accepted / rise("vllm:spec_decode_num_draft_tokens_total"))
    assert found.mean_acceptance_length == pytest.approx(1 + accepted / drafts)
    assert found.tokens_per_step == pytest.approx(generated / (generated - accepted))
    assert found.draft_coverage == pytest.approx(drafts / (generated - accepted))
    assert sum(found.accepted_per_position) == accepted and len(found.acceptance_per_position) == 5
    assert found.acceptance_per_position == sorted(found.acceptance_per_position, reverse=True)
    assert (found.restarted, found.preemptions, found.prefix_cache_hits) == (False, 0, 0)
    assert found.requests_succeeded == rise("vllm:request_success_total")


def test_baseline_has_no_drafts_and_an_engine_all_the_same() -> None:
    found = metrics.deltas(recorded("baseline", "before"), recorded("baseline", "after-c8"), 0)
    assert found.drafts is None and found.acceptance_rate is None and found.acceptance_per_position == []
    assert found.tokens_per_step == 1.0
    assert recorded("baseline", "before").drafts_since(recorded("baseline", "before")) == 0.0
    assert found.foreign_requests == found.requests_succeeded > 0


def test_another_process_answers_so_nothing_is_counted() -> None:
    found = metrics.deltas(recorded("ngram", "after-c8"), recorded("baseline", "before"), 3)
    assert found.restarted is True
    assert {name for name, value in msgspec.structs.asdict(found).items() if value is not None} == {
        "restarted", "accepted_per_position", "acceptance_per_position",
    }  # fmt: skip
    assert metrics.warnings(found) == ["the server restarted during the run"]


@pytest.mark.parametrize("text", ["", "<html>", "vllm:x{ 3", "vllm:generation_tokens_total NaN\n", "a b c\n"])
def test_metrics_that_are_none_count_nothing(text: str) -> None:
    found = metrics.deltas(Metrics(text), Metrics(text), 0)
    assert found.acceptance_rate is None and found.foreign_requests is None


def test_created_samples_and_other_engines_labels_do_not_count() -> None:
    text = (
        'vllm:spec_decode_num_drafts_total{engine="0"} 3.0\nvllm:spec_decode_num_drafts_total{engine="1"} 4.0\n'
        'vllm:spec_decode_num_drafts_created{engine="0"} 1.7e9\n'
    )
    assert Metrics(text).total("vllm:spec_decode_num_drafts_total") == 7.0


# ---- damaged lines, and several servers


def test_a_damaged_line_loses_itself_alone() -> None:
    text = 'vllm:generation_tokens_total{a="b"} 5.0\nvllm:x{ 3\nvllm:num_preemptions_total{a="b"} 2.0\nvllm:y nan\n'
    found = Metrics(text)
    assert (found.engine, found.total("vllm:generation_tokens_total"), found.total("vllm:num_preemptions_total")) == (
        "vllm", 5.0, 2.0,
    )  # fmt: skip
    assert found.unreadable == ["vllm:x{ 3"] and found.total("vllm:y") is None
    assert metrics.unreadable_lines(found, found) == [
        "2 lines of GET /metrics could not be read, while all others count; the first: vllm:x{ 3"
    ]
    assert metrics.unreadable_lines(Metrics("<html>")) == []  # no metrics at all: nothing of it was meant to be read


@pytest.mark.parametrize("position", ["²", "x", "", "-1"])
def test_a_position_that_is_none_is_left_out(position: str) -> None:
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert Metrics(f'{name}{{position="{position}"}} 1.0\n{name}{{position="0"}} 2.0\n').by_position() == {0: 2.0}


@pytest.mark.parametrize(
    ("start_times", "in_turn"),
    [
        ([1.0], False),
        ([1.0, 2.0], True),
        ([1.0, 1.0, 1.0, 2.0], True),
        ([], False),
    ],
)
def test_several_servers_are_told_by_a_start_time_that_comes_back(start_times: list[float], in_turn: bool) -> None:
    async def ask(url: str) -> bool:
        async with ControlClient(url) as client:
            first = Metrics(await metrics.scrape(client)).start_time
            return await metrics.answer_in_turn(client, [first])

    with StandIn() as server:
        server.start_times = start_times
        assert asyncio.run(ask(server.url)) is in_turn


def test_a_restart_is_no_second_server() -> None:
    async def ask(url: str) -> bool:
        async with ControlClient(url) as client:
            return await metrics.answer_in_turn(client, [1.0, 1000.0])

    with StandIn() as server:  # it started at 1000
        assert asyncio.run(ask(server.url)) is False


def test_nothing_is_counted_where_several_servers_answer() -> None:
    found = metrics.deltas(recorded("ngram", "after-c1"), recorded("ngram", "after-c8"), 201, in_turn=True)
    assert (found.restarted, found.several_servers, found.drafts) == (None, True, None)
    assert metrics.warnings(found) == [
        "several servers answered at this address in turn: nothing of theirs can be counted"
    ]
