"""Reading one answer: what its bytes say, and the name of what is wrong with it.

Times count from `Exchange.start_ns`. TTFT ends with the read that completed the first event with a non-empty content or
reasoning delta (a role chunk is no token); E2EL with the read that completed `[DONE]`. Tokens come from the final
`usage` alone.
"""

from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from specbench.client.connection import Arrival, TotalTimeout
from specbench.client.request import Exchange
from specbench.client.sse import STRAY, UNFINISHED, events
from specbench.record.format import MOST_TOKENS
from specbench.redaction import Secrets, public_url

MESSAGE_LIMIT = 500
# How an answer ends that is whole: by itself, at max_tokens, or with a call. Anything else is a failure of the server.
WHOLE = frozenset({"stop", "length", "tool_calls", "function_call"})
_NO_SECRETS = Secrets()


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


def read(exchange: Exchange, secrets: Secrets = _NO_SECRETS) -> Sample:
    """Decode what arrived and name its outcome. No text in the sample shows one of `secrets`.

    What the server itself said about a failure comes first, then what is wrong with its bytes, then how the connection
    ended. `ok` needs a finish_reason of WHOLE, a usage that can be true, `[DONE]` and no error.
    """
    arrival = exchange.arrival
    sample = Sample(http_status=arrival.status or None)
    if arrival.status and arrival.status != 200:
        sample.outcome, sample.error = "http_error", _refusal(arrival, secrets)
        return sample
    problem = _read_events(exchange, sample, secrets) if arrival.status else None
    if problem is None and exchange.error is not None:
        problem = _connection_problem(exchange.error, secrets)
    if problem is None:
        problem = _missing(sample) or _impossible_usage(sample)
    if problem is not None:
        sample.outcome, sample.error = problem
        sample.prompt_tokens, sample.completion_tokens = map(_natural, (sample.prompt_tokens, sample.completion_tokens))
    return sample


# ---- events


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # what vLLM calls it from 0.12 on


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: Any = None
    stop_reason: Any = None
    token_ids: list[int] | None = None
    error: Any = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Event(msgspec.Struct):
    """What matters of an event; Any where a server's own idea of a field must not make an answer malformed."""

    id: Any = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    prompt_token_ids: Any = None
    timings: Any = None
    object: Any = None
    type: Any = None
    error: Any = None
    message: Any = None
    detail: Any = None

    @property
    def is_error(self) -> bool:
        """Whether the server says in this event that it failed."""
        if _tells(self.error) or self.object == "error" or self.type == "error":
            return True
        if self.choices is None:
            return self.usage is None and not (self.message is None and self.detail is None)
        for choice in self.choices:  # noqa: SIM110 - any(…) costs a third of a microsecond a chunk
            if _tells(choice.error):
                return True
        return False


def _tells(error: Any) -> bool:
    """Whether an `error` field holds an error."""
    return error is not None and error is not False and error != ""


_decode = msgspec.json.Decoder(_Event).decode
_Problem = tuple[str, str]


def _read_events(exchange: Exchange, sample: Sample, secrets: Secrets) -> _Problem | None:
    """Fill `sample` from the events; the first failure that the server tells, else the first malformed event."""
    arrival = exchange.arrival
    encoding = arrival.header(b"content-encoding") or "identity"
    if encoding != "identity":
        return "malformed", f"the answer has Content-Encoding {encoding}, which the request declined"
    told: str | None = None
    malformed: _Problem | None = None
    reader = _Reader(sample, secrets)
    seen = False
    for index, kind, data in events([part for _, part in arrival.reads]):
        if not data.startswith(b"{") and data.strip() == b"[DONE]" and kind != UNFINISHED:
            seen = True
            sample.e2el_ns = sample.e2el_ns or arrival.reads[index][0] - exchange.start_ns
            continue
        if kind and b"error" in kind.lower():
            told, seen = _message(data, secrets), True
            break
        try:
            event = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if kind not in (UNFINISHED, STRAY) and sample.e2el_ns is None:
                seen = True
                words = f"{type(error).__name__}: {error} in the event {_excerpt(data, secrets)}"
                malformed = malformed or ("malformed", secrets.hide(words))
            continue
        if event.is_error and (seen or kind not in (UNFINISHED, STRAY)):
            told = _message(data, secrets)
            break
        if not kind or kind not in (UNFINISHED, STRAY):
            seen = True
            if sample.e2el_ns is None:
                reader.add(event, arrival.reads[index][0] - exchange.start_ns)
    reader.finish()
    if told is None and sample.finish_reason is not None and sample.finish_reason not in WHOLE:
        told = f"the server ended the answer with finish_reason {sample.finish_reason!r}"
    if told is not None:
        return "stream_error", told
    if not seen and arrival.reads and exchange.error is None:
        content_type = secrets.hide(arrival.header(b"content-type") or "no content type")
        return "malformed", f"no event stream but {content_type}: {_message(arrival.body(), secrets)}"
    return malformed


class _Reader:
    """Adds events to a sample."""

    def __init__(self, sample: Sample, secrets: Secrets) -> None:
        self._sample, self._secrets = sample, secrets
        self._texts: list[str] = []
        self._ids: list[int] = []
        self._has_ids = True

    def add(self, event: _Event, elapsed: int) -> None:
        sample = self._sample
        if sample.response_id is None and isinstance(event.id, str | int):
            sample.response_id = self._secrets.hide(str(event.id))
        if event.usage is not None:
            usage = event.usage
            sample.prompt_tokens = sample.prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens
            if usage.completion_tokens is not None:
                sample.completion_tokens = usage.completion_tokens
        if event.prompt_token_ids is not None:
            sample.prompt_token_ids = _whole_numbers(event.prompt_token_ids)
        if event.timings is not None and isinstance(event.timings, dict):
            drafts = [event.timings.get("draft_n"), event.timings.get("draft_n_accepted")]
            sample.draft_tokens, sample.accepted_tokens = _whole_numbers(drafts) or (None, None)
        for choice in event.choices or ():
            if choice.token_ids:
                self._ids += choice.token_ids
            delta = choice.delta
            if delta is not None:
                text = (delta.reasoning_content or delta.reasoning or "") + (delta.content or "")
                if text:
                    self._add_text(text, choice, elapsed)
            if choice.finish_reason is not None and choice.finish_reason != "":
                self._add_end(choice)

    def finish(self) -> None:
        self._sample.text = self._secrets.hide("".join(self._texts))
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

    def _add_end(self, choice: _Choice) -> None:
        """Take the last finish_reason, but never a good one in place of a bad one."""
        sample = self._sample
        if sample.finish_reason is None or sample.finish_reason in WHOLE:
            sample.finish_reason = self._secrets.hide(str(choice.finish_reason))[:MESSAGE_LIMIT]
            reason = choice.stop_reason
            if isinstance(reason, str):
                sample.stop_reason = self._secrets.hide(reason)
            elif type(reason) is int:
                sample.stop_reason = reason


def _natural(count: int | None) -> int | None:
    """`count` if it can be a number of tokens."""
    return count if count is not None and 0 <= count <= MOST_TOKENS else None


def _whole_numbers(values: Any) -> list[int] | None:
    """`values` if it is a list of whole numbers from 0 on: a field that is beside the point may hold anything."""
    if isinstance(values, list) and all(type(value) is int and 0 <= value <= MOST_TOKENS for value in values):
        return values
    return None


# ---- what went wrong


def _refusal(arrival: Arrival, secrets: Secrets) -> str:
    """`HTTP 404: the server's own message`; for a redirect, where to."""
    location = arrival.header(b"location")
    if 300 <= arrival.status < 400 and location:
        target = secrets.hide(public_url(location))[:MESSAGE_LIMIT]
        return f"HTTP {arrival.status}: redirects to {target} (not followed); give that as --url"
    return f"HTTP {arrival.status}: {_message(arrival.body(), secrets)}"


def _connection_problem(error: httpx.TransportError, secrets: Secrets) -> _Problem:
    outcome = "disconnected"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError | httpx.UnsupportedProtocol):
        outcome = "connect_error"
    elif isinstance(error, TotalTimeout):
        outcome = "timeout"
    elif isinstance(error, httpx.TimeoutException):
        outcome = "inactive"
    elif isinstance(error, httpx.ProtocolError):
        outcome = "malformed"
    return outcome, secrets.hide(f"{type(error).__name__}: {error}")


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


def _impossible_usage(sample: Sample) -> _Problem | None:
    tokens = sample.completion_tokens
    if tokens != _natural(tokens) or sample.prompt_tokens != _natural(sample.prompt_tokens):
        return "malformed", f"usage counts {sample.prompt_tokens} prompt and {tokens} completion tokens"
    return ("malformed", "usage counts 0 completion tokens beside text") if tokens == 0 and sample.text else None


def _message(body: bytes, secrets: Secrets) -> str:
    """The server's own words in a JSON error, else the body itself; cut at MESSAGE_LIMIT, never blank."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _excerpt(body, secrets)
    error = _error_in(value)
    message = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    if not isinstance(message, str) or not message.strip():
        return _excerpt(body, secrets)
    kind = error.get("type") if isinstance(error, dict) else None
    text = f"{kind}: {message}" if isinstance(kind, str) and kind not in ("", "error") else message
    return secrets.hide(text)[:MESSAGE_LIMIT]


def _error_in(value: Any) -> Any:
    """The part of a JSON value that tells of an error: its `error`, that of a choice, else all of it."""
    if not isinstance(value, dict):
        return value
    choices = value.get("choices")
    parts = [value, *(choices if isinstance(choices, list) else [])]
    errors = [part["error"] for part in parts if isinstance(part, dict) and part.get("error") not in (None, False, "")]
    return errors[0] if errors else value


def _excerpt(body: bytes, secrets: Secrets) -> str:
    text = secrets.hide(body.decode("utf-8", "replace").strip())
    return text[:MESSAGE_LIMIT] or "(no body)"
