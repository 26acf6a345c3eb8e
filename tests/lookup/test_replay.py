"""The replay is vLLM 0.11.2's own drafting: held against its function, its streams and its counters."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import RECORDINGS
from support.vllm_source import Source

from specbench.lookup.replay import PromptIndex, Replay, replay, replay_settings
from specbench.lookup.setting import ARTICLE, Setting

Step = tuple[int, int, int]  # drafted, accepted, emitted


@pytest.fixture(scope="session")
def propose(vllm: Source) -> Callable[..., list[int]]:
    """vLLM's own proposer, taken out of its source, without numba."""
    function = vllm.function(
        "v1/spec_decode/ngram_proposer", "_find_longest_matched_ngram_and_propose_tokens", np=np
    )

    def call(context: Sequence[int], setting: Setting, max_model_len: int) -> list[int]:
        drafted, low, high = setting
        found = function(np.array(context, dtype=np.int32), low, high, max_model_len, drafted)
        return [int(token) for token in found]

    return call


def steps_of_vllm(
    propose: Callable[..., list[int]],
    prompt: list[int],
    output: list[int],
    setting: Setting,
    max_tokens: int,
    max_model_len: int,
) -> list[Step]:
    """One sequence as the scheduler and the model runner take it, in the names of their source."""
    num_prompt_tokens = len(prompt)
    num_computed_tokens = 0
    spec_token_ids: list[int] = []
    done: list[int] = []
    steps: list[Step] = []
    while len(done) < len(output):
        num_tokens = num_prompt_tokens + len(done)
        max_total_tokens = min(num_prompt_tokens + max_tokens, max_model_len)
        num_new_tokens = num_tokens + len(spec_token_ids) - num_computed_tokens
        if done:  # only running requests are cut: a prefill is scheduled whole
            num_new_tokens = min(num_new_tokens, max_total_tokens - 1 - num_computed_tokens)
        num_scheduled_spec_tokens = num_new_tokens + num_computed_tokens - num_tokens
        scheduled = spec_token_ids[: max(0, num_scheduled_spec_tokens)]
        max_seq_len = num_computed_tokens + num_new_tokens
        accepted = 0
        while accepted < len(scheduled) and scheduled[accepted : accepted + 1] == output[len(done) + accepted :][:1]:
            accepted += 1
        generated = output[len(done) : len(done) + accepted + 1]
        steps.append((len(scheduled), accepted, len(generated)))
        done += generated
        num_computed_tokens = num_prompt_tokens + len(done) - 1
        fits = max_seq_len + setting.num_speculative_tokens <= max_model_len
        context = [*prompt, *done]
        spec_token_ids = propose(context, setting, max_model_len) if fits and len(context) < max_model_len else []
    return steps


def steps_of(result: Replay) -> list[Step]:
    return list(zip(result.drafted, result.accepted, result.emitted, strict=True))


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[int], list[int], Setting, int, int]:
    """Few different tokens, so that matches overlap and repeat; limits near the end of the answer."""
    token = st.integers(0, draw(st.integers(1, 4)))
    pieces = draw(st.lists(st.lists(token, min_size=1, max_size=6), min_size=1, max_size=6))
    order = draw(st.lists(st.sampled_from(pieces), min_size=2, max_size=14))
    tokens = [token for piece in order for token in piece]
    cut = draw(st.integers(1, len(tokens) - 1))
    prompt, output = tokens[:cut], tokens[cut:]
    low = draw(st.integers(1, 5))
    setting = Setting(draw(st.integers(1, 9)), low, draw(st.integers(low, 7)))
    max_tokens = len(output) + draw(st.sampled_from([0, 0, 1, 2, 50]))
    max_model_len = len(tokens) + draw(st.sampled_from([0, 1, 2, 5, 1000]))
    return prompt, output, setting, max_tokens, max_model_len


@settings(max_examples=600, deadline=None)
@given(request=requests())
def test_every_step_is_vllms(
    propose: Callable[..., list[int]], request: tuple[list[int], list[int], Setting, int, int]
) -> None:
    assert steps_of(replay(*request)) == steps_of_vllm(propose, *request)


def test_the_rules_around_the_proposer_are_in_the_source(vllm: Source) -> None:
    scheduler = "v1/core/sched/scheduler"
    schedule = vllm.code(scheduler, "Scheduler.schedule")
    assert "request.num_prompt_tokens + request.max_tokens, self.max_model_len" in schedule
    assert "num_new_tokens, max_total_tokens - 1 - request.num_computed_tokens" in schedule
    assert "del request.spec_token_ids[num_scheduled_spec_tokens:]" in schedule
    assert "request.spec_token_ids = []" in schedule
    update = vllm.code(scheduler, "Scheduler.update_from_output")
    assert "num_accepted = len(generated_token_ids) - 1" in update
    runner = vllm.text("v1/worker/gpu_model_runner")
    assert "spec_decode_common_attn_metadata.max_seq_len + self.num_spec_tokens" in runner


@settings(max_examples=200, deadline=None)
@given(request=requests(), others=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(0, 3))))
def test_settings_that_share_an_index_do_not_change_each_other(
    request: tuple[list[int], list[int], Setting, int, int], others: list[tuple[int, int, int]]
) -> None:
    prompt, output, setting, max_tokens, max_model_len = request
    asked = [setting, *(Setting(drafted, low, low + more) for drafted, low, more in others)]
    index = PromptIndex(prompt, min(low for _, low, _ in asked), max(high for _, _, high in asked))
    together = replay_settings(index, output, asked, max_tokens, max_model_len)
    assert together == [replay(prompt, output, one, max_tokens, max_model_len) for one in asked]
    assert all(result.tokens == len(output) for result in together)


def test_an_example_by_hand() -> None:
    prompt, output = [1, 2, 3, 4, 5, 6, 1, 2], [3, 4, 5, 9]
    result = replay(prompt, output, Setting(2, 2, 3), max_tokens=10)
    # The prefill gives 3; its context ends in 1 2 3, which stands at the start and is followed by 4 5; both are right.
    assert steps_of(result) == [(0, 0, 1), (2, 2, 3)]
    assert (result.steps, result.drafts, result.draft_tokens, result.accepted_tokens) == (2, 1, 2, 2)
    assert result.accepted_per_position == [1, 1]


def test_an_answer_longer_than_its_limit_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="longer than max_tokens"):
        replay([1], [1, 2], ARTICLE, max_tokens=1)


def test_an_empty_answer_takes_no_step() -> None:
    assert replay([1, 2], [], ARTICLE) == Replay([], [], [])


def test_replay_keeps_its_input() -> None:
    prompt, output = [1, 2, 1, 2], [1, 2, 1, 2]
    replay(prompt, output, ARTICLE)
    assert (prompt, output) == ([1, 2, 1, 2], [1, 2, 1, 2])


def recorded_events(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line)[1] for line in path.read_text().splitlines()]
    events = [event for text in lines for event in text.split("\n\n")]
    return [json.loads(event[6:]) for event in events if event.startswith("data: {")]


@pytest.mark.parametrize("case", ["copy-1", "explain-1", "short-1"])
def test_a_recorded_stream_chunk_by_chunk(case: str) -> None:
    """With ngram a chunk holds what one step gave, unless the server was late; these streams are not."""
    events = recorded_events(RECORDINGS / "ngram" / "streams" / f"{case}.token-ids.jsonl")
    prompt = next(event["prompt_token_ids"] for event in events if event.get("prompt_token_ids"))
    chunks = [
        choice["token_ids"] for event in events for choice in event.get("choices", []) if choice.get("token_ids")
    ]
    output = [token for chunk in chunks for token in chunk]
    result = replay(prompt, output, ARTICLE, max_tokens=128, max_model_len=2048)
    assert result.emitted == [len(chunk) for chunk in chunks]
