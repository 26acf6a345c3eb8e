"""The whole comparison: outputs, ratios, gates and warnings of two sides, put together as the JSON that is written.

`compare` is what the doors call. docs/comparison.md describes the result.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from specbench import UserError
from specbench.comparison.equality import (
    IDENTICAL,
    TOO_FEW,
    WITHIN,
    Equality,
    compare_outputs,
    first_divergence,
    judge_cases,
    pass_rates,
)
from specbench.comparison.estimates import Line, LogTimes, estimate
from specbench.comparison.gates import check_gates
from specbench.comparison.pairing import Pair, pair
from specbench.comparison.sides import METRICS, Floats, Ints, Run
from specbench.comparison.verdict import verdict
from specbench.record.format import ClientRecord
from specbench.record.provenance import tool
from specbench.words import some
from specbench.workload.judging import judge_for

FORMAT = 1
DIVERGENCES = 1_000  # cases whose first divergence is kept, in inventory order: nobody reads more
_AROUND = 60  # characters of a continuation that are shown


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller decided before looking. `mix`: family -> weight, summing to 1. `primary`: overall or a family."""

    mix: Mapping[str, float] | None = None
    primary: str = "overall"
    accept_floor: bool = False
    allow_same_mode: bool = False


def compare(bases: Sequence[Path], candidates: Sequence[Path], options: Options = Options()) -> dict[str, Any]:
    """The whole comparison as docs/comparison.md describes it. Raises UserError for input that does not pair."""
    return assess(pair(bases, candidates, options.allow_same_mode), options)


def assess(pair: Pair, options: Options) -> dict[str, Any]:
    """Equality, ratios, gates and verdicts of two sides that pair."""
    _check_options(pair, options)
    equality, warnings = _equality(pair, options.accept_floor)
    gates = check_gates(pair)
    fired = [gate.name for gate in gates if gate.state == "fired"]
    # Families whose outputs do not pass have no verdict; one after the other, for a metric of 100,000 cases is large.
    failing = {case["family"] for case in equality["cases"].values() if not case["passes"]}
    metrics = {metric: _metric(pair, metric, options, failing, fired) for metric in METRICS}
    primary = next(line for line in lines(metrics["e2el"]) if line["primary"])
    weights = _request_weights(pair, options)
    return {
        "format": FORMAT,
        "tool": tool(),
        "base": {"mode": pair.bases[0].mode, "directories": [run.name for run in pair.bases]},
        "candidate": {"mode": pair.candidates[0].mode, "directories": [run.name for run in pair.candidates]},
        "concurrency": pair.concurrency,
        "repeats": pair.repeats,
        "cases": len(pair.cases),
        "requests": len(pair.case),
        "exit_code": 0 if equality["equal"] and not fired else 1,
        "verdict": {
            "line": primary["name"],
            "mix": dict(options.mix) if options.mix else None,
            "verdict": primary["verdict"],
            "timing": primary["timing"],
            "why": primary["why"],
        },
        "order": [run.side for run in pair.deployments],
        "deployments": [_deployment(run, weights) for run in pair.deployments],
        "metrics": metrics,
        "throughput": _throughput(pair),
        "equality": equality,
        "expect": _expect(pair),
        "gates": msgspec.to_builtins(gates),
        "warnings": _warnings(pair, metrics, equality["cases"], warnings),
    }


def _check_options(pair: Pair, options: Options) -> None:
    known = ", ".join(pair.families)
    for family in options.mix or ():
        if family not in pair.families:
            raise UserError(f"--mix names the family {family!r}, which the inventory lacks; it has {known}")
    if options.primary != "overall" and options.primary not in pair.families:
        raise UserError(f"--primary is {options.primary!r}; name overall or one of {known}")


def _log_times(pair: Pair, metric: str) -> LogTimes:
    return LogTimes(
        base=np.log(np.stack([run.times[metric] for run in pair.bases])),
        candidate=np.log(np.stack([run.times[metric] for run in pair.candidates])),
        case=pair.case,
        family=pair.family,
        families=pair.families,
        order=tuple(run.side for run in pair.deployments),
    )


def positions(pair: Pair) -> Ints:
    """[cases, repeats]: where each request of a case lies in the schedule."""
    return np.lexsort((pair.bases[0].shape[:, 1], pair.case)).reshape(len(pair.cases), pair.repeats)


def _equality(pair: Pair, accept_floor: bool) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Output equality as the JSON holds it, and warnings."""
    places = positions(pair)
    compared, judged_of = [], []
    for case, at in zip(pair.cases, places, strict=True):
        what, base, candidate = _case_outputs(pair, at)
        compared.append(what)
        judged_of.append(compare_outputs(case.id, base, candidate))
    equality = judge_cases(judged_of)
    tokens = [np.mean([run.tokens[places] for run in side], axis=(0, 2)) for side in (pair.bases, pair.candidates)]
    finish_counts: dict[tuple[str, ...], dict[str, int]] = {}  # few are distinct, so cases share them

    def finish(side: Sequence[Run], at: Ints) -> dict[str, int]:
        reasons = tuple(sorted(str(run.finish[position]) for run in side for position in at.tolist()))
        return finish_counts.setdefault(reasons, dict(Counter(reasons)))

    cases: dict[str, dict[str, Any]] = {}
    pooled = pair.repeats == 1 and len(pair.bases) > 1
    shown = 0
    for number, (judged, at) in enumerate(zip(equality.cases, places, strict=True)):
        numbers = judged.equality
        detailed = judged.verdict != IDENTICAL and shown < DIVERGENCES
        shown += detailed
        cases[judged.case] = {
            "family": pair.cases[number].family,
            "verdict": judged.verdict,
            "passes": _passes(judged.verdict, equality, accept_floor, pooled),
            "p": judged.p,
            "reason": judged.reason,
            "compared": compared[number],
            "distinct_base": numbers.distinct_base,
            "distinct_candidate": numbers.distinct_candidate,
            "shared": numbers.shared,
            "within_base": numbers.within_base,
            "between": numbers.between,
            "tokens_base": float(tokens[0][number]),
            "tokens_candidate": float(tokens[1][number]),
            "finish_base": finish(pair.bases, at),
            "finish_candidate": finish(pair.candidates, at),
            "divergence": divergence(pair, at, compared[number]) if detailed else None,
        }
    section = {
        "equal": all(case["passes"] for case in cases.values()),
        "accept_floor": accept_floor,
        "verdict": equality.verdict,
        "sentence": equality.sentence,
        "assumption": equality.assumption,
        "combined_p": equality.combined_p,
        "base_p": equality.base_p,
        "floor": equality.floor,
        "between": equality.between,
        "counts": dict(Counter(case["verdict"] for case in cases.values())),
        "cases": cases,
    }
    return section, equality.warnings


def _case_outputs(pair: Pair, at: Ints) -> tuple[str, list[list[Any]], list[list[Any]]]:
    """What is compared, and the outputs per deployment and repeat: token ids where all have them, else text."""
    sides = [[run.output[at].tolist() for run in side] for side in (pair.bases, pair.candidates)]
    what, output = "token ids", cast(Callable[[int], Any], pair.outputs.packed_ids)
    if any(output(number) is None for side in sides for run in side for number in run):
        what, output = "text", pair.outputs.text
    base, candidate = ([[output(number) for number in run] for run in side] for side in sides)
    return what, base, candidate


def _passes(verdict: str, equality: Equality, accept_floor: bool, pooled: bool) -> bool:
    """Whether a case passes: identical, or, with --accept-floor, within the floor.

    `pooled`: one repeat and several deployments a side, where no case can be told alone; it passes when all cases
    together are within the floor.
    """
    if verdict == IDENTICAL or not accept_floor:
        return verdict == IDENTICAL
    if verdict == TOO_FEW and pooled:
        return equality.verdict == WITHIN
    # A word over all cases that no single case has was found by all of them together: it speaks of each.
    together = equality.verdict != WITHIN and all(case.verdict != equality.verdict for case in equality.cases)
    return verdict == WITHIN and not together


def divergence(pair: Pair, at: Ints, compared: str) -> dict[str, Any] | None:
    """Where the base's commonest output and the candidate's commonest other one part; None if it gave no other."""
    base = output_counts(pair.bases, at).most_common(1)[0][0]
    ranked = output_counts(pair.candidates, at).most_common()
    other = next((number for number, _ in ranked if number != base), None)
    if other is None:
        return None
    texts = first_divergence(pair.outputs.text(base), pair.outputs.text(other), around=_AROUND)
    ids = None
    if compared == "token ids":
        ids = first_divergence(pair.outputs.token_ids(base), pair.outputs.token_ids(other))
    return {
        "token": ids.index if ids else None,
        "character": texts.index if texts else None,
        "before": "".join(map(str, texts.before)) if texts else None,
        "base": "".join(map(str, texts.base)) if texts else None,
        "candidate": "".join(map(str, texts.candidate)) if texts else None,
    }


def output_counts(side: Iterable[Run], at: Ints) -> Counter[int]:
    return Counter(number for run in side for number in run.output[at].tolist())


def _metric(
    pair: Pair, metric: str, options: Options, failing: Collection[str], fired: Sequence[str]
) -> dict[str, Any]:
    """One metric as the JSON holds it; only E2EL has verdicts. `failing`: families whose outputs do not pass."""
    estimates = estimate(_log_times(pair, metric), options.mix, options.primary)

    def line(line: Line, passes: bool, of: Ints) -> dict[str, Any]:
        values: dict[str, Any] = msgspec.to_builtins(line)
        values["timing"] = values.pop("verdict")
        values["verdict"] = verdict(values["timing"], passes, fired)
        if metric != "e2el":
            values["timing"] = values["verdict"] = None
        base, candidate = (float(medians[0]) for medians in _medians(pair, metric, of.reshape(1, -1)))
        return values | {"base_median_s": _known(base), "candidate_median_s": _known(candidate)}

    places = positions(pair)
    families = {
        estimated.name: line(estimated, estimated.name not in failing, places[pair.family == number])
        for number, estimated in enumerate(estimates.families)
    }
    base, candidate = (medians.tolist() for medians in _medians(pair, metric, places))
    weighed = set(pair.families if options.mix is None else (name for name, w in options.mix.items() if w > 0))
    return {
        "overall": line(estimates.overall, weighed.isdisjoint(failing), places),
        "families": families,
        "cases": {
            case.id: {
                "ratio": summary.ratio,
                "low": summary.low,
                "high": summary.high,
                "reason": summary.reason,
                "base_median_s": _known(base[number]),
                "candidate_median_s": _known(candidate[number]),
            }
            for number, (case, summary) in enumerate(zip(pair.cases, estimates.cases, strict=True))
        },
        "cases_assumption": estimates.cases[0].assumption,
        "requests": estimates.requests,
        "effective": estimates.effective,
        "warnings": list(estimates.warnings),
    }


def _medians(pair: Pair, metric: str, positions: Ints) -> tuple[Floats, Floats]:
    """Per row of positions the medians of both sides, over every request that has a value, as jq gives them."""
    return _row_medians(pair.bases, metric, positions), _row_medians(pair.candidates, metric, positions)


def _row_medians(side: Sequence[Run], metric: str, positions: Ints) -> Floats:
    values = np.sort(np.concatenate([run.times[metric][positions] for run in side], axis=1), axis=1)  # NaN last
    count = (~np.isnan(values)).sum(axis=1)
    rows = np.arange(len(values))
    return np.asarray((values[rows, np.maximum(count - 1, 0) // 2] + values[rows, count // 2]) / 2)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _request_weights(pair: Pair, options: Options) -> Floats:
    """[requests] What each weighs in the primary line; every case of a family weighs the same."""
    mix = {options.primary: 1.0} if options.primary != "overall" else options.mix
    if mix is None:
        return np.full(len(pair.case), 1 / len(pair.case))
    share = np.array([mix.get(name, 0.0) for name in pair.families])
    family = pair.family[pair.case]
    weights = share[family] / np.bincount(family, minlength=len(share))[family]
    return np.asarray(weights / weights.sum())


def _deployment(run: Run, weights: Floats) -> dict[str, Any]:
    """One deployment; `e2el_s` is the primary line's geometric mean, which the verdict over deployments rests on."""
    return {
        "directory": run.name,
        "side": run.side,
        "mode": run.mode,
        "mode_verified": run.manifest.mode_verified,
        "service_run": run.manifest.service_run,
        "started": run.manifest.started,
        "ended": run.manifest.ended,
        "e2el_s": float(np.exp(np.log(run.times["e2el"]) @ weights)),
        "tokens_per_s": run.summary.throughput.tokens_per_s,
        "warnings": run.summary.warnings,
    }


def _throughput(pair: Pair) -> dict[str, float | None]:
    """Mean tokens/s of a side's deployments; it has no interval: one number a deployment is too few."""
    means: list[float | None] = []
    for side in (pair.bases, pair.candidates):
        values = [run.summary.throughput.tokens_per_s for run in side]
        known = [value for value in values if value is not None]
        means.append(float(np.mean(known)) if len(known) == len(values) else None)
    base, candidate = means
    ratio = candidate / base if base and candidate is not None else None
    return {"base_tokens_per_s": base, "candidate_tokens_per_s": candidate, "ratio": ratio}


def _expect(pair: Pair) -> dict[str, Any] | None:
    """Pass rates of the cases that say what a right answer matches; the k-th deployments of both sides are paired."""
    judges = {number: judge for number, case in enumerate(pair.cases) if (judge := judge_for(case.expect))}
    if not judges:
        return None
    checked = [position for position, case in enumerate(pair.case.tolist()) if case in judges]
    known: dict[tuple[int, int], bool] = {}

    def passed(side: Iterable[Run]) -> list[bool]:
        flags = []
        for run in side:
            for position in checked:
                key = int(pair.case[position]), int(run.output[position])
                if key not in known:
                    known[key] = judges[key[0]](pair.outputs.text(key[1]))
                flags.append(known[key])
        return flags

    base, candidate = passed(pair.bases), passed(pair.candidates)
    ids = [pair.cases[int(pair.case[position])].id for position in checked] * len(pair.bases)
    cases: dict[str, dict[str, int]] = {}
    for case, one, two in zip(ids, base, candidate, strict=True):
        counts = cases.setdefault(case, {"checked": 0, "base_passed": 0, "candidate_passed": 0})
        counts["checked"] += 1
        counts["base_passed"] += one
        counts["candidate_passed"] += two
    return {**msgspec.to_builtins(pass_rates(base, candidate)), "cases": cases}


# ---- warnings


def _warnings(
    pair: Pair, metrics: Mapping[str, Any], cases: Mapping[str, Mapping[str, Any]], of_equality: Sequence[str]
) -> list[str]:
    """Sentences about what a reader must know and no gate decides; each once."""
    base, candidate = pair.bases[0], pair.candidates[0]
    found: list[str] = []
    if (base.mode, candidate.mode) == ("ngram", "baseline"):
        found.append("Base is ngram and candidate is baseline: were they exchanged? Ratios read baseline/ngram here.")
    if base.mode == candidate.mode:
        found.append(f"Both sides are {base.mode}: this measures how far a mode is from itself.")
    unverified = [run.name for run in pair.deployments if run.manifest.mode_verified.get("how") == "not verified"]
    if unverified:
        found.append(f"The server did not confirm the mode of {some(unverified)}: it is what --mode said.")
    if any(run.launched.revision == "unpinned" for run in pair.deployments):
        found.append("The model's revision is not pinned: the two sides may not have run the same weights.")
    for key in sorted(ClientRecord.__struct_fields__):
        if any(getattr(run.manifest.client, key) != getattr(base.manifest.client, key) for run in pair.deployments):
            found.append(f"The client differs between directories in {key}: measure both modes from one client.")
    found += [f"{metric.upper()}: {warning}" for metric, of in metrics.items() for warning in of["warnings"]]
    statements = [line[name] for line in lines(metrics["e2el"]) for name in ("interval", "prompts")]
    found += [warning for statement in statements for warning in statement["warnings"]]
    found += of_equality
    for side, other in (("candidate", "base"), ("base", "candidate")):
        shorter = [
            f"{case} ({of['tokens_base']:.4g} → {of['tokens_candidate']:.4g} tokens)"
            for case, of in cases.items()
            if of[f"tokens_{side}"] < of[f"tokens_{other}"]
        ]
        if shorter:
            found.append(f"The {side} answered shorter, and shorter output is not faster work: {some(shorter)}.")
    finished = [case for case, of in cases.items() if of["finish_base"].keys() != of["finish_candidate"].keys()]
    if finished:
        found.append(f"The reason why an answer ended changed between the sides: {some(finished)}.")
    return list(dict.fromkeys(found))


def lines(metric: Mapping[str, Any]) -> list[Any]:
    """Families, then overall; overall alone where it says the same."""
    families = list(metric["families"].values())
    alone = len(families) == 1 and not families[0]["primary"]
    return [*([] if alone else families), metric["overall"]]
