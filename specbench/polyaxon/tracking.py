"""Results in Polyaxon: figures as a run's outputs, by which `polyaxon ops ls` and the UI sort runs; files as artifacts.

Inside a Polyaxon run, POLYAXON_RUN_INSTANCE names the run that the figures belong to. Outside nothing is sent, unless
a run of its own is asked for. What was measured is on disk before: a failure here is a warning and costs no result.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from specbench import UserError
from specbench.polyaxon.api import RunApi
from specbench.record.directory import read_manifest, read_summary
from specbench.record.figures import Figures, summary_figures
from specbench.record.format import MANIFEST, SUMMARY
from specbench.terminal import say

OUTPUTS = "outputs"  # of a run's artifacts; what a job writes there is kept by Polyaxon itself
_INSTANCE = re.compile(r"(?P<owner>[^./]+)\.(?P<project>[^./]+)\.runs\.(?P<uuid>[0-9a-f]{32})")


def surrounding_run() -> tuple[str, str] | None:
    """(OWNER/PROJECT, UUID) of the Polyaxon run that this process is in, None outside of one."""
    found = _INSTANCE.fullmatch(os.environ.get("POLYAXON_RUN_INSTANCE", ""))
    return (f"{found['owner']}/{found['project']}", found["uuid"]) if found else None


def track(
    name: str,
    figures: Figures,
    files: Mapping[str, Path],
    *,
    project: str | None,
    insecure_http: bool,
) -> str | None:
    """Send figures and files to the surrounding run, or to a new run called `name` where there is none.

    Args:
      figures: outputs of the run, by flat names.
      files: artifacts by their path below the run's outputs. Not sent from inside a run, whose outputs they are in.
      project: PROJECT or OWNER/PROJECT for a new run.

    Returns:
      The run's UUID; None when it failed, which was said as a warning.
    """
    around = surrounding_run()
    try:
        if around is None and project is None:
            raise UserError("--track outside of a Polyaxon run needs -p PROJECT, or OWNER/PROJECT")
        api = RunApi(around[0] if around else str(project), insecure_http=insecure_http, patience_s=30.0)
        uuid = around[1] if around else api.create_tracked(name)
        api.log_outputs(uuid, figures)
        if around is None:
            for path, file in files.items():
                api.upload_output(uuid, file, str((Path(OUTPUTS) / path).parent))
            api.succeed(uuid)
            say(f"tracked as run {uuid} of {api.owner}/{api.project}")
    except (UserError, OSError) as error:
        say(f"warning: the results are not in Polyaxon: {error}")
        return None
    return uuid


def track_directory(directory: Path, wanted: bool | None, *, project: str | None, insecure_http: bool) -> None:
    """Send the figures of a result directory, where there are any. `wanted`: None means only from inside a run."""
    if wanted is False or (wanted is None and surrounding_run() is None) or not (directory / SUMMARY).exists():
        return
    manifest, summary = read_manifest(directory), read_summary(directory)
    figures = {"mode": manifest.mode or "unknown", "concurrency": manifest.concurrency, **summary_figures(summary)}
    files = {name: directory / name for name in (SUMMARY, MANIFEST)}
    track(directory.name, figures, files, project=project, insecure_http=insecure_http)
