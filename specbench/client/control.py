"""What is asked beside the measured requests, through plain httpx: readiness, identity, counters, token ids."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from specbench import UserError
from specbench.proxies import proxy_for, shown
from specbench.redaction import Secrets
from specbench.tls import tls_context

TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the server. No text in it shows a secret.

    Attributes:
        status: the HTTP status.
        headers: names in lower case.
        text: the body.
        json: the body decoded, or None where it is not JSON.
    """

    status: int
    headers: Mapping[str, str]
    text: str
    json: Any


class ControlClient:
    """Asks the service at `url`; `async with` closes its connections.

    Attributes:
        url: base URL without a final slash.
        proxy: address of the proxy in between, without its password, or None.
    """

    def __init__(self, url: str, token: str | None = None, secrets: Secrets | None = None) -> None:
        """`token` goes to the origin of `url` as `Authorization: Token …`."""
        self.url = url.rstrip("/")
        proxy = proxy_for(url)
        self.proxy = shown(proxy) if proxy else None
        self._secrets = secrets or Secrets(token)
        headers = {"Authorization": f"Token {token}"} if token else {}
        # trust_env would choose proxies by another rule, and send what ~/.netrc holds for the host.
        self._client = httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=TIMEOUT_S, verify=tls_context(), proxy=proxy, trust_env=False
        )

    async def __aenter__(self) -> "ControlClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def get(self, path: str, *, fresh: bool = False, timeout_s: float = TIMEOUT_S) -> Answer:
        """The answer to GET `path`, whatever its status; on a connection of its own where `fresh`.

        Raises UserError where none came.
        """
        try:
            return await self.try_get(path, fresh=fresh, timeout_s=timeout_s)
        except httpx.HTTPError as error:
            raise UserError(f"the server stopped answering GET /{path}: {self.words(error)}") from None

    async def try_get(self, path: str, *, fresh: bool = False, timeout_s: float = TIMEOUT_S) -> Answer:
        """As `get`, but a failure is httpx's own exception."""
        headers = {"Connection": "close"} if fresh else {}
        return self._answer(await self._client.get(path, headers=headers, timeout=timeout_s))

    async def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        """The answer to POST `path` with `body` as JSON; a failure is httpx's own exception."""
        return self._answer(await self._client.post(path, json=body))

    def words(self, error: Exception) -> str:
        """An exception as it may be shown."""
        return self._secrets.hide(f"{type(error).__name__} {error}".strip())

    def _answer(self, response: httpx.Response) -> Answer:
        headers = {name.lower(): self._secrets.hide(value) for name, value in response.headers.items()}
        try:
            value = self._secrets.hide_in(msgspec.json.decode(response.content))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            value = None
        return Answer(response.status_code, headers, self._secrets.hide(response.text), value)
