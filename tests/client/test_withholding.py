"""--no-text: nothing of a prompt or an answer is on disk; equality, right answers and steps are known all the same."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import HANG_S, ROOT
from support.vllm_standin import StandIn, record

from specbench.client.withholding import STEPS, WithholdingDirectory, withheld
from specbench.lookup.replay import replay
from specbench.lookup.setting import ARTICLE
from specbench.record.directory import read_manifest, read_requests, read_summary
from specbench.record.judged import read_judged
from specbench.record.prompts import PROMPT_TOKENS, read_prompt_tokens


def bench(out: Path, url: str, *options: str) -> None:
    command = [sys.executable, str(ROOT / "bench.py"), "--url", url, "--concurrency", "1", "--repeats", "2",
               "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same run with and without its texts."""
    folder = tmp_path_factory.mktemp("runs")
    for name, options in (("open", []), ("withheld", ["--no-text"])):
        with StandIn("ngram", record=record("ngram")) as server:
            bench(folder / name, server.url, *options)
    return folder / "open", folder / "withheld"


def test_no_file_holds_a_prompt_an_answer_or_what_is_expected_of_it(runs: tuple[Path, Path]) -> None:
    shown, withheld_run = runs
    cases = [json.loads(line) for line in (ROOT / "prompts.jsonl").read_text().splitlines()]
    readable = {row.text for row in read_requests(shown)} | {case["messages"][0]["content"] for case in cases}
    readable |= {case["expect"] for case in cases if "expect" in case}
    pieces = {text[start : start + 20] for text in readable for start in range(0, max(len(text) - 20, 1), 7)}
    for path in withheld_run.iterdir():
        content = json.dumps(path.read_text())
        assert not [piece for piece in pieces if len(piece) > 8 and json.dumps(piece)[1:-1] in content], path.name
    assert not (withheld_run / PROMPT_TOKENS).exists()
    assert all(row.token_ids is None for row in read_requests(withheld_run))
    manifest = read_manifest(withheld_run)
    assert manifest.no_text and manifest.prompt_tokens is not None
    assert manifest.prompt_tokens.missing == "the run was measured with --no-text"


def test_what_was_counted_and_judged_is_what_it_was_with_the_texts(runs: tuple[Path, Path]) -> None:
    one, other = (read_summary(run) for run in runs)
    assert one.requests == other.requests and one.expect == other.expect and one.expect.checked > 0
    assert one.metrics.overall["completion_tokens"] == other.metrics.overall["completion_tokens"]
    judged = read_judged(runs[1])
    assert judged is not None
    for row in read_requests(runs[1]):
        if row.case in judged.cases and row.phase == "measured":
            assert judged.passed(row.case, row.text) is not None


def test_steps_are_those_of_the_answers_that_are_not_kept(runs: tuple[Path, Path]) -> None:
    prompts = read_prompt_tokens(runs[0])
    assert prompts is not None
    answers = {row.case: row.token_ids for row in read_requests(runs[0]) if row.phase == "measured"}
    written = [json.loads(line) for line in (runs[1] / STEPS).read_text().splitlines()]
    assert {line["case"] for line in written} == set(answers)
    rows = {(row.case, row.text) for row in read_requests(runs[1])}
    for line in written:
        ids = answers[line["case"]]
        assert ids is not None
        found = replay(prompts[line["case"]], ids, ARTICLE, 128, 2048)
        assert (line["steps"], line["drafts"], line["accepted_tokens"]) == (
            found.steps, found.drafts, found.accepted_tokens)
        assert (line["case"], line["output"]) in rows


def test_an_error_that_may_quote_is_not_kept_and_one_of_the_connection_is(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    row = next(row for row in read_requests(runs[0]) if row.phase == "measured")
    directory = WithholdingDirectory(tmp_path / "out", [])
    for outcome in ("malformed", "stream_error", "http_error", "timeout"):
        directory.append(msgspec.structs.replace(row, outcome=outcome, error="Paris, said the server"))
    directory.close()
    kept = [row.error or "" for row in read_requests(tmp_path / "out")]
    assert ["Paris" in error for error in kept] == [False, False, False, True]
    assert kept[0] == "not kept: 22 characters that may quote the prompt or the answer"
    assert list(directory.answers()) == []


@given(st.text(), st.text(), st.lists(st.integers(0, 2**31 - 1)), st.lists(st.integers(0, 2**31 - 1)))
def test_digests_are_equal_exactly_where_the_answers_are(one: str, other: str, ids: list[int], more: list[int]) -> None:
    assert (withheld(one, ids, b"k") == withheld(other, more, b"k")) == ((one, ids) == (other, more))
    assert withheld(one, ids, b"k") != withheld(one, ids, b"another prompt")
    assert withheld(one, None, b"k") != withheld(one, ids, b"k")


def test_half_a_surrogate_in_an_answer_is_no_obstacle() -> None:
    assert withheld("a\ud800", None, b"").startswith("not kept: 2 characters")


def test_an_engine_that_sends_no_ids_has_digests_of_texts_alone(
    embedded_engine: Callable[[str], str], tmp_path: Path
) -> None:
    bench(tmp_path / "out", embedded_engine("baseline"), "--no-text", "--max-tokens", "4", "--mode", "baseline")
    rows = list(read_requests(tmp_path / "out"))
    assert all(row.text.startswith("not kept: ") for row in rows) and not (tmp_path / "out" / STEPS).exists()
