"""A stand-in for Polyaxon's gateway: the four service prefixes, the token check, and the API behind one host.

    with Gateway(api="http://127.0.0.1:8001") as gateway:
        gateway.services[uuid] = "http://127.0.0.1:9000"

It does what the nginx templates of 2.18 do: `services` and `rewrite-services` want a valid token (401 without one) and
pass Authorization on; `external` and `rewrite-external` check nothing; `rewrite-*` strips the prefix and the plain
prefixes pass the whole path; the read timeout ends a silent response. Everything else goes to the API.
"""

import asyncio
import re
import threading
import time
from typing import Any

import aiohttp
from aiohttp import web

from support import HANG_S

_SERVICE = re.compile(
    r"/(?P<prefix>(?:rewrite-)?(?:services|external))/v1/[^/]+/[^/]+/[^/]+/runs/(?P<uuid>[0-9a-f]{32})/(?P<port>\d+)(?P<rest>/.*)"
)
_HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length", "host", "content-encoding")


class Gateway:
    """Serves on 127.0.0.1 from a thread until the with block ends. Attributes may be changed while it runs."""

    def __init__(self, api: str | None = None, *, token: str | None = None) -> None:
        self.api = api
        self.token = token  # what `services*` and the API want; None: any, as the sandbox does
        self.services: dict[str, str] = {}  # run UUID -> base URL of the process behind it
        self.api_status: int | None = None  # answer the API's calls with this instead
        self.api_refusals = 0  # how many it answered so
        self.drop_uploads = False  # accept them and keep nothing
        self.refuse_creation = False  # the token may read and not create
        self.read_timeout_s: float = 650.0
        self.api_calls: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()

    @property
    def host(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def go_away(self, status: int = 503) -> None:
        """Answer the API's calls with `status` until two were answered so."""
        self.api_refusals, self.api_status = 0, status

        def come_back() -> None:
            while self.api_refusals < 2 and self.api_status is not None:
                time.sleep(0.05)
            self.api_status = None

        threading.Thread(target=come_back, daemon=True).start()

    def service_url(self, uuid: str, prefix: str = "rewrite-services") -> str:
        return f"{self.host}/{prefix}/v1/polyaxon/default/bench/runs/{uuid}/8000/"

    def __enter__(self) -> "Gateway":
        self._thread.start()
        assert self._ready.wait(HANG_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        one_each = aiohttp.TCPConnector(force_close=True)  # as nginx: no connection to an upstream is kept
        async with aiohttp.ClientSession(auto_decompress=False, connector=one_each) as self._session:
            self._ready.set()
            await self._stop.wait()
        await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        service = _SERVICE.fullmatch(request.path)
        if service is None:
            self.api_calls.append(f"{request.method} {request.path}")
            if self.api_status is not None:
                self.api_refusals += 1
                return web.json_response({"detail": "stub"}, status=self.api_status)
            if self.api is None:
                raise web.HTTPNotFound
            if self.refuse_creation and request.method == "POST" and request.path.endswith("/runs"):
                return web.json_response({"detail": "You do not have permission."}, status=403)
            if self.drop_uploads and request.method == "POST" and request.path.endswith("/artifact"):
                return web.json_response({})
            return await self._pass_on(request, self.api + request.path_qs, None, again=5)
        if not service["prefix"].endswith("external") and self._refused(request):
            return web.json_response({"detail": "Invalid token."}, status=401)
        base = self.services.get(service["uuid"])
        if base is None:  # its name does not resolve in the cluster
            raise web.HTTPBadGateway
        path = service["rest"] if service["prefix"].startswith("rewrite-") else request.path
        return await self._pass_on(request, base + path, self.read_timeout_s)

    def _refused(self, request: web.Request) -> bool:
        return self.token is not None and request.headers.get("Authorization") != f"Token {self.token}"

    async def _pass_on(
        self, request: web.Request, url: str, read_timeout_s: float | None, again: int = 0
    ) -> web.StreamResponse:
        """Pass a request on, `again` times more where the sandbox takes it for a web page's and answers 405."""
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        timeout = aiohttp.ClientTimeout(total=None, sock_read=read_timeout_s)
        started: web.StreamResponse | None = None
        try:
            async with self._session.request(
                request.method, url, headers=headers, data=await request.read(), timeout=timeout, allow_redirects=False
            ) as answer:
                if answer.status == 405 and again:
                    return await self._pass_on(request, url, read_timeout_s, again - 1)
                kept: Any = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
                if "Content-Encoding" in answer.headers:
                    kept["Content-Encoding"] = answer.headers["Content-Encoding"]
                started = web.StreamResponse(status=answer.status, headers=kept)
                await started.prepare(request)
                async for chunk in answer.content.iter_any():
                    await started.write(chunk)
                await started.write_eof()
                return started
        except asyncio.TimeoutError:
            return self._cut(request, started, web.HTTPGatewayTimeout())
        except aiohttp.ClientError:
            return self._cut(request, started, web.HTTPBadGateway())

    def _cut(
        self, request: web.Request, started: web.StreamResponse | None, otherwise: web.HTTPException
    ) -> web.StreamResponse:
        """nginx's way out: an error page before the first byte, a closed connection after it."""
        if started is None:
            raise otherwise
        if request.transport is not None:
            request.transport.abort()
        return started
