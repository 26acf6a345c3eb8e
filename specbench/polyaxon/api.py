"""The runs of one Polyaxon project: read, create, wait for and stop them.

polyaxon is imported where it is used, so that everything else runs where it is not installed. Three rules hold here:
every wait has a deadline of its own (the client's waits have none), an API that is away for a while is asked again
instead of ending a measurement, and the token never reaches a log (the client logs its whole configuration, token
included, when a call fails: its logger is switched off).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from specbench import UserError
from specbench.polyaxon.pods import pods_command
from specbench.tls import tls_context
from specbench.words import printable

T = TypeVar("T")
Say = Callable[[str], None]

DONE = frozenset({"failed", "upstream_failed", "stopped", "skipped", "succeeded"})
HANDED_OVER = frozenset({"scheduled", "starting", "running", "processing", "warning", "unschedulable", "unknown"})
UPLOADS = "uploads"  # where `polyaxon run -u` puts files, and the working directory of service.yaml
POLL_S = 1.0
CALL_TIMEOUT_S = 60.0


class NoAccess(UserError):
    """The API could not be asked (not installed, not reachable, not allowed): what it would say is not verified."""


class RunMissing(UserError):
    """The API has no such run in this project: deleted, of another project, or mistyped."""


@dataclass(frozen=True, slots=True)
class ServiceRun:
    """A service as Polyaxon knows it; `inputs` are its parameters, `token` opens `url`."""

    uuid: str
    owner: str
    project: str
    namespace: str
    status: str
    url: str
    inputs: dict[str, Any]
    token: str | None = field(repr=False)

    @property
    def mode(self) -> str | None:
        value = self.inputs.get("mode")
        return None if value is None else str(value)

    def __str__(self) -> str:
        return f"run {self.uuid} of {self.owner}/{self.project}"


class RunApi:
    """The runs of one project. Nothing is asked of the API before the first call that needs it.

    Args:
      patience_s: for how long a call is repeated while the API is away (connection errors, 5xx).
      say: where progress goes, a line a call.
    """

    def __init__(
        self,
        project: str,
        owner: str | None = None,
        *,
        insecure_http: bool = False,
        patience_s: float = 300.0,
        say: Say = print,
        poll_s: float = POLL_S,
    ) -> None:
        if "/" in project:
            named, project = project.split("/", 1)
            if owner not in (None, named):
                raise UserError(f"--owner says {owner}, -p says {named}: give one of them")
            owner = named
        self._patience_s, self._say, self._poll_s = patience_s, say, poll_s
        self.insecure_http = insecure_http
        self._api = _client(insecure_http)
        self.host: str = self._api.config.host
        self.token: str | None = self._api.config.token
        reference = self._run(None, owner=owner, project=project)
        self.owner, self.project = str(reference.owner), str(reference.project)

    # Reading

    def check(self) -> None:
        """Raise the sentence that says why runs cannot be created here, if they cannot."""
        from polyaxon.client import ProjectClient

        client = ProjectClient(
            owner=self.owner, project=self.project, client=self._api, manual_exceptions_handling=True
        )
        self._ask("look the project up", client.refresh_data)

    def read(self, uuid: str) -> tuple[Any, list[Any]]:
        """(the run, its conditions, oldest first). RunMissing when the project has no such run."""
        client = self._run(uuid)
        self._ask("read the run", lambda: client.refresh_data(load_conditions=True), uuid)
        return client.run_data, list(client.run_data.status_conditions or [])

    def service(self, uuid: str) -> ServiceRun:
        """The service that run `uuid` is; UserError when it is another kind of run."""
        run, _ = self.read(uuid)
        if run.kind != "service":
            raise UserError(
                f"run {uuid} is a {run.kind}, not a service: pass the UUID of a run of service.yaml "
                f"(polyaxon ops ls -p {self.owner}/{self.project})"
            )
        settings, meta = run.settings, run.meta_info or {}
        agent = settings.agent if settings else None
        host = str(agent.url if agent and agent.url else self.host).rstrip("/")
        namespace = (settings.namespace if settings else None) or "polyaxon"
        prefix = "rewrite-services" if meta.get("rewrite_path") else "services"
        port = (meta.get("ports") or [80])[0]
        path = f"{prefix}/v1/{namespace}/{self.owner}/{self.project}/runs/{uuid}/{port}/"
        return ServiceRun(
            uuid=uuid, owner=self.owner, project=self.project, namespace=namespace,
            status=str(run.status), url=f"{host}/{path}", inputs=dict(run.inputs or {}), token=self.token,
        )  # fmt: skip

    def unfinished(self, name: str) -> list[str]:
        """UUIDs of the runs called `name` that are not over; a % at its end stands for any end."""
        client = self._run(None)
        found = self._ask("list the runs", lambda: client.list(query=f"name:{name}", limit=100)).results or []
        return [str(run.uuid) for run in found if str(run.status) not in DONE]

    def last_word(self, uuid: str, lines: int = 15) -> str:
        """What the run last said of itself: its conditions, and the end of its logs where the API has them."""
        try:
            words = [f"  {_condition(one)}" for one in self.read(uuid)[1][-6:]]
        except UserError as error:
            return f"  ({error})"
        with contextlib.suppress(Exception):  # asked once: this only illustrates an error, and logs are often not kept
            logs = self._run(uuid).get_logs().logs or []
            words += [f"  | {printable(str(one.value).rstrip())}" for one in logs[-lines:]]
        return "\n".join(words)

    # Deploying

    def create(self, name: str, content: Any) -> str:
        """Create a run that waits for its upload; its UUID. `name` is taken to name this run and no other."""
        client = self._run(None)

        def create() -> None:
            # Repeating a call whose answer was lost would start a second server: look before every attempt.
            for uuid in self.unfinished(name):
                client.set_run_uuid(uuid)
                return
            client.create(
                name=name, tags=["specbench"], content=content, pending="upload",
                meta_info={"upload_artifacts": UPLOADS},
            )  # fmt: skip

        self._ask("create the run", create)
        return str(client.run_uuid)

    def upload(self, uuid: str, folder: Path, name: str) -> None:
        """Put `folder/name`, and nothing else, at `name` where the service runs; UserError when it is not there."""
        file, path = folder / name, str((Path(UPLOADS) / name).parent)
        self._ask(f"upload {name}", lambda: self._send(uuid, file, path), uuid)
        tree = self._ask("list the upload", lambda: self._run(uuid).get_artifacts_tree(path), uuid)
        if file.name not in (tree.files or {}):
            raise UserError(
                f"{name} was uploaded to run {uuid} and is not in its {UPLOADS}: "
                "check the artifacts store of this Polyaxon deployment (polyaxon artifacts ls)"
            )

    def release(self, uuid: str) -> None:
        """Let a run go on that waits for its upload or for a person."""
        self._ask("approve the run", self._run(uuid).approve, uuid)

    def wait_running(self, uuid: str, *, approve: bool, approval_s: float, startup_s: float) -> None:
        """Return when the run is running. Each wait (a person's approval, the start) has its own deadline."""
        shown, asked = 0, False
        begin = time.monotonic()
        while True:
            run, conditions = self.read(uuid)
            for one in conditions[shown:]:
                self._say(f"run {uuid[:8]}: {_condition(one)}")
            shown = max(shown, len(conditions))
            status, waited = str(run.status), time.monotonic() - begin
            if status == "running":
                return
            if status in DONE or status == "stopping":
                reason = because(conditions)
                raise UserError(f"run {uuid} ended as {status}{reason}; it said last:\n{self.last_word(uuid)}")
            if run.pending == "approval":
                if approve:
                    self.release(uuid)
                elif not asked:
                    asked = True
                    self._say(
                        f"run {uuid[:8]} waits for approval: polyaxon ops approve -p {self.owner}/{self.project} "
                        f"-uid {uuid} (or start with --approve)"
                    )
                if waited > approval_s:
                    raise UserError(f"run {uuid} was not approved within {approval_s:.0f} s: pass --approve")
            elif asked:
                asked, begin = False, time.monotonic()
            elif waited > startup_s:
                self._too_late(uuid, status, startup_s)
            time.sleep(self._poll_s)

    def _too_late(self, uuid: str, status: str, startup_s: float) -> NoReturn:
        if status in ("created", "compiled", "queued", "on_schedule"):
            raise UserError(
                f"run {uuid} stayed {status} for {startup_s:.0f} s: no agent took it; check that an agent is up and "
                "serves its queue (--queue), or give it longer (--startup-timeout)"
            )
        raise UserError(
            f"run {uuid} is {status} and not running after {startup_s:.0f} s (--startup-timeout); it said last:\n"
            + self.last_word(uuid)
        )

    def wait_healthy(self, service: ServiceRun, startup_s: float) -> None:
        """Return when the service answers its health probe; a run that ends meanwhile is an error."""
        end = time.monotonic() + startup_s
        while (instead := instead_of_health(service.url, service.token)) is not None:
            status = str(self.read(service.uuid)[0].status)
            if status in DONE:
                raise UserError(f"{service} ended as {status}; it said last:\n{self.last_word(service.uuid)}")
            if time.monotonic() > end:
                raise UserError(
                    f"{service} is {status}, and its /health gives {instead} after {startup_s:.0f} s "
                    f"(--startup-timeout); it said last:\n{self.last_word(service.uuid)}"
                )
            time.sleep(self._poll_s)

    # Stopping

    def stop(self, uuid: str, deadline_s: float = 600.0) -> str:
        """Stop the run and wait until Polyaxon says that it is over; how it ended, "deleted" when it is no more."""
        try:
            if str(self.read(uuid)[0].status) not in DONE:
                self._ask("stop the run", self._run(uuid).stop, uuid)
            end = time.monotonic() + deadline_s
            while True:
                run, conditions = self.read(uuid)
                if str(run.status) in DONE:
                    return str(run.status)
                if run.status == "stopping" and not any(str(one.type) in HANDED_OVER for one in conditions):
                    # No agent ends what none was given: a run that waited for approval stays "stopping" for good.
                    return "stopping and was never scheduled"
                if time.monotonic() > end:
                    raise UserError(
                        f"run {uuid} is still {run.status} {deadline_s:.0f} s after it was stopped: its pod may hold "
                        f"the GPU ({pods_command(uuid, self._run(uuid).namespace)})"
                    )
                time.sleep(self._poll_s)
        except RunMissing:
            return "deleted"

    # Tracking

    def create_tracked(self, name: str) -> str:
        """Create a run that nothing executes, to hold figures; its UUID."""
        client = self._run(None)
        self._ask("create a run", lambda: client.create(name=name, tags=["specbench"]))
        uuid = str(client.run_uuid)
        self._ask("start the run", self._run(uuid).start, uuid)
        return uuid

    def log_outputs(self, uuid: str, values: Mapping[str, Any]) -> None:
        """Add outputs to a run; those of the same name are replaced."""
        self._ask("log the outputs", lambda: self._run(uuid).log_outputs(async_req=False, **values), uuid)

    def upload_output(self, uuid: str, file: Path, folder: str) -> None:
        """Put a file into a folder of a run's artifacts."""
        self._ask(f"upload {file.name}", lambda: self._send(uuid, file, folder), uuid)

    def succeed(self, uuid: str) -> None:
        """End a run that create_tracked made."""
        self._ask("end the run", self._run(uuid).log_succeeded, uuid)

    def _send(self, uuid: str, file: Path, folder: str) -> None:
        from polyaxon.exceptions import ApiException

        # Not by directory: then a .polyaxonignore can leave nothing to send, and the client answers UPLOAD_SKIPPED.
        response = self._run(uuid).upload_artifact(str(file), path=folder, show_progress=False)
        if not response.ok:
            raise ApiException(status=response.status_code, reason=response.reason)

    # Asking

    def _run(self, uuid: str | None, owner: str | None = None, project: str | None = None) -> Any:
        """A client of one run, a new one each time: an upload turns the client it uses to the agent's host."""
        from polyaxon.client import RunClient
        from polyaxon.exceptions import PolyaxonException

        try:
            return RunClient(
                owner=owner or self.owner if project is None else owner, project=project or self.project, run_uuid=uuid,
                client=self._api, is_offline=False, no_op=False, manual_exceptions_handling=True,
            )  # fmt: skip
        except PolyaxonException as error:
            raise UserError(f"-p {project!r} --owner {owner!r} name no project: {first_line(error)}") from None

    def _ask(self, what: str, call: Callable[[], T], uuid: str | None = None) -> T:
        """`call()`, again while the API is away and patience lasts; every other failure becomes a UserError."""
        from polyaxon.exceptions import PolyaxonException
        from requests import RequestException
        from urllib3.exceptions import HTTPError

        begin, away = time.monotonic(), False
        while True:
            try:
                answer = call()
            except (PolyaxonException, HTTPError, RequestException, ValueError) as error:  # ValueError: not JSON
                cause = error.__cause__ if isinstance(error.__cause__, (PolyaxonException, HTTPError)) else error
                if not _is_transient(cause):
                    self._refuse(what, cause, uuid)
                if time.monotonic() - begin > self._patience_s:
                    raise NoAccess(
                        f"could not {what}: {self.host} does not answer ({first_line(cause)}): check POLYAXON_HOST "
                        "(`polyaxon config show`) and the network"
                    ) from None
                if not away:
                    away = True
                    self._say(f"could not {what}: {self.host} is away; asking again for {self._patience_s:.0f} s")
                time.sleep(self._poll_s)
                continue
            if away:
                self._say(f"{self.host} answers again")
            return answer

    def _refuse(self, what: str, error: Exception, uuid: str | None) -> NoReturn:
        status = getattr(error, "status", None)
        place = f"{self.owner}/{self.project}"
        if status == 401 and self.token is None:
            raise NoAccess(f"{self.host} wants a token: run `polyaxon login`, or set POLYAXON_AUTH_TOKEN")
        if status == 401:
            raise NoAccess(f"{self.host} refuses the token: run `polyaxon login`, or correct POLYAXON_AUTH_TOKEN")
        if status == 403:
            raise NoAccess(f"the token has no permission to {what} in {place}: ask for access, or use another -p")
        if status == 404 and uuid is not None:
            self.check()
            raise RunMissing(
                f"{place} has no run {uuid}: it is of another project (-p), was deleted, or is mistyped "
                f"(polyaxon ops ls -p {place})"
            )
        if status == 404:
            create = f"polyaxon project create --name {place}"
            raise UserError(f"there is no project {place}: create it with `{create}`, or correct -p")
        raise UserError(f"could not {what} in {place}: {first_line(error)}")


def _client(insecure_http: bool) -> Any:
    """A PolyaxonClient with the token of the environment or of the CLI, and with its logger off."""
    try:
        from polyaxon import settings
        from polyaxon.client import PolyaxonClient
        from polyaxon.logger import logger
    except ImportError:
        raise NoAccess("polyaxon is not installed here: pip install -r requirements.txt") from None
    logger.disabled = True
    settings.LONG_REQUEST_TIMEOUT = CALL_TIMEOUT_S  # an upload would wait an hour for its answer
    client = PolyaxonClient(token=os.environ.get("POLYAXON_TOKEN") or None)
    address = urlsplit(client.config.host)
    if address.scheme not in ("http", "https"):
        raise UserError(f"POLYAXON_HOST {client.config.host!r} has no scheme: write https://{client.config.host}")
    here = address.hostname in ("localhost", "127.0.0.1", "::1")
    if address.scheme == "http" and client.config.token and not here and not insecure_http:
        raise UserError(f"{client.config.host} would get the token in the clear: use https, or pass --insecure-http")
    return client


def instead_of_health(url: str, token: str | None) -> str | None:
    """None while a service answers its health probe, else what came instead."""
    import httpx

    headers = {"Authorization": f"Token {token}"} if token else {}
    try:
        status = httpx.get(f"{url.rstrip('/')}/health", headers=headers, timeout=10.0, verify=tls_context()).status_code
    except httpx.HTTPError as error:
        return type(error).__name__
    return None if status == 200 else f"HTTP {status}"


def _is_transient(error: BaseException) -> bool:
    from polyaxon.exceptions import PolyaxonException
    from urllib3.exceptions import SSLError

    status = getattr(error, "status", None)
    if status is not None:
        # 405: haupt 2.18 answers so now and then to a valid call while it answers another one.
        return status in (405, 408, 429) or status >= 500
    return not isinstance(error, PolyaxonException) and not isinstance(getattr(error, "reason", None), SSLError)


def _condition(one: Any) -> str:
    reason, message = f" ({one.reason})" if one.reason else "", f": {one.message}" if one.message else ""
    return printable(f"{one.type}{reason}{message}")


def because(conditions: list[Any]) -> str:
    """What the last condition gives as its reason, in brackets, or nothing."""
    if not conditions:
        return ""
    last = conditions[-1]
    return printable(" (" + ": ".join(part for part in (last.reason, last.message) if part) + ")")


def first_line(error: BaseException) -> str:
    status, reason = getattr(error, "status", None), getattr(error, "reason", None)
    if status is not None:
        return printable(f"HTTP {status} {reason or ''}".strip())
    return printable(str(error).strip().splitlines()[0][:200]) if str(error).strip() else type(error).__name__
