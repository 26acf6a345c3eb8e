"""One load's answer in words: compare.py's verdict and what stands behind it, and nothing else."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from specbench.comparison.format import Comparison, Gate, Interval, Likeness, Line, Timing, Word
from specbench.comparison.verdict import change, family_parts
from specbench.page.evidence import Load
from specbench.words import count, listed, some

# For each verdict: kind (for colour), sign (for those who do not see colour), and the answer's first words.
_LOOKS: dict[Word | None, tuple[str, str, str]] = {
    None: ("unknown", "?", "No verdict"),
    Word.FASTER: ("good", "✓", "Yes"),
    Word.SLOWER: ("bad", "✗", "No"),
    Word.NO_DIFFERENCE: ("same", "≈", "No clear difference"),
    Word.DEPENDS: ("depends", "±", "Depends"),
    Word.NOT_COMPARABLE: ("stop", "≠", "Not comparable"),
    Word.SUSPECT: ("stop", "!", "Suspect"),
}
_TIMINGS = {Timing.FASTER: "good", Timing.SLOWER: "bad", Timing.NO_DIFFERENCE: "same", None: "unknown"}
# The word of one cell of the table; what times alone say is a word too.
_CELLS: dict[Word | None, str] = {None: "no verdict", **{word: word.value for word in Word}}


@dataclass(frozen=True, slots=True)
class Answer:
    """What one load answers: `lead` stands in the badge, and where it depends the `parts` of the answer, each with its
    kind; `sentences` come after it."""

    kind: str
    sign: str
    lead: str
    parts: tuple[tuple[str, str], ...]
    sentences: tuple[str, ...]


@dataclass(slots=True)
class FiredGate:
    """A gate that fired: what was seen, with the load, and what to do about it."""

    name: str
    action: str | None
    seen: list[tuple[str, str]] = field(default_factory=list)


def look(word: Word | None) -> tuple[str, str, str]:
    """Kind, sign and words of one verdict in the table."""
    kind, sign, _ = _LOOKS[word]
    return kind, sign, _CELLS[word]


def answer(result: Comparison) -> Answer:
    """The answer of one load."""
    word = result.verdict.verdict
    kind, sign, lead = _LOOKS[word]
    parts: tuple[tuple[str, str], ...] = ()
    if word in (Word.FASTER, Word.SLOWER):
        lead = f"{lead}: {change(result.primary.interval.ratio)} time"
    elif word is Word.DEPENDS:
        lead = f"{lead}:"
        parts = tuple((_TIMINGS[timing], words) for timing, words in family_parts(_weighed(result), modes(result)))
    return Answer(kind, sign, lead, parts, tuple(_sentences(result)))


def modes(result: Comparison) -> tuple[str | None, str | None]:
    """Of base and candidate."""
    return result.base.mode, result.candidate.mode


def _weighed(result: Comparison) -> dict[str, Line]:
    """The families that the verdict speaks of: with a mix those that have a weight."""
    mix = result.verdict.mix
    families = result.metrics["e2el"].families
    return {name: line for name, line in families.items() if mix is None or mix.get(name, 0) > 0}


def _sentences(result: Comparison) -> list[str]:
    word, line = result.verdict.verdict, result.primary
    found = []
    if word is Word.NOT_COMPARABLE:
        found.append(f"{_capital(result.equality.sentence)}.")
    if word is Word.SUSPECT:
        found.append(f"Something other than the mode could explain a difference ({', '.join(result.verdict.gates)}).")
    if word is None:
        found.append(f"{_capital(line.why)}.")
    found.append(f"{time_sentence(result)}.")
    if word is Word.DEPENDS and (share := break_even_share(list(_weighed(result).values()))):
        names = [name for name, timing in result.verdict.families.items() if timing is Timing.FASTER]
        kinds = listed(names) if len(names) <= 3 else "of the families that it is on for"
        found.append(f"Overall it saves time once about {share:.0%} of the requests are {kinds}.")
    if word in (Word.FASTER, Word.SLOWER, Word.NO_DIFFERENCE, Word.DEPENDS, None):
        found.append(f"Outputs: {outputs_words(result)}.")
    return found


def time_sentence(result: Comparison) -> str:
    """What the times of the primary line say, outputs and gates aside, and how sure that is."""
    line = result.primary
    candidate, base = (side.mode or name for side, name in ((result.candidate, "candidate"), (result.base, "base")))
    if line.interval.ratio is None:
        return f"Nothing is known of times: {line.interval.reason}"
    which = {"overall": "Overall", "mix": "For the mix"}.get(line.name, f"For {line.name}")
    alone = " by time alone" if result.verdict.verdict in (Word.NOT_COMPARABLE, Word.SUSPECT) else ""
    return f"{which}{alone} {candidate} takes {interval_words(line.interval)} than {base}{_how_sure(line, result)}"


def interval_words(interval: Interval) -> str:
    """21% less time (95% interval: 15% to 26% less); a ratio without an interval alone."""
    point = f"{change(interval.ratio)} time"
    if interval.low is None or interval.high is None:
        return point
    low, high = change(interval.low), change(interval.high)
    if (interval.low < 1) == (interval.high < 1):
        less = interval.low < 1
        first, last = (high, low) if less else (low, high)
        return f"{point} (95% interval: {first.split()[0]} to {last})"
    return f"{point} (95% interval: {low} to {high})"


def _how_sure(line: Line, result: Comparison) -> str:
    pairs = len(result.order) // 2
    if line.interval.low is None:
        return "" if pairs > 1 else " on these two deployments"
    return f", over {count(pairs, 'deployment')} of each mode"


def outputs_words(result: Comparison) -> str:
    """The word for all outputs, and how many cases have another."""
    equality = result.equality
    identical = sum(case.verdict is Likeness.IDENTICAL for case in equality.cases.values())
    if equality.verdict is Likeness.IDENTICAL:
        return f"{equality.verdict.value} in {'the one case' if result.cases == 1 else f'all {result.cases:,} cases'}"
    return f"{equality.verdict.value} ({identical:,} of {count(result.cases, 'case')} identical)"


def break_even_share(families: Sequence[Line]) -> float | None:
    """The share of requests of the faster families from which the mean of logs falls below 0; None where no family is
    slower, or none is faster.

    Families that are faster weigh alike among themselves, and so do all others.
    """
    if not {Timing.FASTER, Timing.SLOWER} <= {line.timing for line in families}:
        return None
    logs: dict[bool, list[float]] = {True: [], False: []}
    for line in families:
        if line.interval.ratio:
            logs[line.timing is Timing.FASTER].append(math.log(line.interval.ratio))
    gain, loss = (sum(values) / len(values) for values in (logs[True], logs[False]))
    return loss / (loss - gain) if gain < 0 < loss else None


def fired_gates(loads: Sequence[Load]) -> list[FiredGate]:
    """Gates that fired at any load, each once."""
    fired: dict[str, FiredGate] = {}
    for load in loads:
        for gate in load.result.gates:
            if gate.state == "fired":
                known = fired.setdefault(gate.name, FiredGate(gate.name, gate.action))
                known.seen.append((load.label, gate.sentence))
    return list(fired.values())


@dataclass(frozen=True, slots=True)
class GateRow:
    """One gate at every load: its states, and what was seen, each sentence once with the loads that it holds for."""

    name: str
    states: tuple[str | None, ...]
    seen: tuple[tuple[str, str], ...]


def gate_rows(loads: Sequence[Load]) -> list[GateRow]:
    """Every gate of any load, those that fired first, then those that were not checked."""
    names = list(dict.fromkeys(gate.name for load in loads for gate in load.result.gates))
    rows = [_gate_row(name, loads) for name in names]
    heaviest = {"fired": 0, "not checked": 1}
    return sorted(rows, key=lambda row: min((heaviest.get(state or "", 2) for state in row.states), default=2))


def _gate_row(name: str, loads: Sequence[Load]) -> GateRow:
    found: list[Gate | None] = [
        next((gate for gate in load.result.gates if gate.name == name), None) for load in loads
    ]
    by_sentence: dict[str, list[str]] = {}
    for load, gate in zip(loads, found, strict=True):
        if gate is not None:
            by_sentence.setdefault(gate.sentence, []).append(load.label)
    everywhere = len(by_sentence) == 1
    seen = tuple(("" if everywhere else some(labels), sentence) for sentence, labels in by_sentence.items())
    return GateRow(name, tuple(gate.state if gate else None for gate in found), seen)


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
