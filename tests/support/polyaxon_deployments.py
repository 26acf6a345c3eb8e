"""Deployments on the sandbox for tests: a target, a deployment of it, the CLI, and what was said."""

import itertools
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from specbench.deploy.polyaxon_target import SERVED_FILES, PolyaxonTarget
from specbench.deploy.state import Deployment, PolyaxonRun
from specbench.polyaxon.api import RunApi
from specbench.record.format import Mode
from support import HANG_S, ROOT
from support.polyaxon_server import Cluster

POLYAXON = str(Path(sys.executable).with_name("polyaxon"))
UNKNOWN = "a" * 32
_number = itertools.count(1)


class Said(list[str]):
    """Collects the progress lines."""

    def __call__(self, line: str) -> None:
        self.append(line)

    @property
    def text(self) -> str:
        return "\n".join(self)


def target_for(api: RunApi, component: Path, **changes: Any) -> PolyaxonTarget:
    options: dict[str, Any] = {"params": {}, "queue": None, "approve": False, "startup_s": HANG_S, **changes}
    return PolyaxonTarget(api, component, f"test{next(_number)}", **options)


def deployment(mode: Mode = "ngram") -> Deployment:
    return Deployment(index=1, name=f"01-{mode}", mode=mode, status="starting", started="2026-01-01T00:00:00Z")


def run_of(entry: Deployment) -> PolyaxonRun:
    assert entry.run
    return entry.run


def start(target: PolyaxonTarget, entry: Deployment) -> str:
    target.start(entry, lambda: None)
    return str(run_of(entry).uuid)


def needs_approval(folder: Path) -> Path:
    """A copy of service.yaml whose runs wait for a person."""
    component = folder / "service.yaml"
    component.write_text((ROOT / "service.yaml").read_text() + "isApproved: false\n")
    for name in SERVED_FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    return component


def cli(
    polyaxon: Cluster, home: Path, line: str, cwd: Path = ROOT, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command line of the README with the real CLI."""
    command = [POLYAXON if word == "polyaxon" else word for word in shlex.split(line)]
    return subprocess.run(
        command, cwd=cwd, env=polyaxon.environment(home, **variables), check=False, capture_output=True, text=True
    )
