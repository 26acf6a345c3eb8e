"""The comparison for people: a table of at most 100 columns with its sentences, Markdown, and one case in full."""

import re
import textwrap
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from specbench import UserError
from specbench.comparison.assessment import divergence, lines, output_counts, positions
from specbench.comparison.equality import IDENTICAL, TOO_FEW, WITHIN
from specbench.comparison.pairing import Pair
from specbench.comparison.verdict import NOT_COMPARABLE
from specbench.words import count, duration, printable, ratio, some

WIDTH = 100
INDENTED_BYTES = 16_000_000
_OF_PROMPTS = "†"  # marks an interval on which no verdict rests
_NEAR_COPIES = "repeats of a case are nearly copies: this speaks of these requests"


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
        count(result["concurrency"], "user"),
        f"{count(result['cases'], 'case')} × {count(result['repeats'], 'repeat')}",
        f"{count(len(result['base']['directories']), 'deployment')} a side",
    ]
    return f"{', '.join(sides)}: {', '.join(counts)}"


def _sides(result: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(side, result[side]) for side in ("base", "candidate")]


def _table_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Head and rows. With several deployments a side the redeploy spread stands beside each effect."""
    metrics = result["metrics"]
    rows = [["", "base", "candidate", "ratio", "95% interval", "redeploy", "verdict"]]
    rows += [_row(f"E2EL {line['name']}", line, _marked(line)) for line in lines(metrics["e2el"])]
    for metric in ("ttft", "tpot"):
        overall = metrics[metric]["overall"]
        rows.append(_row(f"{metric.upper()} {overall['name']}", overall, ""))
    throughput = result["throughput"]
    names = ("base_tokens_per_s", "candidate_tokens_per_s", "ratio")
    rows.append(["tokens/s", *(ratio(throughput[name]) for name in names), "", "", ""])
    cases = result["equality"]["cases"].values()
    base, candidate = (float(np.mean([case[f"tokens_{side}"] for case in cases])) for side in ("base", "candidate"))
    change = candidate / base if base else None
    rows.append(["tokens/answer", ratio(base), ratio(candidate), ratio(change), "", "", ""])
    if len(result["order"]) == 2:
        rows = [[*row[:5], row[6]] for row in rows]
    return rows


def _row(name: str, line: Mapping[str, Any], verdict: str) -> list[str]:
    interval, prompts, spread = line["interval"], line["prompts"], line["redeploy_spread"]
    bounds = "–"
    if interval["low"] is not None:
        bounds = f"{ratio(interval['low'])}–{ratio(interval['high'])}"
    elif prompts["low"] is not None:
        bounds = f"{ratio(prompts['low'])}–{ratio(prompts['high'])}{_OF_PROMPTS}"
    means = duration(interval["base"]), duration(interval["candidate"])
    return [name, *means, ratio(interval["ratio"]), bounds, "–" if spread is None else f"±{spread:.1%}", verdict]


def _marked(line: Mapping[str, Any]) -> str:
    verdict = str(line["verdict"])
    if verdict.count(",") and verdict.startswith("suspect"):
        verdict = f"suspect: {verdict.count(',') + 1} gates"
    return verdict if line["primary"] else f"{verdict} *"


def _sentences(result: Mapping[str, Any]) -> list[str]:
    """Everything under the table, most important first."""
    verdict = result["verdict"]
    primary = next(line for line in lines(result["metrics"]["e2el"]) if line["primary"])
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
        times = ", ".join(f"{of['side']} {duration(of['e2el_s'])}" for of in result["deployments"])
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
    if len(lines(result["metrics"]["e2el"])) > 1:
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
    parts = [f"{verdict}: {some(cases)}" for verdict, cases in by_verdict.items() if verdict != IDENTICAL]
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


def _fit(text: str, width: int) -> str:
    text = text.replace("\n", " ").replace("\t", " ")
    return text if len(text) <= width else text[: width - 1] + "…"


def _wrapped(paragraph: str, indent: str) -> str:
    return textwrap.fill(paragraph, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|])", r"\\\1", printable(text).replace("\n", " "))


def markdown_bytes(result: Mapping[str, Any]) -> bytes:
    """`markdown` as it is written."""
    return markdown(result).encode()


def json_bytes(result: Mapping[str, Any]) -> bytes:
    """Indented, but for results so large (100,000 cases) that nobody reads them and indenting doubles the memory."""
    content = msgspec.json.encode(result)
    return msgspec.json.format(content, indent=2) + b"\n" if len(content) < INDENTED_BYTES else content


def show_case(pair: Pair, result: Mapping[str, Any], case: str) -> str:
    """Every distinct output of a case with its counts, and where the two sides part. Raises UserError if unknown."""
    ids = [known.id for known in pair.cases]
    if case not in ids:
        raise UserError(f"--show names the case {case!r}, which the inventory lacks; it has {some(ids, 20)}")
    at = positions(pair)[ids.index(case)]
    base, candidate = output_counts(pair.bases, at), output_counts(pair.candidates, at)
    of = result["equality"]["cases"][case]
    lines = [_wrapped(f"{case}: {of['verdict']}. {of['reason']}.", "  ")]
    for number in base + candidate:
        lines.append(f"--- base {base[number]} times, candidate {candidate[number]} times:")
        lines.append(textwrap.indent(pair.outputs.text(number), "    "))
    parts = None if of["verdict"] == IDENTICAL else divergence(pair, at, of["compared"])
    if parts and parts["character"] is not None:
        where = f"token {parts['token']}, character" if parts["token"] is not None else "character"
        lines.append(f"First divergence at {where} {parts['character']}, after {parts['before']!r}:")
        lines += [f"  - {parts['base']!r}", f"  + {parts['candidate']!r}"]
    return "\n".join(printable(line) for line in lines)
