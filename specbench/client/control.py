"""What is asked beside the measured requests, through plain httpx: readiness, identity, counters."""

import httpx

from specbench import UserError
from specbench.tls import tls_context


def control_client(url: str, token: str | None, *, use_proxies: bool) -> httpx.AsyncClient:
    """A client whose relative URLs are those of the service at `url`.

    Args:
        url: base URL of the service.
        token: sent to its origin as `Authorization: Token …`.
        use_proxies: whether the environment's proxies lead there; else proxy variables meant for others could break it.
    """
    headers = {"Authorization": f"Token {token}"} if token else {}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=30.0, verify=tls_context(), trust_env=use_proxies)


async def get(client: httpx.AsyncClient, path: str) -> httpx.Response:
    """The answer to GET `path`, whatever its status; UserError where none came."""
    try:
        return await client.get(path)
    except httpx.HTTPError as error:
        raise UserError(f"the server stopped answering GET /{path}: {type(error).__name__} {error}".rstrip()) from None
