"""Waiting for a server, as long as waiting can help: what it cannot mend is said at once, with what would."""

import asyncio
import re
import ssl
import time
from collections.abc import Callable
from urllib.parse import urljoin, urlsplit

import httpx

from specbench import UserError
from specbench.client.control import Answer, ControlClient
from specbench.redaction import public_url
from specbench.words import printable

PERSISTS_S = 10.0  # a gateway may answer 404 for a moment while it learns of a new service
SHOWN_EVERY_S = 5.0
_PAUSE_S, _ASKED_S, _PROBE_S = 1.0, 5.0, 2.0
_MENDED_BY_WAITING = {408, 425, 429}
_SUFFIX_OF_HEALTH = "/health"


async def wait_until_ready(client: ControlClient, deadline_s: float, say: Callable[[str], object]) -> None:
    """Poll GET /health until it answers 200; `say` takes the last answer every few seconds.

    Raises UserError at once for what waiting cannot mend (a redirect, a certificate, the wrong scheme, a token), after
    PERSISTS_S for what it rarely does (HTTP 404, an unknown host), and after `deadline_s` with the last answer.
    """
    start = shown = time.monotonic()
    hopeless_since: float | None = None
    has_probed = False
    while True:
        try:
            answer = await client.try_get("health", timeout_s=_ASKED_S)
            if answer.status == 200:
                return
            _check_answer(client, answer)
            last, hopeless = f"HTTP {answer.status}", 400 <= answer.status < 500
            hopeless = hopeless and answer.status not in _MENDED_BY_WAITING
        except httpx.HTTPError as error:
            _check_failure(client, error)
            if not has_probed and client.proxy is None and _may_be_the_scheme(client, error):
                has_probed = True  # once: a server that starts may be slow to answer another protocol
                await _check_scheme(client)
            last, hopeless = client.words(error), "Name or service not known" in str(error)
        now = time.monotonic()
        hopeless_since = (hopeless_since or now) if hopeless else None
        if hopeless_since is not None and now - hopeless_since >= PERSISTS_S:
            raise UserError(
                f"GET {client.url}{_SUFFIX_OF_HEALTH} goes on answering {printable(last)}{_through(client)}: "
                "check SERVICE_URL or --url, which is the address of the server without any path of its API"
            )
        if now - start >= deadline_s:
            raise UserError(
                f"the server at {client.url} was not ready within {deadline_s:g} s (last: {printable(last)}"
                f"{_through(client)}); see its log, or give it longer with --ready-timeout"
            )
        if now - shown >= SHOWN_EVERY_S:
            shown = now
            say(f"still waiting after {now - start:.0f} s, the last answer was {last}{_through(client)}")
        await asyncio.sleep(min(_PAUSE_S, max(0.05, start + deadline_s - now)))


def refuse_unauthorized(client: ControlClient, answer: Answer, *, is_healthy: bool = False) -> None:
    """Raise UserError for the answers of a gateway or a server that does not take the token.

    Args:
        client: who asked.
        answer: what came.
        is_healthy: whether GET /health was answered, so that it is the server itself that refuses.
    """
    if answer.status not in (401, 403, 407):
        return
    if answer.status == 407 or (answer.status == 403 and client.proxy is not None):
        raise UserError(
            f"HTTP {answer.status} came{_through(client)}: if the proxy itself refuses, give its variable a user name "
            "and password, or set NO_PROXY"
        )
    if answer.headers.get("www-authenticate", "").lower().startswith("bearer") or (answer.status == 401 and is_healthy):
        raise UserError(
            f"the server answered HTTP {answer.status} and wants a Bearer token, as vLLM with --api-key does; bench.py "
            "sends Polyaxon's token alone: start the server without a key of its own"
        )
    raise UserError(
        f"the service answered HTTP {answer.status}: "
        "set POLYAXON_TOKEN (or POLYAXON_AUTH_TOKEN) to a token that may use this run"
    )


def _check_answer(client: ControlClient, answer: Answer) -> None:
    refuse_unauthorized(client, answer)
    location = answer.headers.get("location")
    if 300 <= answer.status < 400 and location:
        target = public_url(urljoin(client.url + _SUFFIX_OF_HEALTH, location)).removesuffix(_SUFFIX_OF_HEALTH)
        raise UserError(f"{client.url} redirects to {printable(target)}, which is not followed: give that as --url")
    if answer.status == 400 and "HTTPS port" in answer.text:
        raise _wrong_scheme(client, "https")


def _check_failure(client: ControlClient, error: httpx.HTTPError) -> None:
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        reason = re.sub(r"^.*verify failed: | \(_ssl.*$", "", text)
        advice = "set SSL_CERT_FILE to a file with the certificate of who signed it"
        if "mismatch" in reason:
            advice = "give the URL with the name that the certificate is for"
        elif "expired" in reason or "not yet valid" in reason:
            advice = "have it renewed, or set this machine's clock"
        raise UserError(f"the certificate of {client.url} cannot be verified ({printable(reason)}): {advice}")
    if isinstance(error, httpx.ProxyError) and re.match(r"40[37]", text):
        raise UserError(f"the proxy refuses: {printable(client.words(error))}{_through(client)}: set NO_PROXY")


def _may_be_the_scheme(client: ControlClient, error: httpx.HTTPError) -> bool:
    if client.url.startswith("https:"):
        return "[SSL" in str(error) or isinstance(error, httpx.ConnectTimeout)
    return isinstance(error, httpx.RemoteProtocolError | httpx.ReadError)


async def _check_scheme(client: ControlClient) -> None:
    if client.url.startswith("https:"):
        if (await _first_bytes(client.url) or b"").startswith(b"HTTP/"):
            raise _wrong_scheme(client, "http")
        return
    if await _speaks_tls(client.url):
        raise _wrong_scheme(client, "https")
    first = await _first_bytes(client.url)
    if first and not first.startswith(b"HTTP/"):
        raise UserError(f"what answers at {client.url} is not HTTP: check the port in SERVICE_URL or --url")


def _wrong_scheme(client: ControlClient, right: str) -> UserError:
    address = f"{right}://{client.url.partition('://')[2]}"
    return UserError(f"the server at {client.url} speaks {right}: give {address} as SERVICE_URL or --url")


def _through(client: ControlClient) -> str:
    if client.proxy is None:
        return ""
    return f" through the proxy {client.proxy} (NO_PROXY={urlsplit(client.url).hostname} goes round it)"


async def _speaks_tls(url: str) -> bool:
    """Whether a TLS handshake succeeds there. Nothing is sent over it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        host, port = _address(url)
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port, ssl=context), _PROBE_S)
    except (OSError, asyncio.TimeoutError):
        return False
    writer.transport.abort()
    return True


async def _first_bytes(url: str) -> bytes | None:
    """How the answer to a GET in the clear starts, which carries no token; None where none comes."""
    writer = None
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(*_address(url)), _PROBE_S)
        writer.write(b"GET /health HTTP/1.0\r\n\r\n")
        return await asyncio.wait_for(reader.read(5), _PROBE_S)
    except (OSError, asyncio.TimeoutError):
        return None
    finally:
        if writer is not None:
            writer.transport.abort()


def _address(url: str) -> tuple[str, int]:
    parts = httpx.URL(url)
    return parts.host, parts.port or (443 if parts.scheme == "https" else 80)
