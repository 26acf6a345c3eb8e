"""The whole comparison: outputs, ratios, gates, verdict and warnings of two sides, put together as format.Comparison.

`compare` is what the doors call. docs/comparison.md describes the result.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from specbench import UserError
from specbench.comparison.advice import Plan, plan_of
from specbench.comparison.divergence import divergence
from specbench.comparison.equality import IDENTICAL, WITHIN, compare_outputs, judge_cases
from specbench.comparison.estimates import estimate
from specbench.comparison.expected import expected
from specbench.comparison.format import (
    FORMAT,
    CaseOutputs,
    CaseTimes,
    Comparison,
    Deployment,
    Equality,
    Gate,
    Likeness,
    Line,
    Metric,
    SideRecord,
    Throughput,
)
from specbench.comparison.gates import check_gates, prefix_caching
from specbench.comparison.intervals import Earlier
from specbench.comparison.mix import check_families
from specbench.comparison.pairing import Pair, pair
from specbench.comparison.sides import METRICS, Floats, Ints, Run
from specbench.comparison.spread import log_times, read_spreads
from specbench.comparison.steps import count_steps
from specbench.comparison.verdict import conclude, line_verdict
from specbench.comparison.why import explain
from specbench.record.format import ClientRecord
from specbench.record.provenance import tool
from specbench.words import some

DIVERGENCES = 1_000  # cases whose first divergence is kept, in inventory order: nobody reads more


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller decided before looking.

    `mix`: family -> weight, summing to 1. `primary`: overall or a family. `spread_from`: folders of earlier experiments
    whose deployments spread as these do, as the caller declares.
    """

    mix: Mapping[str, float] | None = None
    primary: str = "overall"
    accept_floor: bool = False
    allow_same_mode: bool = False
    spread_from: tuple[Path, ...] = ()


def compare(bases: Sequence[Path], candidates: Sequence[Path], options: Options = Options()) -> Comparison:
    """The whole comparison as docs/comparison.md describes it. Raises UserError for input that does not pair."""
    return assess(pair(bases, candidates, options.allow_same_mode), options)


def assess(pair: Pair, options: Options) -> Comparison:
    """Outputs, ratios, gates and verdicts of two sides that pair."""
    _check_options(pair, options)
    spreads = read_spreads(options.spread_from, pair, options.mix)
    equality, found = _equality(pair, options.accept_floor)
    counted = count_steps(pair)
    gates = check_gates(pair, counted)
    why = explain(pair, counted, options.mix, options.primary)
    fired = [gate for gate in gates if gate.state == "fired"]
    # Families whose outputs do not pass have no verdict; one after the other, for a metric of 100,000 cases is large.
    failing = {case.family for case in equality.cases.values() if not case.passes}
    plan = plan_of(pair.runs)
    metrics = {
        metric: _metric(pair, metric, options, plan, spreads.get(metric), failing, fired) for metric in METRICS
    }
    e2el = metrics["e2el"]
    primary = next(line for line in [e2el.overall, *e2el.families.values()] if line.primary)
    weights = _request_weights(pair, options)
    modes = pair.bases[0].mode, pair.candidates[0].mode
    return Comparison(
        format=FORMAT,
        tool=tool(),
        base=SideRecord(modes[0], [run.name for run in pair.bases]),
        candidate=SideRecord(modes[1], [run.name for run in pair.candidates]),
        concurrency=pair.concurrency,
        repeats=pair.repeats,
        cases=len(pair.cases),
        requests=len(pair.cases) * pair.repeats,
        exit_code=0 if equality.equal and not fired else 1,
        verdict=conclude(primary, e2el.families, options.mix, modes, fired, equality),
        order=list(pair.order),
        deployments=[_deployment(run, weights) for run in pair.runs],
        metrics=metrics,
        throughput=_throughput(pair),
        why=None if isinstance(why, str) else why,
        why_missing=why if isinstance(why, str) else None,
        equality=equality,
        expect=expected(pair),
        gates=gates,
        spread_from=[str(folder) for folder in options.spread_from],
        warnings=_warnings(pair, metrics, equality.cases, found),
    )


def _check_options(pair: Pair, options: Options) -> None:
    check_families(options.mix, options.primary, pair.families)
    if options.spread_from and len(pair.bases) == 1:
        raise UserError(
            "--spread-from narrows an interval over deployments, and here is one of each mode; name another pair with "
            "--and"
        )


# ---- outputs


def _equality(pair: Pair, accept_floor: bool) -> tuple[Equality, tuple[str, ...]]:
    """Output equality as the JSON holds it, and warnings."""
    compared, counted = [], []
    for case, places in zip(pair.cases, pair.places, strict=True):
        what, base, candidate = _case_outputs(pair, places)
        compared.append(what)
        counted.append(compare_outputs(case.id, base, candidate))
    judged = judge_cases(counted)
    tokens = [np.mean([run.tokens[pair.places] for run in side], axis=(0, 2)) for side in (pair.bases, pair.candidates)]
    finish_counts: dict[tuple[str, ...], dict[str, int]] = {}  # few are distinct, so cases share them

    def finish(side: Sequence[Run], places: Ints) -> dict[str, int]:
        reasons = tuple(sorted(str(run.finish[place]) for run in side for place in places.tolist()))
        return finish_counts.setdefault(reasons, dict(Counter(reasons)))

    cases: dict[str, CaseOutputs] = {}
    accepted = {IDENTICAL, WITHIN} if accept_floor else {IDENTICAL}
    shown = 0
    for number, (known, places) in enumerate(zip(judged.cases, pair.places, strict=True)):
        counts = known.equality
        detailed = known.verdict is not IDENTICAL and shown < DIVERGENCES
        shown += detailed
        cases[known.case] = CaseOutputs(
            family=pair.cases[number].family,
            verdict=known.verdict,
            passes=known.verdict in accepted,
            p=known.p,
            reason=known.reason,
            compared=compared[number],
            distinct_base=counts.distinct_base,
            distinct_candidate=counts.distinct_candidate,
            shared=counts.shared,
            within_base=counts.within_base,
            between=counts.between,
            tokens_base=float(tokens[0][number]),
            tokens_candidate=float(tokens[1][number]),
            finish_base=finish(pair.bases, places),
            finish_candidate=finish(pair.candidates, places),
            divergence=divergence(pair, places, compared[number]) if detailed else None,
        )
    words = Counter(case.verdict for case in judged.cases)
    equality = Equality(
        equal=all(case.passes for case in cases.values()),
        accept_floor=accept_floor,
        verdict=judged.verdict,
        sentence=judged.sentence,
        assumption=judged.assumption,
        combined_p=judged.combined_p,
        base_p=judged.base_p,
        floor=judged.floor,
        between=judged.between,
        new=judged.new,
        least_change=judged.least_change,
        counts={word.value: words[word] for word in Likeness if words[word]},
        cases=cases,
    )
    return equality, judged.warnings


_Answers = Sequence[Sequence[Hashable]]  # by deployment and repeat


def _case_outputs(pair: Pair, places: Ints) -> tuple[Literal["token ids", "text"], _Answers, _Answers]:
    """What is compared, and the outputs of both sides: token ids where all have them, else text."""
    base, candidate = ([run.output[places].tolist() for run in side] for side in (pair.bases, pair.candidates))
    what: Literal["token ids", "text"] = "token ids"
    answer: Callable[[int], Hashable] = pair.outputs.packed_ids
    if any(answer(number) is None for run in (*base, *candidate) for number in run):
        what, answer = "text", pair.outputs.text
    one, other = ([[answer(number) for number in run] for run in side] for side in (base, candidate))
    return what, one, other


# ---- times


def _metric(
    pair: Pair,
    metric: str,
    options: Options,
    plan: Plan | None,
    spreads: Mapping[str, Earlier] | None,
    failing: Collection[str],
    fired: Sequence[Gate],
) -> Metric:
    """One metric; only E2EL has verdicts and advice. `failing`: families whose outputs do not pass."""
    judged = metric == "e2el"
    estimates = estimate(log_times(pair, metric), options.mix, options.primary, plan if judged else None, spreads)

    def finished(line: Line, passes: bool, places: Ints) -> Line:
        line.verdict = line_verdict(line.timing, passes, fired) if judged else None
        line.timing = line.timing if judged else None
        medians = (float(values[0]) for values in _medians(pair, metric, places.reshape(1, -1)))
        line.base_median_s, line.candidate_median_s = (_known(median) for median in medians)
        return line

    families = {
        line.name: finished(line, line.name not in failing, pair.places[pair.family == number])
        for number, line in enumerate(estimates.families)
    }
    weighed = set(pair.families if options.mix is None else (name for name, w in options.mix.items() if w > 0))
    ratios = estimates.cases.tolist()
    base, candidate = (medians.tolist() for medians in _medians(pair, metric, pair.places))
    cases = {
        case.id: CaseTimes(_known(ratio), _known(one), _known(other))
        for case, ratio, one, other in zip(pair.cases, ratios, base, candidate, strict=True)
    }
    overall = finished(estimates.overall, weighed.isdisjoint(failing), pair.places)
    return Metric(overall, families, cases, estimates.requests, list(estimates.warnings))


def _medians(pair: Pair, metric: str, places: Ints) -> tuple[Floats, Floats]:
    """Per row of places the medians of both sides, over every request that has a value, as jq gives them."""
    return _row_medians(pair.bases, metric, places), _row_medians(pair.candidates, metric, places)


def _row_medians(side: Sequence[Run], metric: str, places: Ints) -> Floats:
    values = np.sort(np.concatenate([run.times[metric][places] for run in side], axis=1), axis=1)  # NaN last
    counts = (~np.isnan(values)).sum(axis=1)
    rows = np.arange(len(values))
    return np.asarray((values[rows, np.maximum(counts - 1, 0) // 2] + values[rows, counts // 2]) / 2)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _request_weights(pair: Pair, options: Options) -> Floats:
    """[requests] What each weighs in the primary line; every case of a family weighs the same."""
    mix = {options.primary: 1.0} if options.primary != "overall" else options.mix
    family = np.repeat(pair.family, pair.repeats)
    if mix is None:
        return np.full(len(family), 1 / len(family))
    share = np.array([mix.get(name, 0.0) for name in pair.families])
    weights = share[family] / np.bincount(family, minlength=len(share))[family]
    return np.asarray(weights / weights.sum())


def _deployment(run: Run, weights: Floats) -> Deployment:
    looked_up, hits = run.summary.server.prefix_cache_queries, run.summary.server.prefix_cache_hits
    cached = prefix_caching(run) and looked_up and hits is not None
    return Deployment(
        directory=run.name,
        side=run.side,
        mode=run.mode,
        mode_verified=run.manifest.mode_verified,
        service_run=run.manifest.service_run,
        started=run.manifest.started,
        ended=run.manifest.ended,
        e2el_s=float(np.exp(np.log(run.times["e2el"]) @ weights)),
        tokens_per_s=run.summary.throughput.tokens_per_s,
        prefix_cache_hit_share=hits / looked_up if cached and looked_up and hits is not None else None,
        warnings=run.summary.warnings,
    )


def _throughput(pair: Pair) -> Throughput:
    means: list[float | None] = []
    for side in (pair.bases, pair.candidates):
        rates = [run.summary.throughput.tokens_per_s for run in side]
        known = [rate for rate in rates if rate is not None]
        means.append(float(np.mean(known)) if len(known) == len(rates) else None)
    base, candidate = means
    return Throughput(base, candidate, candidate / base if base and candidate is not None else None)


# ---- warnings


def _warnings(
    pair: Pair, metrics: Mapping[str, Metric], cases: Mapping[str, CaseOutputs], about_outputs: Sequence[str]
) -> list[str]:
    """Sentences about what a reader must know and no gate decides; each once."""
    base, candidate = pair.bases[0], pair.candidates[0]
    found: list[str] = []
    if (base.mode, candidate.mode) == ("ngram", "baseline"):
        found.append("Base is ngram and candidate is baseline: were they exchanged? Ratios read baseline/ngram here.")
    if base.mode == candidate.mode:
        found.append(f"Both sides are {base.mode}: this measures how far a mode is from itself.")
    unverified = [run.name for run in pair.runs if run.manifest.mode_verified.get("how") == "not verified"]
    if unverified:
        found.append(f"The server did not confirm the mode of {some(unverified)}: it is what --mode said.")
    if any(run.launched.revision == "unpinned" for run in pair.runs):
        found.append("The model's revision is not pinned: the two sides may not have run the same weights.")
    if len(pair.bases) > 1 and len({run.manifest.schedule.sha256 for run in pair.bases}) == 1 and len(pair.cases) > 1:
        found.append(
            "All deployments sent their requests in one order, which is in the intervals of single families: give each "
            "pair another --seed (experiment.py does)."
        )
    for key in sorted(ClientRecord.__struct_fields__):
        if any(getattr(run.manifest.client, key) != getattr(base.manifest.client, key) for run in pair.runs):
            found.append(f"The client differs between directories in {key}: measure both modes from one client.")
    found += [f"{name.upper()}: {warning}" for name, metric in metrics.items() for warning in metric.warnings]
    intervals = [interval for line in metrics["e2el"].lines for interval in (line.interval, line.prompts)]
    found += [warning for interval in intervals for warning in interval.warnings]
    found += about_outputs
    return list(dict.fromkeys([*found, *_length_warnings(cases)]))


def _length_warnings(cases: Mapping[str, CaseOutputs]) -> list[str]:
    """Answers that are shorter on one side, or that ended for another reason."""
    found = []
    change = {name: (case.tokens_base, case.tokens_candidate) for name, case in cases.items()}
    for side, sign in (("candidate", 1), ("base", -1)):
        shorter = [
            f"{name} ({base:.4g} → {candidate:.4g} tokens)"
            for name, (base, candidate) in change.items()
            if sign * (base - candidate) > 0
        ]
        if shorter:
            found.append(f"The {side} answered shorter, and shorter output is not faster work: {some(shorter)}.")
    finished = [name for name, case in cases.items() if case.finish_base.keys() != case.finish_candidate.keys()]
    if finished:
        found.append(f"The reason why an answer ended changed between the sides: {some(finished)}.")
    return found
