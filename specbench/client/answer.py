"""Reading one answer: what its bytes say, and the name of what is wrong with it.

Times count from `Exchange.start_ns`. TTFT ends with the read that completed the first event with a non-empty content or
reasoning delta (a role chunk is no token); E2EL with the read that completed `[DONE]`. Tokens come from the final
`usage` alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import httpx
import msgspec

from specbench.client.connection import Arrival, TotalTimeout
from specbench.client.request import Exchange
from specbench.redaction import public_url

MESSAGE_LIMIT = 500


@dataclass(slots=True)
class Sample:
    """What one exchange showed. Times in ns from its start; what does not exist is None.

    Attributes:
        first_tokens: tokens that had arrived with the first content event, where token ids tell. Text may lag behind
            tokens (half a UTF-8 character), so this includes events before it that carried ids and no text.
        chunks: events with content. A chunk can hold several tokens, so gaps between chunks are no token latencies.
        text: content and reasoning in order of arrival.
        token_ids: None when any event with content came without.
        prompt_token_ids: from the first event, where the server sends them.
        draft_tokens, accepted_tokens: of this answer, from llama.cpp's `timings`.
        error: never blank unless the outcome is ok.
    """

    outcome: str = "ok"
    error: str | None = None
    http_status: int | None = None
    response_id: str | None = None
    ttft_ns: int | None = None
    e2el_ns: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    first_tokens: int | None = None
    chunks: int = 0
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    text: str = ""
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None

    @property
    def decode_ns(self) -> int | None:
        """From the first content to `[DONE]`."""
        return None if self.ttft_ns is None or self.e2el_ns is None else self.e2el_ns - self.ttft_ns


def read(exchange: Exchange) -> Sample:
    """Decode what arrived and name its outcome.

    What the server itself said about a failure comes first, then what is wrong with its bytes, then how the
    connection ended. `ok` needs a finish_reason, a usage with completion tokens, `[DONE]` and no error object.
    """
    arrival = exchange.arrival
    sample = Sample(http_status=arrival.status or None)
    if arrival.status and arrival.status != 200:
        sample.outcome, sample.error = "http_error", _refusal(arrival)
        return sample
    problem = _read_events(exchange, sample) if arrival.status else None
    if problem is None and exchange.error is not None:
        problem = _connection_problem(exchange.error)
    if problem is None:
        problem = _missing(sample)
    if problem is not None:
        sample.outcome, sample.error = problem
    return sample


# ---- events


def events(blocks: list[bytes]) -> Iterator[tuple[int, bytes]]:
    """The data of each server-sent event in a body, with the index of the block that completed it.

    Follows the WHATWG specification's parsing of an event stream (lines end with CR, LF or CRLF; comments, fields
    other than data, a leading byte order mark and an event without its blank line are ignored; data lines are joined
    with LF). The body is put together first, so how it was cut into blocks cannot matter; an event is complete with
    the first byte of the blank line after it.
    """
    body = b"".join(blocks)
    if b"\r" in body:
        blocks = list(_with_lf(blocks))
        body = b"".join(blocks)
    ends = list(accumulate(map(len, blocks)))
    block = 0
    position = 3 if body.startswith(b"\xef\xbb\xbf") else 0
    data: bytes | None = None
    for line in body[position:].split(b"\n")[:-1]:  # what follows the last LF is no line yet
        if not line:
            if data is not None:
                while ends[block] <= position:
                    block += 1
                yield block, data
                data = None
        elif line.startswith(b"data:") or line == b"data":
            value = line[6:] if line.startswith(b"data: ") else line[5:]
            data = value if data is None else data + b"\n" + value
        position += len(line) + 1


def _with_lf(blocks: list[bytes]) -> Iterator[bytes]:
    """`blocks` with every line ending as one LF, in the block where its first byte was."""
    after_cr = False
    for block in blocks:
        rest = block[1:] if after_cr and block.startswith(b"\n") else block
        after_cr = block.endswith(b"\r") if block else after_cr
        yield rest.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # what vLLM calls it from 0.12 on


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Event(msgspec.Struct):
    id: str | None = None
    prompt_token_ids: Any = None
    timings: Any = None
    object: str | None = None
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode
_Problem = tuple[str, str]


def _read_events(exchange: Exchange, sample: Sample) -> _Problem | None:
    """Fill `sample` from the events; the first stream_error, else the first malformed event, else None."""
    arrival = exchange.arrival
    encoding = arrival.header(b"content-encoding") or "identity"
    if encoding != "identity":
        return "malformed", f"the answer has Content-Encoding {encoding}, which the request declined"
    malformed: _Problem | None = None
    reader = _Reader(sample)
    seen = False
    for index, data in events([part for _, part in arrival.reads]):
        seen = True
        elapsed = arrival.reads[index][0] - exchange.start_ns
        if data == b"[DONE]":
            sample.e2el_ns = elapsed
            break
        try:
            event = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            malformed = malformed or ("malformed", f"{type(error).__name__}: {error} in the event {_excerpt(data)}")
            continue
        if event.object == "error" or event.error is not None:
            reader.finish()
            return "stream_error", _message(data)
        reader.add(event, elapsed)
    reader.finish()
    if not seen and arrival.reads and exchange.error is None:
        kind = arrival.header(b"content-type") or "no content type"
        return "malformed", f"no event stream but {kind}: {_message(arrival.body())}"
    return malformed


class _Reader:
    """Adds events to a sample."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._texts: list[str] = []
        self._ids: list[int] = []
        self._has_ids = True

    def add(self, event: _Event, elapsed: int) -> None:
        sample = self._sample
        if sample.response_id is None:
            sample.response_id = event.id
        if event.usage is not None:
            sample.prompt_tokens = event.usage.prompt_tokens
            sample.completion_tokens = event.usage.completion_tokens
        if event.prompt_token_ids:
            sample.prompt_token_ids = _whole_numbers(event.prompt_token_ids)
        if isinstance(event.timings, dict):
            drafts = [event.timings.get("draft_n"), event.timings.get("draft_n_accepted")]
            sample.draft_tokens, sample.accepted_tokens = _whole_numbers(drafts) or (None, None)
        for choice in event.choices:
            if choice.token_ids:
                self._ids += choice.token_ids
            delta = choice.delta
            if delta is not None:
                text = (delta.reasoning_content or delta.reasoning or "") + (delta.content or "")
                if text:
                    self._add_text(text, choice, elapsed)
            if choice.finish_reason is not None:
                sample.finish_reason = choice.finish_reason
                sample.stop_reason = choice.stop_reason

    def finish(self) -> None:
        self._sample.text = "".join(self._texts)
        if self._has_ids and self._ids:
            self._sample.token_ids = self._ids

    def _add_text(self, text: str, choice: _Choice, elapsed: int) -> None:
        sample = self._sample
        sample.chunks += 1
        self._texts.append(text)
        if choice.token_ids is None:
            self._has_ids = False
        if sample.ttft_ns is None:
            sample.ttft_ns = elapsed
            if choice.token_ids:
                sample.first_tokens = len(self._ids)


def _whole_numbers(values: Any) -> list[int] | None:
    """`values` if it is a list of whole numbers from 0 on: a field that is beside the point may hold anything."""
    if isinstance(values, list) and all(type(value) is int and value >= 0 for value in values):
        return values
    return None


# ---- what went wrong


def _refusal(arrival: Arrival) -> str:
    """`HTTP 404: the server's own message`; for a redirect, where to."""
    location = arrival.header(b"location")
    if 300 <= arrival.status < 400 and location:
        target = public_url(location)[:MESSAGE_LIMIT]
        return f"HTTP {arrival.status}: redirects to {target} (not followed); give that as --url"
    return f"HTTP {arrival.status}: {_message(arrival.body())}"


def _connection_problem(error: httpx.TransportError) -> _Problem:
    outcome = "disconnected"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError | httpx.UnsupportedProtocol):
        outcome = "connect_error"
    elif isinstance(error, TotalTimeout):
        outcome = "timeout"
    elif isinstance(error, httpx.TimeoutException):
        outcome = "inactive"
    elif isinstance(error, httpx.ProtocolError):
        outcome = "malformed"
    return outcome, f"{type(error).__name__}: {error}"


def _missing(sample: Sample) -> _Problem | None:
    """What a stream that ended properly lacks."""
    missing = [
        name
        for name, is_there in (
            ("finish_reason", sample.finish_reason is not None),
            ("usage", sample.completion_tokens is not None),
            ("[DONE]", sample.e2el_ns is not None),
        )
        if not is_there
    ]
    return ("truncated", f"the stream ended without {' and '.join(missing)}") if missing else None


def _message(body: bytes) -> str:
    """The server's own words in a JSON error body, else the body itself; cut at MESSAGE_LIMIT, never blank."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _excerpt(body)
    error = value.get("error", value) if isinstance(value, dict) else value
    message = error.get("message") if isinstance(error, dict) else error
    if not isinstance(message, str) or not message.strip():
        return _excerpt(body)
    kind = error.get("type") if isinstance(error, dict) else None
    return (f"{kind}: {message}" if isinstance(kind, str) and kind else message)[:MESSAGE_LIMIT]


def _excerpt(body: bytes) -> str:
    text = body[: 4 * MESSAGE_LIMIT].decode("utf-8", "replace").strip()
    return text[:MESSAGE_LIMIT] or "(no body)"
