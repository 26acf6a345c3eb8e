"""Compare result directories of two modes: same requests? same outputs? which is faster, and may one say so?

    python compare.py baseline-c1 ngram-c1
    python compare.py baseline-c1 ngram-c1 --and baseline2-c1 ngram2-c1 --json comparison.json
    python compare.py baseline-c8 ngram-c8 --accept-floor --show copy-1

Base first. Exit 0: comparable and equal. 1: not (outputs differ, or a gate fired). 2: unusable input.
docs/comparison.md describes the table and the JSON, docs/statistics.md the method.
"""

import argparse
import math
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from specbench import Parser, UserError
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
from specbench.comparison.estimates import Line, Runs, estimate
from specbench.comparison.pairing import METRICS, Deployment, Floats, Ints, Pair, check_gates, pair
from specbench.files import check_writable, write_atomically
from specbench.record.provenance import tool
from specbench.words import printable

FORMAT = 1
WIDTH = 100
INDENTED_BYTES = 16_000_000
DIVERGENCES = 1_000  # cases whose first divergence is kept, in inventory order: nobody reads more
NOT_COMPARABLE = "not comparable"
_OF_PROMPTS = "†"  # marks an interval on which no verdict rests
_NEAR_COPIES = "repeats of a case are nearly copies: this speaks of these requests"
_AROUND = 60  # characters of a continuation that are shown


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller decided before looking. `mix`: family -> weight, summing to 1. `primary`: overall or a family."""

    mix: Mapping[str, float] | None = None
    primary: str = "overall"
    accept_floor: bool = False
    allow_same_mode: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print the table, write what was asked for; the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        for option in ("json", "markdown"):
            if (path := getattr(arguments, option)) is not None:
                check_writable(path, f"--{option}")
        result, shown = _compared(arguments)
        for path, content in ((arguments.json, _json_bytes), (arguments.markdown, _markdown_bytes)):
            if path is not None:
                _write(path, content(result))
    except UserError as error:
        print(f"compare.py: {printable(str(error))}", file=sys.stderr)
        return 2
    print(table(result))
    if shown is not None:
        print(f"\n{shown}")
    return int(result["exit_code"])


def _compared(arguments: argparse.Namespace) -> tuple[dict[str, Any], str | None]:
    """The result, and the case that --show asks for."""
    options = Options(
        _parse_mix(arguments.mix), arguments.primary, arguments.accept_floor, arguments.allow_same_mode
    )
    bases = [arguments.base, *(base for base, _ in arguments.more)]
    candidates = [arguments.candidate, *(candidate for _, candidate in arguments.more)]
    both = pair(bases, candidates, options.allow_same_mode)
    result = assess(both, options)
    return result, None if arguments.show is None else show_case(both, result, arguments.show)


def compare(bases: Sequence[Path], candidates: Sequence[Path], options: Options = Options()) -> dict[str, Any]:
    """The whole comparison as docs/comparison.md describes it. Raises UserError for input that does not pair."""
    return assess(pair(bases, candidates, options.allow_same_mode), options)


# ---- the comparison


def assess(pair: Pair, options: Options) -> dict[str, Any]:
    """Equality, ratios, gates and verdicts of two sides that pair."""
    _check_options(pair, options)
    equality, warnings = _equality(pair, options.accept_floor)
    gates = check_gates(pair)
    fired = [gate.name for gate in gates if gate.state == "fired"]
    # Families whose outputs do not pass have no verdict; one after the other, for a metric of 100,000 cases is large.
    failing = {case["family"] for case in equality["cases"].values() if not case["passes"]}
    metrics = {metric: _metric(pair, metric, options, failing, fired) for metric in METRICS}
    primary = next(line for line in _lines(metrics["e2el"]) if line["primary"])
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


def _runs(pair: Pair, metric: str) -> Runs:
    return Runs(
        base=np.log(np.stack([run.times[metric] for run in pair.bases])),
        candidate=np.log(np.stack([run.times[metric] for run in pair.candidates])),
        case=pair.case,
        family=pair.family,
        families=pair.families,
        order=tuple(run.side for run in pair.deployments),
    )


def _positions(pair: Pair) -> Ints:
    """[cases, repeats]: where each request of a case lies in the schedule."""
    return np.lexsort((pair.bases[0].shape[:, 1], pair.case)).reshape(len(pair.cases), pair.repeats)


def _equality(pair: Pair, accept_floor: bool) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Output equality as the JSON holds it, and warnings."""
    positions = _positions(pair)
    compared, judged_of = [], []
    for case, at in zip(pair.cases, positions, strict=True):
        what, base, candidate = _case_outputs(pair, at)
        compared.append(what)
        judged_of.append(compare_outputs(case["id"], base, candidate))
    equality = judge_cases(judged_of)
    tokens = [np.mean([run.tokens[positions] for run in side], axis=(0, 2)) for side in (pair.bases, pair.candidates)]
    finish_counts: dict[tuple[str, ...], dict[str, int]] = {}  # few are distinct, so cases share them

    def finish(side: Sequence[Deployment], at: Ints) -> dict[str, int]:
        reasons = tuple(sorted(str(run.finish[position]) for run in side for position in at.tolist()))
        return finish_counts.setdefault(reasons, dict(Counter(reasons)))

    cases: dict[str, dict[str, Any]] = {}
    pooled = pair.repeats == 1 and len(pair.bases) > 1
    shown = 0
    for number, (judged, at) in enumerate(zip(equality.cases, positions, strict=True)):
        numbers = judged.equality
        detailed = judged.verdict != IDENTICAL and shown < DIVERGENCES
        shown += detailed
        cases[judged.case] = {
            "family": pair.cases[number]["family"],
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
            "divergence": _divergence(pair, at, compared[number]) if detailed else None,
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


def _divergence(pair: Pair, at: Ints, compared: str) -> dict[str, Any] | None:
    """Where the base's commonest output and the candidate's commonest other one part; None if it gave no other."""
    base = _output_counts(pair.bases, at).most_common(1)[0][0]
    ranked = _output_counts(pair.candidates, at).most_common()
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


def _output_counts(side: Iterable[Deployment], at: Ints) -> Counter[int]:
    return Counter(number for run in side for number in run.output[at].tolist())


def _metric(
    pair: Pair, metric: str, options: Options, failing: Collection[str], fired: Sequence[str]
) -> dict[str, Any]:
    """One metric as the JSON holds it; only E2EL has verdicts. `failing`: families whose outputs do not pass."""
    estimates = estimate(_runs(pair, metric), options.mix, options.primary)

    def line(line: Line, passes: bool, of: Ints) -> dict[str, Any]:
        values: dict[str, Any] = msgspec.to_builtins(line)
        values["timing"] = values.pop("verdict")
        values["verdict"] = _verdict(values["timing"], passes, fired)
        if metric != "e2el":
            values["timing"] = values["verdict"] = None
        base, candidate = (float(medians[0]) for medians in _medians(pair, metric, of.reshape(1, -1)))
        return values | {"base_median_s": _known(base), "candidate_median_s": _known(candidate)}

    positions = _positions(pair)
    families = {
        estimated.name: line(estimated, estimated.name not in failing, positions[pair.family == number])
        for number, estimated in enumerate(estimates.families)
    }
    base, candidate = (medians.tolist() for medians in _medians(pair, metric, positions))
    weighed = set(pair.families if options.mix is None else (name for name, w in options.mix.items() if w > 0))
    return {
        "overall": line(estimates.overall, weighed.isdisjoint(failing), positions),
        "families": families,
        "cases": {
            case["id"]: {
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


def _verdict(timing: str, passes: bool, fired: Sequence[str]) -> str:
    if not passes:
        return NOT_COMPARABLE
    return f"suspect: {', '.join(fired)}" if fired else timing


def _medians(pair: Pair, metric: str, positions: Ints) -> tuple[Floats, Floats]:
    """Per row of positions the medians of both sides, over every request that has a value, as jq gives them."""
    return _row_medians(pair.bases, metric, positions), _row_medians(pair.candidates, metric, positions)


def _row_medians(side: Sequence[Deployment], metric: str, positions: Ints) -> Floats:
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


def _deployment(run: Deployment, weights: Floats) -> dict[str, Any]:
    """One deployment; `e2el_s` is the primary line's geometric mean, which the verdict over deployments rests on."""
    return {
        "directory": run.name,
        "side": run.side,
        "mode": run.mode,
        "mode_verified": run.manifest["mode_verified"],
        "service_run": run.manifest.get("service_run"),
        "started": run.manifest["started"],
        "ended": run.manifest.get("ended"),
        "e2el_s": float(np.exp(np.log(run.times["e2el"]) @ weights)),
        "tokens_per_s": run.summary["throughput"].get("tokens_per_s"),
        "warnings": run.summary.get("warnings", []),
    }


def _throughput(pair: Pair) -> dict[str, float | None]:
    """Mean tokens/s of a side's deployments; it has no interval: one number a deployment is too few."""
    means: list[float | None] = []
    for side in (pair.bases, pair.candidates):
        values = [run.summary["throughput"].get("tokens_per_s") for run in side]
        means.append(None if None in values else float(np.mean(values)))
    base, candidate = means
    ratio = candidate / base if base and candidate is not None else None
    return {"base_tokens_per_s": base, "candidate_tokens_per_s": candidate, "ratio": ratio}


def _expect(pair: Pair) -> dict[str, Any] | None:
    """Pass rates of the cases that say what a right answer matches; the k-th deployments of both sides are paired."""
    patterns = {number: re.compile(case["expect"]) for number, case in enumerate(pair.cases) if case["expect"]}
    if not patterns:
        return None
    checked = [position for position, case in enumerate(pair.case.tolist()) if case in patterns]
    known: dict[tuple[int, int], bool] = {}

    def passed(side: Iterable[Deployment]) -> list[bool]:
        flags = []
        for run in side:
            for position in checked:
                key = int(pair.case[position]), int(run.output[position])
                if key not in known:
                    known[key] = patterns[key[0]].search(pair.outputs.text(key[1])) is not None
                flags.append(known[key])
        return flags

    base, candidate = passed(pair.bases), passed(pair.candidates)
    ids = [pair.cases[int(pair.case[position])]["id"] for position in checked] * len(pair.bases)
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
    unverified = [run.name for run in pair.deployments if run.manifest["mode_verified"].get("how") == "not verified"]
    if unverified:
        found.append(f"The server did not confirm the mode of {_some(unverified)}: it is what --mode said.")
    if any(run.record.get("revision") == "unpinned" for run in pair.deployments):
        found.append("The model's revision is not pinned: the two sides may not have run the same weights.")
    for key in sorted({key for run in pair.deployments for key in run.manifest["client"]}):
        if any(run.manifest["client"].get(key) != base.manifest["client"].get(key) for run in pair.deployments):
            found.append(f"The client differs between directories in {key}: measure both modes from one client.")
    found += [f"{metric.upper()}: {warning}" for metric, of in metrics.items() for warning in of["warnings"]]
    statements = [line[name] for line in _lines(metrics["e2el"]) for name in ("interval", "prompts")]
    found += [warning for statement in statements for warning in statement["warnings"]]
    found += of_equality
    for side, other in (("candidate", "base"), ("base", "candidate")):
        shorter = [
            f"{case} ({of['tokens_base']:.4g} → {of['tokens_candidate']:.4g} tokens)"
            for case, of in cases.items()
            if of[f"tokens_{side}"] < of[f"tokens_{other}"]
        ]
        if shorter:
            found.append(f"The {side} answered shorter, and shorter output is not faster work: {_some(shorter)}.")
    finished = [case for case, of in cases.items() if of["finish_base"].keys() != of["finish_candidate"].keys()]
    if finished:
        found.append(f"The reason why an answer ended changed between the sides: {_some(finished)}.")
    return list(dict.fromkeys(found))


def _some(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# ---- the table


def table(result: Mapping[str, Any]) -> str:
    """The comparison for a person, at most 100 columns wide, safe to print."""
    head, *rows = _table_rows(result)
    first = min(20, max(len(row[0]) for row in rows))
    widths = [first, 9, 9, 6, 12] + [8] * (len(head) - 6)
    widths.append(WIDTH - sum(widths) - 2 * len(widths))
    lines = [_wrapped(printable(_headline(result)), "  "), ""]
    for row in [head, *rows]:
        name, *numbers, verdict = [_fit(printable(cell), width) for cell, width in zip(row, widths, strict=True)]
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths[1:-1], strict=True)]
        lines.append("  ".join([name.ljust(first), *cells, verdict]).rstrip())
    return "\n".join([*lines, "", *(_wrapped(printable(sentence), "  ") for sentence in _sentences(result))])


def markdown(result: Mapping[str, Any]) -> str:
    """The same table and sentences for a pull request or an issue."""
    head, *rows = ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in _table_rows(result)]
    rule = "|---" + "|---:" * (head.count("|") - 3) + "|---|"
    bullets = [f"- {_escaped(sentence)}" for sentence in _sentences(result)]
    return "\n".join([_escaped(_headline(result)), "", head, rule, *rows, "", *bullets]) + "\n"


def _headline(result: Mapping[str, Any]) -> str:
    sides = [f"{side} {' + '.join(of['directories'])} ({of['mode']})" for side, of in _sides(result)]
    counts = [
        _count(result["concurrency"], "user"),
        f"{_count(result['cases'], 'case')} × {_count(result['repeats'], 'repeat')}",
        f"{_count(len(result['base']['directories']), 'deployment')} a side",
    ]
    return f"{', '.join(sides)}: {', '.join(counts)}"


def _sides(result: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(side, result[side]) for side in ("base", "candidate")]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _table_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Head and rows. With several deployments a side the redeploy spread stands beside each effect."""
    metrics = result["metrics"]
    rows = [["", "base", "candidate", "ratio", "95% interval", "redeploy", "verdict"]]
    rows += [_row(f"E2EL {line['name']}", line, _marked(line)) for line in _lines(metrics["e2el"])]
    for metric in ("ttft", "tpot"):
        overall = metrics[metric]["overall"]
        rows.append(_row(f"{metric.upper()} {overall['name']}", overall, ""))
    throughput = result["throughput"]
    names = ("base_tokens_per_s", "candidate_tokens_per_s", "ratio")
    rows.append(["tokens/s", *(_number(throughput[name]) for name in names), "", "", ""])
    cases = result["equality"]["cases"].values()
    base, candidate = (float(np.mean([case[f"tokens_{side}"] for case in cases])) for side in ("base", "candidate"))
    ratio = candidate / base if base else None
    rows.append(["tokens/answer", _number(base), _number(candidate), _number(ratio), "", "", ""])
    if len(result["order"]) == 2:
        rows = [[*row[:5], row[6]] for row in rows]
    return rows


def _row(name: str, line: Mapping[str, Any], verdict: str) -> list[str]:
    interval, prompts, spread = line["interval"], line["prompts"], line["redeploy_spread"]
    bounds = "–"
    if interval["low"] is not None:
        bounds = f"{_number(interval['low'])}–{_number(interval['high'])}"
    elif prompts["low"] is not None:
        bounds = f"{_number(prompts['low'])}–{_number(prompts['high'])}{_OF_PROMPTS}"
    means = _time(interval["base"]), _time(interval["candidate"])
    return [name, *means, _number(interval["ratio"]), bounds, "–" if spread is None else f"±{spread:.1%}", verdict]


def _marked(line: Mapping[str, Any]) -> str:
    verdict = str(line["verdict"])
    if verdict.count(",") and verdict.startswith("suspect"):
        verdict = f"suspect: {verdict.count(',') + 1} gates"
    return verdict if line["primary"] else f"{verdict} *"


def _lines(metric: Mapping[str, Any]) -> list[Any]:
    """Families, then overall; overall alone where it says the same."""
    families = list(metric["families"].values())
    alone = len(families) == 1 and not families[0]["primary"]
    return [*([] if alone else families), metric["overall"]]


def _sentences(result: Mapping[str, Any]) -> list[str]:
    """Everything under the table, most important first."""
    verdict = result["verdict"]
    primary = next(line for line in _lines(result["metrics"]["e2el"]) if line["primary"])
    of = f"mix {_mix_text(verdict['mix'])}" if verdict["line"] == "mix" else verdict["line"]
    found = [f"Verdict ({of}): {verdict['verdict']}; {_verdict_reason(result)}"]
    found += [f"GATE {gate['name']}: {gate['sentence']}; {gate['action']}" for gate in _in_state(result, "fired")]
    found.append(_outputs_sentence(result["equality"]))
    interval, prompts = primary["interval"], primary["prompts"]
    if interval["low"] is not None:
        found.append(f"Interval: {interval['assumption']}")
    elif interval["reason"] not in found[0]:
        found.append(f"Interval: none, {interval['reason']}")
    if prompts["low"] is None:
        found.append(f"Prompts like these: no interval, {prompts['reason']}")
    else:
        found.append(f"Prompts like these: {prompts['low']:.3f}–{prompts['high']:.3f}. {prompts['assumption']}")
    if result["expect"]:
        found.append(_expect_sentence(result["expect"]))
    if primary["redeploy_spread"] is not None:
        times = ", ".join(f"{of['side']} {_time(of['e2el_s'])}" for of in result["deployments"])
        spread = f"redeploy spread {primary['redeploy_spread']:.1%} within a mode"
        found.append(f"Deployments in order of start, E2EL {primary['name']} (geometric mean): {times}; {spread}")
    if primary["more"] and interval["low"] is not None:
        found.append(f"To know more: {primary['more']['sentence']}")
    if unchecked := [gate["name"] for gate in _in_state(result, "not checked")]:
        found.append(f"Not checked, nothing says it: {', '.join(unchecked)}")
    found += [f"Warning: {warning}" for warning in result["warnings"]]
    found.append("base, candidate: geometric means; ratio: candidate/base")
    if any(_OF_PROMPTS in row[4] for row in _table_rows(result)):
        found.append(f"{_OF_PROMPTS} prompts like these on these two deployments; no verdict rests on it")
    if len(_lines(result["metrics"]["e2el"])) > 1:
        found.append("* 5% each, not together")
    return [sentence if sentence.endswith(".") else f"{sentence}." for sentence in found]


def _in_state(result: Mapping[str, Any], state: str) -> list[Any]:
    return [gate for gate in result["gates"] if gate["state"] == state]


def _verdict_reason(result: Mapping[str, Any]) -> str:
    verdict, equality = result["verdict"], result["equality"]
    if verdict["verdict"] != NOT_COMPARABLE:
        return str(verdict["why"])
    failing = [case for case, of in equality["cases"].items() if not of["passes"]]
    reason = f"the outputs of {len(failing)} of {result['cases']} cases do not pass"
    pooled = result["repeats"] == 1 and len(result["order"]) > 2
    accepted = {WITHIN, TOO_FEW} if pooled else {WITHIN}  # as in _passes
    words = {equality["cases"][case]["verdict"] for case in failing}
    if not equality["accept_floor"] and equality["verdict"] == WITHIN and words <= accepted:
        reason += "; all together they are within the baseline's own variation, which --accept-floor passes"
    return reason


def _outputs_sentence(equality: Mapping[str, Any]) -> str:
    """The overall word, then every other word with its cases."""
    by_verdict: dict[str, list[str]] = {}
    for case, of in equality["cases"].items():
        by_verdict.setdefault(of["verdict"], []).append(case)
    parts = [f"{verdict}: {_some(cases)}" for verdict, cases in by_verdict.items() if verdict != IDENTICAL]
    if not parts:
        return f"Outputs: {equality['sentence']}"
    identical = len(by_verdict.get(IDENTICAL, []))
    return f"Outputs: {equality['sentence']}; {'; '.join(parts)}; identical: {identical}. {equality['assumption']}"


def _expect_sentence(expect: Mapping[str, Any]) -> str:
    n, base, candidate = expect["pairs"], expect["base_passed"], expect["candidate_passed"]
    test = f"McNemar p = {expect['p']:.2g}" if expect["p"] is not None else f"no test: {expect['reason']}"
    return f"Expected answers: base {base} of {n}, candidate {candidate} of {n}; {test}; {_NEAR_COPIES}."


def _mix_text(mix: Mapping[str, float]) -> str:
    return ", ".join(f"{family}={weight:g}" for family, weight in mix.items())


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 0.9995:
        return f"{seconds * 1000:#.3g} ms".replace(". ", " ")
    return f"{seconds:#.3g} s".replace(". ", " ") if seconds < 999.5 else f"{seconds:,.0f} s"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if value < 10 else f"{value:,.1f}"


def _fit(text: str, width: int) -> str:
    text = text.replace("\n", " ").replace("\t", " ")
    return text if len(text) <= width else text[: width - 1] + "…"


def _wrapped(paragraph: str, indent: str) -> str:
    return textwrap.fill(paragraph, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|])", r"\\\1", printable(text).replace("\n", " "))


def _json_bytes(result: Mapping[str, Any]) -> bytes:
    """Indented, but for results so large (100,000 cases) that nobody reads them and indenting doubles the memory."""
    content = msgspec.json.encode(result)
    return msgspec.json.format(content, indent=2) + b"\n" if len(content) < INDENTED_BYTES else content


def _markdown_bytes(result: Mapping[str, Any]) -> bytes:
    return markdown(result).encode()


# ---- one case in full


def show_case(pair: Pair, result: Mapping[str, Any], case: str) -> str:
    """Every distinct output of a case with its counts, and where the two sides part. Raises UserError if unknown."""
    ids = [known["id"] for known in pair.cases]
    if case not in ids:
        raise UserError(f"--show names the case {case!r}, which the inventory lacks; it has {_some(ids, 20)}")
    at = _positions(pair)[ids.index(case)]
    base, candidate = _output_counts(pair.bases, at), _output_counts(pair.candidates, at)
    of = result["equality"]["cases"][case]
    lines = [_wrapped(f"{case}: {of['verdict']}. {of['reason']}.", "  ")]
    for number in base + candidate:
        lines.append(f"--- base {base[number]} times, candidate {candidate[number]} times:")
        lines.append(textwrap.indent(pair.outputs.text(number), "    "))
    parts = None if of["verdict"] == IDENTICAL else _divergence(pair, at, of["compared"])
    if parts and parts["character"] is not None:
        where = f"token {parts['token']}, character" if parts["token"] is not None else "character"
        lines.append(f"First divergence at {where} {parts['character']}, after {parts['before']!r}:")
        lines += [f"  - {parts['base']!r}", f"  + {parts['candidate']!r}"]
    return "\n".join(printable(line) for line in lines)


# ---- command line


def _parser() -> Parser:
    parser = Parser(
        prog="compare.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", type=Path, metavar="BASE", help="result directory of the base, as a rule the baseline")
    parser.add_argument("candidate", type=Path, metavar="CANDIDATE", help="result directory of the candidate")
    parser.add_argument(
        "--and", dest="more", nargs=2, type=Path, action="append", default=[], metavar=("BASE", "CANDIDATE"),
        help="another deployment of each side; may be given again",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything (docs/comparison.md)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table as Markdown")
    parser.add_argument("--show", metavar="CASE", help="print every distinct output of a case")
    parser.add_argument("--mix", metavar="FAMILY=WEIGHT,…", help="weigh families by the intended traffic; sums to 1")
    parser.add_argument(
        "--primary", default="overall", metavar="overall|FAMILY",
        help="the one verdict to conclude from, named before looking (default: overall, or --mix)",
    )  # fmt: skip
    parser.add_argument(
        "--accept-floor", action="store_true", help="pass outputs that vary no more than the baseline's own"
    )
    parser.add_argument("--allow-same-mode", action="store_true", help="compare a mode with itself")
    return parser


def _parse_mix(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    mix: dict[str, float] = {}
    for part in text.split(","):
        family, separator, weight = part.rpartition("=")
        try:
            value = float(weight)
        except ValueError:
            value = -1.0
        if not separator or not family or not 0 <= value <= 1 or family in mix:
            raise UserError(f"--mix has {part!r}; write each family once as FAMILY=WEIGHT with a weight from 0 to 1")
        mix[family] = value
    if abs(sum(mix.values()) - 1) > 1e-6:
        raise UserError(f"the weights of --mix sum to {sum(mix.values()):g}; make them sum to 1")
    return mix


def _write(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name another file") from None


if __name__ == "__main__":
    sys.exit(main())
