"""What a page is made of, read from an experiment or from loose result directories."""

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np
from msgspec import UNSET

from specbench import UserError
from specbench.comparison.assessment import Options, compare
from specbench.comparison.format import FORMAT, CaseOutputs, Deployment, Likeness, Side
from specbench.comparison.format import Comparison as Result
from specbench.deploy.state import STATE, Comparison, Settings, State, read_state
from specbench.page.documents import LARGEST, check_numbers, read_document
from specbench.page.drawing import Floats
from specbench.record.directory import check_unedited, read_manifest, read_requests, read_summary
from specbench.record.format import MANIFEST, SUMMARY, Manifest, Summary, moment, value_at
from specbench.words import count

METRICS = {"e2el": "E2EL", "ttft": "TTFT", "tpot": "TPOT"}
# As experiment.py compares: outputs may vary as much as the baseline's own.
OPTIONS = Options(accept_floor=True)
CLAMP = 1_200  # characters of an output that are kept
CASES_SHOWN = 30  # cases whose outputs are shown, per load


@dataclass
class Output:
    """One distinct output of a case: its beginning, its whole length, and how often each side gave it."""

    text: str
    length: int
    counts: Counter[Side] = field(default_factory=Counter)


@dataclass
class Run:
    """One result directory: the measured ok requests' times in s, per metric and family."""

    name: str
    path: Path
    side: Side
    mode: str
    manifest: Manifest
    summary: Summary
    times: dict[str, dict[str, Floats]]

    def overall(self, metric: str) -> Floats:
        """The times of all families."""
        return np.concatenate([*self.times[metric].values(), np.empty(0)])

    def geometric_mean(self, metric: str, mix: Mapping[str, float] | None) -> float | None:
        """Over all requests, or over families as `mix` weighs them: what ratios are made of. None without times."""
        if mix is None:
            times = self.overall(metric)
            return math.exp(float(np.log(times).mean())) if len(times) else None
        logs = {family: float(np.log(times).mean()) for family, times in self.times[metric].items() if len(times)}
        if any(weight > 0 and family not in logs for family, weight in mix.items()):
            return None
        return math.exp(sum(weight * logs[family] for family, weight in mix.items() if weight > 0))


@dataclass
class Load:
    """One concurrency: compare.py's result, the runs behind it in order of time, and outputs of cases that differ."""

    users: int
    result: Result
    runs: list[Run]
    outputs: dict[str, list[Output]]

    @property
    def label(self) -> str:
        """For example: 4 users."""
        return count(self.users, "user")

    @property
    def families(self) -> list[str]:
        """In the order of the prompts file."""
        return list(self.result.metrics["e2el"].families)


@dataclass
class Evidence:
    """Everything read: `experiment` is experiment.json, None for loose directories; `missing`: loads without result."""

    folder: Path
    experiment: State | None
    loads: list[Load]
    missing: list[str]

    @property
    def runs(self) -> list[Run]:
        """Those of every load."""
        return [run for load in self.loads for run in load.runs]


def gather(directories: Sequence[Path], options: Options = OPTIONS) -> Evidence:
    """Read an experiment or loose result directories. Raises UserError when there is nothing to show.

    An experiment's own comparisons are shown as they are, unless `options` ask for a mix or another primary line.
    """
    if len(directories) == 1 and not (directories[0] / MANIFEST).exists():
        return _gather_experiment(directories[0], options)
    sides: dict[int, dict[str, list[tuple[datetime, Path]]]] = {}
    for directory in directories:
        manifest = read_manifest(directory)
        modes = sides.setdefault(manifest.concurrency, {"baseline": [], "ngram": []})
        if manifest.mode is None:
            raise UserError(f"{directory} does not say its mode; run bench.py with --mode baseline or --mode ngram")
        modes[manifest.mode].append((moment(manifest.started), directory))
    loads = []
    for users, modes in sorted(sides.items()):
        base, candidate = ([path for _, path in sorted(modes[mode])] for mode in ("baseline", "ngram"))
        if not base or len(base) != len(candidate):
            raise UserError(
                f"at {count(users, 'user')} there are {len(base)} directories of baseline and {len(candidate)} of "
                "ngram; name as many of each"
            )
        loads.append(_read_load(users, compare(base, candidate, options), Path()))
    _check_alike(loads)
    return Evidence(Path(), None, loads, [])


def _check_alike(loads: Sequence[Load]) -> None:
    """Loads on one page answered the same prompts with one model. Raises UserError."""
    first = loads[0].runs[0]
    for run in (load.runs[0] for load in loads[1:]):
        for what, path in (("model", "server.model.id"), ("inventory", "inventory.sha256")):
            if value_at(first.manifest, path) != value_at(run.manifest, path):
                raise UserError(f"{first.name} and {run.name} differ in {what}; give each its own page")


def _gather_experiment(folder: Path, options: Options) -> Evidence:
    try:
        experiment = read_state(folder)
    except FileNotFoundError:
        neither = f"{folder} holds neither {STATE} nor {MANIFEST}"
        raise UserError(f"{neither}; name an experiment or result directories") from None
    check_numbers(experiment, folder / STATE)
    loads, missing = [], []
    for users in sorted(experiment.settings.concurrency):
        step = experiment.comparisons.get(users)
        if step is None:
            missing.append(count(users, "user"))
        else:
            loads.append(_read_load(users, _comparison(folder, step, experiment.settings, options), folder))
    if loads and not any(deployment.loads for deployment in experiment.deployments):
        raise UserError(f"{folder / STATE} lists no deployment that was measured; it was edited: make it again")
    if not loads:
        raise UserError(
            f"{folder} has no comparison yet, its experiment is {experiment.status}; "
            f"go on with: python experiment.py --out {folder} --resume"
        )
    return Evidence(folder, experiment, loads, missing)


def _options_of(settings: Settings, options: Options) -> Options:
    """`options`, and where they ask for nothing the mix and the primary line that the experiment was given."""
    if options != OPTIONS:
        return options
    mix = None if settings.mix is UNSET else settings.mix
    return replace(OPTIONS, mix=mix, primary="overall" if settings.primary is UNSET else settings.primary)


def _comparison(folder: Path, step: Comparison, settings: Settings, asked: Options) -> Result:
    """The stored comparison; made again where it is not there, or where the reader asks for another line."""
    path = folder / step.json
    options = _options_of(settings, asked)
    if not path.exists() or asked != OPTIONS:
        base, candidate = zip(*step.pairs, strict=True)
        result = compare([folder / name for name in base], [folder / name for name in candidate], options)
        # experiment.py compares inside its folder: every name there is one without it.
        inside = msgspec.json.encode(result).replace(msgspec.json.encode(f"{folder}/")[1:-1], b"")
        return msgspec.json.decode(inside, type=Result)
    again = f"delete {path.name}, and the page compares again"
    result = read_document(path, Result, FORMAT, again)
    if problem := _contradiction(result):
        raise UserError(f"{path} {problem}; it was edited: {again}")
    return result


def _contradiction(result: Result) -> str | None:
    """What no comparison can hold, and the page would stumble over."""
    if missing := [metric for metric in METRICS if metric not in result.metrics]:
        return f"lacks the metric {missing[0]}"
    families = set(result.metrics["e2el"].families)
    for metric in result.metrics.values():
        if set(metric.families) != families:
            return "has other families in one metric than in another"
        for line in (metric.overall, *metric.families.values()):
            numbers = (line.interval.ratio, line.interval.low, line.interval.high, line.interval.base)
            if any(number is not None and number <= 0 for number in numbers):
                return "holds a ratio or a time that is not above 0"
            if (line.interval.low is None) != (line.interval.high is None):
                return "holds an interval with one end"
    e2el = result.metrics["e2el"]
    if sum(line.primary for line in (e2el.overall, *e2el.families.values())) != 1:
        return "does not name one primary line"
    if not result.deployments:
        return "names no deployment"
    if any("/" in one.directory or one.directory in ("", ".", "..") for one in result.deployments):
        return "names a directory outside of the experiment's folder"
    return None


def _read_load(users: int, result: Result, folder: Path) -> Load:
    """Stream every directory of one comparison, once."""
    cases = result.equality.cases
    outputs: dict[str, dict[bytes, Output]] = {case: {} for case in differing_cases(result)[:CASES_SHOWN]}
    runs = [
        _read_run(folder / deployment.directory, deployment, outputs, cases) for deployment in result.deployments
    ]
    ordered = {
        case: sorted(known.values(), key=lambda output: (-output.counts["base"], -output.counts["candidate"]))
        for case, known in outputs.items()
    }
    return Load(users, result, runs, ordered)


def differing_cases(result: Result) -> list[str]:
    """Cases whose outputs differ, those first that differ most between the sides beyond what the base does itself."""
    cases = result.equality.cases
    differing = [name for name, case in cases.items() if case.verdict is not Likeness.IDENTICAL]
    return sorted(differing, key=lambda name: (cases[name].within_base or 0.0) - cases[name].between)


def _read_run(
    path: Path, deployment: Deployment, outputs: dict[str, dict[bytes, Output]], cases: Mapping[str, CaseOutputs]
) -> Run:
    times: dict[str, dict[str, array[float]]] = {metric: {} for metric in METRICS}
    for request in read_requests(path):
        if request.phase != "measured" or request.outcome != "ok":
            continue
        for metric, families in times.items():
            value = getattr(request, f"{metric}_s")
            if value and value > LARGEST:
                raise UserError(f"{path} holds a request of {value:.3g} s, which nobody can have measured")
            # 0: the whole answer came in one read, which tells nothing of one token (as in compare.py).
            families.setdefault(request.family, array("d")).extend([value] if value else [])
        if request.case in outputs:
            whole = request.text.encode(errors="surrogatepass")
            if cases[request.case].compared == "token ids":
                whole += b"\0" + array("q", request.token_ids or []).tobytes()
            known = outputs[request.case]
            output = known.setdefault(hashlib.sha256(whole).digest(), Output(request.text[:CLAMP], len(request.text)))
            output.counts[deployment.side] += 1
    arrays = {metric: {family: np.array(one) for family, one in families.items()} for metric, families in times.items()}
    manifest, summary = read_manifest(path), read_summary(path)
    check_unedited(path, manifest, summary)
    for document, name in ((manifest, MANIFEST), (summary, SUMMARY)):
        check_numbers(document, path / name)
    mode = deployment.mode or deployment.side
    return Run(deployment.directory, path, deployment.side, mode, manifest, summary, arrays)


def manifest_of(evidence: Evidence, directory: str) -> Manifest | None:
    """The manifest of a run that may not have come so far as to have one."""
    path = evidence.folder / directory
    return read_manifest(path) if (path / MANIFEST).exists() else None


def run_times(manifest: Manifest) -> tuple[datetime, datetime]:
    """When a run began and ended (UTC); one that did not end has no length."""
    start = moment(manifest.started)
    return start, moment(manifest.ended) if manifest.ended else start
