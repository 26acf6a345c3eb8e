"""One measured request: what is sent, and what came back of it, undecoded.

    exchange = await send(transport, settings, case)      # on the wire; never raises for what a server does
    sample = read(exchange)                               # answer.py: decodes; needs no network and no loop

The two halves are apart so that a user's next request can be on the wire before the last answer is decoded.
"""

from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter_ns
from typing import Any

import httpx
import msgspec

from specbench import __version__
from specbench.client.connection import Arrival, Limits, Post, head_of_post
from specbench.client.transport import Transport
from specbench.redaction import Secrets
from specbench.workload.case import Case


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
        secrets: what no text of an answer may show.
    """

    url: str
    model: str
    authorization: str | None = field(default=None, repr=False)
    max_tokens: int = 128
    seed: int = 0
    timeout_s: float = 600.0
    inactivity_timeout_s: float = 60.0
    secrets: Secrets = field(default_factory=Secrets, repr=False)

    @cached_property
    def endpoint(self) -> httpx.URL:
        """Where requests go."""
        return httpx.URL(self.url.rstrip("/") + "/v1/chat/completions")

    @cached_property
    def limits(self) -> Limits:
        """How long an answer may take."""
        return Limits(self.inactivity_timeout_s, self.timeout_s)

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

    def post_for(self, case: Case) -> Post:
        """The POST for `case`, ready to be written."""
        body = self.body_for(case)
        payload = b"%s\r\nContent-Length: %d\r\n\r\n%s" % (self._head, len(body), body)
        return Post(self.endpoint, self._headers, body, payload)

    @cached_property
    def _headers(self) -> list[tuple[bytes, bytes]]:
        """All but the length. Compression is declined: it would hide which token came with which read."""
        headers = {
            "Host": self.endpoint.netloc.decode("ascii"),
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
            "User-Agent": f"specbench/{__version__}",
        }
        if self.authorization:
            headers["Authorization"] = self.authorization
        return [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]

    @cached_property
    def _head(self) -> bytes:
        return head_of_post(self.endpoint, self._headers)


@dataclass(slots=True)
class Exchange:
    """One request and what arrived of its answer, undecoded.

    Attributes:
        start_ns: just before the request is handed to a connection that is already open.
        arrival: status, headers, and the body's reads with their stamps.
        error: how the connection failed, or None.
    """

    start_ns: int
    arrival: Arrival
    error: httpx.TransportError | None = None

    @property
    def is_server_failure(self) -> bool:
        """True for a 5xx, or a connection that could not be made or broke: what a dead server looks like."""
        lost = httpx.NetworkError | httpx.ConnectTimeout | httpx.ProxyError
        return self.arrival.status >= 500 or isinstance(self.error, lost)


async def send(transport: Transport, settings: RequestSettings, case: Case) -> Exchange:
    """Send one request, once, and wait for the end of its answer.

    Opens the connection before the start stamp. Returns whatever happens but cancellation.
    """
    post = settings.post_for(case)
    arrival = Arrival()
    start_ns = perf_counter_ns()
    try:
        connection = await transport.open(post.url)
        start_ns = perf_counter_ns()
        await connection.exchange(post, arrival, settings.limits)
    except httpx.TransportError as error:
        return Exchange(start_ns, arrival, error)
    return Exchange(start_ns, arrival)
