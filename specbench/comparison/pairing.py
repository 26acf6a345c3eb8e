"""Result directories of two sides, aligned request by request, and what else differed between them.

`load` streams one directory into arrays, `pair` refuses what does not pair, and `check_gates` says what other than the
mode could explain a difference. Nothing is dropped: a request that one side lacks ends the comparison.

Arrays run in schedule order: element j is the same (case, repeat) in every deployment.
"""

import json
import math
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from specbench import UserError
from specbench.record.directory import check_unedited, read_manifest, read_requests, read_summary
from specbench.record.format import Request

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Side = Literal["base", "candidate"]
_ShapeT = TypeVar("_ShapeT", bound=msgspec.Struct)
METRICS = ("e2el", "ttft", "tpot")
_NAMED = 12  # requests that one sentence names


class Outputs:
    """Every distinct output, stored once: its text and its token ids (4 bytes each), or None without them."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, bytes | None], int] = {}
        self._outputs: list[tuple[str, bytes | None]] = []

    def add(self, text: str, token_ids: Sequence[int] | None) -> int:
        """The number of this output: the same for the same text and ids. OverflowError for an id beyond 32 bits."""
        output = (text, None if token_ids is None else array("i", token_ids).tobytes())
        number = self._numbers.setdefault(output, len(self._outputs))
        if number == len(self._outputs):
            self._outputs.append(output)
        return number

    def text(self, number: int) -> str:
        """The text of an output."""
        return self._outputs[number][0]

    def packed_ids(self, number: int) -> bytes | None:
        """The token ids as bytes, to compare and hash."""
        return self._outputs[number][1]

    def token_ids(self, number: int) -> list[int]:
        """The token ids, empty where there are none."""
        ids = array("i")
        ids.frombytes(self._outputs[number][1] or b"")
        return ids.tolist()


@dataclass(frozen=True, slots=True, eq=False)
class Deployment:
    """One complete result directory. Arrays are [n], in schedule order.

    `times`: seconds by metric; TPOT is NaN where a request has none. `output`: numbers in `Pair.outputs`.
    `shape`: the case and repeat of every position.
    """

    name: str
    side: Side
    mode: str | None
    manifest: dict[str, Any]
    summary: dict[str, Any]
    shape: Ints
    times: dict[str, Floats]
    tokens: Ints
    output: Ints
    finish: list[str | None]

    @property
    def started(self) -> datetime:
        """When the run began (UTC)."""
        return datetime.fromisoformat(self.manifest["started"].replace("Z", "+00:00"))

    @property
    def record(self) -> dict[str, Any]:
        """The server's record, empty where it gave none."""
        return self.manifest["server"].get("record") or {}

    def counter(self, name: str) -> Any:
        """What the server counted during the run, None where it does not say."""
        return self.summary["server"].get(name)


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Deployments of two sides that answered the same schedule. `case`: [n] index into `cases`."""

    bases: list[Deployment]
    candidates: list[Deployment]
    cases: list[dict[str, Any]]
    families: tuple[str, ...]
    family: Ints
    case: Ints
    repeats: int
    concurrency: int
    outputs: Outputs

    @property
    def deployments(self) -> list[Deployment]:
        """All of them, in order of their start."""
        return sorted([*self.bases, *self.candidates], key=lambda deployment: deployment.started)


# ---- loading and refusing


def pair(bases: Sequence[Path], candidates: Sequence[Path], allow_same_mode: bool = False) -> Pair:
    """Load both sides and refuse, in one sentence, whatever cannot be compared.

    Raises:
        UserError: naming the directories, what differs and which flag would make them pair.
    """
    _distinct_paths([*bases, *candidates])
    outputs = Outputs()
    base = [load(path, "base", outputs) for path in bases]
    candidate = [load(path, "candidate", outputs) for path in candidates]
    first = base[0]
    for other in [*base[1:], *candidate]:
        _check_identity(first, other)
    _check_modes(base, candidate, allow_same_mode)
    _check_independent(base, candidate)
    for other in [*base[1:], *candidate]:
        other.manifest["inventory"] = first.manifest["inventory"]  # equal, and with many cases large
    cases = first.manifest["inventory"]["cases"]
    families = tuple(dict.fromkeys(case["family"] for case in cases))
    return Pair(
        bases=base,
        candidates=candidate,
        cases=cases,
        families=families,
        family=np.array([families.index(case["family"]) for case in cases], dtype=np.int64),
        case=first.shape[:, 0],
        repeats=first.manifest["schedule"]["repeats"],
        concurrency=first.manifest["concurrency"],
        outputs=outputs,
    )


def load(directory: Path, side: Side, outputs: Outputs) -> Deployment:
    """Stream one result directory into arrays.

    Raises UserError when the run is not complete, a line is damaged, or a request is missing, twice there or not ok.
    """
    manifest = msgspec.to_builtins(typed := read_manifest(directory))
    _check_manifest(directory, manifest)
    summary = msgspec.to_builtins(typed_summary := read_summary(directory))
    _check_shape(f"{directory}/summary.json", summary, _Summary)
    schedule = manifest["schedule"]
    if summary.get("status") != "complete":
        raise UserError(
            f"{directory} is {summary.get('status')}, after {summary['requests'].get('measured')} of "
            f"{schedule['requests']} requests; run bench.py again with a fresh --out"
        )
    rows = _Rows(directory, manifest, outputs)
    for request in read_requests(directory):
        if request.phase == "measured":
            rows.add(request)
    rows.check_whole()
    check_unedited(directory, typed, typed_summary)
    return Deployment(
        name=str(directory),
        side=side,
        mode=manifest["mode"],
        manifest=manifest,
        summary=summary,
        shape=rows.shape,
        times=rows.times,
        tokens=rows.tokens,
        output=rows.output,
        finish=rows.finish,
    )


class _Rows:
    """The measured requests of one directory, put at their positions in the schedule."""

    def __init__(self, directory: Path, manifest: dict[str, Any], outputs: Outputs) -> None:
        n = manifest["schedule"]["requests"]
        self._directory = directory
        self._repeats: int = manifest["schedule"]["repeats"]
        self._cases: list[dict[str, Any]] = manifest["inventory"]["cases"]
        self._index = {case["id"]: number for number, case in enumerate(self._cases)}
        self._outputs = outputs
        self._seen = np.zeros((len(self._cases), self._repeats), dtype=bool)
        self._failed: list[str] = []
        self.shape = np.full((n, 2), -1, dtype=np.int64)
        self.times = {metric: np.full(n, np.nan) for metric in METRICS}
        self.tokens = np.zeros(n, dtype=np.int64)
        self.output = np.zeros(n, dtype=np.int64)
        self.finish: list[str | None] = [None] * n

    def add(self, request: Request) -> None:
        case, repeat, position = self._place(request)
        self._seen[case, repeat] = True
        self.shape[position] = case, repeat
        if request.outcome != "ok" or request.e2el_s is None or request.ttft_s is None:
            message = request.error or "no message"
            self._failed.append(f"{request.case} repeat {repeat} ({request.outcome}: {message})")
            return
        if request.e2el_s == 0 or request.ttft_s == 0:
            raise self._refusal(request, "took 0 s, which no run can have measured")
        self.times["e2el"][position] = request.e2el_s
        self.times["ttft"][position] = request.ttft_s
        # 0: the whole answer arrived in one read, so nothing can be said about the time of one token.
        self.times["tpot"][position] = request.tpot_s or np.nan
        self.tokens[position] = request.completion_tokens or 0
        self.finish[position] = request.finish_reason and sys.intern(request.finish_reason)  # few are distinct
        try:
            self.output[position] = self._outputs.add(request.text, request.token_ids)
        except OverflowError:
            raise self._refusal(request, "has a token id that no vocabulary holds") from None

    def _place(self, request: Request) -> tuple[int, int, int]:
        case, repeat, position = self._index.get(request.case), request.repeat, request.position
        if case is None or repeat is None or position is None:
            raise self._refusal(request, "is not in the schedule that manifest.json describes")
        if not (0 <= repeat < self._repeats and 0 <= position < len(self.finish)):
            raise self._refusal(request, "is not in the schedule that manifest.json describes")
        if self._seen[case, repeat] or self.shape[position, 0] >= 0:
            raise self._refusal(request, "is there twice")
        known = self._cases[case]
        if request.family != known["family"] or request.prompt_sha256 != known["prompt_sha256"]:
            raise self._refusal(request, "has another family or prompt than manifest.json says")
        return case, repeat, position

    def _refusal(self, request: Request, what: str) -> UserError:
        where = f"case {request.case!r} repeat {request.repeat} at position {request.position}"
        return UserError(f"{self._directory}/requests.jsonl: {where} {what}; it was edited: run bench.py again")

    def check_whole(self) -> None:
        """Every (case, repeat) exactly once and ok, else a sentence that names those that are not."""
        missing = [f"{self._cases[case]['id']} repeat {repeat}" for case, repeat in np.argwhere(~self._seen)]
        for names, what in ((missing, "missing"), (self._failed, "not ok")):
            if names:
                raise UserError(
                    f"{self._directory}: {len(names)} of {len(self.finish)} requests are {what}: {_listed(names)}; a "
                    "comparison needs every request on both sides: run bench.py again with a fresh --out"
                )


# What a comparison reads of the two documents, and of which type: other keys may stand beside these.


class _Speculation(msgspec.Struct):
    num_speculative_tokens: int | None = None


class _Record(msgspec.Struct):
    argv: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    environment: dict[str, str] | None = None
    settings: dict[str, Any] | None = None
    speculative_config: _Speculation | None = None
    prefix_caching: bool | None = None
    cudagraph_capture_size: int | None = None
    max_num_seqs: int | None = None
    gpus: list[Any] | None = None


class _Model(msgspec.Struct):
    id: str
    max_model_len: Annotated[int, msgspec.Meta(gt=0)] | None = None


class _Server(msgspec.Struct):
    model: _Model
    record: _Record | None = None
    cache_config: dict[str, str] | None = None


class _Case(msgspec.Struct):
    id: str
    family: str
    prompt_sha256: str
    expect: str | None


class _Inventory(msgspec.Struct):
    sha256: str
    cases: Annotated[list[_Case], msgspec.Meta(min_length=1)]


class _Schedule(msgspec.Struct):
    sha256: str
    requests: int
    repeats: int


class _Manifest(msgspec.Struct):
    mode: Literal["baseline", "ngram"] | None
    mode_verified: dict[str, str]
    server: _Server
    request: dict[str, Any]
    inventory: _Inventory
    schedule: _Schedule
    concurrency: Annotated[int, msgspec.Meta(gt=0)]
    client: dict[str, Any]
    started: Annotated[datetime, msgspec.Meta(tz=True)]


class _Counters(msgspec.Struct):
    drafts: float | None = None
    generation_tokens: float | None = None
    prefix_cache_hits: float | None = None
    preemptions: float | None = None
    foreign_requests: float | None = None
    restarted: bool | None = None


class _Client(msgspec.Struct):
    cpu_share: float | None = None
    loop_lag_p99_ms: float | None = None


class _Throughput(msgspec.Struct):
    tokens_per_s: float | None = None


class _Summary(msgspec.Struct):
    requests: dict[str, Any]
    server: _Counters
    client: _Client
    throughput: _Throughput


def _check_shape(where: str, document: dict[str, Any], shape: type[_ShapeT]) -> _ShapeT:
    try:
        return msgspec.convert(document, shape)
    except msgspec.ValidationError as error:
        raise UserError(f"{where} is not what bench.py writes: {error}; it was edited: run bench.py again") from None


def _check_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    """Hold a manifest against what a comparison reads."""
    where = f"{directory}/manifest.json"
    known = _check_shape(where, manifest, _Manifest)
    cases, schedule = known.inventory.cases, known.schedule
    if len({case.id for case in cases}) != len(cases) or schedule.requests != len(cases) * schedule.repeats:
        raise UserError(f"{where}: the schedule is not its cases times its repeats; it was edited: run bench.py again")
    for case in cases:
        try:
            re.compile(case.expect or "")
        except re.error as error:
            raise UserError(f"{where}: expect of case {case.id!r} is no regular expression: {error}") from None


def _distinct_paths(paths: Sequence[Path]) -> None:
    seen: dict[Path, Path] = {}
    for path in paths:
        if (resolved := path.resolve()) in seen:
            raise UserError(f"{path} is given twice (also as {seen[resolved]}); name another result directory")
        seen[resolved] = path


# What two directories must agree in: where the manifest holds it, what to call it, and what to do.
_IDENTITY = (
    (("concurrency",), "concurrency", "compare runs of one --concurrency"),
    (("inventory", "sha256"), "inventory", "run both modes with the same --prompts file"),
    (("schedule", "repeats"), "number of repeats", "run both modes with the same --repeats"),
    (("schedule", "sha256"), "schedule", "run both modes with the same --seed"),
    (("server", "model", "id"), "model", "deploy both modes with one model"),
    (("server", "model", "root"), "model root", "deploy both modes with one model"),
    (("server", "model", "max_model_len"), "limit max_model_len", "deploy both modes with one limit"),
    (("server", "record", "model"), "model in the server record", "deploy both modes with one model"),
    (("server", "record", "revision"), "model revision", "deploy both modes with one --revision"),
    (("server", "engine"), "engine", "deploy both modes on one engine"),
    (("timeout_s",), "limit timeout_s", "run both modes with the same --timeout"),
    (("inactivity_timeout_s",), "limit inactivity_timeout_s", "run both modes with the same --inactivity-timeout"),
)


def _check_identity(first: Deployment, other: Deployment) -> None:
    for path, what, action in _IDENTITY:
        one, two = _at(first.manifest, path), _at(other.manifest, path)
        unknown = path[:2] == ("server", "record") and (one is None or two is None)
        if one != two and not unknown:
            names = f"{first.name} and {other.name}"
            raise UserError(f"{names} differ in {what}: {_short(one)} and {_short(two)}; {action}")
    one, two = first.manifest["request"], other.manifest["request"]
    for key in sorted(one.keys() | two.keys()):
        if one.get(key) != two.get(key):
            raise UserError(
                f"{first.name} and {other.name} differ in the request parameter {key}: {_short(one.get(key))} and "
                f"{_short(two.get(key))}; run both modes with the same parameters"
            )
    if first.manifest["inventory"] != other.manifest["inventory"]:
        raise UserError(f"{first.name} and {other.name} list other cases under one inventory digest; one was edited")
    if not np.array_equal(first.shape, other.shape):
        raise UserError(f"{first.name} and {other.name} sent their requests in different orders; one was edited")


def _check_modes(bases: Sequence[Deployment], candidates: Sequence[Deployment], allow_same_mode: bool) -> None:
    for side in (bases, candidates):
        for deployment in side[1:]:
            if deployment.mode != side[0].mode:
                raise UserError(
                    f"{side[0].name} ({side[0].mode}) and {deployment.name} ({deployment.mode}) stand on one side; "
                    "name base and candidate in turn: BASE CANDIDATE --and BASE2 CANDIDATE2"
                )
    base, candidate = bases[0], candidates[0]
    if allow_same_mode:
        return
    for deployment in (base, candidate):
        if deployment.mode is None:
            raise UserError(
                f"{deployment.name} does not say its mode; run bench.py with --mode, or pass --allow-same-mode"
            )
    if base.mode == candidate.mode:
        raise UserError(
            f"{base.name} and {candidate.name} are both {base.mode}; name one run of each mode, or pass "
            "--allow-same-mode to compare a mode with itself"
        )


def _check_independent(bases: Sequence[Deployment], candidates: Sequence[Deployment]) -> None:
    """A copy of a run is not another run, and two runs of one deployment are not two deployments."""
    seen: dict[str, Deployment] = {}
    keys = ("started", "ended", "command", "service_run", "url")
    for deployment in [*bases, *candidates]:
        run = json.dumps([deployment.manifest.get(key) for key in keys])
        if run in seen:
            raise UserError(f"{deployment.name} is a copy of {seen[run].name}; name another result directory")
        seen[run] = deployment
    for side in (bases, candidates):
        known: dict[str, Deployment] = {}
        for deployment in side:
            identity = deployment.record.get("boot_id") or deployment.manifest.get("service_run")
            identity = str(identity or deployment.manifest["server"].get("process_start_time") or deployment.name)
            if identity in known:
                raise UserError(
                    f"{known[identity].name} and {deployment.name} are two runs of one deployment; --and takes another "
                    "deployment: stop the service, start it again and measure again"
                )
            known[identity] = deployment


def _at(value: Any, path: Iterable[str]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else text[:12] + "…"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


# ---- gates


@dataclass(frozen=True, slots=True)
class Gate:
    """What was checked: `state` is ok, fired or not checked; `number` is held against `threshold`; `action` is what to
    do when it fired, or to have it checked."""

    name: str
    state: Literal["ok", "fired", "not checked"]
    number: float | None
    threshold: float | None
    sentence: str
    action: str | None


_RECORD = "start the server with launch_vllm.py, which answers GET /server-record"
_METRICS = "run bench.py against a server whose /metrics says it"


def check_gates(pair: Pair) -> list[Gate]:
    """Every gate once, in the order in which a reader should look."""
    return [gate(pair) for gate in _GATES]


def _drafts_in_ngram(pair: Pair) -> Gate:
    runs = [(run, run.counter("drafts")) for run in pair.deployments if run.mode == "ngram"]
    if not runs:
        return Gate("drafts in ngram", "ok", None, None, "no side is ngram", None)
    action = "look at --speculative-config in the server's log, and at logprobs and penalties in the requests"
    for run, drafts in runs:
        if drafts == 0:
            return Gate("drafts in ngram", "fired", 0, 1, f"{run.name} drafted nothing: ngram was not at work", action)
    if silent := [run.name for run, drafts in runs if drafts is None]:
        return Gate("drafts in ngram", "not checked", None, 1, f"{_listed(silent)}: no draft counter", _METRICS)
    least = min(drafts for _, drafts in runs)
    return Gate("drafts in ngram", "ok", least, 1, f"ngram drafted, at least {least:,.0f} times a run", None)


def _kv_blocks(pair: Pair) -> Gate:
    """Deployments differ by a few blocks of memory each time; that matters once a cache could not hold every user."""
    action = "free the GPU of other processes before each deployment, or lower --concurrency"
    blocks: dict[str, float] = {}
    for run in pair.deployments:
        count = _at(run.manifest, ("server", "cache_config", "num_gpu_blocks"))
        size = _at(run.manifest, ("server", "cache_config", "block_size"))
        limit = _at(run.manifest, ("server", "model", "max_model_len"))
        # The labels are text, and "None" is one that vLLM writes.
        if limit is None or not str(count).isdecimal() or not str(size).isdecimal() or int(size) == 0:
            return Gate("kv blocks", "not checked", None, None, f"{run.name} does not say its KV blocks", _METRICS)
        blocks[run.name] = float(count)
        needed = pair.concurrency * math.ceil(float(limit) / float(size))
    fewest, most = min(blocks, key=blocks.__getitem__), max(blocks, key=blocks.__getitem__)
    few, many = blocks[fewest], blocks[most]
    if few != many and few < needed:
        sentence = (
            f"kv blocks differ, {fewest} has {few:,.0f} and {most} {many:,.0f}, and "
            f"{pair.concurrency} users at full length need {needed:,.0f}"
        )
        return Gate("kv blocks", "fired", few, needed, sentence, action)
    return Gate("kv blocks", "ok", few, needed, f"the KV cache of every deployment has {few:,.0f} blocks or more", None)


def _capture_size(pair: Pair) -> Gate:
    """ngram decodes concurrency × (k + 1) tokens a step; steps beyond the capture size run without a CUDA graph."""
    action = "deploy both modes with --max-cudagraph-capture-size {needed} or more (launch_vllm.py does)"
    worst: tuple[str, float, float] | None = None
    for run in pair.deployments:
        if run.mode != "ngram" or run.manifest["server"].get("engine") == "llama.cpp":
            continue
        k = _at(run.record, ("speculative_config", "num_speculative_tokens"))
        seqs, size = run.record.get("max_num_seqs"), run.record.get("cudagraph_capture_size")
        if k is None or seqs is None or "cudagraph_capture_size" not in run.record:
            return Gate("capture size", "not checked", None, None, f"{run.name} does not say its capture size", _RECORD)
        size = min(2 * seqs, 512) if size is None else size  # vLLM's own default
        needed = min(pair.concurrency, seqs) * (k + 1)
        if worst is None or size - needed < worst[1] - worst[2]:
            worst = run.name, size, needed
    if worst is None:
        return Gate("capture size", "ok", None, None, "no side captures CUDA graphs for drafts", None)
    name, size, needed = worst
    if size < needed:
        sentence = (
            f"{name} captures CUDA graphs up to {size:.0f} tokens and {pair.concurrency} users need {needed:.0f}: "
            "the cap was measured, not the method"
        )
        return Gate("capture size", "fired", size, needed, sentence, action.format(needed=f"{needed:.0f}"))
    return Gate("capture size", "ok", size, needed, f"CUDA graphs up to {size:.0f} tokens, {needed:.0f} needed", None)


def _compile_cache(pair: Pair) -> Gate:
    states = [(run, run.record.get("compile_cache")) for run in pair.deployments]
    if silent := [run.name for run, state in states if state not in ("cold", "warm")]:
        return Gate("compile cache", "not checked", None, 0, f"{_listed(silent)}: cold or warm is not known", _RECORD)
    cold = [run for run, state in states if state == "cold"]
    number = abs(sum(1 if run.side == "base" else -1 for run in cold))
    if number:
        sentence = f"{_listed([run.name for run in cold])} compiled at start and the other side loaded a warm cache"
        action = "deploy both modes once to fill the compile cache, then measure again"
        return Gate("compile cache", "fired", number, 0, sentence, action)
    return Gate("compile cache", "ok", 0, 0, "cold and warm starts are alike on both sides", None)


def _baseline_drafts(run: Deployment) -> float | None:
    """vLLM has no draft counter at all without speculation: None beside other counters is its way to say 0."""
    number = run.counter("drafts")
    silent = number is None and run.counter("generation_tokens") is not None
    return 0 if run.mode != "baseline" or silent else number


def _restarts(run: Deployment) -> int | None:
    restarted = run.counter("restarted")
    return None if restarted is None else int(restarted)


def _cache_hits(run: Deployment) -> float | None:
    return 0 if _prefix_caching(run) else run.counter("prefix_cache_hits")


def _lag_share(run: Deployment) -> float | None:
    """Loop lag (p99) over the median E2EL; harmless, so at most the limit of 1%, where it is below 2 ms."""
    lag = run.summary["client"].get("loop_lag_p99_ms")
    if lag is None:
        return None
    share = lag / (1000 * float(np.median(run.times["e2el"])))
    return float(share) if lag > 2 else min(float(share), 0.01)


def _driver(run: Deployment) -> Any:
    driver = run.record.get("driver")
    return None if driver is None else [driver, run.record.get("cuda")]


def _public_version(run: Deployment) -> str | None:
    """The image says 0.11.2+cu129 and the wheel 0.11.2: the public part is what is compared."""
    return str(run.manifest["server"].get("version") or "").partition("+")[0] or None


def _flags(run: Deployment) -> list[str] | None:
    argv = run.record.get("argv")
    if argv is None:
        return None
    named = {**(run.record.get("environment") or {}), **(run.record.get("settings") or {})}
    return _comparable_flags(argv) + [f"{name}={value}" for name, value in sorted(named.items())]


def _difference(one: Any, two: Any) -> str:
    """Two values, reduced to the parts in which they differ."""
    if isinstance(one, list) and isinstance(two, list):
        only = [[str(item) for item in a if item not in b] for a, b in ((one, two), (two, one))]
        return " and ".join(" ".join(items) or "nothing" for items in only)
    return f"{one} and {two}"


def _prefix_caching(run: Deployment) -> bool | None:
    said = run.record.get("prefix_caching")
    if said is not None:
        return bool(said)
    label = _at(run.manifest, ("server", "cache_config", "enable_prefix_caching"))
    return None if label is None else label == "True"


def _comparable_flags(argv: Sequence[str]) -> list[str]:
    """Flags with their values, without those that may differ: the speculative ones and the address."""
    flags: list[str] = []
    for argument in argv:
        if argument.startswith("--") or not flags:
            flags.append(argument)
        else:
            flags[-1] += f" {argument}"
    return sorted(flag for flag in flags if not flag.startswith(("--speculative", "--mode", "--host", "--port")))


def _counter(name: str) -> Callable[[Deployment], float | None]:
    return lambda run: run.counter(name)


def _above(
    name: str,
    value_of: Callable[[Deployment], float | None],
    threshold: float,
    *,
    fired: str,
    ok: str,
    action: str,
    unknown: str,
) -> Callable[[Pair], Gate]:
    """A gate that fires when any deployment's number is above the threshold."""

    def check(pair: Pair) -> Gate:
        values = [(value_of(run), run.name) for run in pair.deployments]
        known = [(number, run) for number, run in values if number is not None]
        number, worst = max(known, default=(0.0, ""), key=lambda item: item[0])
        if number > threshold:
            return Gate(name, "fired", number, threshold, fired.format(run=worst, number=number), action)
        if silent := [run for value, run in values if value is None]:
            return Gate(name, "not checked", None, threshold, f"{_listed(silent)}: no {unknown}", _METRICS)
        return Gate(name, "ok", number, threshold, ok.format(number=number), None)

    return check


def _differs(
    name: str, value_of: Callable[[Deployment], Any], *, ok: str, action: str, to_check: str = _RECORD
) -> Callable[[Pair], Gate]:
    """A gate that fires when a setting is not the same in all deployments; `number` counts its values."""

    def check(pair: Pair) -> Gate:
        values: dict[str, str] = {}
        silent = []
        for run in pair.deployments:
            value = value_of(run)
            if value is None:
                silent.append(run.name)
            else:
                values.setdefault(json.dumps(value, sort_keys=True), run.name)
        if len(values) > 1:
            (one, first), (two, second), *_ = values.items()
            sentence = f"{name} differs: {first} and {second}: {_difference(json.loads(one), json.loads(two))}"
            return Gate(name, "fired", len(values), 1, sentence, action)
        if silent:
            return Gate(name, "not checked", None, 1, f"{_listed(silent)}: {name} not said", to_check)
        return Gate(name, "ok", 1, 1, ok, None)

    return check


_GATES: tuple[Callable[[Pair], Gate], ...] = (
    _drafts_in_ngram,
    _above(
        "drafts in baseline",
        _baseline_drafts,
        0,
        fired="{run} drafted {number:,.0f} times",
        ok="the baseline drafted nothing",
        action="deploy the baseline with mode=baseline",
        unknown="draft counter",
    ),
    _above(
        "server restarted",
        _restarts,
        0,
        fired="{run}: the server restarted during the run",
        ok="no server restarted",
        action="read the server's log for why it ended, and measure again",
        unknown="process start time",
    ),
    _above(
        "foreign requests",
        _counter("foreign_requests"),
        0,
        fired="{run}: the server answered {number:,.0f} requests that bench.py did not send",
        ok="nobody else used the server",
        action="keep everybody else off the service and measure again",
        unknown="count of answered requests",
    ),
    _above(
        "prefix cache hits",
        _cache_hits,
        0,
        fired="{run} reused {number:,.0f} cached prompt tokens although prefix caching is not said to be on, so a "
        "repeated prompt cost less than a new one",
        ok="no prompt was answered from a cache that is said to be off",
        action="deploy both modes with prefix_caching off, or with it on in both",
        unknown="prefix-cache counter",
    ),
    _differs(
        "prefix caching",
        _prefix_caching,
        ok="prefix caching is the same everywhere",
        action="deploy both modes with one prefix_caching",
    ),
    _above(
        "preemptions",
        _counter("preemptions"),
        0,
        fired="{run}: the server preempted requests {number:,.0f} times for lack of KV blocks",
        ok="nothing was preempted",
        action="lower --concurrency or raise --gpu-memory-utilization, and measure both modes again",
        unknown="preemption counter",
    ),
    _above(
        "client cpu",
        lambda run: run.summary["client"].get("cpu_share"),
        0.5,
        fired="{run}: the client used {number:.0%} of its core, so its own work is in the times",
        ok="the client had its core to itself, at most {number:.0%} used",
        action="give the client a core of its own, or lower --concurrency",
        unknown="CPU share of the client",
    ),
    _above(
        "client lag",
        _lag_share,
        0.01,
        fired="{run}: the client's event loop lagged (p99) by {number:.1%} of the median E2EL",
        ok="the client's event loop lagged (p99) by at most 2 ms or {number:.2%} of the median E2EL",
        action="run bench.py on a machine that does nothing else, or lower --concurrency",
        unknown="lag of the event loop",
    ),
    _capture_size,
    _kv_blocks,
    _differs(
        "gpu",
        lambda run: run.record.get("gpus") or None,  # an empty list is nvidia-smi's silence
        ok="one kind of GPU",
        action="deploy both modes on the same kind and number of GPUs",
    ),
    _differs("driver", _driver, ok="one driver and CUDA version", action="deploy both modes on nodes with one driver"),
    _differs(
        "version",
        _public_version,
        ok="one server version",
        action="deploy both modes from one image",
        to_check=_METRICS,
    ),
    _differs(
        "flags",
        _flags,
        ok="the same flags but for the speculative ones",
        action="deploy both modes with the same flags and environment but --speculative-config",
    ),
    _compile_cache,
)
