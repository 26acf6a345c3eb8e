"""The service behind a Polyaxon run: found by its UUID or its URL, and held against what its server says of itself."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from specbench import UserError
from specbench.polyaxon.api import DONE, RunApi, ServiceRun, because
from specbench.uuids import hex_uuid

# {host}/{prefix}/v1/{namespace}/{owner}/{project}/runs/{uuid}/{port}/
_RUN_PATH = re.compile(r"/v1/[^/]+/(?P<owner>[^/]+)/(?P<project>[^/]+)/runs/(?P<uuid>[0-9a-fA-F-]{32,36})(?:/|$)")


@dataclass(frozen=True, slots=True)
class RunAddress:
    """Whose run a service URL leads to."""

    owner: str
    project: str
    uuid: str


def address_in(url: str) -> RunAddress | None:
    """The run that a service URL names, or None when it is not a Polyaxon URL."""
    found = _RUN_PATH.search(urlsplit(url).path)
    uuid = hex_uuid(found["uuid"]) if found else None
    return RunAddress(found["owner"], found["project"], uuid) if found and uuid else None


def find_service(
    service_run: str,
    project: str | None = None,
    owner: str | None = None,
    url: str | None = None,
    insecure_http: bool = False,
) -> ServiceRun:
    """The service of run `service_run`, ready to be asked; `project` may be OWNER/PROJECT as in the CLI.

    Owner and project come from `url` where the flags do not give them.

    Raises:
      NoAccess: the API cannot be asked; with a URL at hand the caller may go on, "not verified".
      UserError: the run is not one to measure: unknown, of another project, not a service, or over.
    """
    known = address_in(url) if url else None
    if known and "/" not in (project or ""):
        owner, project = owner or known.owner, project or known.project
    if project is None:
        raise UserError("--service-run needs -p PROJECT (or OWNER/PROJECT), or a service URL that names them")
    api = RunApi(project, owner, insecure_http=insecure_http, patience_s=0.0)
    if known and (known.owner, known.project) != (api.owner, api.project):
        raise UserError(
            f"the URL leads to {known.owner}/{known.project}, -p says {api.owner}/{api.project}: "
            "drop --url (and SERVICE_URL) or correct -p"
        )
    uuid = hex_uuid(service_run)
    if uuid is None:
        raise UserError(f"--service-run {service_run!r} is not the UUID of a run (polyaxon ops ls shows them)")
    service = api.service(uuid)
    if service.status in DONE or service.status == "stopping":
        reason = because(api.read(service.uuid)[1])
        raise UserError(f"{service} is {service.status}{reason}: start a new one, and pass its UUID to --service-run")
    return service


def last_word(service: ServiceRun) -> str:
    """What Polyaxon has on a service that does not get ready: its last conditions and log lines, indented."""
    api = RunApi(service.project, service.owner, insecure_http=True, patience_s=0.0)  # find_service has let it pass
    return api.last_word(service.uuid)


def contradiction(service: ServiceRun, mode: str | None, record: Mapping[str, Any] | None) -> str | None:
    """The first way in which the run's inputs disagree with --mode or with what the server says of itself.

    Args:
      mode: what --mode says, None when it was not given.
      record: the server's own record (GET /server-record), None when it has none.
    """
    if mode and service.mode and service.mode != mode:
        return f"--mode says {mode}, the inputs of {service} say {service.mode}: correct --mode or --service-run"
    if record is None:
        return None
    if record.get("service_run") not in (None, service.uuid):
        return f"--service-run is {service.uuid}, the server at its URL says it is run {record['service_run']}"
    for name, here, there in _shared_settings(service, record):
        if here != there:
            return f"{name}: the inputs of {service} say {here}, the server says {there}: redeploy it from service.yaml"
    return None


def _shared_settings(service: ServiceRun, record: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(name, by the run's inputs, by the server) of every setting that both state."""
    inputs = service.inputs
    if service.mode and record.get("mode"):
        yield "mode", service.mode, record["mode"]
    if "prefix_caching" in inputs and record.get("prefix_caching") is not None:
        yield "prefix caching", _on_off(inputs["prefix_caching"]), _on_off(record["prefix_caching"])
    # The embedded engine has one match length and one draft length of its own, whatever the inputs ask for.
    speculative = (record.get("speculative_config") or {}) if record.get("engine") == "vllm" else {}
    for name in ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"):
        if name in inputs and name in speculative:
            yield name, int(inputs[name]), int(speculative[name])


def _on_off(value: Any) -> str:
    return "on" if str(value).lower() in ("on", "true", "1", "yes") else "off"
