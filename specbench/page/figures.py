"""Numbers and texts as the page writes them."""

import re

from markupsafe import Markup, escape

from specbench.page.evidence import CLAMP
from specbench.words import printable


def seconds(value: float | None) -> str:
    """12.3 ms, 4.56 s; a dash for what does not exist."""
    if value is None:
        return "–"
    return f"{value * 1000:#.3g} ms".replace(". ", " ") if value < 0.9995 else f"{value:#.3g} s".replace(". ", " ")


def number(value: float | None, digits: int = 3) -> str:
    """A ratio or a rate with `digits` decimals; thousands separated; a dash for what does not exist."""
    return "–" if value is None else f"{value:,.{digits}f}"


def chance(value: float | None) -> str:
    """A p value; a dash where nothing was tested."""
    return "–" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def percent(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:.{digits}%}"


def shown(text: object, limit: int = CLAMP) -> str:
    """Text from elsewhere, cut at `limit` characters, with control and bidi characters made visible."""
    whole = str(text)
    return printable(whole[:limit]) + ("…" if len(whole) > limit else "")


def prose(text: str) -> Markup:
    """A sentence of ours or compare.py's with its command-line flags set as code, which are then not broken up."""
    return Markup(re.sub(r"(--[a-z][a-z-]*)", r"<code>\1</code>", str(escape(printable(text)))))


def harmless(value: object) -> object:
    """What the template prints passes here, then is escaped; drawings, which are `Markup`, stay as they are."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
