"""What people read: every number, time, list and plural, written one way everywhere, and safe to print."""

import re
from collections.abc import Sequence

# C0 and C1 controls but tab and newline, and the marks that reorder text: harmless in a file, not on a terminal.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """`text` with every character that could steer a terminal or reorder a line shown as `\\xNN` or `\\uNNNN`."""
    return _UNPRINTABLE.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def count(number: int, noun: str) -> str:
    """A number with its noun in the right form: 1 user, 1,000 users."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def some(names: Sequence[str], most: int = 6) -> str:
    """A list that stays short: at most `most` names, then how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


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
