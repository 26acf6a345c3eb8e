"""What `workload.py check` says of a file: what it holds, how long it is, what repeats, what does not fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specbench.words import count, some
from specbench.workload.inventory import LeftOut, Workload
from specbench.workload.lengths import NGRAM, Length, Room, measure
from specbench.workload.similarity import find_similar

if TYPE_CHECKING:
    from specbench.workload.tokenizing import Tokenizer

FORMAT = 1
_COLUMNS = ("answers", "median", "p95", "longest", "room", "overlap")
_SHOWN = 12  # lines or pairs that are named; the JSON has them all


@dataclass(frozen=True, slots=True)
class Family:
    """The cases of one family. Lengths are in the survey's unit; `overlap` is None where no answer is long enough."""

    name: str
    cases: int
    answers: int
    median: int
    p95: int
    longest: int
    room: int | None
    overlap: float | None


@dataclass(frozen=True, slots=True)
class Survey:
    """A file looked at. `too_long`: a sentence where cases do not fit."""

    workload: Workload
    unit: str
    families: list[Family]
    overall: Family
    duplicates: list[tuple[str, str]]
    near: list[tuple[str, str]]
    too_long: str | None

    @property
    def clean(self) -> bool:
        """Whether every line is a case that fits."""
        return not self.workload.left_out and self.too_long is None


def survey(workload: Workload, tokenizer: "Tokenizer | None", room: Room | None) -> Survey:
    """Look at every entry."""
    lengths = [measure(entry, tokenizer) for entry in workload.entries]
    places: dict[str, list[int]] = {}
    for place, entry in enumerate(workload.entries):
        places.setdefault(entry.case.family, []).append(place)
    families = [_family(name, chosen, workload, lengths, room) for name, chosen in sorted(places.items())]
    everything = range(len(workload.entries))
    similar = find_similar([entry.case for entry in workload.entries])
    ids = [entry.case.id for entry in workload.entries]
    return Survey(
        workload,
        "tokens" if tokenizer is not None else "characters",
        families,
        _family("overall", everything, workload, lengths, room),
        [(ids[later], ids[earlier]) for later, earlier in similar.duplicates.items()],
        [(ids[later], ids[earlier]) for later, earlier in similar.near.items()],
        _too_long(workload, lengths, room),
    )


def as_json(found: Survey) -> dict[str, Any]:
    """The survey for a program."""
    workload = found.workload
    return {
        "format": FORMAT,
        "name": workload.name,
        "read_as": workload.format,
        "sha256": workload.sha256,
        "unit": found.unit,
        "ngram": NGRAM,
        "overall": found.overall,
        "families": {family.name: family for family in found.families},
        "duplicates": found.duplicates,
        "near_duplicates": found.near,
        "left_out": workload.left_out,
        "notes": workload.notes,
        "too_long": found.too_long,
    }


def table(found: Survey) -> str:
    """The survey for a person."""
    workload = found.workload
    head = f"{workload.name}: {count(len(workload.entries), 'case')}, read as {workload.format}"
    lines = [head, "", f"{'family':<20}{'cases':>8}" + "".join(f"{name:>9}" for name in _COLUMNS)]
    rows = [*found.families, found.overall] if len(found.families) > 1 else found.families
    lines += [_row(family) for family in rows]
    lines.append("")
    what = "tokens with the chat template" if found.unit == "tokens" else "characters, as no tokenizer was named"
    lines.append(f"Lengths of the prompts are {what}.")
    if found.overall.room is not None:
        lines.append("Room is what the model's limit leaves the longest prompt beside its answer and drafts.")
    if found.overall.overlap is not None:
        lines.append(
            f"Overlap is the share of the answers' {NGRAM}-grams that stand in their prompts, where drafts come from."
        )
    lines += [f"{note[0].upper()}{note[1:]}." for note in workload.notes[workload.format != "native lines" :]]
    lines += _pairs("the same messages as an earlier one", found.duplicates)
    lines += _pairs("nearly the text of an earlier one", found.near)
    if found.too_long:
        lines.append(f"{found.too_long}.")
    return "\n".join([*lines, *left_out_lines(workload.left_out)])


def left_out_lines(left_out: Sequence[LeftOut]) -> list[str]:
    """What is no case, line by line."""
    if not left_out:
        return []
    more = f"  … and {count(len(left_out) - _SHOWN, 'more line')}" if len(left_out) > _SHOWN else None
    named = [f"  line {left.line} {left.reason}" for left in left_out[:_SHOWN]]
    return [f"{count(len(left_out), 'line')} left out:", *named, *([more] if more else [])]


def _family(
    name: str, places: Sequence[int], workload: Workload, lengths: Sequence[Length], room: Room | None
) -> Family:
    chosen = [lengths[place] for place in places]
    prompts = sorted(length.prompt for length in chosen)
    ngrams = sum(length.ngrams for length in chosen)
    return Family(
        name,
        len(chosen),
        sum(length.answer is not None for length in chosen),
        prompts[(len(prompts) - 1) // 2],
        prompts[-(-95 * len(prompts) // 100) - 1],
        prompts[-1],
        None if room is None else min(room.left(workload.entries[place], lengths[place]) for place in places),
        sum(length.found for length in chosen) / ngrams if ngrams else None,
    )


def _too_long(workload: Workload, lengths: Sequence[Length], room: Room | None) -> str | None:
    if room is None:
        return None
    left = [room.left(entry, length) for entry, length in zip(workload.entries, lengths, strict=True)]
    beyond = sum(tokens < 0 for tokens in left)
    worst = left.index(min(left))
    return room.sentence(workload.entries[worst], lengths[worst], beyond) if beyond else None


def _row(family: Family) -> str:
    room = "–" if family.room is None else f"{family.room:,}"
    share = "–" if family.overlap is None else f"{family.overlap:.0%}"
    numbers = [f"{number:,}" for number in (family.answers, family.median, family.p95, family.longest)]
    name = family.name if len(family.name) < 20 else family.name[:18] + "…"
    return f"{name:<20}{family.cases:>8,}" + "".join(f"{cell:>9}" for cell in [*numbers, room, share])


def _pairs(what: str, pairs: Sequence[tuple[str, str]]) -> list[str]:
    if not pairs:
        return []
    named = some([f"{later} (as {earlier})" for later, earlier in pairs], 4)
    return [f"{count(len(pairs), 'case')} {'has' if len(pairs) == 1 else 'have'} {what}: {named}."]
