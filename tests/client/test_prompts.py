"""Where a prompt's token ids come from, and when they are not to be trusted."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.scripted_server import Scripted, Step, plain
from support.vllm_standin import StandIn, record

from bench import main as bench
from specbench.client import prompts
from specbench.client.answer import read
from specbench.client.connection import Arrival
from specbench.client.control import ControlClient
from specbench.client.request import Exchange
from specbench.record.directory import read_manifest, read_requests
from specbench.record.format import PromptTokenSource
from specbench.record.prompts import read_prompt_tokens
from specbench.workload.case import Case

CASES = [Case(name, "f", [{"role": "user", "content": "x" * size}], None, None) for name, size in (("a", 40), ("b", 8))]
REQUEST = {"model": "m", "chat_template_kwargs": {"enable_thinking": False}}


def tokenized(url: str) -> prompts.TokenIds | None:
    async def run() -> prompts.TokenIds | None:
        async with ControlClient(url) as client:
            return await prompts.tokenized(client, CASES, REQUEST)

    return asyncio.run(run())


def test_vllm_tokenizes_a_conversation_as_its_template_says() -> None:
    with StandIn() as server:
        assert tokenized(server.url) == {"a": list(range(10)), "b": [0, 1]}
        sent = json.loads(server.seen[0][2])
        assert sent["chat_template_kwargs"] == {"enable_thinking": False} and sent["add_generation_prompt"] is True
        server.tokenize = False
        assert tokenized(server.url) is None


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"tokens": 3}', b'{"tokens": ["x"]}', b'{"prompt": "x"}'])
def test_an_answer_that_is_none_gives_no_prompts(body: bytes) -> None:
    def answer(_: int) -> list[Step]:
        return plain("200 OK", body)

    async def run() -> None:
        async with Scripted(answer) as server, ControlClient(server.url) as client:
            assert await prompts.tokenized(client, CASES, REQUEST) is None

    asyncio.run(run())


A, B = [1, 2, 3], [4, 5]


@pytest.mark.parametrize(
    ("streamed", "tokenized", "counts", "chosen", "source"),
    [
        ({"a": A, "b": B}, None, {"a": 3, "b": 2}, {"a": A, "b": B}, PromptTokenSource("stream", None)),
        ({"b": B, "a": A, "warmup-repeat-1": A}, None, {}, {"a": A, "b": B}, PromptTokenSource("stream", None)),
        ({}, {"a": A, "b": B}, {"a": 3, "b": 2}, {"a": A, "b": B}, PromptTokenSource("tokenize", None)),
        ({"a": A}, {"a": A, "b": B}, {"a": 3, "b": 2}, {"a": A, "b": B}, PromptTokenSource("tokenize", None)),
        ({"a": A, "b": A}, {"a": A, "b": B}, {"b": 2}, {"a": A, "b": B}, PromptTokenSource("tokenize", None)),
        ({}, None, {"a": 3}, None,
         PromptTokenSource(None, "the server sends no prompt_token_ids and has no POST /tokenize")),
        ({}, {"a": A, "b": B}, {"a": 3, "b": 9}, None, PromptTokenSource(
            None, "the server's POST /tokenize gives 2 tokens for the prompt of b, and its usage counts 9")),
    ],
)  # fmt: skip
def test_the_ids_that_agree_with_the_servers_count_are_kept(
    streamed: prompts.TokenIds, tokenized: prompts.TokenIds | None, counts: dict[str, int | None],
    chosen: prompts.TokenIds | None, source: PromptTokenSource,
) -> None:  # fmt: skip
    assert prompts.choose(CASES, streamed, tokenized, counts) == (chosen, source)


def test_ids_that_disagree_with_usage_leave_no_file_and_a_reason(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with StandIn(record=record("baseline")) as server:
        server._stream = [part.replace(b'"prompt_token_ids":[1,', b'"prompt_token_ids":[') for part in server._stream]
        assert bench(["--concurrency", "1", "--repeats", "1", "--out", str(out), "--url", server.url]) == 0
    assert read_prompt_tokens(out) is None and not (out / "prompt-tokens.jsonl").exists()
    source = read_manifest(out).prompt_tokens
    assert source is not None and source.missing is not None and "its usage counts 107" in source.missing


def test_the_embedded_engine_says_its_prompts_and_what_it_drafted(
    tmp_path: Path, embedded_engine: Callable[[str], str]
) -> None:
    out = tmp_path / "out"
    case = {"id": "a", "family": "f", "messages": [{"role": "user", "content": "Repeat ten times: red green blue"}]}
    (tmp_path / "prompts.jsonl").write_text(json.dumps(case))
    argv = ["--concurrency", "1", "--repeats", "1", "--max-tokens", "24", "--out", str(out)]
    assert bench([*argv, "--url", embedded_engine("ngram"), "--prompts", str(tmp_path / "prompts.jsonl")]) == 0
    found, rows = read_prompt_tokens(out), list(read_requests(out))
    assert found is not None and read_manifest(out).prompt_tokens == PromptTokenSource("tokenize", None)
    assert [row.prompt_tokens for row in rows if row.phase == "measured"] == [len(found["a"])]
    drafted = [(row.draft_tokens or 0, row.accepted_tokens or 0) for row in rows]
    assert all(draft_tokens >= accepted_tokens for draft_tokens, accepted_tokens in drafted)
    assert sum(accepted_tokens for _, accepted_tokens in drafted) > 0


@pytest.mark.parametrize("timings", ["7", "[]", '{"draft_n": "x"}', '{"draft_n": -1, "draft_n_accepted": 0}', "null"])
def test_draft_counts_that_are_none_are_null(timings: str) -> None:
    arrival = Arrival()
    arrival.status = 200
    arrival.reads = [(1, b'data: {"choices": [], "timings": %s}\n\n' % timings.encode())]
    sample = read(Exchange(0, arrival))
    assert (sample.outcome, sample.draft_tokens, sample.accepted_tokens) == ("truncated", None, None)
