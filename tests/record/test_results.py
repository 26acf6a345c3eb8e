"""The result directory: to the key, readable after any end, and a summary that anyone can recompute."""

import gzip
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ROOT

from specbench import UserError
from specbench.files import check_writable, json_bytes, write_atomically
from specbench.record.directory import ResultDirectory, check_unedited, read_manifest, read_requests, read_summary
from specbench.record.format import (
    FORMAT,
    MANIFEST,
    REQUESTS,
    CaseRecord,
    Checked,
    ClientHealth,
    Expected,
    InventoryRecord,
    Manifest,
    Model,
    Network,
    Request,
    RequestCounts,
    RoundTrips,
    ScheduleRecord,
    ServerDeltas,
    ServerIdentity,
    Status,
    Summary,
    Throughput,
)
from specbench.record.provenance import client_record, now, tool
from specbench.record.summary import distribution, summarize, summary_table
from specbench.redaction import command_line, public_url

KEYS = """
case family repeat position user phase start_s ttft_s e2el_s decode_s prompt_tokens completion_tokens first_tokens
chunks finish_reason stop_reason text token_ids outcome error http_status response_id prompt_sha256
draft_tokens accepted_tokens
"""


def request(**changes: Any) -> Request:
    values: dict[str, Any] = {
        **dict.fromkeys(KEYS.split()),
        **{"case": "copy-1", "family": "copy", "repeat": 0, "position": 0, "user": 0, "phase": "measured"},
        **{"start_s": 1.0, "ttft_s": 0.1, "e2el_s": 1.1, "decode_s": 1.0},
        **{"prompt_tokens": 10, "completion_tokens": 21, "first_tokens": 1, "chunks": 20},
        **{"finish_reason": "stop", "text": "Paris", "outcome": "ok", "http_status": 200, "prompt_sha256": "0" * 64},
    }
    return Request(**{**values, **changes})


def manifest(requests: int = 1, cases: list[CaseRecord] | None = None, status: Status = "complete") -> Manifest:
    """A manifest as bench.py writes it, with as many scheduled requests and these cases."""
    return Manifest(
        format=FORMAT,
        tool=tool(),
        command=["bench.py"],
        service_run=None,
        url="http://h",
        inventory=InventoryRecord("prompts.jsonl", "0" * 64, cases or [a_case()]),
        schedule=ScheduleRecord("0" * 64, requests, 1, 0),
        concurrency=1,
        timeout_s=600.0,
        inactivity_timeout_s=60.0,
        client=client_record("uvloop", None),
        started=now(),
        mode="baseline",
        mode_verified={"how": "server record", "detail": ""},
        server=ServerIdentity("vllm", "0.11.2", None, Model("m"), None),
        request={"model": "m"},
        network=Network(RoundTrips(1, 1.0, 1.0, 1.0), []),
        status=status,
    )


def a_case(name: str = "copy-1", expect: str | None = None) -> CaseRecord:
    return CaseRecord(name, "copy", None, expect, "0" * 64)


def summary(path: Path, manifest: Manifest, warnings: list[str] | None = None) -> Summary:
    return summarize(path, manifest, server=ServerDeltas(), client=ClientHealth(), warnings=warnings or [])


def written(path: Path, *rows: Request) -> Path:
    directory = ResultDirectory(path)
    for row in rows:
        directory.append(row)
    directory.close()
    return path


def test_a_line_has_exactly_the_keys_of_the_format(tmp_path: Path) -> None:
    path = written(tmp_path / "r", request())
    assert list(json.loads((path / "requests.jsonl").read_text())) == KEYS.split()


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_FSIZE as Linux has it")
def test_a_disk_that_fills_up_leaves_whole_lines(tmp_path: Path) -> None:
    program = f"""
import resource, signal, sys
sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}, {str(ROOT / "tests")!r}]
from pathlib import Path
from test_results import request
from specbench.record.directory import ResultDirectory
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
directory = ResultDirectory(Path({str(tmp_path / "r")!r}))
try:
    while True:
        directory.append(request())
except OSError as error:
    print(error.strerror)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("No space left on device", "File too large")
    assert len(list(read_requests(tmp_path / "r"))) >= 1


def test_a_used_directory_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "mine.txt").write_text("keep")
    with pytest.raises(UserError, match="not empty; name a fresh directory with --out"):
        ResultDirectory(tmp_path / "r")
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["mine.txt"]


def test_an_unwritable_place_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to"):
        ResultDirectory(tmp_path / "file" / "r")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[:-1], "line 2 is cut off"),
        (lambda text: text[: len(text) * 3 // 4], "line 2 is cut off"),
        (lambda text: text.replace('"chunks":20', '"chunk":20', 1), "line 1 is not what bench.py writes"),
        (lambda text: text.replace('"ttft_s":0.1', '"ttft_s":-0.1', 1), "line 1: ttft_s is -0.1"),
        (lambda text: text.replace('"ttft_s":0.1', '"ttft_s":NaN', 1), "line 1 is not what bench.py writes"),
        (lambda text: text.replace('"e2el_s":1.1', '"e2el_s":1e999', 1), "line 1"),
        (lambda text: text.replace('"e2el_s":1.1', '"e2el_s":null', 1), "an ok request needs"),
        (lambda text: text.replace('"completion_tokens":21', '"completion_tokens":-2', 1), "completion_tokens is -2"),
        (lambda text: text.replace('"user":0', '"user":"0"', 1), "line 1"),
        (lambda text: text.replace('"e2el_s":1.1', '"e2el_s":1e308', 1), "line 1: e2el_s is 1e+308, which no run can"),
        (lambda text: text.replace('"completion_tokens":21', '"completion_tokens":1e30', 1), "line 1"),
        (lambda text: text + "garbage\n", "line 3"),
    ],
)
def test_a_truncated_or_edited_file_is_an_error_with_its_line(tmp_path: Path, change: Any, says: str) -> None:
    path = written(tmp_path / "r", request(), request(position=1)) / "requests.jsonl"
    path.write_text(change(path.read_text()))
    with pytest.raises(UserError) as error:
        list(read_requests(tmp_path / "r"))
    assert says in str(error.value) and "requests.jsonl" in str(error.value)


def test_no_summary_says_how_far_the_run_came(tmp_path: Path) -> None:
    path = written(tmp_path / "r", request(phase="warmup", position=None), request())
    (path / "manifest.json").write_bytes(json_bytes(manifest(90)))
    with pytest.raises(UserError, match="after 1 of 90 requests"):
        read_summary(path)


@pytest.mark.parametrize(
    ("text", "says"), [('{"format": 2}', "format 2"), ("{}", "format None"), ("[]", "format"), ("{", "not JSON")]
)
def test_a_future_or_broken_document_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=says):
        read_manifest(tmp_path)


def test_tpot_divides_by_the_tokens_after_the_first_event() -> None:
    assert request(decode_s=1.0, completion_tokens=21, first_tokens=1).tpot_s == pytest.approx(1 / 20)
    assert request(decode_s=1.0, completion_tokens=21, first_tokens=5).tpot_s == pytest.approx(1 / 16)
    assert request(decode_s=1.0, completion_tokens=21, first_tokens=None, chunks=21).tpot_s == pytest.approx(1 / 20)
    # Without ids and with fewer chunks than tokens nobody knows how many came first: of 21 tokens in 3 chunks 15 may.
    assert request(decode_s=1.0, completion_tokens=21, first_tokens=None, chunks=3).tpot_s is None
    assert request(decode_s=0.0, completion_tokens=1, first_tokens=1).tpot_s is None
    assert request(completion_tokens=None).tpot_s is None


def test_a_percentile_without_enough_samples_is_null_with_its_reason() -> None:
    few = distribution([1.0, 2.0, 4.0])
    assert (few.n, few.p50, few.p90, few.p99) == (3, 2.0, None, None)
    assert few.reasons["p99"] == "needs 100 samples, has 3"
    many = distribution([float(n) for n in range(100)])
    assert many.reasons == {} and many.p99 == pytest.approx(98.01)
    none = distribution([])
    assert none.mean is None and none.p50 is None


def test_throughput_counts_only_while_every_user_is_busy(tmp_path: Path) -> None:
    # Two users; user 0 ends at 2 s and finds nothing more: the window is 0-2 s, and of the request that decodes from
    # 1 to 3 s one half lies inside.
    path = written(
        tmp_path / "r",
        request(user=0, start_s=0.0, ttft_s=0.5, e2el_s=2.0, completion_tokens=30),
        request(user=1, start_s=0.5, ttft_s=0.5, e2el_s=2.5, completion_tokens=40),
    )
    assert summary(path, manifest(2)).throughput == Throughput(tokens=30 + 20, window_s=2.0, tokens_per_s=25.0)
    assert summary(written(tmp_path / "none"), manifest(2)).throughput == Throughput()


def test_tokens_that_all_came_at_the_end_count_where_they_came(tmp_path: Path) -> None:
    """Two users; user 0 ends the window at 2 s with an answer that came in one read, user 1 is in the middle of one."""
    path = written(
        tmp_path / "r",
        request(user=0, start_s=0.0, ttft_s=2.0, e2el_s=2.0, decode_s=0.0, completion_tokens=30),
        request(user=1, start_s=0.5, ttft_s=2.5, e2el_s=2.5, decode_s=0.0, completion_tokens=40),
    )
    found = summary(path, manifest(2))
    assert found.throughput == Throughput(tokens=30, window_s=2.0, tokens_per_s=15.0)
    assert found.metrics.overall["tpot_s"].n == 0
    assert found.metrics.overall["tpot_s"].reasons["missing"] == "unknown for 2 of 2 answers: all tokens came at once"
    (warning,) = found.warnings
    assert warning.startswith("2 of 2 answers came in one piece (such as copy-1): something between server and client")
    assert "TPOT: unknown for 2 of 2 answers" in summary_table(path, manifest(2), found)


@pytest.mark.parametrize(
    ("changes", "at_once"),
    [
        ({"ttft_s": 1.0, "e2el_s": 1.0, "decode_s": 0.0}, True),
        ({"ttft_s": 1.0, "e2el_s": 1.0005, "decode_s": 0.0005}, True),  # several reads of one buffer
        ({"ttft_s": 1.0, "e2el_s": 1.02, "decode_s": 0.02}, False),  # 1 ms a token: a small model
        ({"ttft_s": 0.001, "e2el_s": 0.0012, "decode_s": 0.0002}, False),  # a stand-in that replays at full speed
        ({"ttft_s": 1.0, "e2el_s": 1.0, "decode_s": 0.0, "completion_tokens": 1}, False),
        ({"ttft_s": 1.0, "e2el_s": 1.0, "decode_s": 0.0, "first_tokens": 21}, False),
        ({"ttft_s": None, "e2el_s": 1.0, "decode_s": None}, False),
    ],
)
def test_what_a_gateway_held_back_is_told_from_a_fast_server(changes: dict[str, Any], at_once: bool) -> None:
    row = request(**changes)
    assert row.came_at_once is at_once and (not at_once or row.tpot_s is None)


def test_odd_answers_are_sentences_with_both_numbers(tmp_path: Path) -> None:
    no_text: dict[str, Any] = {"text": "", "ttft_s": None, "decode_s": None, "chunks": 0}
    path = written(
        tmp_path / "r",
        request(position=0),
        request(position=1, case="a", completion_tokens=3, **no_text),
        request(position=2, case="b", completion_tokens=8, token_ids=[7] * 6),
        request(position=3, case="c", completion_tokens=3, chunks=8, first_tokens=None),
        request(position=4, case="d", completion_tokens=1, token_ids=[2], **no_text),
    )
    assert summary(path, manifest(5)).warnings == [
        "1 of 5 answers show no text for the tokens that usage counts (such as a with 3 tokens), so they have no TTFT "
        "and no TPOT",
        "2 of 5 answers have a usage that contradicts what came (such as b, where usage counts 8 tokens and 6 ids "
        "came)",
    ]


def test_the_table_shows_an_example_of_each_failure_and_the_prefix_cache(tmp_path: Path) -> None:
    failed = {"outcome": "stream_error", "error": "engine \x1b[2J died", "e2el_s": None, "decode_s": None}
    path = written(tmp_path / "r", request(position=0), request(position=1, **failed), request(position=2, **failed))
    server = ServerDeltas(prefix_cache_queries=200.0, prefix_cache_hits=30.0)
    found = summarize(path, manifest(3), server=server, client=ClientHealth(), warnings=[])
    printed = summary_table(path, manifest(3), found)
    assert "2 requests ended as stream_error, for example copy-1: engine" in printed
    assert "15% of prompt tokens from the prefix cache" in printed


def test_warmups_and_failures_are_in_no_statistic(tmp_path: Path) -> None:
    rows = [
        request(phase="warmup", position=None, repeat=None, e2el_s=9.0),
        request(position=0),
        request(position=1, outcome="stream_error", error="the engine died", e2el_s=None, decode_s=None, ttft_s=0.1),
    ]
    path = written(tmp_path / "r", *rows)
    found = summary(path, manifest(2, [a_case(expect="Par.s")]), warnings=["w"])
    assert found.requests == RequestCounts(
        scheduled=2, measured=2, ok=1, outcomes={"ok": 1, "stream_error": 1}, warmup=1,
        examples={"stream_error": "copy-1: the engine died"},
    )  # fmt: skip
    assert found.metrics.overall["e2el_s"].n == 1
    assert found.expect == Expected(1, 1, {"copy-1": Checked(1, 1)})
    assert found.tokens_per_chunk.families == {"copy": 21 / 20} and found.warnings == ["w"]


@pytest.mark.skipif(not shutil.which("jq") and not os.environ.get("CI"), reason="jq is not installed")
def test_the_summary_equals_what_jq_computes(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    rows = []
    for n in range(31):
        times = {"start_s": float(n), "e2el_s": float(generator.lognormal()) + 0.2}
        tokens = int(generator.integers(2, 90))
        rows.append(
            request(case=f"c{n % 4}", family="ab"[n % 2], position=n, user=n % 3, completion_tokens=tokens, **times)
        )
    path = written(tmp_path / "r", *rows)
    found = summary(path, manifest(31))
    program = """
      def median: sort | if length % 2 == 1 then .[length/2|floor] else (.[length/2-1] + .[length/2]) / 2 end;
      map(select(.phase == "measured" and .outcome == "ok")) |
      [(map(.e2el_s) | median), (map(select(.family == "a") | .e2el_s) | median),
       (map(select(.first_tokens or .chunks == .completion_tokens) |
            .decode_s / (.completion_tokens - (.first_tokens // 1))) | add / length)]
    """
    output = subprocess.run(
        ["jq", "-s", program, str(path / "requests.jsonl")], capture_output=True, text=True, check=True
    ).stdout
    overall, family, tpot = json.loads(output)
    assert found.metrics.overall["e2el_s"].p50 == pytest.approx(overall, rel=1e-12)
    assert found.metrics.families["a"]["e2el_s"].p50 == pytest.approx(family, rel=1e-12)
    assert found.metrics.overall["tpot_s"].mean == pytest.approx(tpot, rel=1e-9)


@given(st.builds(str), st.lists(st.integers(0, 200_000)), st.floats(0, 1e6))
@settings(max_examples=60, deadline=None)
def test_a_row_comes_back_as_it_was_written(text: str, token_ids: list[int], seconds: float) -> None:
    row = request(text=text, token_ids=token_ids, e2el_s=seconds)
    assert msgspec.json.decode(msgspec.json.encode(row), type=Request) == row
    assert b"\n" not in msgspec.json.encode(row)


def test_an_atomic_write_leaves_no_part_behind(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.json", json_bytes({"x": math.pi}))
    write_atomically(tmp_path / "a.json", json_bytes({"x": 1}))
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"] and json.loads(
        (tmp_path / "a.json").read_text()
    ) == {"x": 1}


def test_credentials_never_reach_the_manifest() -> None:
    stored = command_line(
        ["bench.py", "--url", "https://u:p@host:8/x?token=s#f", "--url=http://u@h/?t=1", "--out", "a"]
    )
    assert stored == ["bench.py", "--url", "https://host:8/x", "--url=http://h/", "--out", "a"]
    assert not re.search("token|u:p|u@", " ".join(stored))


def test_discarding_leaves_the_place_as_it_was_found(tmp_path: Path) -> None:
    directory = ResultDirectory(tmp_path / "a" / "b" / "c")
    directory.write_json(MANIFEST, {})
    directory.discard()
    assert list(tmp_path.iterdir()) == []


def test_discarding_takes_nothing_that_is_not_its_own(tmp_path: Path) -> None:
    directory = ResultDirectory(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "notes.txt").write_text("mine")
    directory.discard()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["notes.txt"]


def test_an_atomic_write_that_fails_leaves_no_part_behind(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises(OSError, match=r"a\.json"):
        write_atomically(tmp_path / "a.json", b"{}")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://me:secret@h:8/a?b=secret#secret", "https://h:8/a"),
        ("http://me:secret@[::1", "http://[::1"),
        ("http://h", "http://h"),
    ],
)
def test_a_public_url_holds_no_credentials_even_where_it_is_none(url: str, public: str) -> None:
    assert public_url(url) == public


def test_a_request_edited_afterwards_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path / "r", request(), request(position=1))
    whole = summary(path, manifest())
    check_unedited(path, manifest(), whole)
    check_unedited(path, manifest(), msgspec.structs.replace(whole, requests_sha256=None))  # as the first version wrote
    with pytest.raises(UserError, match="says interrupted and"):
        check_unedited(path, manifest(status="interrupted"), whole)
    content = (path / REQUESTS).read_text()
    (path / REQUESTS).write_text(content.replace('"ok"', '"OK"', 1))
    with pytest.raises(UserError, match="beside it was made of"):
        check_unedited(path, manifest(), whole)


def test_nothing_is_written_over_measurements(tmp_path: Path) -> None:
    path = written(tmp_path / "r", request())
    for name in ("requests.jsonl", "manifest.json", "summary.json", "page.html"):
        with pytest.raises(UserError, match="where measurements are kept"):
            check_writable(path / name, "--json")
    with pytest.raises(UserError, match="where measurements are kept"):
        check_writable(tmp_path / "experiment.json", "--out")
    check_writable(tmp_path / "compare-c1.json", "--json")


def compressed(path: Path) -> Path:
    """The same directory with requests.jsonl.gz in place of requests.jsonl; the compressed file."""
    plain = path / REQUESTS
    archive = path / (REQUESTS + ".gz")
    archive.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    plain.unlink()
    return archive


def test_compressed_requests_are_read_and_held_against_the_digest_of_their_lines(tmp_path: Path) -> None:
    path = written(tmp_path / "r", request(), request(position=1))
    rows, whole = list(read_requests(path)), summary(path, manifest())
    archive = compressed(path)
    assert list(read_requests(path)) == rows
    check_unedited(path, manifest(), whole)
    archive.write_bytes(gzip.compress(gzip.decompress(archive.read_bytes()).replace(b"copy-1", b"copy-2")))
    with pytest.raises(UserError, match=r"requests\.jsonl\.gz is not the file that summary\.json"):
        check_unedited(path, manifest(), whole)


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-12], lambda content: content[:20] + b"\xff" * 30, lambda _: b"x"]
)
def test_a_damaged_archive_is_named(tmp_path: Path, damage: Any) -> None:
    archive = compressed(written(tmp_path / "r", request(), request(position=1)))
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(UserError, match=r"cannot decompress .*requests\.jsonl\.gz"):
        list(read_requests(tmp_path / "r"))
