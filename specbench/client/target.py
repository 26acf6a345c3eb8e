"""The server to measure: its address and token, and what Polyaxon has on its run."""

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from specbench import UserError
from specbench.polyaxon import service as polyaxon_service
from specbench.polyaxon.api import NoAccess, ServiceRun
from specbench.record.format import MODES, Mode

_API_PATH = re.compile(r"/(?:v1|(?:v1/)?(?:chat/completions|completions|models)|health|metrics|version|tokenize)/*$")
_RUN_IN_PATH = re.compile(r"/runs/([^/]+)(?:/|$)")


@dataclass(frozen=True, slots=True)
class Target:
    """The server to measure and what Polyaxon says of it.

    Attributes:
        url: base URL without a final slash.
        token: for its gateway, or None.
        run: the service's run as Polyaxon knows it; None where it was not looked up.
        warnings: sentences about what could not be looked up.
    """

    url: str
    token: str | None = field(repr=False)
    run: ServiceRun | None
    warnings: list[str]

    @property
    def mode(self) -> Mode | None:
        """The mode that the run was started with, as Polyaxon stored it."""
        mode = self.run.mode if self.run else None
        return mode if mode in MODES else None

    def last_word(self) -> str | None:
        """What Polyaxon has to say of a run whose server does not answer."""
        return polyaxon_service.last_word(self.run) if self.run else None

    def check_inputs(self, mode: str | None, record: Mapping[str, Any] | None) -> None:
        """Raise UserError where the run's inputs contradict --mode or the server's own record."""
        if self.run and (problem := polyaxon_service.contradiction(self.run, mode, record)):
            raise UserError(problem)


def tokens_in_environment() -> tuple[str | None, str | None]:
    """What may be a token, the first that is there before the second."""
    return os.environ.get("POLYAXON_TOKEN"), os.environ.get("POLYAXON_AUTH_TOKEN")


def find_target(*, url: str | None, service_run: str | None, project: str | None, insecure_http: bool) -> Target:
    """The URL and token of the server: given, or looked up from the run `service_run`."""
    token = next(filter(None, tokens_in_environment()), None)
    run, warnings = None, []
    if url:
        check_url(url, service_run=service_run, token=token, insecure_http=insecure_http)
    on_polyaxon = project or (url and polyaxon_service.address_in(url)) or not url
    if service_run and on_polyaxon:
        try:
            run = polyaxon_service.find_service(service_run, project, url=url, insecure_http=insecure_http)
            if not url or url.startswith(run.url.rstrip("/")):
                token = token or run.token  # the CLI's own token goes to no other address than the run's
        except NoAccess as error:
            if not url:
                raise
            warnings.append(f"the run's inputs are not verified: {error}")
    url = url or (run.url if run else None)
    if not url and project:
        raise UserError("-p names a project and no service in it: add --service-run UUID, or give --url")
    url = check_url(url, service_run=service_run, token=token, insecure_http=insecure_http)
    return Target(url, token, run, warnings)


def check_url(url: str | None, *, service_run: str | None, token: str | None, insecure_http: bool) -> str:
    """`url` without a final slash, once it is one that may be measured.

    Raises UserError for no URL, one that cannot be used, another run's URL, a token that cannot be a header's value,
    and one that would travel in the clear. Neither the token nor a user name and password is shown.
    """
    if not url:
        raise UserError("no service to measure: set SERVICE_URL or give --url")
    if "@" in url or "?" in url or "#" in url:
        raise UserError(
            "the service URL may hold no user name, password, query or fragment; give scheme, host and path alone"
        )
    try:
        parts, host = urlsplit(url), httpx.URL(url).host
        parts.port  # noqa: B018 - raises where it is none
    except (ValueError, httpx.InvalidURL):  # brackets or a port that are none
        parts, host = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not host or not parts.hostname or re.search(r"\s", url):
        raise UserError(f"{url!r} is not a URL with http:// or https:// and a host; check SERVICE_URL or --url")
    if api := _API_PATH.search(parts.path):
        base = url.rstrip("/").removesuffix(api[0].rstrip("/"))
        raise UserError(f"the URL ends in {api[0]}, which bench.py adds by itself: give {base}")
    if token and not re.fullmatch("[!-~]+", token):
        raise UserError("the token holds a blank, a line break or a letter beyond ASCII: set POLYAXON_TOKEN again")
    named = _RUN_IN_PATH.search(parts.path)
    if named and service_run and plain_uuid(named[1]) != plain_uuid(service_run):
        raise UserError(
            f"the URL is of run {named[1]} and --service-run says {service_run}: "
            "SERVICE_URL is probably from an earlier run"
        )
    if token and parts.scheme == "http" and not _is_loopback(parts.hostname) and not insecure_http:
        raise UserError(
            f"the token would travel unencrypted to {parts.hostname}: "
            "use https://, unset POLYAXON_TOKEN, or give --insecure-http"
        )
    return url.rstrip("/")


def run_in_url(url: str) -> str | None:
    """The run UUID in a gateway URL `…/runs/UUID/…`, else None."""
    named = _RUN_IN_PATH.search(urlsplit(url).path)
    return named[1] if named else None


def plain_uuid(text: str) -> str:
    """A UUID without its dashes, in lower case: two that mean the same run are equal."""
    return text.replace("-", "").lower()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
