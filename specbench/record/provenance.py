"""Who measured, with what: what a manifest says of the tool and the client's machine."""

import importlib.metadata
import os
import platform
import sys
from datetime import datetime, timezone

from specbench import __version__
from specbench.record.format import ClientRecord, Tool

# In the environment of all that experiment.py starts: so bench.py knows that it is a step of an experiment, and orphans
# are told from strangers.
STARTED_AS = "SPECBENCH_STARTED_AS"
_PACKAGES = ("httpx", "httptools", "msgspec", "numpy", "uvloop", "polyaxon")


def now() -> str:
    """UTC time as the manifest holds it."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def tool() -> Tool:
    """Who wrote the directory."""
    return Tool("specbench", __version__)


def client_record(event_loop: str, location: str | None) -> ClientRecord:
    """The machine that measured. No host name, user or path."""
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ClientRecord(
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        packages=packages,
        cores=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        event_loop=event_loop,
        location=location,
    )
