"""What may be concluded: the verdict of each line and the one of the whole comparison, with its sentence."""

from collections.abc import Collection, Mapping, Sequence

from specbench.comparison.format import Equality, Gate, Likeness, Line, Timing, Verdict, Word
from specbench.words import listed, some

_SPEED = {Timing.FASTER: "faster", Timing.SLOWER: "slower", Timing.NO_DIFFERENCE: "no clear difference"}
_MOST_NAMED = 8  # families, in one sentence
_SWITCH = {**_SPEED, Timing.FASTER: "on", Timing.SLOWER: "off"}


def line_verdict(timing: Timing | None, passes: bool, fired: Sequence[Gate]) -> Word | None:
    """What the times say where the outputs pass and no gate fired, else what stands against it."""
    if not passes:
        return Word.NOT_COMPARABLE
    if fired:
        return Word.SUSPECT
    return None if timing is None else Word(timing.value)


def conclude(
    primary: Line,
    families: Mapping[str, Line],
    mix: Mapping[str, float] | None,
    modes: tuple[str | None, str | None],
    fired: Sequence[Gate],
    equality: Equality,
) -> Verdict:
    """The verdict of the primary line; where it is one of all families and these differ, that it depends on them."""
    weighed = {name: line for name, line in families.items() if mix is None or mix.get(name, 0) > 0}
    several = primary.name not in families and len(weighed) > 1
    word = primary.verdict
    if several and _differ(word, {line.timing for line in weighed.values()}):
        word = Word.DEPENDS
    return Verdict(
        line=primary.name,
        mix=None if mix is None else dict(mix),
        verdict=word,
        timing=primary.timing,
        families={name: line.timing for name, line in families.items()},
        gates=[gate.name for gate in fired],
        sentence=_sentence(word, primary, weighed, modes, fired, equality),
        why=_not_comparable(equality) if word is Word.NOT_COMPARABLE else primary.why,
    )


def _differ(word: Word | None, timings: Collection[Timing | None]) -> bool:
    """Whether families conclude differently: opposite to each other, or other than what all together conclude.

    One family alone that is called beside a whole that is not does not count: with three families and no effect at all
    that happens in more than 5% of comparisons.
    """
    if word not in (Word.FASTER, Word.SLOWER, Word.NO_DIFFERENCE):
        return False
    opposite = Timing.FASTER in timings and Timing.SLOWER in timings
    return opposite or (word is not Word.NO_DIFFERENCE and timings != {Timing(word.value)})


def _sentence(
    word: Word | None,
    primary: Line,
    families: Mapping[str, Line],
    modes: tuple[str | None, str | None],
    fired: Sequence[Gate],
    equality: Equality,
) -> str:
    base, candidate = (mode or side for mode, side in zip(modes, ("base", "candidate"), strict=True))
    if word is Word.NOT_COMPARABLE:
        return f"Not comparable: {_not_comparable(equality)}"
    if word is Word.SUSPECT:
        names = some([gate.name for gate in fired])
        return f"Suspect: something other than the mode could explain a difference ({names})"
    if word is None:
        return f"No verdict: {primary.why}"
    if word is Word.DEPENDS:
        return f"Depends: {', '.join(part for _, part in family_parts(families, modes))}"
    ratio = change(primary.interval.ratio)
    if word is Word.NO_DIFFERENCE:
        return f"No clear difference: {candidate} takes {ratio} time than {base}, and the interval holds 1"
    return f"{word.value.capitalize()}: {candidate} takes {ratio} time than {base}"


def family_parts(
    families: Mapping[str, Line], modes: tuple[str | None, str | None]
) -> list[tuple[Timing | None, str]]:
    """What the families conclude, those alike together: on for copy (32% less); off for explain (12% more)."""
    words = _SWITCH if modes == ("baseline", "ngram") else _SPEED
    parts: list[tuple[Timing | None, str]] = []
    for timing, word in words.items():
        alike = {name: line for name, line in families.items() if line.timing is timing}
        if alike and len(families) > _MOST_NAMED:
            parts.append((timing, f"{word} for {len(alike)} of {len(families)} families"))
        elif alike:
            named = [f"{name} ({change(line.interval.ratio)})" for name, line in alike.items()]
            parts.append((timing, f"{word} for {listed(named)}"))
    if unknown := [name for name, line in families.items() if line.timing is None]:
        parts.append((None, f"nothing known for {some(unknown)}"))
    return parts


def change(ratio: float | None) -> str:
    """A ratio of times in words: 21% less, 3.4% more."""
    if ratio is None:
        return "an unknown"
    percent = abs(ratio - 1) * 100
    shown = f"{percent:.0f}%" if percent >= 9.5 else f"{percent:.1f}%"
    return f"{shown} {'less' if ratio < 1 else 'more'}"


def _not_comparable(equality: Equality) -> str:
    """Which cases, by which test, what a change would have to be to be found, and what would tell more."""
    failing = {case: outputs.verdict for case, outputs in equality.cases.items() if not outputs.passes}
    if Likeness.CHANGED not in failing.values() and Likeness.CANNOT_TELL not in failing.values():
        share = f"{len(failing)} of {len(equality.cases)} cases"
        return (
            f"the outputs of {share} are not identical ({some(list(failing))}); they are within the baseline's "
            "variation, which --accept-floor passes"
        )
    if equality.least_change is None:
        power = "with so few answers no change of a case is found with 80% power; use more --repeats"
    else:
        power = (
            f"with these answers a change is found with 80% power from {equality.least_change:.0%} of a case's "
            "requests on, where the baseline always answers alike"
        )
    return f"{equality.sentence}; {power}"
