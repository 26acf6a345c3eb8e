"""One request: what is sent, how its bytes are read, and what each kind of failure is called."""

import asyncio
import json
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import httpx
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from support import HANG_S
from support.scripted_server import (
    DONE,
    FINISH,
    GOOD,
    RECORDINGS,
    ROLE,
    STREAM_HEAD,
    Do,
    Scripted,
    Step,
    chunk,
    event,
    plain,
    recorded,
    stream,
    usage,
)  # fmt: skip

from specbench.client.answer import Sample, read
from specbench.client.connection import Arrival
from specbench.client.request import Exchange, RequestSettings, send
from specbench.client.sse import STRAY, UNFINISHED, events
from specbench.client.transport import StreamTransport
from specbench.workload.case import Case

CASE = Case("copy-1", "copy", [{"role": "user", "content": "grüße"}], None, None)
STREAMS = [
    (mode, name)
    for mode in ("baseline", "ngram")
    for name in ("copy-1", "copy-1.token-ids", "copy-1.continuous-usage", "explain-1.token-ids", "short-1.token-ids")
]
few = settings(deadline=None, max_examples=60)


def measure(steps: Sequence[Step], case: Case = CASE, **limits: Any) -> tuple[Sample, list[bytes]]:
    """One request to a server that answers with `steps`; also what the server was sent."""

    async def run() -> tuple[Sample, list[bytes]]:
        client = StreamTransport()
        async with Scripted(lambda _: steps) as server:
            target = RequestSettings(url=f"{server.url}/gateway/", model="m", authorization="Token t0p", **limits)
            sample = read(await send(client, target, case))
            await client.aclose()
            return sample, server.requests

    return uvloop.run(run())


def arrived(blocks: Sequence[bytes], error: httpx.TransportError | None = None) -> Exchange:
    """A 200 whose body came in `blocks`, the nth at n ms."""
    arrival = Arrival()
    arrival.status = 200
    arrival.reads = [(number * 1_000_000, block) for number, block in enumerate(blocks)]
    return Exchange(0, arrival, error)


def expected(mode: str, name: str) -> dict[str, Any]:
    """What another client recorded of the same request at 1 user."""
    case = name.partition(".")[0]
    lines = (RECORDINGS / mode / "requests-c1.jsonl").read_text().splitlines()
    return next(row for row in map(json.loads, lines) if row["case"] == case)


# ---- what is sent


def test_the_request_says_exactly_what_the_design_says() -> None:
    sample, (request,) = measure(stream(*GOOD), Case("c", "f", CASE.messages, 9, None), seed=3)
    assert sample.outcome == "ok"
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /gateway/v1/chat/completions HTTP/1.1\r\n")
    headers = {line.split(b": ")[0].lower(): line.split(b": ", 1)[1] for line in head.split(b"\r\n")[1:]}
    assert headers[b"authorization"] == b"Token t0p"
    assert headers[b"accept-encoding"] == b"identity"
    assert json.loads(body) == {
        "model": "m", "messages": CASE.messages, "temperature": 0, "max_tokens": 9, "stream": True,
        "stream_options": {"include_usage": True}, "chat_template_kwargs": {"enable_thinking": False},
        "return_token_ids": True, "seed": 3,
    }  # fmt: skip


def test_the_token_is_in_no_representation_of_the_settings() -> None:
    assert "t0p" not in repr(RequestSettings(url="http://x", model="m", authorization="Token t0p"))


# ---- recorded streams


@pytest.mark.parametrize(("mode", "name"), STREAMS)
def test_a_recorded_stream_over_a_socket_gives_its_text_and_tokens(mode: str, name: str) -> None:
    sample, _ = measure(stream(*recorded(mode, name)))
    known = expected(mode, name)
    assert (sample.outcome, sample.error) == ("ok", None)
    assert (sample.text, sample.finish_reason) == (known["text"], known["finish_reason"])
    assert (sample.prompt_tokens, sample.completion_tokens) == (known["prompt_tokens"], known["completion_tokens"])
    assert sample.ttft_ns and sample.e2el_ns and sample.decode_ns == sample.e2el_ns - sample.ttft_ns
    if name.endswith("token-ids"):
        assert sample.token_ids is not None and len(sample.token_ids) == known["completion_tokens"]
        assert sample.first_tokens == 1
        assert sample.stop_reason == 2
    else:
        assert sample.token_ids is sample.first_tokens is None


def test_drafted_tokens_share_chunks() -> None:
    baseline, ngram = (read(arrived(recorded(mode, "copy-1.token-ids"))) for mode in ("baseline", "ngram"))
    assert baseline.token_ids == ngram.token_ids
    assert ngram.chunks < 30 < baseline.chunks


def test_a_killed_server_leaves_what_came_before() -> None:
    body = (RECORDINGS / "ngram" / "server-killed-mid-stream.txt").read_bytes().partition(b"curl rc")[0]
    sample, _ = measure([STREAM_HEAD, chunk(body), Do.CLOSE])
    assert sample.outcome == "disconnected"
    assert sample.error is not None and sample.error.startswith("ReadError: the server closed the connection")
    assert sample.text.endswith("vast and mysterious underwater") and sample.chunks > 50
    assert sample.e2el_ns is sample.decode_ns is sample.completion_tokens is sample.finish_reason is None


def recorded_errors() -> list[tuple[str, bytes, str]]:
    text = (RECORDINGS / "baseline" / "errors.txt").read_bytes()
    answers = [part.partition(b"\n")[2].strip() for part in text.split(b"## ")[1:]]
    found = []
    for answer in answers:
        head, _, body = answer.replace(b"\r\n", b"\n").partition(b"\n\n")
        found.append((head.split(b" ", 1)[1].split(b"\n")[0].decode(), body, json.loads(body)["error"]["message"]))
    return found


@pytest.mark.parametrize(("status", "body", "message"), recorded_errors())
def test_a_recorded_refusal_keeps_the_servers_message(status: str, body: bytes, message: str) -> None:
    sample, requests = measure(plain(status, body))
    assert sample.outcome == "http_error"
    assert sample.http_status == int(status[:3])
    assert sample.error is not None and message[:400] in sample.error
    assert sample.ttft_ns is sample.e2el_ns is None
    assert len(requests) == 1


# ---- splitting


@st.composite
def cuts(draw: st.DrawFn, body: bytes) -> list[bytes]:
    """`body` in blocks, some of them empty."""
    positions = sorted(draw(st.lists(st.integers(0, len(body)), max_size=40)))
    return [body[start:end] for start, end in zip([0, *positions], [*positions, len(body)], strict=True)]


def completing_block(blocks: Sequence[bytes], position: int) -> int:
    """Index of the block that holds the byte at `position`."""
    return next(index for index, end in enumerate(accumulate(map(len, blocks))) if position < end)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@few
@given(data=st.data())
def test_any_split_of_a_recorded_stream_gives_the_same_events_and_their_own_stamps(ending: bytes, data: Any) -> None:
    original = b"".join(recorded("ngram", "short-1.token-ids"))
    known = [part.removeprefix(b"data: ") for part in original.split(b"\n\n")[:-1]]
    body = original.replace(b"\n", ending)
    blocks = data.draw(cuts(body))
    found = list(events(blocks))
    assert [value for _, _, value in found] == known
    position = 0
    for index, _, value in found:
        position = body.index(value, position) + len(value) + len(ending)  # where the blank line starts
        assert index == completing_block(blocks, position)
    whole, split = read(arrived([body])), read(arrived(blocks))
    assert (split.text, split.token_ids, split.chunks) == (whole.text, whole.token_ids, whole.chunks)
    assert split.outcome == whole.outcome == "ok"


@few
@given(data=st.data())
def test_texts_of_any_kind_survive_any_split(data: Any) -> None:
    texts = data.draw(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=8))
    raw = [b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False).encode() + b"\n\n"
           for text in texts]  # fmt: skip
    body = b"".join([*raw, FINISH, usage(1), DONE])
    sample = read(arrived(data.draw(cuts(body))))
    assert sample.text == "".join(texts)
    assert sample.chunks == sum(bool(text) for text in texts)


@pytest.mark.parametrize(
    ("body", "data"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data\ndata: b\n\n", [b"\nb"]),
        (b": ping\n\ndata: a\n\n:\n\n", [b"a"]),
        (b"event: x\nid: 1\nretry: 5\ndata: a\n\nevent: y\n\n", [b"a"]),
        (b"\n\n\ndata: a\n\n\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\n\ndata: c\r\r", [b"a", b"b", b"c"]),
        (b"data: a\n\ndata: unfinished\n", [b"a"]),
        (b"data: a\n\ndata: unfinished", [b"a"]),
        (b"datax: a\n\n data: a\n\n", []),
        ("data: 雪\x85\u2028\x0b\n\n".encode(), ["雪\x85\u2028\x0b".encode()]),
        (b"", []),
    ],
)
def test_events_as_the_specification_has_them(body: bytes, data: list[bytes]) -> None:
    for blocks in ([body], [bytes([byte]) for byte in body]):
        assert [value for _, kind, value in events(blocks) if kind not in (UNFINISHED, STRAY)] == data


# ---- times and tokens


def test_the_role_chunk_is_no_token() -> None:
    sample = read(arrived([ROLE, b"", event("sea"), event(" sea"), FINISH, usage(2) + DONE]))
    assert (sample.ttft_ns, sample.e2el_ns, sample.decode_ns) == (2_000_000, 5_000_000, 3_000_000)
    assert (sample.chunks, sample.first_tokens) == (2, None)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_content(field: str) -> None:
    thought = event().replace(b'"delta": {}', b'"delta": {"%s": "hm ", "content": null}' % field.encode())
    sample = read(arrived([ROLE, thought, event("sea"), FINISH, usage(2), DONE]))
    assert (sample.outcome, sample.ttft_ns, sample.text, sample.chunks) == ("ok", 1_000_000, "hm sea", 2)


def test_the_finish_chunk_may_carry_content() -> None:
    sample = read(arrived([ROLE, event("sea", finish_reason="length", stop_reason="x"), usage(1), DONE]))
    assert (sample.outcome, sample.text, sample.finish_reason, sample.stop_reason) == ("ok", "sea", "length", "x")
    assert sample.ttft_ns == 1_000_000


def test_tokens_that_came_before_their_text_count_as_first() -> None:
    half, rest = event("", token_ids=[1]), event("é", token_ids=[2, 3])
    sample = read(arrived([ROLE, half, rest, event("", finish_reason="stop", token_ids=[4]), usage(4), DONE]))
    assert (sample.first_tokens, sample.token_ids) == (3, [1, 2, 3, 4])


def test_one_event_without_token_ids_makes_them_unknown() -> None:
    sample = read(arrived([event("a", token_ids=[1]), event("b"), FINISH, usage(2), DONE]))
    assert sample.token_ids is None


def test_tokens_come_from_the_last_usage_alone() -> None:
    sample = read(arrived(recorded("ngram", "copy-1.continuous-usage")))
    assert sample.completion_tokens == expected("ngram", "copy-1")["completion_tokens"] != sample.chunks


# ---- failures

JSON, PAGE = b"content-type: application/json", b"content-type: text/html"
ERROR = b'data: {"error": {"message": "engine died", "type": "InternalServerError", "code": 500}}\n\n'
HTML = b"<html><head><title>502 Bad Gateway</title></head><body>" + b"x" * 2000 + b"</body></html>"
FAILURES: dict[str, tuple[Sequence[Step], str, str]] = {
    "error event": (stream(ROLE, event("a"), ERROR, DONE), "stream_error", "InternalServerError: engine died"),
    "error text": (stream(ROLE, b'data: {"error": "out of memory"}\n\n', DONE), "stream_error", "out of memory"),
    "error object": (stream(b'data: {"object": "error", "message": "no"}\n\n'), "stream_error", "no"),
    "error, then cut": ([STREAM_HEAD, chunk(ERROR), Do.CLOSE], "stream_error", "engine died"),
    "cut": ([STREAM_HEAD, chunk(event("a")), Do.CLOSE], "disconnected", "ReadError: the server closed"),
    "cut after [DONE]": ([STREAM_HEAD, chunk(b"".join(GOOD)), Do.CLOSE], "disconnected", "in the middle"),
    "reset": ([STREAM_HEAD, chunk(event("a")), 0.05, Do.RESET], "disconnected", "ReadError"),
    "closed before an answer": ([Do.CLOSE], "disconnected", "before any answer"),
    "no [DONE]": (stream(*GOOD[:-1]), "truncated", "without [DONE]"),
    "no usage": (stream(ROLE, event("a"), FINISH, DONE), "truncated", "without usage"),
    "no finish_reason": (stream(ROLE, event("a"), usage(1), DONE), "truncated", "without finish_reason"),
    "nothing but a head": (stream(), "truncated", "without finish_reason and usage and [DONE]"),
    "half an event at the end": (stream(*GOOD[:-1], b"data: [DONE]\n"), "truncated", "without [DONE]"),
    "not JSON": (stream(ROLE, b'data: {"id": \n\n', *GOOD), "malformed", 'DecodeError: '),
    "deep nesting": (stream(ROLE, b'data: {"x":' + b"[" * 9999 + b"\n\n", *GOOD), "malformed", "RecursionError"),
    "nested body": (plain("400 Bad Request", b"[" * 9999), "http_error", "HTTP 400: [[["),
    "not an event": (stream(ROLE, b"data: [1]\n\n", *GOOD), "malformed", "ValidationError: "),
    "invalid UTF-8": (stream(event("a").replace(b'"a"', b'"\xff"'), *GOOD), "malformed", "in the event"),
    "plain JSON": (plain("200 OK", b'{"choices": []}', JSON), "malformed", "application/json"),
    "HTML with 200": (plain("200 OK", HTML, PAGE), "malformed", "text/html: <html>"),
    "gzip": (plain("200 OK", b"\x1f\x8b", b"content-encoding: gzip"), "malformed", "Content-Encoding gzip"),
    "not HTTP": ([b"SSH-2.0\r\n\r\n"], "malformed", "RemoteProtocolError: "),
    "no first byte": ([Do.HANG], "inactive", "ReadTimeout: no byte for 0.2 s"),
    "silence": ([STREAM_HEAD, chunk(event("a")), Do.HANG], "inactive", "ReadTimeout: no byte for 0.2 s"),
    "trickle": ([STREAM_HEAD, *[chunk(event("a")), 0.02] * 40, Do.HANG], "timeout", "TotalTimeout: not finished after"),
    "HTML from a gateway": (plain("502 Bad Gateway", HTML, PAGE), "http_error", "HTTP 502: <html>"),
    "no body": (plain("503 Service Unavailable", b""), "http_error", "HTTP 503: (no body)"),
    "dead engine": (plain("500 Internal Server Error", ERROR[6:]), "http_error", "HTTP 500: InternalServerError: "),
    "FastAPI": (plain("401 Unauthorized", b'{"error": "Unauthorized"}'), "http_error", "HTTP 401: Unauthorized"),
    "rate limit": (plain("429 Too Many Requests", b"slow down"), "http_error", "HTTP 429: slow down"),
    "gateway timeout": (plain("504 Gateway Timeout", b"late"), "http_error", "HTTP 504: late"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_each_failure_has_its_outcome_and_is_sent_once(name: str) -> None:
    steps, outcome, says = FAILURES[name]
    inactivity_s, total_s = (0.2 if outcome == "inactive" else HANG_S), (0.5 if outcome == "timeout" else HANG_S)
    sample, requests = measure(steps, inactivity_timeout_s=inactivity_s, timeout_s=total_s)
    assert sample.outcome == outcome
    assert sample.error is not None and says in sample.error
    assert len(sample.error) < 1200
    assert len(requests) == 1
    if name in ("error event", "error, then cut", "cut", "reset", "silence", "no usage"):
        assert sample.text == ("" if name == "error, then cut" else "a")  # what came is kept
        assert sample.http_status == 200


def test_a_message_is_cut_at_500_characters() -> None:
    sample, _ = measure(plain("400 Bad Request", json.dumps({"error": {"message": "é" * 900}}).encode()))
    assert sample.error == "HTTP 400: " + "é" * 500


def test_a_connection_that_cannot_be_made(free_port: int) -> None:
    target = RequestSettings(url=f"http://127.0.0.1:{free_port}", model="m")
    sample = read(asyncio.run(send(StreamTransport(), target, CASE)))
    assert sample.outcome == "connect_error"
    assert sample.http_status is None
    assert sample.error is not None and sample.error.startswith("ConnectError: no connection to 127.0.0.1")


@pytest.mark.parametrize("status", ["302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
def test_a_redirect_is_refused_and_the_token_stays_here(status: str) -> None:
    async def run() -> None:
        async with Scripted(lambda _: stream(*GOOD)) as other:
            location = other.url.replace("http://", "http://user:pw@").encode() + b"/v1?key=s3cret"
            async with Scripted(lambda _: plain(status, b"", b"location: " + location)) as server:
                target = RequestSettings(url=server.url, model="m", authorization="Token t0p")
                sample = read(await send(StreamTransport(), target, CASE))
                assert sample.outcome == "http_error"
                assert sample.error is not None and f"redirects to {other.url}/v1 (not followed)" in sample.error
                assert "pw" not in sample.error and "s3cret" not in sample.error
                assert (len(server.requests), other.connections) == (1, 0)

    asyncio.run(run())


def test_the_worst_word_wins() -> None:
    cut = httpx.ReadError("cut")
    outcomes: list[tuple[list[bytes], str]] = [
        ([b"data: x\n\n", ERROR], "stream_error"),
        ([b"data: x\n\n"], "malformed"),
        ([ROLE], "disconnected"),
    ]
    for blocks, outcome in outcomes:
        assert read(arrived(blocks, cut)).outcome == outcome


def test_nothing_but_a_complete_stream_is_ok() -> None:
    """Every proper subset of the parts that matter fails."""
    for missing in range(1, len(GOOD)):
        parts = [part for index, part in enumerate(GOOD) if index != missing]
        assert (read(arrived(parts)).outcome == "ok") is (missing == 1), GOOD[missing]


def test_the_embedded_engine_is_read(embedded_engine: Callable[[str], str]) -> None:
    """It sends usage beside llama.cpp's own timings, and closes each connection that it says it keeps."""

    async def run() -> None:
        client = StreamTransport()
        target = RequestSettings(url=embedded_engine("baseline"), model="SmolLM2-135M-Instruct", max_tokens=6)
        for _ in range(3):
            sample = read(await send(client, target, CASE))
            assert (sample.outcome, sample.error, sample.completion_tokens) == ("ok", None, 6)
            assert sample.finish_reason == "length" and sample.text
        assert client.opened == 3
        await client.aclose()

    asyncio.run(run())


@pytest.mark.parametrize("error", [httpx.ReadError, httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError])
def test_a_connection_that_breaks_or_cannot_be_made_is_the_servers_failure(error: type[httpx.TransportError]) -> None:
    assert Exchange(0, Arrival(), error("x")).is_server_failure
