"""Waiting: what waiting can mend is waited for, and everything else is said at once with what mends it."""

import asyncio
import http.server
import ssl
import subprocess
import threading
from collections.abc import Callable, Sequence

import pytest
from support import HANG_S
from support.asking import answers
from support.scripted_server import Do, Scripted, Step, plain

from specbench import UserError
from specbench.client import readiness
from specbench.client.control import Answer, ControlClient
from specbench.client.readiness import refuse_unauthorized, wait_until_ready

READY = plain("200 OK", b"")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxies and no certificates but those of a test; no pause between two questions."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr(readiness, "_PAUSE_S", 0.01)
    monkeypatch.setattr(readiness, "_PROBE_S", 0.5)


def wait(
    answer: Callable[[int], Sequence[Step]],
    tls: ssl.SSLContext | None = None,
    scheme: str | None = None,
    deadline_s: float = HANG_S,
) -> list[str]:
    """Wait for a server that answers so; what was said on the way."""
    sentences: list[str] = []

    async def run() -> None:
        async with Scripted(answer, tls) as server:
            url = server.url if scheme is None else f"{scheme}://{server.url.partition('://')[2]}"
            async with ControlClient(url, "t0ps3cret") as client:
                await wait_until_ready(client, deadline_s, sentences.append)

    asyncio.run(run())
    return sentences


@pytest.mark.parametrize(
    "step",
    [plain("503 Service Unavailable", b""), plain("502 Bad Gateway", b""), plain("429 Too Many Requests", b""),
     [Do.CLOSE], plain("404 Not Found", b"")],
    ids=["503", "502", "429", "closed", "404"],
)  # fmt: skip
def test_what_waiting_can_mend_is_waited_for(step: Sequence[Step]) -> None:
    assert wait(lambda number: READY if number > 4 else step) == []


def test_the_last_answer_is_shown_while_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "SHOWN_EVERY_S", 0.0)
    sentences = wait(lambda number: READY if number > 2 else plain("503 Service Unavailable", b""))
    assert len(sentences) == 3 and all(line.endswith(" s, the last answer was HTTP 503") for line in sentences)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (plain("301 Moved", b"", b"location: https://new.test/base/health?token=x"),
         r"redirects to https://new.test/base, which is not followed: give that as --url"),
        (plain("302 Found", b"", b"location: /login"), r"redirects to http://127.0.0.1:\d+/login"),
        (plain("401 Unauthorized", b""), "HTTP 401: set POLYAXON_TOKEN"),
        (plain("403 Forbidden", b""), "HTTP 403: set POLYAXON_TOKEN"),
        (plain("401 Unauthorized", b"", b"WWW-Authenticate: Bearer realm=x"), "wants a Bearer token, as vLLM"),
        (plain("400 Bad Request", b"The plain HTTP request was sent to HTTPS port"), r"speaks https: give https://127"),
        ([b"SSH-2.0-OpenSSH_9\r\n", Do.CLOSE], "is not HTTP: check the port"),
    ],
)  # fmt: skip
def test_what_waiting_cannot_mend_is_said_at_once(answer: Sequence[Step], says: str) -> None:
    with pytest.raises(UserError, match=says):
        wait(lambda _: answer)


@pytest.mark.parametrize("status", ["404 Not Found", "405 Method Not Allowed", "410 Gone"])
def test_a_404_that_persists_is_no_server_of_ours(monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    monkeypatch.setattr(readiness, "PERSISTS_S", 0.05)
    with pytest.raises(UserError, match=rf"/health goes on answering HTTP {status[:3]}: check SERVICE_URL or --url"):
        wait(lambda _: plain(status, b""))


def test_the_deadline_says_the_last_answer() -> None:
    with pytest.raises(UserError, match=r"not ready within 0.2 s \(last: HTTP 503\); see its log.*--ready-timeout"):
        wait(lambda _: plain("503 Service Unavailable", b""), deadline_s=0.2)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A server's side of TLS, with a certificate for localhost that nobody signed."""
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "ca.pem"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return context


def test_certificates_and_schemes_that_do_not_fit_are_named(
    certificate: ssl.SSLContext,
) -> None:
    with pytest.raises(UserError, match=r"cannot be verified \(self.signed certificate\): set SSL_CERT_FILE"):
        wait(lambda _: READY, certificate)
    with pytest.raises(UserError, match="speaks https: give https://localhost"):
        wait(lambda _: READY, certificate, "http")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever).start()
        client = ControlClient(f"https://127.0.0.1:{server.server_port}")
        with pytest.raises(UserError, match=r"speaks http: give http://127\.0"):
            asyncio.run(wait_until_ready(client, HANG_S, print))
        server.shutdown()


def test_a_server_with_a_key_of_its_own_is_told_from_a_gateway() -> None:
    client = ControlClient("http://h")
    with pytest.raises(UserError, match="Bearer"):
        refuse_unauthorized(client, Answer(401, {}, "", None), is_healthy=True)
    with pytest.raises(UserError, match="POLYAXON_TOKEN"):
        refuse_unauthorized(client, Answer(401, {}, "", None))
    refuse_unauthorized(client, Answer(404, {}, "", None))


# ---- proxies


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (plain("403 Forbidden", b""), r"HTTP 403 came through the proxy http://127.0.0.1:\d+ \(NO_PROXY=service.test"),
        (plain("407 Proxy Authentication Required", b""), "HTTP 407 came through the proxy"),
        (plain("503 Service Unavailable", b""), r"last: HTTP 503 through the proxy http://127.0.0.1:\d+ \(NO_PROXY="),
    ],
)
def test_an_answer_that_may_be_the_proxys_own_names_it(
    monkeypatch: pytest.MonkeyPatch, answer: Sequence[Step], says: str
) -> None:
    async def run() -> None:
        async with Scripted(answers(*answer)) as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("//", "//me:passw0rd@"))
            async with ControlClient("http://service.test") as client:
                await wait_until_ready(client, 0.2, print)

    with pytest.raises(UserError, match=says) as raised:
        asyncio.run(run())
    assert "passw0rd" not in str(raised.value)


def test_a_proxy_that_refuses_the_tunnel_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with Scripted(answers(*plain("403 Forbidden", b""))) as proxy:
            monkeypatch.setenv("HTTPS_PROXY", proxy.url)
            async with ControlClient("https://service.test") as client:
                await wait_until_ready(client, HANG_S, print)

    with pytest.raises(UserError, match=r"the proxy refuses: ProxyError 403 .* through the proxy http://127"):
        asyncio.run(run())
