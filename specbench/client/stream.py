"""One measured request: what is sent, and what the bytes that came back say.

    exchange = await send(transport, settings, case)      # on the wire; never raises for what a server does
    sample = read(exchange)                               # decodes; needs no network and no loop

The two halves are apart so that a user's next request can be on the wire before the last answer is decoded.

Times count from `Exchange.start_ns`, just before the request is handed to the transport, on a connection that is
already open. TTFT ends with the read that completed the first event with a non-empty content or reasoning delta (a
role chunk is no token); E2EL with the read that completed `[DONE]`. Tokens come from the final `usage` alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from time import perf_counter_ns
from typing import Any

import httpx
import msgspec

from specbench import __version__
from specbench.client.transport import Arrival, ProxyTransport, StreamTransport, TotalTimeout
from specbench.workload.inventory import Case

CONNECT_TIMEOUT_S = 10.0
MESSAGE_LIMIT = 500


@dataclass(frozen=True, kw_only=True)
class RequestSettings:
    """What every request of a run shares.

    Attributes:
        url: the service, with the gateway's path where there is one; `/v1/chat/completions` is appended.
        model: name the server knows the model by.
        authorization: value of the Authorization header, or None. Sent to the origin of `url` only.
        timeout_s: limit for a whole request, from the moment it is written.
        inactivity_timeout_s: limit for a silence, before the first byte too.
        max_tokens: for cases that do not bring their own.
    """

    url: str
    model: str
    authorization: str | None = field(default=None, repr=False)
    max_tokens: int = 128
    seed: int = 0
    timeout_s: float = 600.0
    inactivity_timeout_s: float = 60.0

    @cached_property
    def endpoint(self) -> httpx.URL:
        """Where requests go."""
        return httpx.URL(self.url.rstrip("/") + "/v1/chat/completions")

    def body(self) -> dict[str, Any]:
        """The request without its messages, as the manifest stores it.

        No logprobs, penalties, min_p or min_tokens: vLLM stops drafting for a request that has one.
        """
        return {
            "model": self.model,
            "temperature": 0,
            "max_tokens": self.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"enable_thinking": False},
            "return_token_ids": True,
            "seed": self.seed,
        }

    def body_for(self, case: Case) -> bytes:
        """The whole request for `case`, as JSON."""
        body = self.body() | {"messages": case.messages}
        if case.max_tokens is not None:
            body["max_tokens"] = case.max_tokens
        return msgspec.json.encode(body)

    @cached_property
    def headers(self) -> httpx.Headers:
        """Request headers but the length. Compression is declined: it would hide which token came with which read."""
        headers = {
            "Host": self.endpoint.netloc.decode("ascii"),
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
            "User-Agent": f"specbench/{__version__}",
        }
        if self.authorization:
            headers["Authorization"] = self.authorization
        return httpx.Headers(headers)

    def request_for(self, case: Case) -> httpx.Request:
        """The POST for `case`. Given a stream httpx leaves the headers as they are, which is 15 times faster."""
        body = self.body_for(case)
        request = httpx.Request("POST", self.endpoint, headers=self.headers, stream=httpx.ByteStream(body))
        request.headers["Content-Length"] = str(len(body))
        request.read()  # now, and not between the start stamp and the write
        return request


@dataclass(slots=True)
class Exchange:
    """One request and what arrived of its answer, undecoded."""

    start_ns: int
    arrival: Arrival
    error: httpx.TransportError | None = None

    @property
    def is_server_failure(self) -> bool:
        """True for a 5xx, or a connection that could not be made or broke: what a dead server looks like."""
        lost = httpx.NetworkError | httpx.ConnectTimeout | httpx.ProxyError
        return self.arrival.status >= 500 or isinstance(self.error, lost)


async def send(transport: StreamTransport | ProxyTransport, settings: RequestSettings, case: Case) -> Exchange:
    """Send one request, once, and wait for the end of its answer.

    Opens the connection before the start stamp. Returns whatever happens but cancellation.
    """
    request = settings.request_for(case)
    arrival = Arrival()
    request.extensions = {
        "timeout": {
            "connect": CONNECT_TIMEOUT_S,
            "read": settings.inactivity_timeout_s,
            "total": settings.timeout_s,
        },
        "arrival": arrival,
    }
    start_ns = perf_counter_ns()
    try:
        request.extensions["connection"] = await transport.open(request.url, CONNECT_TIMEOUT_S)
        start_ns = perf_counter_ns()
        await transport.handle_async_request(request)
    except httpx.TransportError as error:
        return Exchange(start_ns, arrival, error)
    return Exchange(start_ns, arrival)


@dataclass(slots=True)
class Sample:
    """What one exchange showed. Times in ns from its start; what does not exist is None.

    Attributes:
        first_tokens: tokens that had arrived with the first content event, where token ids tell. Text may lag behind
            tokens (half a UTF-8 character), so this includes events before it that carried ids and no text.
        chunks: events with content. A chunk can hold several tokens, so gaps between chunks are no token latencies.
        text: content and reasoning in order of arrival.
        token_ids: None when any event with content came without.
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


# ---- what went wrong


def _refusal(arrival: Arrival) -> str:
    """`HTTP 404: the server's own message`; for a redirect, where to."""
    location = arrival.header(b"location")
    if 300 <= arrival.status < 400 and location:
        target = location.partition("?")[0].partition("#")[0]
        scheme, separator, rest = target.partition("://")
        if separator:
            authority, slash, path = rest.partition("/")
            target = f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"
        return f"HTTP {arrival.status}: redirects to {target[:MESSAGE_LIMIT]} (not followed); give that as --url"
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
