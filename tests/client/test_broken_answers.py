"""A broken answer is never ok, and what the server said of it is kept; a strange one that is whole is ok."""

from pathlib import Path

import pytest
from support.scripted_server import DONE, FINISH, GOOD, ROLE, event, usage

from specbench.client.answer import Sample, read
from specbench.client.connection import Arrival
from specbench.client.request import Exchange
from specbench.redaction import Secrets

CASES = Path(__file__).parent / "cases"


def answer(*blocks: bytes, secrets: Secrets | None = None) -> Sample:
    """A 200 whose body came in these blocks, the nth at n ms."""
    arrival = Arrival()
    arrival.status = 200
    arrival.headers = [(b"content-type", b"text/event-stream")]
    arrival.reads = [(number * 1_000_000, block) for number, block in enumerate(blocks)]
    return read(Exchange(0, arrival), secrets or Secrets())


@pytest.mark.parametrize(
    ("name", "outcome", "error"),
    [
        ("abort", "stream_error", "the server ended the answer with finish_reason 'abort'"),
        ("choices-null", "ok", None),
        ("done-and-blank", "ok", None),
        ("empty-finish-only", "truncated", "the stream ended without finish_reason"),
        ("error-field", "stream_error", "server_error: context shift is disabled"),
        ("event-error", "stream_error", "the upstream was lost"),
        ("message-not-delta", "ok", None),
        ("no-text", "ok", None),
        ("number-as-id", "ok", None),
        ("usage-over", "ok", None),
    ],
)
def test_small_cases_are_judged_right(name: str, outcome: str, error: str | None) -> None:
    sample = answer((CASES / f"{name}.sse").read_bytes())
    assert (sample.outcome, sample.error) == (outcome, error)


def test_what_is_known_of_an_answer_without_text() -> None:
    sample = answer(ROLE, event("", finish_reason="stop", token_ids=[2]), usage(1), DONE)
    assert (sample.outcome, sample.text, sample.token_ids, sample.completion_tokens) == ("ok", "", [2], 1)
    assert sample.e2el_ns == 3_000_000 and sample.ttft_ns is sample.decode_ns is None


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "function_call"])
def test_a_known_end_is_whole(reason: str) -> None:
    assert answer(event("a"), event("", finish_reason=reason), usage(1), DONE).outcome == "ok"


@pytest.mark.parametrize("reason", ["abort", "error", "content_filter", "insufficient_resource", "STOP", 7, True])
def test_any_other_end_is_the_servers_failure(reason: object) -> None:
    sample = answer(event("a"), event("", finish_reason=reason), usage(1), DONE)
    assert sample.outcome == "stream_error" and str(reason) in (sample.error or "")


def test_a_good_end_after_a_bad_one_mends_nothing() -> None:
    bad, good = event("", finish_reason="abort"), event("", finish_reason="stop")
    assert answer(event("a"), bad, good, usage(1), DONE).outcome == "stream_error"
    assert answer(event("a"), good, bad, usage(1), DONE).outcome == "stream_error"
    assert answer(event("a"), event("b", finish_reason=""), good, usage(1), DONE).outcome == "ok"


def choice_error(value: bytes) -> bytes:
    return b'data: {"choices": [{"index": 0, "delta": {}, "error": %s, "finish_reason": null}]}\n\n' % value


ERROR = b'{"error": {"message": "out of memory", "type": "OOM", "code": 500}}'


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ([event("a"), choice_error(b'{"code": 502, "message": "overloaded"}'), FINISH, usage(1), DONE], "overloaded"),
        ([event("a"), choice_error(b'"overloaded"'), FINISH, usage(1), DONE], "overloaded"),
        ([event("a"), b"event: error\ndata: it broke\n\n"], "it broke"),
        ([event("a"), b'event: error\ndata: {"message": "it broke"}\n\n', *GOOD], "it broke"),
        ([event("a"), b'event: server_error\ndata: {"detail": "it broke"}\n\n', DONE], "it broke"),
        ([event("a"), b'event: error\ndata: {"message": "it broke"}'], "it broke"),  # and cut off
        ([b'event: error\ndata: {"code": 500}\n\n'], '{"code": 500}'),
        ([event("a"), b"error: " + ERROR + b"\n\n", DONE], "OOM: out of memory"),
        ([event("a"), b"error: " + ERROR], "OOM: out of memory"),
        ([event("a"), b"error:it broke\n\n"], "it broke"),
        ([event("a"), b"data: " + ERROR], "OOM: out of memory"),  # no blank line follows
        ([event("a"), ERROR], "OOM: out of memory"),  # written into the stream as it is
        ([event("a"), ERROR + b"\n", DONE], "OOM: out of memory"),
        ([event("a"), b'data: {"error": "it broke"}\n\n', *GOOD], "it broke"),
        ([event("a"), b'data: {"error": {}}\n\n', *GOOD], '{"error": {}}'),
        ([event("a"), b'data: {"object": "error", "message": "it broke", "code": 400}\n\n'], "it broke"),
        ([event("a"), b'data: {"type": "error", "message": "it broke"}\n\n', *GOOD], "it broke"),
        ([event("a"), b'data: {"detail": "it broke"}\n\n', *GOOD], "it broke"),
        ([*GOOD, b"data: " + ERROR + b"\n\n"], "OOM: out of memory"),  # even after [DONE]
    ],
)
def test_the_servers_words_are_kept(blocks: list[bytes], words: str) -> None:
    sample = answer(*blocks)
    assert (sample.outcome, sample.error) == ("stream_error", words)


@pytest.mark.parametrize(
    "blocks",
    [
        [ROLE.replace(b'"r1"', b"7"), event("a"), FINISH, usage(1), DONE],
        [ROLE.replace(b'"r1"', b'{"a": 1}'), event("a"), FINISH, usage(1), DONE],
        [ROLE, b'data: {"choices": null}\n\n', event("a"), FINISH, usage(1), DONE],
        [ROLE, b"data: {}\n\n", event("a"), FINISH, usage(1), DONE],
        [ROLE, b'data: {"choices": [{"delta": null, "finish_reason": null}]}\n\n', event("a"), FINISH, usage(1), DONE],
        [event("a"), FINISH, usage(1), b"data: [DONE] \n\n"],
        [event("a"), FINISH, usage(1), b"data:[DONE]\n\n"],
        [event("a"), FINISH, usage(1), b"data: \t[DONE]\r\n\r\n"],
        [event("a", error=None), FINISH, usage(1), DONE],
        [event("a"), b'data: {"choices": [], "error": null}\n\n', FINISH, usage(1), DONE],
        [event("a", stop_reason=[1]), FINISH, usage(1), DONE],
        [b"event: message\n" + event("a"), b"event: ping\ndata: {}\n\n", FINISH, usage(1), DONE],
        [event("a"), FINISH, usage(1), b'data: {"usage": {"prompt_tokens": 5}}\n\n', DONE],
        [*GOOD, b"data: half an event"],
    ],
)
def test_what_is_strange_and_whole_is_ok(blocks: list[bytes]) -> None:
    sample = answer(*blocks)
    assert (sample.outcome, sample.error, sample.text) == ("ok", None, "sea" if blocks[:5] == [*GOOD] else "a")


@pytest.mark.parametrize(
    ("tokens", "error"),
    [
        (0, "usage counts 0 completion tokens beside text"),
        (-1, "usage counts 5 prompt and -1 completion tokens"),
        (10**30, "usage counts 5 prompt and 1000000000000000000000000000000 completion tokens"),
    ],
)
def test_a_usage_that_cannot_be_true_is_not_ok(tokens: int, error: str) -> None:
    sample = answer(event("a"), FINISH, usage(tokens), DONE)
    assert (sample.outcome, sample.error) == ("malformed", error)
    assert sample.completion_tokens is None or sample.completion_tokens >= 0  # a row that can be read back
    assert answer(FINISH, usage(0), DONE).outcome == "ok"  # nothing was generated, and nothing shown


# ---- secrets

TOKEN = "t0p/s3cret&value"


@pytest.mark.parametrize(
    "blocks",
    [
        [event("your token is t0p/s3cret&value"), FINISH, usage(1), DONE],
        [event("t0p/s3"), event("cret&value"), FINISH, usage(2), DONE],
        [ROLE.replace(b'"r1"', b'"t0p/s3cret&value"'), event("a"), FINISH, usage(1), DONE],
        [event("a", finish_reason="t0p/s3cret&value"), usage(1), DONE],
        [event("a", finish_reason="stop", stop_reason="t0p/s3cret&value"), usage(1), DONE],
        [b'data: {"error": "bad token T0P/S3CRET&VALUE"}\n\n'],
        [b'data: {"error": {"message": "' + b"x" * 490 + b't0p/s3cret&value"}}\n\n'],
        [b'data: {"error": "\\u0074\\u0030p\\/s3cret&value"}\n\n'],
        [b"event: error\ndata: <p>t0p/s3cret&amp;value t0p%2Fs3cret%26value</p>\n\n"],
        [b"data: {t0p/s3cret&value\n\n"],
        [b"t0p/s3cret&value"],
    ],
)
def test_no_text_of_an_answer_shows_a_secret(blocks: list[bytes]) -> None:
    sample = answer(*blocks, secrets=Secrets(TOKEN))
    shown = repr(sample).lower()
    assert "redacted" in shown and not any(part in shown for part in ("s3cret", "t0p/", "t0p%2f"))


def test_a_short_value_is_no_secret() -> None:
    assert Secrets("a", None, "").hide("banana") == "banana"
    assert Secrets("banana").hide_in({"bananas": ["a banana", 1, None]}) == {"REDACTEDs": ["a REDACTED", 1, None]}
