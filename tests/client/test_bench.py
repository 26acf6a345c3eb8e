"""bench.py as a command: against a stand-in that replays recorded vLLM streams over a real socket."""

import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support import HANG_S
from support.bench_commands import bench, command, environment, wait_for_rows
from support.vllm_standin import StandIn, record

from bench import main as bench_main
from specbench.files import write_atomically
from specbench.record import directory
from specbench.record.directory import read_manifest, read_requests, read_summary
from specbench.record.format import MANIFEST, SUMMARY, PromptTokenSource, RequestCounts
from specbench.record.prompts import read_prompt_tokens

UUID = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"


def test_a_run_writes_the_directory_of_the_format(tmp_path: Path) -> None:
    out = tmp_path / "ngram-c1"
    with StandIn("ngram", record=record("ngram")) as server:
        argv = command(out, "--url", server.url, "--mode", "ngram", "--client-location", "same host")
        done = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in out.iterdir()) == [
        "manifest.json", "metrics-after.txt", "metrics-before.txt", "prompt-tokens.jsonl", "requests.jsonl",
        "summary.json",
    ]  # fmt: skip
    manifest, summary, rows = read_manifest(out), read_summary(out), list(read_requests(out))
    assert (manifest.mode, manifest.status, manifest.mode_verified["how"]) == (
        "ngram",
        "complete",
        "server record",
    )
    assert manifest.client.location == "same host" and manifest.server.record == record("ngram")
    assert [row.phase for row in rows] == ["warmup"] * 12 + ["measured"] * 9
    assert summary.requests == RequestCounts(scheduled=9, measured=9, ok=9, outcomes={"ok": 9}, warmup=12)
    # The recorded stream says its prompt's ids, as many as its usage counts.
    prompts = read_prompt_tokens(out)
    assert prompts is not None and list(prompts) == [case.id for case in manifest.inventory.cases]
    assert {len(token_ids) for token_ids in prompts.values()} == {107}
    assert manifest.prompt_tokens == PromptTokenSource("stream", None)
    # The recorded stream: 67 tokens, the first event holding one, drafts as the stand-in counts them.
    assert {(row.completion_tokens, row.first_tokens, row.outcome) for row in rows} == {(67, 1, "ok")}
    assert summary.server.acceptance_rate == pytest.approx(3 / 5)
    assert summary.server.acceptance_per_position == [1, 1, 1, 0, 0]
    assert summary.server.foreign_requests == 0 and summary.server.generation_tokens == 9 * 67
    assert "9 of 9 ok, mode ngram" in done.stdout and "60% of drafted tokens accepted" in done.stdout


def test_what_is_sent_is_what_the_manifest_says_and_nothing_that_stops_drafting(tmp_path: Path) -> None:
    with StandIn(record=record("baseline")) as server:
        assert bench(tmp_path / "out", "--url", server.url + "/", "--max-tokens", "40").returncode == 0
        sent = [json.loads(body) for path, _, body in server.seen if path == "/v1/chat/completions"]
    manifest = read_manifest(tmp_path / "out")
    shorter = {9: 32, 10: 32, 11: 32}  # the repetitive warm-ups after the nine cases; the rest is alike
    for number, body in enumerate(sent):
        own = {"messages": body["messages"], "max_tokens": shorter.get(number, 40)}
        assert {**manifest.request, **own} == body
    assert len(sent) == 12 + 9
    stops_drafting = {"logprobs", "top_logprobs", "presence_penalty", "frequency_penalty", "repetition_penalty"}
    assert not set(manifest.request) & (stops_drafting | {"min_p", "min_tokens", "logit_bias"})
    assert manifest.request == {
        "model": "m", "temperature": 0, "max_tokens": 40, "stream": True, "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"enable_thinking": False}, "return_token_ids": True, "seed": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "variables", "says"),
    [
        ([], {}, "set SERVICE_URL or give --url"),
        (["--url", "localhost:1"], {}, "is not a URL"),
        (["--url", "http://10.0.0.1:1"], {"POLYAXON_TOKEN": "t0ps3cret"}, "--insecure-http"),
        (["--url", f"http://h/services/v1/n/o/p/runs/{UUID}/1", "--service-run", "ffff"], {}, "earlier run"),
        (["--url", "http://127.0.0.1:1", "--ready-timeout", "0.2"], {}, "not ready within 0.2 s"),
        (["--url", "http://127.0.0.1:1", "--prompts", "none.jsonl"], {}, "cannot read the prompts file"),
        (["--concurrency", "0"], {}, "0 is less than 1"),
        (["--repeats", "0"], {}, "0 is less than 1"),
        (["--repeats", "x"], {}, "invalid whole number value"),
        (["--timeout", "-1"], {}, "not a time above 0 s"),
        (["--mode", "eagle"], {}, "invalid choice"),
        (["--no-such-option"], {}, "unrecognized arguments"),
        (["--timeout", "1e300"], {}, "more than 1000000 s"),
        (["--url", "http://[::1"], {}, "is not a URL"),
        (["--url", "http://127.0.0.1:abc"], {}, "is not a URL"),
        (["--url", "http://127.0.0.1:99999"], {}, "is not a URL"),
        (["--url", "http://exa mple/"], {}, "is not a URL"),
        (["--repeats", "999999999999"], {}, "is more than 100000"),
        (["--timeout", "x"], {}, "'x' is not a time above 0 s"),
        (["--url", "http://:t0ps3cret@host"], {}, "user name"),
        (["--url", "ftp://me:t0ps3cret@host"], {}, "user name"),
        (["--url", "http://me:t0ps3cret@[::1"], {}, "user name"),
        (["--url", "http://localhost:1"], {"POLYAXON_TOKEN": "t0ps3cret\nx: y"}, "the token holds"),
        (["--url", "http://localhost:1", "--service-run", UUID, "-p", "p"], {"POLYAXON_TOKEN": "é"}, "the token holds"),
    ],
)
def test_bad_input_is_one_sentence_and_creates_nothing(
    tmp_path: Path, arguments: list[str], variables: dict[str, str], says: str
) -> None:
    done = bench(tmp_path / "out", *arguments, **variables)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert "usage:" not in done.stderr and len(done.stderr.splitlines()) <= 2, done.stderr  # maybe one "waiting for"
    assert not (tmp_path / "out").exists() and "t0ps3cret" not in done.stderr


def set_attributes(server: StandIn, changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        assert hasattr(server, name)
        setattr(server, name, value)


@pytest.mark.parametrize(
    ("mode", "changes", "arguments", "says"),
    [
        ("baseline", {}, ["--model", "qwen"], "does not serve --model qwen; it serves m"),
        ("baseline", {"token": "right"}, [], "HTTP 401: set POLYAXON_TOKEN"),
        ("baseline", {"record": record("baseline", service_run="c0f")}, ["--service-run", UUID], "service_run c0f"),
        ("ngram", {"record": record("ngram")}, ["--mode", "baseline"], "--mode says baseline and the server's own"),
        ("baseline", {}, ["--mode", "ngram"], "drafted nothing"),
        ("ngram", {"record": record("baseline")}, [], "it speculates"),
        ("ngram", {"record": record("ngram", max_model_len=150), "models": [{"id": "m"}]}, [], "does not fit"),
        ("baseline", {"tokenize": False, "models": [{"id": "m", "max_model_len": 200}]}, [], "does not fit"),
        ("baseline", {"fault": lambda n: "error event" if n == 3 else None}, [], "stream_error: "),
    ],
)  # fmt: skip
def test_a_server_that_may_not_be_measured_is_refused(
    tmp_path: Path, mode: str, changes: dict[str, Any], arguments: list[str], says: str
) -> None:
    (tmp_path / "out").mkdir()  # an empty directory of the user's stays
    with StandIn(mode) as server:
        set_attributes(server, changes)
        done = bench(tmp_path / "out", "--url", server.url, *arguments)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_a_used_directory_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = bench(tmp_path, "--url", "http://127.0.0.1:1")
    assert done.returncode == 2 and "name a fresh directory with --out" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("fault", ["error event", "cut", "500"])
def test_a_broken_stream_is_never_a_success_and_never_sent_again(tmp_path: Path, fault: str) -> None:
    with StandIn(record=record("baseline"), fault=lambda n: fault if n == 14 else None) as server:
        done = bench(tmp_path / "out", "--url", server.url)
        assert server.chats == 12 + 9
    outcome = {"error event": "stream_error", "cut": "disconnected", "500": "http_error"}[fault]
    summary = read_summary(tmp_path / "out")
    assert done.returncode == 1 and summary.requests.outcomes == {"ok": 8, outcome: 1}
    (failed,) = [row for row in read_requests(tmp_path / "out") if row.outcome != "ok"]
    assert failed.error and failed.outcome == outcome and failed.e2el_s is None
    assert summary.metrics.overall["e2el_s"].n == 8


def test_a_dead_server_ends_the_run_early_and_keeps_what_was_measured(tmp_path: Path) -> None:
    with StandIn(record=record("baseline"), fault=lambda n: "500" if n >= 16 else None) as server:
        done = bench(tmp_path / "out", "--url", server.url, "--repeats", "5")
    manifest, summary = read_manifest(tmp_path / "out"), read_summary(tmp_path / "out")
    assert (
        done.returncode == 1 and manifest.status == "aborted" and "5 requests in a row failed" in manifest.stopped
    )
    assert summary.requests.outcomes == {"http_error": 5, "ok": 4} and "stopped early" in done.stdout


def test_what_was_in_flight_when_a_run_stopped_is_nobody_elses(tmp_path: Path) -> None:
    def fault(number: int) -> str | None:
        server.foreign = 6 if number >= 16 else 0  # the five that failed, and the one in flight, finished after all
        return "500" if number >= 16 else None

    with StandIn(record=record("baseline"), fault=fault) as server:
        done = bench(tmp_path / "out", "--url", server.url, "--repeats", "5")
    assert read_summary(tmp_path / "out").server.foreign_requests == 0
    assert "stopped early" in done.stdout and "someone else" not in done.stdout


def test_a_restarted_server_ends_the_run(tmp_path: Path) -> None:
    def restart(number: int) -> str | None:
        if number == 14:
            server.start_time += 60
            return "cut"
        return "hang" if number > 14 else None

    with StandIn(record=record("baseline"), fault=restart) as server:
        done = bench(tmp_path / "out", "--url", server.url)
    assert done.returncode == 1 and "the server restarted" in read_manifest(tmp_path / "out").stopped
    assert read_summary(tmp_path / "out").server.restarted is True


def test_foreign_requests_are_counted(tmp_path: Path) -> None:
    def foreign(number: int) -> None:
        server.foreign = 3 if number >= 15 else 0

    with StandIn(record=record("baseline"), fault=foreign) as server:
        done = bench(tmp_path / "out", "--url", server.url)
    assert read_summary(tmp_path / "out").server.foreign_requests == 3
    assert "someone else sent 3 requests" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_was_measured(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out"
    with StandIn(record=record("baseline"), fault=lambda n: "hang" if n == 12 + 4 else None) as server:
        process = subprocess.Popen(command(out, "--url", server.url), env=environment())
        wait_for_rows(out, 12 + 4)
        process.send_signal(number)
        assert process.wait(HANG_S) == 130
    rows = list(read_requests(out))
    assert read_manifest(out).status == "interrupted" == read_summary(out).status
    assert sum(row.phase == "measured" for row in rows) == 4 and {row.outcome for row in rows} == {"ok"}


def test_a_killed_run_leaves_each_row_that_was_complete_and_no_summary(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with StandIn(record=record("baseline"), fault=lambda n: "hang" if n == 12 + 5 else None) as server:
        process = subprocess.Popen(command(out, "--url", server.url), env=environment())
        wait_for_rows(out, 12 + 5)
        process.kill()
        process.wait(HANG_S)
    assert len(list(read_requests(out))) == 12 + 5 and read_manifest(out).status == "running"
    assert not (out / "summary.json").exists()


def test_the_token_goes_to_the_service_and_into_no_file(tmp_path: Path) -> None:
    with StandIn(record=record("baseline")) as server:
        server.token = "t0ps3cret"
        done = bench(tmp_path / "out", POLYAXON_AUTH_TOKEN="t0ps3cret", SERVICE_URL=server.url)
        assert {headers.get("authorization") for _, headers, _ in server.seen} == {"Token t0ps3cret"}
    assert done.returncode == 0
    for path in (tmp_path / "out").iterdir():
        assert "t0ps3cret" not in path.read_text()
    assert "t0ps3cret" not in done.stdout + done.stderr


def test_a_signal_after_the_last_request_ends_the_wait_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with StandIn(record=record("baseline")) as server:

        def miscount(number: int) -> None:
            server.foreign = -1 if number >= 13 else 0  # the server never counts the last request: bench.py waits

        server.fault = miscount
        process = subprocess.Popen(command(out, "--url", server.url), env=environment(), stderr=subprocess.DEVNULL)
        wait_for_rows(out, 12 + 9)
        scrapes = [path for path, _, _ in server.seen].count("/metrics")
        while [path for path, _, _ in server.seen].count("/metrics") <= scrapes:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 0
    assert read_manifest(out).status == "complete" == read_summary(out).status
    assert (out / "metrics-after.txt").read_text() == ""


def test_proxy_variables_that_are_not_used_break_nothing(tmp_path: Path) -> None:
    with StandIn(record=record("baseline")) as server:
        variables = {"ALL_PROXY": "gopher://nowhere:1", "NO_PROXY": "127.0.0.1"}
        done = bench(tmp_path / "out", "--url", server.url, **variables)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "code", "says"), [(MANIFEST, 2, "nothing was measured"), (SUMMARY, 1, "what was measured so far is kept")]
)
def test_a_full_disk_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    code: int,
    says: str,
) -> None:
    write = write_atomically

    def is_full(path: Path, content: bytes) -> None:
        if path.name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, content)

    monkeypatch.setattr(directory, "write_atomically", is_full)
    out = tmp_path / "new" / "out"
    with StandIn(record=record("baseline")) as server:
        assert bench_main(command(out, "--url", server.url)[2:]) == code
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"bench.py: cannot write the results to {out}: No space left on device; {says}"
    assert (tmp_path / "new").exists() is (code == 1)
