"""What a server counts: recorded /metrics of both modes, held against what grep finds in them."""

import subprocess

import msgspec
import pytest
from support import RECORDINGS

from specbench.client import metrics
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
