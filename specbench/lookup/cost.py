"""What a step costs: fitted to the deployments of an experiment, and what it makes of an answer's steps.

    E2EL = TTFT + undrafted steps × their cost + drafted steps × theirs

The baseline has undrafted steps only, one per token after the first. Each deployment has its own three numbers, by
least squares on what its requests took after the first token, weighted so that relative errors count alike. How far
this holds is shown with figures in docs/forecast.md.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specbench import UserError
from specbench.lookup.answers import checked_output_ids, model_limit, output_limits, recorded_setting
from specbench.lookup.figures import ANY_LOAD, CostRecord, DeploymentRecord, Estimate, LoadRecord
from specbench.lookup.replay import PromptIndex, Replay, replay_settings
from specbench.lookup.setting import Setting
from specbench.record.directory import check_unedited, read_manifest, read_requests, read_summary
from specbench.record.format import MANIFEST, SUMMARY, Manifest, Request
from specbench.record.prompts import read_prompt_tokens
from specbench.student import t_quantile

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_LEAST_STEPS = 20  # of a kind, before it gets a cost of its own
_FITTED = 3  # numbers per deployment: what a case's residual is judged against


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps after the prefill of n answers: arrays of n numbers."""

    undrafted: Floats
    drafted: Floats

    @classmethod
    def count(cls, replays: Iterable[Replay]) -> "Steps":
        """Of replays: ngram's steps."""
        counts = [(replay.steps - 1 - replay.drafts, replay.drafts) for replay in replays]
        undrafted, drafted = np.array(counts, dtype=np.float64).reshape(-1, 2).T
        return cls(undrafted, drafted)

    @classmethod
    def baseline(cls, tokens: Iterable[int]) -> "Steps":
        """Without drafting: a step per token after the first."""
        undrafted = np.array([number - 1 for number in tokens], dtype=np.float64)
        return cls(undrafted, np.zeros_like(undrafted))


def fit(name: str, steps: Steps, ttft_s: Floats, e2el_s: Floats) -> DeploymentRecord:
    """The cost of a deployment's steps, from what n answers took (s).

    Undrafted and drafted steps get one common cost where one kind is too rare to have its own, or where the answers
    do not tell them apart.
    """
    columns = np.stack([steps.undrafted, steps.drafted], axis=1)
    decode_s = e2el_s - ttft_s
    weights = 1 / e2el_s
    totals = columns.sum(axis=0)
    if totals.min() >= _LEAST_STEPS:
        (undrafted, drafted), _, rank, _ = np.linalg.lstsq(columns * weights[:, None], decode_s * weights, rcond=1e-3)
        if rank == 2 and min(undrafted, drafted) > 0:
            return DeploymentRecord(name, float(ttft_s.mean()), float(undrafted), float(drafted))
    together = columns.sum(axis=1) * weights
    square = float(together @ together)
    common = float(together @ (decode_s * weights)) / square if square else 0.0
    return DeploymentRecord(name, float(ttft_s.mean()), common, common)


def given_cost(ratio: float) -> CostRecord:
    """A cost that was not measured: a step of ngram costs `ratio` steps of the baseline, and a prefill one in both."""
    baseline, ngram = DeploymentRecord("given", 1.0, 1.0, 1.0), DeploymentRecord("given", 1.0, ratio, ratio)
    loads = {ANY_LOAD: LoadRecord([baseline], [ngram], None)}
    return CostRecord(f"a step costs {ratio:g} times as much", None, None, loads)


# ---- prediction


def predict(load: LoadRecord, baseline: Steps, ngram: Steps, groups: Sequence[Sequence[Ints]]) -> list[Estimate]:
    """The predicted E2EL ratio of each group.

    Args:
        load: what a step costs.
        baseline: the steps of n answers without drafting.
        ngram: their steps with it.
        groups: each a list of cases, each of these the positions of its answers. A group's ratio is the geometric mean
            of its cases' ratios, as in compare.py; a case's is that of its answers'.
    """
    before = np.stack([np.log(_times(cost, baseline)) for cost in load.baseline], axis=1)
    after = np.stack([np.log(_times(cost, ngram)) for cost in load.ngram], axis=1)
    return [_estimate(load, before, after, baseline, ngram, cases) for cases in groups]


def _estimate(
    load: LoadRecord, before: Floats, after: Floats, baseline: Steps, ngram: Steps, cases: Sequence[Ints]
) -> Estimate:
    base = np.mean([before[answers].mean(axis=0) for answers in cases], axis=0)  # per deployment
    candidate = np.mean([after[answers].mean(axis=0) for answers in cases], axis=0)
    center = float(candidate.mean() - base.mean())
    half = _half_width(base, candidate, load.shape_error)
    answers = np.concatenate(cases)
    return Estimate(
        ratio=math.exp(center),
        low=None if half is None else math.exp(center - half),
        high=None if half is None else math.exp(center + half),
        step_cost_ratio=_step_cost(load.ngram, ngram, answers) / _step_cost(load.baseline, baseline, answers),
    )


def _half_width(base: Floats, candidate: Floats, shape_error: float | None) -> float | None:
    """Half of a 95% interval for the log ratio of one new deployment of each mode.

    The deployments' spread enters as in a prediction by Student's t, with one variance for both modes; what the costs
    do not explain of a case enters beside it, undiminished by the number of cases, because like cases err alike.
    """
    if shape_error is None or min(len(base), len(candidate)) < 2:
        return None
    freedom = len(base) + len(candidate) - 2
    variance = (len(base) * base.var() + len(candidate) * candidate.var()) / freedom
    spread = math.sqrt(variance * (2 + 1 / len(base) + 1 / len(candidate)))
    return math.hypot(t_quantile(0.975, freedom) * spread, t_quantile(0.975, 1000) * shape_error)


def _times(cost: DeploymentRecord, steps: Steps) -> Floats:
    return cost.ttft_s + steps.undrafted * cost.undrafted_s + steps.drafted * cost.drafted_s


def _step_cost(deployments: Sequence[DeploymentRecord], steps: Steps, answers: Ints) -> float:
    """Mean seconds per step after the prefill; the mean of both kinds where there is no such step."""
    undrafted, drafted = steps.undrafted[answers].sum(), steps.drafted[answers].sum()
    if undrafted + drafted == 0:
        undrafted, drafted = 1.0, 0.0
    costs = [(undrafted * cost.undrafted_s + drafted * cost.drafted_s) / (undrafted + drafted) for cost in deployments]
    return float(np.mean(costs))


# ---- an experiment's folder


@dataclass(frozen=True, slots=True)
class _Run:
    """One deployment at one load, as far as a cost needs it."""

    deployment: DeploymentRecord
    manifest: Manifest
    steps: Steps
    cases: list[str]
    e2el_s: Floats


def read_cost(folder: Path) -> CostRecord:
    """The cost of a step by load, from every complete result directory right inside `folder`.

    Raises UserError where the folder holds no load with both modes, or deployments that cannot be taken together.
    """
    if not folder.is_dir():
        raise UserError(f"--cost {folder} is not a folder; name the folder of an experiment")
    directories = (path.parent for path in folder.glob(f"*/{SUMMARY}") if (path.parent / MANIFEST).exists())
    return cost_of(str(folder), sorted(directories))


def cost_of(source: str, directories: Iterable[Path]) -> CostRecord:
    """The same from result directories that are named one by one; `source` is what the result calls them."""
    loads: dict[int, dict[str, list[_Run]]] = defaultdict(lambda: {"baseline": [], "ngram": []})
    for directory in directories:
        manifest = read_manifest(directory)
        if manifest.status == "complete" and manifest.mode is not None:
            loads[manifest.concurrency][manifest.mode].append(_read_run(directory, manifest))
    both = {load: by_mode for load, by_mode in sorted(loads.items()) if by_mode["baseline"] and by_mode["ngram"]}
    if not both:
        raise UserError(
            f"--cost {source} holds no load that was measured in both modes: name the folder of an experiment of "
            "experiment.py"
        )
    runs = [run for by_mode in both.values() for mode in by_mode.values() for run in mode]
    _check_alike(source, runs)
    drafted = next(_setting(run) for run in runs if run.manifest.mode == "ngram").num_speculative_tokens
    records = {str(load): _load_record(by_mode) for load, by_mode in both.items()}
    return CostRecord(source, runs[0].manifest.server.model.id, drafted, records)


def _read_run(directory: Path, manifest: Manifest) -> _Run:
    check_unedited(directory, manifest, read_summary(directory))
    rows = [
        row
        for row in read_requests(directory)
        if row.phase == "measured" and row.outcome == "ok" and row.ttft_s is not None and row.completion_tokens
    ]
    if not rows:
        raise UserError(f"{directory} holds no request that ended ok: its steps have no cost")
    steps = (
        Steps.baseline(row.completion_tokens or 0 for row in rows)
        if manifest.mode == "baseline"
        else Steps.count(_replays(directory, manifest, rows))
    )
    ttft_s, e2el_s = (np.array([getattr(row, name) for row in rows]) for name in ("ttft_s", "e2el_s"))
    return _Run(fit(directory.name, steps, ttft_s, e2el_s), manifest, steps, [row.case for row in rows], e2el_s)


def _replays(directory: Path, manifest: Manifest, rows: Sequence[Request]) -> list[Replay]:
    prompts = read_prompt_tokens(directory)
    setting = recorded_setting(directory, manifest)
    index = {case: PromptIndex(ids, *setting[1:]) for case, ids in (prompts or {}).items()}
    limits, model = output_limits(manifest), model_limit(manifest)
    replays = []
    for row in rows:
        limit = limits.get(row.case)
        output_ids = checked_output_ids(directory, manifest, prompts, row, limit)
        replays += replay_settings(index[row.case], output_ids, [setting], limit, model)
    return replays


def _check_alike(source: str, runs: Sequence[_Run]) -> None:
    for name, values in (
        ("prompts file", {run.manifest.inventory.sha256 for run in runs}),
        ("model", {run.manifest.server.model.id for run in runs}),
        ("setting of ngram", {_setting(run) for run in runs if run.manifest.mode == "ngram"}),
    ):
        if len(values) > 1:
            raise UserError(f"--cost {source} holds runs of more than one {name}: name one experiment's folder")


def _setting(run: _Run) -> Setting:
    return recorded_setting(Path(run.deployment.name), run.manifest)


def _load_record(runs: dict[str, list[_Run]]) -> LoadRecord:
    baseline, ngram = runs["baseline"], runs["ngram"]
    before, after = _residuals(baseline), _residuals(ngram)
    residuals = np.array([after[case] - before[case] for case in sorted(before.keys() & after.keys())])
    freedom = len(residuals) - _FITTED
    error = math.sqrt(float(residuals @ residuals) / freedom) if freedom > 0 else None
    return LoadRecord([run.deployment for run in baseline], [run.deployment for run in ngram], error)


def _residuals(runs: Sequence[_Run]) -> dict[str, float]:
    """By case: mean over runs of log measured − log predicted E2EL."""
    by_case: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        difference = np.log(run.e2el_s) - np.log(_times(run.deployment, run.steps))
        for case, value in zip(run.cases, difference, strict=True):
            by_case[case].append(float(value))
    return {case: float(np.mean(values)) for case, values in by_case.items()}
