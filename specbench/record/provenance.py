"""Who measured, with what: what a manifest says of the tool, the client's machine and the command line."""

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timezone

from specbench import __version__
from specbench.record.format import ClientRecord, Tool

_PACKAGES = ("httpx", "httptools", "msgspec", "numpy", "uvloop", "polyaxon")


def now() -> str:
    """UTC time as the manifest holds it."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def tool() -> Tool:
    """Who wrote the directory."""
    return Tool("specbench", __version__)


def command_line(argv: Sequence[str]) -> list[str]:
    """`argv` as it may be stored: URLs without userinfo and query, where credentials travel."""
    return [_without_credentials(argument) for argument in argv]


def public_url(url: str) -> str:
    """`url` without userinfo, query and fragment."""
    scheme, separator, rest = re.split("[?#]", url, maxsplit=1)[0].partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"


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


def _without_credentials(argument: str) -> str:
    option, separator, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    return f"{option}{separator}{public_url(value)}" if "://" in value else argument
