"""experiment.json: the state of an experiment, one schema that writes it and reads it.

OUT/experiment.json is written atomically after every step. Paths are names of files in OUT, times are UTC, and what
does not exist is null. A deployment that died or was interrupted is done again under a new name and both are kept:
the directory that counts for a place in the order and a load is the `done` one of a deployment that did not die.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from specbench import UserError
from specbench.deploy.given import TargetName
from specbench.files import json_bytes, write_atomically
from specbench.record.format import Mode, Natural, Positive, Tool, check_moments
from specbench.record.order import alternates

FORMAT = 2  # 1: one number of repeats and one schedule for everything
READABLE = (1, FORMAT)
STATE = "experiment.json"
PROMPTS = "prompts.jsonl"
MODES: dict[str, Mode] = {"B": "baseline", "N": "ngram"}

# One component of a path: no way out of the folder, and no option where a command takes it for one.
FileName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z", max_length=200)]
Load = Annotated[int, Meta(ge=1, le=10_000)]
Repeats = Annotated[int, Meta(ge=1, le=100_000)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]


class Settings(msgspec.Struct, kw_only=True):
    """What was asked for. `launcher_options` are redacted.

    `repeats` is one number for every load, or one by load. `seeds` holds one per pair of the order, so that each pair
    has a schedule of its own; without it every schedule has seed 0. `mix` and `primary` are those of compare.py, named
    before anything was measured.
    """

    order: Annotated[str, Meta(min_length=2, max_length=1000)]
    concurrency: Annotated[list[Load], Meta(min_length=1, max_length=1000)]
    repeats: Repeats | dict[Load, Repeats]
    seeds: list[Natural] | UnsetType = UNSET
    max_tokens: Positive = 128
    launcher_options: list[str] = []
    target: TargetName
    prompts_sha256: str | None = None
    no_text: bool | UnsetType = UNSET
    project: str | UnsetType = UNSET
    owner: str | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    mix: dict[str, float] | UnsetType = UNSET
    primary: str | UnsetType = UNSET

    @property
    def keeps_text(self) -> bool:
        """Whether prompts and answers stand in the folder."""
        return self.no_text is not True

    def repeats_at(self, load: int) -> int:
        """How often each case is sent in one directory at `load` users."""
        return self.repeats if isinstance(self.repeats, int) else self.repeats[load]

    def seed_of(self, index: int) -> int:
        """The seed of the schedule at a place in the order (from 1), the same for both modes of a pair."""
        return self.seeds[(index - 1) // 2] if self.seeds else 0


class Process(msgspec.Struct):
    """A process that was started: number, start (Unix time), the boot of the machine, a word in its environment."""

    pid: Annotated[int, Meta(gt=0, le=2**31 - 1)]
    created: float
    boot: str
    marker: str


class Device(msgspec.Struct):
    """Which boot of which machine this is, and MiB used per GPU before its first deployment."""

    boot: str | UnsetType = UNSET
    gpu_memory_mib: dict[str, int] | UnsetType | None = UNSET


class Memory(msgspec.Struct, kw_only=True):
    """MiB used per GPU: before the first deployment, before this one, once it was ready, after it was ended."""

    free: dict[str, int] | None = None
    before: dict[str, int] | None = None
    ready: dict[str, int] | None = None
    after: dict[str, int] | None = None


class Measurement(msgspec.Struct, kw_only=True):
    """One call of bench.py: its directory holds every request (done), or not (running, unfinished)."""

    directory: FileName
    status: Literal["running", "done", "unfinished"]
    process: Process | None = None
    seconds: Seconds | None = None
    exit_code: int | None = None


class Proof(msgspec.Struct):
    """Sentences on whether the device was free after a deployment."""

    proven: list[str] = []
    not_proven: list[str] = []


class PolyaxonRun(msgspec.Struct, kw_only=True):
    """The run of a deployment: its name is known before it exists. `pods`: those that kubectl showed, or why none."""

    name: str
    uuid: str | None
    project: str
    namespace: str | None = None
    pods: list[str] | str | None = None
    status: str | UnsetType = UNSET


class Deployment(msgspec.Struct, kw_only=True):
    """One server that was started, for the place `index` (from 1) of the order. `loads`: by number of users."""

    index: Positive
    name: FileName
    mode: Mode
    status: Literal["starting", "ready", "done", "died", "interrupted", "failed"]
    started: str
    ready_s: Seconds | None = None
    compile_cache: str | None = None
    gpu_memory_mib: Memory = msgspec.field(default_factory=Memory)
    url: str | None = None
    log: FileName | None = None
    process: Process | None = None
    loads: dict[Load, Measurement] = {}
    proof: Proof | None = None
    run: PolyaxonRun | UnsetType = UNSET

    def __post_init__(self) -> None:
        check_moments(started=self.started)


class Comparison(msgspec.Struct, kw_only=True):
    """One call of compare.py: the files it writes, and the directories that it compares, (base, candidate) each."""

    exit_code: int | None = None
    json: FileName
    markdown: FileName | None = None
    text: FileName | None = None
    pairs: Annotated[list[tuple[FileName, FileName]], Meta(min_length=1)]
    process: Process | None = None


class State(msgspec.Struct, kw_only=True):
    """An experiment. `stopped`: the sentence that says why it went no further; `comparisons`: by number of users."""

    format: int = FORMAT
    id: str = ""
    tool: Tool | None = None
    settings: Settings
    status: Literal["running", "complete", "interrupted", "stopped"]
    stopped: str | None = None
    started: str | None = None
    ended: str | None = None
    device: Device = msgspec.field(default_factory=Device)
    deployments: list[Deployment]
    comparisons: dict[Load, Comparison]

    def directory(self, index: int, load: int) -> str | None:
        """The result directory that counts for a place in the order and a load."""
        for deployment in self.deployments:
            measurement = deployment.loads.get(load)
            counts = deployment.index == index and deployment.status != "died"
            if counts and measurement is not None and measurement.status == "done":
                return measurement.directory
        return None


class _Version(msgspec.Struct):
    format: int | None = None


def write_state(folder: Path, state: State) -> None:
    """Replace OUT/experiment.json, whole or not at all."""
    write_atomically(folder / STATE, json_bytes(state))


def read_state(folder: Path) -> State:
    """The state in `folder`.

    Raises:
      FileNotFoundError: there is none.
      UserError: it cannot be read, is of another version, or was edited into what no version writes.
    """
    path = folder / STATE
    again = "begin again with another --out"
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=_Version).format
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): {again}") from None
    except msgspec.ValidationError:
        version = None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}): it was edited or cut off; {again}") from None
    if version not in READABLE:
        known = " and ".join(map(str, READABLE))
        raise UserError(f"{path} has format {version!r}, this version reads {known}: use the version that wrote it")
    try:
        state = msgspec.json.decode(content, type=State)
        _check_agreement(state)
    except (msgspec.ValidationError, RecursionError, UserError) as error:
        raise UserError(f"{path} is not what experiment.py writes: {error}; it was edited: {again}") from None
    return state


def _check_agreement(state: State) -> None:
    """Raise UserError where parts of a state contradict each other."""
    settings = state.settings
    check_order(settings.order)
    if len(set(settings.concurrency)) < len(settings.concurrency):
        raise UserError("a load stands twice in $.settings.concurrency")
    if not isinstance(settings.repeats, int) and settings.repeats.keys() != set(settings.concurrency):
        raise UserError("$.settings.repeats and $.settings.concurrency name other loads")
    if settings.seeds and len(settings.seeds) != len(settings.order) // 2:
        raise UserError("$.settings.seeds does not hold one per pair of $.settings.order")
    for deployment in state.deployments:
        if deployment.index > len(settings.order) or MODES[settings.order[deployment.index - 1]] != deployment.mode:
            raise UserError(f"{deployment.name} is not what stands in $.settings.order at place {deployment.index}")


def check_order(order: str) -> None:
    """Raise UserError unless `order` is pairs of both modes, each pair the reverse of the one before."""
    advice = "give pairs that alternate, such as BN, BNNB or BNNBBN"
    if strange := sorted(set(order) - set(MODES)):
        raise UserError(f"--order {order} holds {', '.join(strange)}: B is baseline, N is ngram; {advice}")
    if set(order) != set(MODES):
        raise UserError(f"--order {order!r} does not hold both modes: {advice}")
    if not alternates(order):
        raise UserError(f"--order {order} does not alternate, so a drift of the device would favour a mode: {advice}")
