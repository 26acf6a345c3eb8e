"""Measuring through a proxy, where the environment names one for the URL.

`transport_for` chooses between StreamTransport and ProxyTransport. The latter uses httpx's own transport, which is less
exact: a read is stamped when the task gets it, later than it came.
"""

import asyncio
from time import perf_counter_ns
from typing import cast

import httpx

from specbench import UserError
from specbench.client.connection import Arrival, Limits, Post, TotalTimeout
from specbench.client.transport import CONNECT_TIMEOUT_S, StreamTransport, Transport, within
from specbench.proxies import proxy_for, shown
from specbench.tls import tls_context


class ProxyTransport:
    """A transport through a proxy; see `Transport`.

    A fresh connection for each request, made inside the measured time: through a proxy a kept one cannot be probed.
    """

    def __init__(self, proxy: str) -> None:
        self.opened = 0
        self.replaced = 0
        self.proxies = [shown(proxy)]
        try:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
            self._inner = httpx.AsyncHTTPTransport(proxy=proxy, verify=tls_context(), limits=limits)
        except (ImportError, ValueError) as error:
            raise UserError(f"the proxy variables name {shown(proxy)}, which cannot be used: {error}") from None

    async def open(self, url: httpx.URL) -> "ProxyTransport":
        """Itself: httpx connects when the request is sent."""
        return self

    async def open_ahead(self, url: httpx.URL, count: int) -> None:
        """Nothing: httpx connects when a request is sent."""

    async def exchange(self, post: Post, arrival: Arrival, limits: Limits) -> None:
        """As Connection.exchange."""
        self.opened += 1
        headers = [*post.headers, (b"Content-Length", b"%d" % len(post.body))]
        request = httpx.Request("POST", post.url, headers=headers, stream=httpx.ByteStream(post.body))
        request.extensions = {"timeout": {"connect": CONNECT_TIMEOUT_S, "read": limits.inactivity_s}}
        try:
            await within(limits.total_s, self._exchange(request, arrival))
        except asyncio.TimeoutError:
            raise TotalTimeout(f"not finished after {limits.total_s:g} s") from None
        finally:
            arrival.end_ns = perf_counter_ns()

    async def aclose(self) -> None:
        """Close httpx's own transport."""
        await self._inner.aclose()

    async def _exchange(self, request: httpx.Request, arrival: Arrival) -> None:
        arrival.sent_ns = perf_counter_ns()
        try:
            response = await self._inner.handle_async_request(request)
            arrival.status, arrival.headers = response.status_code, response.headers.raw
            try:
                async for part in cast(httpx.AsyncByteStream, response.stream):
                    arrival.reads.append((perf_counter_ns(), part))
            finally:
                await response.aclose()
        except httpx.RemoteProtocolError as error:  # httpx's word for an answer that was cut off
            raise httpx.ReadError(str(error)) from error


def transport_for(url: str) -> tuple[Transport, str | None]:
    """The transport to measure `url` with, and a warning when the environment sends it through a proxy."""
    proxy = proxy_for(url)
    if proxy is None:
        return StreamTransport(), None
    host = httpx.URL(url).host
    return ProxyTransport(proxy), (
        f"requests to {host} go through the proxy {shown(proxy)}, so times are less exact and include "
        f"connecting; set NO_PROXY={host} where the service can be reached directly"
    )
