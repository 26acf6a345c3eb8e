"""Texts from elsewhere, as the page writes them: cut, made visible, escaped."""

import re

from markupsafe import Markup, escape

from specbench.page.evidence import CLAMP
from specbench.words import printable


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
