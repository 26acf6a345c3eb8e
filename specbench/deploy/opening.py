"""How an experiment begins or goes on: settings, folder, target, each refused before anything is made."""

import contextlib
import fcntl
import math
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from specbench import UserError
from specbench.comparison.mix import check_families, parse_mix
from specbench.deploy.given import Given, TargetName
from specbench.deploy.polyaxon_target import PolyaxonTarget, params_in
from specbench.deploy.processes import HOST, port_answers
from specbench.deploy.state import (
    PROMPTS,
    STATE,
    Settings,
    State,
    check_order,
    read_state,
)
from specbench.deploy.targets import ROOT, LocalTarget, Target, VllmTarget
from specbench.files import PARTIAL
from specbench.polyaxon.api import RunApi
from specbench.record.provenance import now, tool
from specbench.redaction import REDACTED, redacted
from specbench.workload.inventory import read_inventory

DEFAULTS = {"order": "BNNB", "concurrency": [1, 4, 8], "max_tokens": 128, "launcher_options": []}
# The same number of requests for each user at every load, so that each load lasts about as long, and no run at many
# users is over in seconds: what happens in one second must not decide over a deployment.
REPEATS_PER_USER = 10
MOST_REPEATS = 100_000
MOST_USERS = 10_000  # bench.py's


def new_experiment(given: Given) -> State:
    """The state of an experiment that begins; makes the folder and puts a copy of the prompts into it.

    With --no-text there is no copy, and a resume asks for --prompts again.
    """
    folder = given.out
    if (folder / STATE).exists():
        raise UserError(f"--out {folder} holds an experiment: give --resume to go on with it, or another --out")
    if given.target is None:
        raise UserError("--target is missing: local (embedded engine, no GPU), vllm (a GPU with vLLM) or polyaxon")
    given.prompts = given.prompts or ROOT / PROMPTS
    settings = new_settings(given)
    if given.mix is not None or given.primary is not None:
        families = {case.family for case in read_inventory(given.prompts).cases}
        check_families(parse_mix(given.mix), given.primary, sorted(families))
    prompts = given.prompts.read_bytes()
    if folder.exists() and not (folder.is_dir() and _is_unused(folder, prompts)):
        raise UserError(f"--out {folder} is not an empty folder: give another --out")
    identity = uuid.uuid4().hex[:8]
    target_of(settings, given, identity).check()
    if given.port is not None and port_answers(given.port):
        raise UserError(f"--port {given.port} of {HOST} is taken: stop what listens there, or leave --port out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        copy = folder / PROMPTS
        if settings.keeps_text and (not copy.exists() or copy.read_bytes() != prompts):
            copy.write_bytes(prompts)
    except OSError as error:
        raise UserError(f"--out {folder} cannot be written ({error.strerror}): give another --out") from None
    return State(
        id=identity, tool=tool(), settings=settings, status="running", started=now(), deployments=[], comparisons={}
    )


def new_settings(given: Given) -> Settings:
    """What the command line names, and the defaults of the rest: repeats that grow with the load, a seed per pair."""
    named = {**DEFAULTS, **given_settings(given)}
    repeats = {load: min(REPEATS_PER_USER * load, MOST_REPEATS) for load in named["concurrency"]}
    seeds = list(range(len(named["order"]) // 2))
    return msgspec.convert({"repeats": repeats, **named, "seeds": seeds}, Settings)


def _is_unused(folder: Path, prompts: bytes) -> bool:
    """Whether `folder` holds nothing but what a call leaves that was killed before it first saved its state."""
    if not {path.name for path in folder.iterdir()} <= {PROMPTS, f"{STATE}{PARTIAL}"}:
        return False
    return not (folder / PROMPTS).exists() or prompts.startswith((folder / PROMPTS).read_bytes())


def old_experiment(given: Given) -> State:
    """The state of an experiment to go on with; UserError when there is none or its settings are others."""
    folder = given.out
    try:
        state = read_state(folder)
    except FileNotFoundError:
        raise UserError(f"--out {folder} holds no {STATE}, so there is nothing to --resume") from None
    settings = state.settings
    known = msgspec.to_builtins(settings)
    changed = [
        f"{name} was {known.get(name)}, now {value}"
        for name, value in given_settings(given).items()
        if known.get(name) != value
    ]
    if changed:
        raise UserError(f"--resume with other settings ({'; '.join(changed)}): leave them out, or begin another --out")
    if not settings.keeps_text and given.prompts is None:
        raise UserError("this experiment keeps no prompts (--no-text): give the --prompts that it began with")
    prompts = folder / prompts_file(given, settings)
    if read_inventory(prompts).sha256 != settings.prompts_sha256:
        raise UserError(f"{prompts} was changed since the experiment began: begin another --out")
    if not given.launcher_options and any(REDACTED in option for option in settings.launcher_options):
        raise UserError("the options after -- hold a secret, which is not stored: give them again with --resume")
    return state


def prompts_file(given: Given, settings: Settings) -> Path:
    """The prompts that are sent, relative to the experiment's folder or absolute."""
    return Path(PROMPTS) if settings.keeps_text or given.prompts is None else given.prompts.absolute()


def given_settings(given: Given) -> dict[str, Any]:
    """The settings that the command line names; the rest is a default or, with --resume, what it was."""
    named: dict[str, Any] = {
        "target": given.target, "order": given.order, "repeats": given.repeats, "max_tokens": given.max_tokens,
        "project": given.project, "owner": given.owner, "queue": given.queue,
        "mix": parse_mix(given.mix), "primary": given.primary,
    }  # fmt: skip
    if given.order is not None:
        check_order(given.order)
    if given.concurrency is not None:
        named["concurrency"] = parse_loads(given.concurrency)
    for option, value, most in (("--repeats", given.repeats, MOST_REPEATS), ("--max-tokens", given.max_tokens, None)):
        if value is not None and value < 1:
            raise UserError(f"{option} {value}: must be at least 1")
        if value is not None and most is not None and value > most:
            raise UserError(f"{option} {value:,}: must be at most {most:,}")
    if given.prompts is not None:
        named["prompts_sha256"] = read_inventory(given.prompts).sha256
    if given.no_text:
        named["no_text"] = True
    if given.launcher_options:
        named["launcher_options"] = redacted(given.launcher_options)
    return {name: value for name, value in named.items() if value is not None}


def parse_loads(text: str) -> list[int]:
    """Numbers of users, as in 1,4,8."""
    parts = [part.strip() for part in text.split(",")]
    loads = [int(part) if part.isdecimal() and len(part) < 10 else 0 for part in parts]
    if min(loads) < 1 or max(loads) > MOST_USERS or len(set(loads)) < len(loads):
        raise UserError(f"--concurrency {text}: give different whole numbers from 1 on, such as 1,4,8")
    return loads


# ---- where servers run


def target_of(settings: Settings, given: Given, identity: str) -> Target:
    """The target that the settings name, with what is not stored from the command line."""
    check_for_target(given, settings.target)
    options = given.launcher_options or settings.launcher_options  # the stored ones are redacted
    if settings.target != "polyaxon":
        kind = {"local": LocalTarget, "vllm": VllmTarget}[settings.target]
        return kind(given.out, options, given.port, given.startup_timeout)
    if not settings.project:
        raise UserError("--target polyaxon needs -p PROJECT, or OWNER/PROJECT")
    api = RunApi(settings.project, settings.owner or None, insecure_http=given.insecure_http)
    return PolyaxonTarget(
        api, ROOT / "service.yaml", identity, params=params_in(options),
        queue=settings.queue or None, approve=given.approve, startup_s=given.startup_timeout,
    )  # fmt: skip


def check_for_target(given: Given, target: TargetName) -> None:
    """Raise UserError for an option out of its range, or one that means nothing to this target."""
    if given.port is not None and not 1 <= given.port <= 65535:
        raise UserError(f"--port {given.port} must be from 1 to 65535")
    if not (math.isfinite(given.startup_timeout) and given.startup_timeout > 0):
        raise UserError(f"--startup-timeout {given.startup_timeout:g} must be a number of seconds above 0")
    polyaxon = {
        "--project": given.project, "--owner": given.owner, "--queue": given.queue,
        "--approve": given.approve, "--insecure-http": given.insecure_http,
    }  # fmt: skip
    if target == "polyaxon" and given.port is not None:
        raise UserError("--port is for --target local and vllm: Polyaxon gives a service its address; leave it out")
    if given.track:
        polyaxon = {"--queue": given.queue, "--approve": given.approve}
    if target != "polyaxon" and (named := [option for option, value in polyaxon.items() if value]):
        raise UserError(f"{', '.join(named)} is for --target polyaxon: leave it out with --target {target}")


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep `folder` to this process; a second one would end the first one's servers. Ends with the process."""
    number = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(f"another experiment.py works on --out {folder}: wait for it or stop it first") from None
    finally:
        os.close(number)
