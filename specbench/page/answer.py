"""One load's answer in words: compare.py's verdict and what stands behind it, and nothing else."""

from collections.abc import Sequence

from specbench.comparison.format import Likeness, Word
from specbench.page.evidence import Json, Load
from specbench.words import count, number

# For each verdict: kind (for colour), sign (for those who do not see colour), and the answer to the question.
VERDICTS = {
    None: ("unknown", "?", "No verdict"),
    Word.FASTER.value: ("good", "✓", "Yes"),
    Word.SLOWER.value: ("bad", "✗", "No"),
    Word.NO_DIFFERENCE.value: ("same", "≈", "No clear difference"),
    Word.DEPENDS.value: ("same", "±", "Depends"),
    Word.NOT_COMPARABLE.value: ("stop", "≠", "Not comparable"),
    Word.SUSPECT.value: ("stop", "!", "Suspect"),
}


def primary_line(result: Json) -> Json:
    """The line of E2EL that was named beforehand."""
    metric = result["metrics"]["e2el"]
    return next(line for line in [metric["overall"], *metric["families"].values()] if line["primary"])


def verdict_look(verdict: str | None) -> tuple[str, str, str]:
    """Kind, sign and the answer's first words for one of compare.py's verdicts."""
    return VERDICTS[verdict]


def change(ratio: float) -> str:
    """A ratio of times in words: 21% less, 3.4% more."""
    percent = abs(ratio - 1) * 100
    shown = f"{percent:.0f}%" if percent >= 9.5 else f"{percent:.1f}%"
    return f"{shown} {'less' if ratio < 1 else 'more'}"


def time_said(line: Json) -> str:
    """The effect of one line with its interval, or why there is none."""
    interval = line["interval"]
    if interval["ratio"] is None:
        return f"nothing to say of time: {interval['reason']}"
    said = f"{change(interval['ratio'])} time per request"
    if interval["low"] is None:
        return f"{said}, with no interval: {interval['reason']}"
    low, high = change(interval["low"]), change(interval["high"])
    if low[-4:] != high[-4:]:
        return f"between {low} and {high} time per request (95% interval)"
    first, last = (high, low) if low.endswith("less") else (low, high)
    return f"{said} (95% interval: {first[:-5]} to {last})"


def families_said(result: Json) -> str:
    """The families by what their times say, for example: faster for copy (0.714); slower for short (1.083)."""
    groups: dict[str, list[str]] = {}
    for line in result["metrics"]["e2el"]["families"].values():
        if line["timing"] and line["interval"]["ratio"] is not None and not line["primary"]:
            groups.setdefault(line["timing"], []).append(f"{line['name']} ({number(line['interval']['ratio'])})")
    if sum(map(len, groups.values())) < 2:
        return ""
    named = [
        f"{timing} for {', '.join(names) if len(names) <= 4 else f'{len(names)} families'}"
        for timing, names in groups.items()
    ]
    return "; ".join(named)


def answer(result: Json) -> Json:
    """One load's answer: kind, sign, lead and the sentences after it, from compare.py's verdict and nothing else."""
    verdict, line = result["verdict"], primary_line(result)
    kind, sign, lead = verdict_look(verdict["verdict"])
    candidate, base = result["candidate"]["mode"], result["base"]["mode"]
    time = f"{candidate} takes {time_said(line)}" if line["interval"]["ratio"] is not None else time_said(line)
    equality = result["equality"]
    by_time = f"By time alone ({verdict['timing'] or 'no verdict'}), {time}"
    if verdict["verdict"] == Word.NOT_COMPARABLE.value:
        failing = _of_cases(sum(not of["passes"] for of in equality["cases"].values()), result)
        within = equality["verdict"] == Likeness.WITHIN.value
        floor = f", all together no more than {base} differs from itself" if within else ""
        time = f"{candidate} and {base} do not give the same outputs in {failing}{floor}. {by_time}"
    elif kind == "stop":
        fired = ", ".join(gate["name"] for gate in result["gates"] if gate["state"] == "fired")
        time = f"Something else differed or went wrong ({fired}). {by_time}"
    elif varying := result["cases"] - equality["counts"].get(Likeness.IDENTICAL.value, 0):
        time += f". Outputs vary in {_of_cases(varying, result)}, no more than {base} differs from itself"
    families = "" if kind == "stop" else families_said(result)
    return {"kind": kind, "sign": sign, "lead": lead, "time": time, "families": families}


def fired_gates(loads: Sequence[Load]) -> list[Json]:
    """Gates that fired at any load, each once: name, what was seen per load, and what to do about it."""
    fired: dict[str, Json] = {}
    for load in loads:
        for gate in load.result["gates"]:
            if gate["state"] == "fired":
                of = fired.setdefault(gate["name"], {"name": gate["name"], "seen": [], "action": gate["action"]})
                of["seen"].append((load.label, gate["sentence"]))
    return list(fired.values())


def _of_cases(number: int, result: Json) -> str:
    return f"{number:,} of {count(result['cases'], 'case')}"
