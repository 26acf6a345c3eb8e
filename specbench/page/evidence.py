"""What a page is made of, read from an experiment or from loose result directories."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from specbench import UserError
from specbench.comparison.assessment import Options, compare
from specbench.comparison.format import FORMAT as COMPARISON_FORMAT
from specbench.comparison.format import Likeness
from specbench.deploy.state import STATE, Comparison, State, read_state
from specbench.page.charts import Floats
from specbench.page.documents import LARGEST, check_numbers, read_document
from specbench.record.directory import check_unedited, read_manifest, read_requests, read_summary
from specbench.record.format import MANIFEST, SUMMARY, Manifest, Summary, moment, value_at
from specbench.words import count

Json = dict[str, Any]

METRICS = {"e2el": "E2EL", "ttft": "TTFT", "tpot": "TPOT"}
OPTIONS = Options(accept_floor=True)  # as experiment.py: outputs may vary as much as the baseline's own
CLAMP = 1_200  # characters of an output that are kept
CASES_SHOWN = 30  # cases whose outputs are shown, per load

@dataclass
class Output:
    """One distinct output of a case: its beginning, its whole length, and how often each side gave it."""

    text: str
    length: int
    counts: Counter[str] = field(default_factory=Counter)


@dataclass
class Run:
    """One result directory: the measured ok requests' times in s, per metric and family."""

    name: str
    side: str
    mode: str
    manifest: Manifest
    summary: Summary
    times: dict[str, dict[str, Floats]]

    def overall(self, metric: str) -> Floats:
        return np.concatenate([*self.times[metric].values(), np.empty(0)])


@dataclass
class Load:
    """One concurrency: compare.py's JSON, the runs behind it in order of time, and outputs of cases that differ."""

    users: int
    result: Json
    runs: list[Run]
    outputs: dict[str, list[Output]]

    @property
    def label(self) -> str:
        """For example: 4 users."""
        return count(self.users, "user")


@dataclass
class Evidence:
    """Everything read: `experiment` is experiment.json, None for loose directories; `missing`: loads without result."""

    folder: Path
    experiment: State | None
    loads: list[Load]
    missing: list[str]


def gather(directories: Sequence[Path]) -> Evidence:
    """Read an experiment or loose result directories. Raises UserError when there is nothing to show."""
    if len(directories) == 1 and not (directories[0] / MANIFEST).exists():
        return _gather_experiment(directories[0])
    sides: dict[int, dict[str, list[tuple[str, Path]]]] = {}
    for directory in directories:
        manifest = read_manifest(directory)
        modes = sides.setdefault(manifest.concurrency, {"baseline": [], "ngram": []})
        if manifest.mode is None:
            raise UserError(f"{directory} does not say its mode; run bench.py with --mode baseline or --mode ngram")
        modes[manifest.mode].append((manifest.started, directory))
    loads = []
    for users, modes in sorted(sides.items()):
        base, candidate = ([path for _, path in sorted(modes[mode])] for mode in ("baseline", "ngram"))
        if not base or len(base) != len(candidate):
            raise UserError(
                f"at {count(users, 'user')} there are {len(base)} directories of baseline and {len(candidate)} of "
                "ngram; name as many of each"
            )
        loads.append(_read_load(users, msgspec.to_builtins(compare(base, candidate, OPTIONS)), Path()))
    _check_alike(loads)
    return Evidence(Path(), None, loads, [])


def _check_alike(loads: Sequence[Load]) -> None:
    """Loads on one page answered the same prompts as often with one model. Raises UserError."""
    first = loads[0].runs[0]
    for run in (load.runs[0] for load in loads[1:]):
        for what, path in (
            ("model", "server.model.id"), ("inventory", "inventory.sha256"), ("number of repeats", "schedule.repeats"),
        ):  # fmt: skip
            if value_at(first.manifest, path) != value_at(run.manifest, path):
                raise UserError(f"{first.name} and {run.name} differ in {what}; give each its own page")


def _gather_experiment(folder: Path) -> Evidence:
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
            loads.append(_read_load(users, _comparison(folder, step), folder))
    if loads and not any(deployment.loads for deployment in experiment.deployments):
        raise UserError(f"{folder / STATE} lists no deployment that was measured; it was edited: make it again")
    if not loads:
        raise UserError(
            f"{folder} has no comparison yet, its experiment is {experiment.status}; "
            f"go on with: experiment.py --out {folder} --resume"
        )
    return Evidence(folder, experiment, loads, missing)


def _comparison(folder: Path, step: Comparison) -> Json:
    """compare.py's document, made again where only the result directories were kept."""
    path = folder / step.json
    if not path.exists():
        base, candidate = zip(*step.pairs, strict=True)
        result = compare([folder / name for name in base], [folder / name for name in candidate], OPTIONS)
        for deployment in result.deployments:
            deployment.directory = Path(deployment.directory).name
        return dict(msgspec.to_builtins(result))
    return read_document(path, Json, COMPARISON_FORMAT, f"delete {path.name}, and the page compares again")


def _read_load(users: int, result: Json, folder: Path) -> Load:
    """Stream every directory of one comparison, once."""
    cases = result["equality"]["cases"]
    wanted = differing_cases(result)[:CASES_SHOWN]
    outputs: dict[str, dict[bytes, Output]] = {case: {} for case in wanted}
    runs = [
        _read_run(folder / deployment["directory"], deployment, outputs, cases) for deployment in result["deployments"]
    ]
    ordered = {
        case: sorted(of.values(), key=lambda output: (-output.counts["base"], -output.counts["candidate"]))
        for case, of in outputs.items()
    }
    return Load(users, result, runs, ordered)


def differing_cases(result: Json) -> list[str]:
    """Cases whose outputs differ, those first that differ most between the sides beyond what the base does itself."""
    cases = result["equality"]["cases"]
    differing = [case for case, of in cases.items() if of["verdict"] != Likeness.IDENTICAL.value]
    return sorted(differing, key=lambda case: (cases[case]["within_base"] or 0.0) - cases[case]["between"])


def _read_run(path: Path, deployment: Json, outputs: dict[str, dict[bytes, Output]], cases: Json) -> Run:
    times: dict[str, dict[str, array[float]]] = {metric: {} for metric in METRICS}
    for request in read_requests(path):
        if request.phase != "measured" or request.outcome != "ok":
            continue
        for metric, of in times.items():
            value = getattr(request, f"{metric}_s")
            if value and value > LARGEST:
                raise UserError(f"{path} holds a request of {value:.3g} s, which nobody can have measured")
            # 0: the whole answer came in one read, which says nothing of one token (as in compare.py).
            of.setdefault(request.family, array("d")).extend([value] if value else [])
        if request.case in outputs:
            whole = request.text.encode(errors="surrogatepass")
            if cases[request.case]["compared"] == "token ids":
                whole += b"\0" + array("q", request.token_ids or []).tobytes()
            known = outputs[request.case]
            output = known.setdefault(hashlib.sha256(whole).digest(), Output(request.text[:CLAMP], len(request.text)))
            output.counts[deployment["side"]] += 1
    arrays = {metric: {family: np.array(values) for family, values in of.items()} for metric, of in times.items()}
    side, mode = deployment["side"], deployment["mode"] or deployment["side"]
    manifest, summary = read_manifest(path), read_summary(path)
    check_unedited(path, manifest, summary)
    for document, name in ((manifest, MANIFEST), (summary, SUMMARY)):
        check_numbers(document, path / name)
    return Run(deployment["directory"], side, mode, manifest, summary, arrays)


def manifest_of(evidence: Evidence, directory: str) -> Manifest | None:
    """The manifest of a run that may not have come so far as to have one."""
    path = evidence.folder / directory
    return read_manifest(path) if (path / MANIFEST).exists() else None


def run_times(manifest: Manifest) -> tuple[datetime, datetime]:
    """When a run began and ended (UTC); one that did not end has no length."""
    start = moment(manifest.started)
    return start, moment(manifest.ended) if manifest.ended else start


def families_of(load: Load) -> list[str]:
    """The families, in the order of the prompts file."""
    return list(load.result["metrics"]["e2el"]["families"])
