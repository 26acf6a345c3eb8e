"""What people read: every number, time, list and plural, written one way everywhere, and safe to print."""

import re
from collections.abc import Sequence

# Characters that are harmless in a file and not on a terminal or a page:
_UNPRINTABLE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1 controls but tab and newline
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb"  # marks that reorder or break text
    "\u00ad\u034f\u180b-\u180f\u200b-\u200d\u2060-\u2065\ufeff"  # nothing is drawn for them
    "\u115f\u1160\u17b4\u17b5\u3164\uffa0\U0001d173-\U0001d17a"  # fillers, and what music is written with
    "\U000e0000-\U000e0fff\ufe00-\ufe0e"  # tags and variation selectors, which can carry a hidden text
    "\ud800-\udfff"  # halves of a surrogate pair, which no encoding takes
    "]|(?<=[\ufe00-\ufe0f])\ufe0f"  # one after an emoji is how emoji are written, several carry text
)


def printable(text: str) -> str:
    """`text` with every character that could steer a terminal or reorder a line shown as `\\xNN` or `\\uNNNN`."""
    return _UNPRINTABLE.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def number(value: float | None, digits: int = 3) -> str:
    """A number with `digits` decimals, thousands separated; – where there is none."""
    return "–" if value is None else f"{value:,.{digits}f}"


def percent(share: float | None, digits: int = 0) -> str:
    """A share between 0 and 1 in percent; – where there is none."""
    return "–" if share is None else f"{share:.{digits}%}"


def chance(p: float | None) -> str:
    """A p value; – where nothing was tested."""
    return "–" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def count(number: int, noun: str) -> str:
    """A number with its noun in the right form: 1 user, 1,000 users."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def some(names: Sequence[str], most: int = 6) -> str:
    """A list that stays short: at most `most` names, then how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def listed(names: Sequence[str]) -> str:
    """All of them in a sentence: copy, explain and short."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def ratio(value: float | None, digits: int = 3) -> str:
    """A ratio, or another number of that size: 0.714, 12.3; – where there is none."""
    if value is None:
        return "–"
    return f"{value:.{digits}f}" if value < 10 else f"{value:,.1f}"


def duration(seconds: float | None) -> str:
    """A time with three digits and its unit: 12.3 ms, 1.23 s; – where there is none."""
    if seconds is None:
        return "–"
    if seconds < 0.9995:
        return f"{seconds * 1000:#.3g} ms".replace(". ", " ")
    return f"{seconds:#.3g} s".replace(". ", " ") if seconds < 999.5 else f"{seconds:,.0f} s"


def roughly(seconds: float) -> str:
    """How long something will take, in whole seconds or minutes: 40 s, 12 min."""
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
