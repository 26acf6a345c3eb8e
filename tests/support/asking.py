"""One request over a transport, for tests of connections."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import httpx

from specbench.client.connection import Arrival, Limits, Post, head_of_post
from specbench.client.transport import Transport
from support import HANG_S
from support.scripted_server import Step

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def post(url: str, *headers: tuple[bytes, bytes]) -> Post:
    """A POST of `{}`, as RequestSettings makes one."""
    target = httpx.URL(url)
    headers = ((b"Host", target.netloc), *headers)
    return Post(target, headers, b"{}", head_of_post(target, headers) + b"\r\nContent-Length: 2\r\n\r\n{}")


async def ask(
    client: Transport, url: str, arrival: Arrival | None = None, limits: Limits = Limits(HANG_S, HANG_S)  # noqa: B008
) -> bytes:
    """The body of the answer to one request."""
    arrival = arrival or Arrival()
    request = post(url)
    connection = await client.open(request.url)
    await connection.exchange(request, arrival, limits)
    return arrival.body()


def answers(*steps: Step) -> Callable[[int], Sequence[Step]]:
    return lambda _: steps
