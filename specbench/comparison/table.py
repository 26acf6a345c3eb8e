"""The comparison for people: a table of at most 100 columns with its sentences, Markdown, and one case in full."""

import re
import textwrap

import msgspec
import numpy as np

from specbench import UserError
from specbench.comparison.divergence import divergence, output_counts
from specbench.comparison.estimates import ONE_PAIR
from specbench.comparison.format import (
    Comparison,
    Equality,
    Expect,
    Gate,
    GateState,
    Likeness,
    Line,
    SideRecord,
    Why,
    Word,
)
from specbench.comparison.pairing import Pair
from specbench.words import count, duration, printable, ratio, some

WIDTH = 100
INDENTED_BYTES = 16_000_000


def table(result: Comparison) -> str:
    """The comparison for a person, at most 100 columns wide, safe to print."""
    head, *rows = _table_rows(result)
    first = min(20, max(len(row[0]) for row in rows))
    widths = [first, 9, 9, 6]
    if len(head) > len(widths):
        widths += [12, 8]
        widths.append(WIDTH - sum(widths) - 2 * len(widths))
    lines = [_wrapped(printable(_headline(result)), "  "), ""]
    lines += _aligned([head, *rows], widths)
    if result.why:
        rows = _why_rows(result, result.why)
        lines += ["", *_aligned(rows, [first, 9, 9, 12, 9] if len(rows[0]) == 5 else [first, 9, 9, 6])]
    return "\n".join([*lines, "", *(_wrapped(printable(sentence), "  ") for sentence in _sentences(result))])


def _aligned(rows: list[list[str]], widths: list[int]) -> list[str]:
    """Lines of a table: the first and the sixth column to the left, numbers to the right."""
    lines = []
    for row in rows:
        name, *cells = [_fit(printable(cell), width) for cell, width in zip(row, widths, strict=False)]
        numbers = [cell.rjust(width) for cell, width in zip(cells[:5], widths[1:], strict=False)]
        lines.append("  ".join([name.ljust(widths[0]), *numbers, *cells[5:]]).rstrip())
    return lines


def markdown(result: Comparison) -> str:
    """The same table and sentences for a pull request or an issue."""
    lines = [_escaped(_headline(result)), "", *_markdown_table(_table_rows(result)), ""]
    if result.why:
        lines += [*_markdown_table(_why_rows(result, result.why)), ""]
    bullets = [f"- {_escaped(sentence)}" for sentence in _sentences(result)]
    return "\n".join([*lines, *bullets]) + "\n"


def _markdown_table(rows: list[list[str]]) -> list[str]:
    head, *others = ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in rows]
    columns = len(rows[0]) - 1
    rule = "|---" + "|---:" * min(5, columns) + "|---" * max(0, columns - 5) + "|"
    return [head, rule, *others]


def markdown_bytes(result: Comparison) -> bytes:
    """`markdown` as it is written."""
    return markdown(result).encode()


def json_bytes(result: Comparison) -> bytes:
    """Indented, but for results so large (100,000 cases) that nobody reads them and indenting doubles the memory."""
    content = msgspec.json.encode(result)
    return msgspec.json.format(content, indent=2) + b"\n" if len(content) < INDENTED_BYTES else content


# ---- the table


def _headline(result: Comparison) -> str:
    def side(name: str, record: SideRecord) -> str:
        return f"{name} {' + '.join(record.directories)} ({record.mode})"

    counts = [
        count(result.concurrency, "user"),
        f"{count(result.cases, 'case')} × {count(result.repeats, 'repeat')}",
        f"{count(len(result.base.directories), 'deployment')} a side",
    ]
    return f"{side('base', result.base)}, {side('candidate', result.candidate)}: {', '.join(counts)}"


def _table_rows(result: Comparison) -> list[list[str]]:
    """Head and rows. One deployment of each mode has ratios and neither intervals nor verdicts."""
    rows = [["", "base", "candidate", "ratio", "95% interval", "spread", "verdict"]]
    rows += [_row(f"E2EL {line.name}", line, _marked(line)) for line in result.metrics["e2el"].lines]
    for metric in ("ttft", "tpot"):
        overall = result.metrics[metric].overall
        rows.append(_row(f"{metric.upper()} {overall.name}", overall, ""))
    rates = result.throughput
    numbers = (rates.base_tokens_per_s, rates.candidate_tokens_per_s, rates.ratio)
    rows.append(["tokens/s", *map(ratio, numbers), "", "", ""])
    cases = result.equality.cases.values()
    base = float(np.mean([case.tokens_base for case in cases]))
    candidate = float(np.mean([case.tokens_candidate for case in cases]))
    rows.append(["tokens/answer", *map(ratio, (base, candidate, candidate / base if base else None)), "", "", ""])
    return [row[:4] for row in rows] if len(result.order) == 2 else rows


def _row(name: str, line: Line, verdict: str) -> list[str]:
    interval = line.interval
    bounds = "–" if interval.low is None else f"{ratio(interval.low)}–{ratio(interval.high)}"
    spread = "–" if line.spread is None else f"±{line.spread:.1%}"
    return [name, duration(interval.base), duration(interval.candidate), ratio(interval.ratio), bounds, spread, verdict]


def _why_rows(result: Comparison, why: Why) -> list[list[str]]:
    """Steps × cost of a step = decode time, per family and overall; without an interval where there is one pair."""
    rows = [["why", "steps", "cost/step", "95% interval", "decode"]]
    factors = {**why.families, result.metrics["e2el"].overall.name: why.overall}
    for name in [line.name for line in result.metrics["e2el"].lines]:
        one = factors[name]
        cost = one.cost
        bounds = "–" if cost.low is None else f"{ratio(cost.low)}–{ratio(cost.high)}"
        rows.append([name, ratio(one.steps), ratio(cost.ratio), bounds, ratio(one.decode)])
    return [[*row[:3], row[4]] for row in rows] if len(result.order) == 2 else rows


def _marked(line: Line) -> str:
    verdict = "–" if line.verdict is None else line.verdict.value
    return verdict if line.primary else f"{verdict} *"


# ---- the sentences


def _sentences(result: Comparison) -> list[str]:
    """Everything under the table, most important first."""
    found = [_verdict_sentence(result)]
    found += [f"GATE {gate.name}: {gate.sentence}; {gate.action}" for gate in _in_state(result, "fired")]
    if result.verdict.verdict is not Word.NOT_COMPARABLE:
        found.append(f"Outputs: {_outputs_sentence(result.equality)}")
    if result.why:
        found.append(f"Why: {result.why.sentence} (steps × cost of a step = decode time){_step_costs(result.why)}")
    if cached := [(one.side, one.prefix_cache_hit_share) for one in result.deployments]:
        shares = ", ".join(f"{side} {share:.0%}" for side, share in cached if share is not None)
        found += [f"Prompt tokens that came from the prefix cache: {shares}"] if shares else []
    found += _interval_sentences(result)
    if result.expect:
        found.append(_expect_sentence(result.expect))
    if result.primary.advice:
        found.append(result.primary.advice.sentence)
    if unchecked := [gate.name for gate in _in_state(result, "not checked")]:
        found.append(f"Not checked, because nothing reports it: {', '.join(unchecked)}")
    found += [f"Warning: {warning}" for warning in result.warnings]
    found.append("base, candidate: geometric means; ratio: candidate/base")
    if len(result.order) > 2 and len(result.metrics["e2el"].lines) > 1:
        found.append("* wrong in 5% of comparisons without an effect, each row on its own; of nine rows, one often is")
    return [sentence if sentence.endswith(".") else f"{sentence}." for sentence in found]


def _verdict_sentence(result: Comparison) -> str:
    verdict = result.verdict
    name = verdict.line
    if verdict.mix:
        name = "mix " + ", ".join(f"{family}={weight:g}" for family, weight in verdict.mix.items())
    if verdict.verdict in (None, Word.NOT_COMPARABLE):
        return verdict.sentence
    timing = "no verdict" if verdict.timing is None else verdict.timing.value
    if verdict.verdict is Word.SUSPECT:
        return f"{verdict.sentence}; {name}, by time alone: {timing}"
    if verdict.verdict is Word.DEPENDS:
        return f"{verdict.sentence}; {name}: {timing} ({verdict.why})"
    return f"{verdict.sentence} ({name}; {verdict.why})"


def _interval_sentences(result: Comparison) -> list[str]:
    """What the primary line's interval means, how far deployments spread, and what holds for other prompts."""
    primary = result.primary
    interval, prompts = primary.interval, primary.prompts
    if len(result.order) == 2:
        return [] if result.verdict.verdict is None else [f"No interval: {ONE_PAIR}"]
    found = []
    if interval.low is not None:
        found.append(f"Interval: {interval.assumption}")
    elif interval.reason and interval.reason != result.verdict.why:
        found.append(f"No interval: {interval.reason}")
    if primary.spread is not None:
        times = ", ".join(f"{one.side} {duration(one.e2el_s)}" for one in result.deployments)
        named = f"Deployments in order of start, E2EL {primary.name} (geometric mean)"
        found.append(f"{named}: {times}; {_spread(primary)}")
    if prompts.low is not None:
        found.append(f"Prompts like these: {ratio(prompts.low)}–{ratio(prompts.high)}. {prompts.assumption}")
    elif prompts.reason != interval.reason:
        found.append(f"Prompts like these: {prompts.reason}")
    return found


def _spread(line: Line) -> str:
    spread = f"the spread between deployments of a mode is {line.spread:.1%}"
    if line.noise_share is None:
        return f"{spread}, and one repeat does not show how much of it is noise within the runs"
    return f"{spread}, and {line.noise_share:.0%} of its variance is noise within the runs"


def _step_costs(why: Why) -> str:
    """What a step took, the mean over deployments."""
    plain = [one.undrafted_ms for one in why.deployments if one.drafted_ms is None and one.undrafted_ms is not None]
    drafting = [(one.undrafted_ms, one.drafted_ms) for one in why.deployments if one.drafted_ms is not None]
    if not plain or not drafting:
        return ""
    undrafted, drafted = (float(np.mean([kinds[number] for kinds in drafting])) for number in (0, 1))
    return (
        f"; a step takes {float(np.mean(plain)):.3g} ms in baseline, and in ngram {undrafted:.3g} ms without a draft "
        f"and {drafted:.3g} ms with one"
    )


def _outputs_sentence(equality: Equality) -> str:
    """The word over all cases and why, then every word but identical with its cases."""
    if equality.verdict is Likeness.IDENTICAL:
        return equality.sentence
    named = {word: [name for name, case in equality.cases.items() if case.verdict is word] for word in Likeness}
    identical = len(named.pop(Likeness.IDENTICAL))
    parts = [f"{word.value}: {some(cases)}" for word, cases in named.items() if cases and word is not equality.verdict]
    alike = f"{some(named[equality.verdict])}; identical: {identical}"
    sentence = "; ".join([f"{equality.verdict.value}, because {equality.sentence}", alike, *parts])
    return f"{sentence}. {equality.assumption}"


def _expect_sentence(expect: Expect) -> str:
    test = f"McNemar p = {expect.p:.2g}" if expect.p is not None else f"no test, {expect.reason}"
    families = [
        f"{name} {one.base_passed} and {one.candidate_passed} of {one.checked}"
        + (f" (p = {one.p:.2g})" if one.p is not None else "")
        for name, one in expect.families.items()
    ]
    by_family = f" By family: {some(families)}." if len(families) > 1 else ""
    return (
        f"Expected answers: base {expect.base_passed} of {expect.pairs}, candidate {expect.candidate_passed} of "
        f"{expect.pairs}; {test}.{by_family} Repeats of a case are nearly copies, so this speaks of these requests "
        "only."
    )


def _in_state(result: Comparison, state: GateState) -> list[Gate]:
    return [gate for gate in result.gates if gate.state == state]


def _fit(text: str, width: int) -> str:
    text = text.replace("\n", " ").replace("\t", " ")
    return text if len(text) <= width else text[: width - 1] + "…"


def _wrapped(paragraph: str, indent: str) -> str:
    return textwrap.fill(paragraph, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|])", r"\\\1", printable(text).replace("\n", " "))


# ---- one case in full


def show_case(pair: Pair, result: Comparison, case: str) -> str:
    """Every distinct output of a case with its counts, and where the two sides part. Raises UserError if unknown."""
    ids = [known.id for known in pair.cases]
    if case not in ids:
        raise UserError(f"--show names the case {case!r}, which the inventory lacks; it has {some(ids, 20)}")
    places = pair.places[ids.index(case)]
    base, candidate = output_counts(pair.bases, places), output_counts(pair.candidates, places)
    outputs = result.equality.cases[case]
    lines = [_wrapped(f"{case}: {outputs.verdict.value}. {outputs.reason}.", "  ")]
    for number in base + candidate:
        lines.append(f"--- base {base[number]} times, candidate {candidate[number]} times:")
        lines.append(textwrap.indent(pair.outputs.text(number), "    "))
    parts = None if outputs.verdict is Likeness.IDENTICAL else divergence(pair, places, outputs.compared)
    if parts and parts.character is not None:
        where = f"token {parts.token}, character" if parts.token is not None else "character"
        lines.append(f"First divergence at {where} {parts.character}, after {parts.before!r}:")
        lines += [f"  - {parts.base!r}", f"  + {parts.candidate!r}"]
    return "\n".join(printable(line) for line in lines)
