"""What may be stored of command lines and URLs: nothing that lets anyone in.

Standard library only, so that launch_vllm.py can use it inside the vLLM container.
"""

import html
import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from specbench.words import printable

REDACTED = "REDACTED"
SHORTEST_SECRET = 6
# The end of a flag's or a variable's name whose value is a secret: --api-key and HF_TOKEN, but not
# --max-num-batched-tokens.
SECRET_NAME = re.compile(r"(?:^|[-_])(?:key|token|secret|password|passwd|credentials?)$", re.IGNORECASE)
# The same inside a longer word: a whole command line given to --vllm or to `bash -c`, --env=HF_TOKEN=…, JSON. The
# value may be quoted, in parts or as a whole.
SECRET_INSIDE = re.compile(
    r"""((?:^|[\s=;&|'"{(,])-*(?:[\w-]*[-_])?(?:key|token|secret|password|passwd|credentials?)"""
    r"""(?:['"]?\s*[=:]\s*|\s+(?!-)))"""
    r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s;&|])+""",
    re.IGNORECASE,
)
URL_USERINFO = re.compile(r"(?<=://)[^/\s]+@")


def redacted(argv: Sequence[str]) -> list[str]:
    """A server's command line without its secrets: values of --api-key and its like, of TOKEN=…, userinfo in URLs."""
    result: list[str] = []
    secret = False
    for word in argv:
        name, assigned, _ = word.partition("=")
        if word.startswith("-") or (assigned and not secret):
            secret = SECRET_NAME.search(name) is not None
            word = f"{name}={REDACTED}" if secret and assigned else word
            secret = secret and not assigned
        elif secret:
            word = REDACTED
        word = SECRET_INSIDE.sub(rf"\g<1>{REDACTED}", word)
        result.append(without_userinfo(word))
    return result


def without_userinfo(text: str) -> str:
    """`text` with the user name and password of every URL in it replaced."""
    return URL_USERINFO.sub(f"{REDACTED}@", text)


def command_line(argv: Sequence[str]) -> list[str]:
    """The command line of one of our own scripts as it may be stored: URLs without userinfo, query and fragment.

    What is no text, as a file name that is not UTF-8, is shown by its bytes.
    """
    return [printable(_without_credentials(argument)) for argument in argv]


def public_url(url: str) -> str:
    """`url` without userinfo, query and fragment."""
    scheme, separator, rest = re.split("[?#]", url, maxsplit=1)[0].partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"


def _without_credentials(argument: str) -> str:
    option, separator, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    return f"{option}{separator}{public_url(value)}" if "://" in value else argument


class Secrets:
    """Values that no file and no line of output may show, whoever sends them back.

    Shorter ones than SHORTEST_SECRET characters are left alone: they would be found in every text, and protect nothing.
    """

    def __init__(self, *values: str | None) -> None:
        forms: set[str] = set()
        for value in values:
            if value and len(value) >= SHORTEST_SECRET:
                forms |= {value, json.dumps(value)[1:-1], html.escape(value), quote(value, safe="")}
        longest_first = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE) if forms else None

    def hide(self, text: str) -> str:
        """`text` with every secret in it replaced, also where it was escaped for JSON, HTML or a URL."""
        return text if self._pattern is None else self._pattern.sub(REDACTED, text)

    def hide_in(self, value: Any) -> Any:
        """The same for every text in JSON that was decoded, keys included."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, dict):
            return {self.hide_in(key): self.hide_in(item) for key, item in value.items()}
        return [self.hide_in(item) for item in value] if isinstance(value, list) else value
