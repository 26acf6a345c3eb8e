"""Deployments on Polyaxon: runs of service.yaml, one after the other."""

import contextlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench import UserError
from specbench.deploy.state import MODES, Deployment, PolyaxonRun, Proof
from specbench.polyaxon.api import DONE, POLL_S, RunApi, RunMissing, because, first_line, instead_of_health
from specbench.polyaxon.pods import pods, pods_command
from specbench.polyaxon.tracking import surrounding_run

# All that service.yaml runs, as paths below its folder: launch_vllm.py and what it imports. The image holds the rest.
SERVED_FILES = ("launch_vllm.py", "specbench/__init__.py", "specbench/redaction.py", "specbench/words.py")


class PolyaxonTarget:
    """Deployments of service.yaml as runs, one after the other (the Target of experiment.py).

    Everything it must know to stop a run stands in the deployment: `run` holds its name, written before the run
    exists, its UUID, project and namespace, and the pods that kubectl showed.

    Args:
      component: service.yaml; SERVED_FILES lie beside it.
      experiment: its id, the first part of every run's name.
      params: inputs of the component beside mode, the same in every deployment.
    """

    approval_s = 86_400.0
    stop_s = 600.0
    gone_s = 120.0

    def __init__(
        self, api: RunApi, component: Path, experiment: str, *,
        params: Mapping[str, str], queue: str | None, approve: bool, startup_s: float,
    ) -> None:  # fmt: skip
        self.api, self.component, self.experiment = api, component, experiment
        self.params, self.queue, self.approve, self.startup_s = dict(params), queue, approve, startup_s

    @property
    def prefix(self) -> str:
        """With what the name of each of this experiment's runs begins."""
        return f"specbench-{self.experiment}-"

    def check(self) -> None:
        """Raise UserError unless the component takes the params, and runs can be created in the project."""
        if "mode" in self.params:
            raise UserError("-P mode=… is set by experiment.py itself: leave it out, --order says the modes")
        for mode in MODES.values():
            self._content(mode)
        self.api.check()

    def memory(self) -> dict[str, int] | None:
        return None  # the GPU is the cluster's

    def start(self, deployment: Deployment, save: Callable[[], None]) -> None:
        """Create the run and upload what it serves with; its name is saved before it exists."""
        content = self._content(deployment.mode)
        project = f"{self.api.owner}/{self.api.project}"
        run = PolyaxonRun(name=f"{self.prefix}{deployment.name}", uuid=None, project=project)
        deployment.run = run
        save()
        run.uuid = uuid = self.api.create(run.name, content)
        save()
        run.namespace = self.api.service(uuid).namespace
        for served in SERVED_FILES:
            self.api.upload(uuid, self.component.parent, served)
        self.api.release(uuid)

    def wait_ready(self, deployment: Deployment) -> str:
        """Wait for approval, for the agent, for the server; the service's URL."""
        run, uuid = _created(deployment)
        self.api.wait_running(uuid, approve=self.approve, approval_s=self.approval_s, startup_s=self.startup_s)
        service = self.api.service(uuid)
        self.api.wait_healthy(service, self.startup_s)
        run.pods = pods(service.uuid, service.namespace)
        return service.url

    def bench_options(self, deployment: Deployment) -> list[str]:
        """bench.py looks the run up again; an API that is away at that moment is waited for here."""
        run, uuid = _created(deployment)
        with contextlib.suppress(RunMissing):  # bench.py will fail, and `died` say why
            self.api.read(uuid)
        insecure = ["--insecure-http"] if self.api.insecure_http else []
        inside = ["--client-location", "cluster"] if surrounding_run() else []
        return ["--service-run", uuid, "--project", run.project, *insecure, *inside]

    def died(self, deployment: Deployment) -> str | None:
        """Why the service no longer serves, None while it does."""
        try:
            run, conditions = self.api.read(_created(deployment)[1])
        except RunMissing:
            return "its run was deleted"
        instead = instead_of_health(str(deployment.url), self.api.token)
        if instead is None and str(run.status) not in DONE:
            return None
        return f"its /health gives {instead or 'HTTP 200'}; its run is {run.status}{because(conditions)}"

    def stop(self, deployment: Deployment) -> None:
        """Stop the run; after a crash it is found by its name, also when its UUID was never written down."""
        run = deployment.run
        if not run:
            return
        known = [run.uuid] if run.uuid else []
        for uuid in dict.fromkeys([*known, *self.api.unfinished(run.name)]):
            run.uuid, run.status = uuid, self.api.stop(uuid, self.stop_s)

    def end_strays(self) -> None:
        """A job's folder is stored every few seconds: when its pod goes away, a run can be younger than the state."""
        for uuid in self.api.unfinished(f"{self.prefix}%"):
            self.api.stop(uuid, self.stop_s)

    def prove_free(self, deployment: Deployment) -> Proof:
        """Evidence that a stopped run holds no GPU any more, and what stays unproven.

        `stopped` can precede the pod's end: the pods are the evidence, the dead URL is a weaker one. A kubectl that
        did not show the pods while the run was up proves nothing when it shows none now.

        Raises:
          UserError: the URL still answers, or a pod is still there, after `gone_s`.
        """
        run, url = deployment.run, deployment.url
        if not run or run.uuid is None:
            return Proof(["no run was created"])
        uuid, line = run.uuid, pods_command(run.uuid, run.namespace)
        end = time.monotonic() + self.gone_s
        while True:
            instead = instead_of_health(url, self.api.token) if url else "no answer: it was never ready"
            left = pods(uuid, run.namespace)
            if instead and (isinstance(left, str) or not left):
                break
            if time.monotonic() > end:
                held = f"{' '.join(left)} is still there" if instead else "its URL still answers"
                raise UserError(
                    f"run {uuid} is {run.status}, and {self.gone_s:.0f} s later {held}: the GPU is not free; "
                    f"see `{line}`, then --resume"
                )
            time.sleep(POLL_S)
        proven = [f"run {uuid} is {run.status}"]
        not_proven: list[str] = []
        # Only the gateway's own word tells that nothing is behind the URL; a gateway that is away tells nothing.
        shown = proven if instead.startswith("HTTP 5") or instead == "HTTP 404" else not_proven
        shown.append(f"its URL is dead ({instead})")
        if isinstance(left, str) or not isinstance(run.pods, list) or not run.pods:
            why = left if isinstance(left, str) else "kubectl showed none while it ran: perhaps another cluster"
            not_proven.append(f"its pod is gone ({why}): look with `{line}`")
        else:
            proven.append(f"its pod is gone: `{line}` shows none")
        return Proof(proven, not_proven)

    def _content(self, mode: str) -> Any:
        from polyaxon.exceptions import PolyaxonException
        from polyaxon.polyaxonfile import check_polyaxonfile

        try:
            return check_polyaxonfile(
                polyaxonfile=str(self.component), params={"mode": mode, **self.params}, queue=self.queue,
                strict_params=True, is_cli=False, verbose=False,
            )  # fmt: skip
        except PolyaxonException as error:
            raise UserError(
                f"{self.component.name} with -P mode={mode}: {first_line(error.__cause__ or error)}"
            ) from None


def _created(deployment: Deployment) -> tuple[PolyaxonRun, str]:
    """A deployment's run and its UUID, once it is created."""
    run = deployment.run
    assert run and run.uuid is not None
    return run, run.uuid


def params_in(options: Sequence[str]) -> dict[str, str]:
    """The params of `-P NAME=VALUE …`, as `polyaxon run` takes them."""
    params = {}
    for flag, value in itertools.zip_longest(options[::2], options[1::2]):
        name, equals, text = str(value).partition("=")
        if flag != "-P" or not equals:
            raise UserError(f"options after -- must be -P NAME=VALUE for polyaxon, got {' '.join(options)}")
        params[name] = text
    return params
