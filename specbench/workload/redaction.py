"""Personal data and secrets in texts, replaced by placeholders: the same value has the same placeholder everywhere.

What has a form that a program can know is found: e-mail addresses, telephone numbers, keys and tokens, IP addresses,
UUIDs and card numbers. Names, addresses and whatever is secret by its meaning are not: read the result before it leaves
the house. Repeats stay equal, so what n-gram drafting finds in a text is found in its redacted form as well.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from specbench.workload.case import Case, Entry

_PLACEHOLDER = re.compile(r"<([A-Z]+)_(\d+)>")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value: what its placeholders are called, where it may stand, and whether it really is one.

    The pattern's group `value` is replaced where it has one, else all that it matches.
    """

    name: str
    pattern: re.Pattern[str]
    holds: Callable[[str], bool] = bool


class Redactor:
    """Replaces values in texts and counts them. One redactor knows the placeholders of one file.

    `texts`: everything that will be redacted; placeholders that stand there already are not used again.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.counts: Counter[str] = Counter()
        self._placeholders: dict[tuple[str, str], str] = {}
        self._last: dict[str, int] = {}
        for text in texts:
            for name, number in _PLACEHOLDER.findall(text):
                self._last[name] = max(self._last.get(name, 0), int(number[:9]))

    def text(self, text: str) -> str:
        """`text` with every value that was recognised replaced."""
        for kind in KINDS:
            text = kind.pattern.sub(partial(self._replaced, kind), text)
        return text

    def entry(self, entry: Entry) -> Entry:
        """An entry with every text of it redacted; the token counts of a text that changed are dropped with it."""
        case = entry.case
        messages = [
            {key: text if key == "role" else self.text(text) for key, text in message.items()}
            for message in case.messages
        ]
        redacted = Case(self.text(case.id), self.text(case.family), messages, case.max_tokens, self._value(case.expect))
        answer = None if entry.answer is None else self.text(entry.answer)
        counted = entry if answer == entry.answer and messages == case.messages else Entry(case, entry.line)
        return Entry(redacted, entry.line, answer, counted.prompt_tokens, counted.completion_tokens)

    def distinct(self) -> Counter[str]:
        """How many different values of each kind were replaced."""
        return Counter(name for name, _ in self._placeholders)

    def _value(self, value: Any) -> Any:
        """A JSON value with its texts redacted, as `expect` has them."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._value(element) for element in value]
        if isinstance(value, dict):
            return {key: self._value(element) for key, element in value.items()}
        return value

    def _replaced(self, kind: Kind, match: re.Match[str]) -> str:
        group = "value" if "value" in kind.pattern.groupindex else 0
        value = match[group]
        if not kind.holds(value):
            return match[0]
        self.counts[kind.name] += 1
        placeholder = self._placeholders.get((kind.name, value))
        if placeholder is None:
            number = self._last[kind.name] = self._last.get(kind.name, 0) + 1
            placeholder = self._placeholders[kind.name, value] = f"<{kind.name}_{number}>"
        start, end = match.start(group) - match.start(), match.end(group) - match.start()
        return match[0][:start] + placeholder + match[0][end:]


def texts(entries: Iterable[Entry]) -> Iterator[str]:
    """Every text of the entries that a model reads or wrote."""
    for entry in entries:
        yield entry.case.id
        yield entry.case.family
        yield from (text for message in entry.case.messages for text in message.values())
        if entry.answer is not None:
            yield entry.answer


def _is_card(text: str) -> bool:
    """13 to 19 digits that begin as cards do and pass Luhn's check (ISO/IEC 7812-1)."""
    digits = [int(character) for character in text if character.isdigit()]
    if not 13 <= len(digits) <= 19 or digits[0] not in (2, 3, 4, 5, 6) or len(set(digits)) == 1:
        return False
    doubled = [digit if place % 2 == 0 else sum(divmod(2 * digit, 10)) for place, digit in enumerate(digits[::-1])]
    return sum(doubled) % 10 == 0


def _is_ip(text: str) -> bool:
    if ":" in text and not any(character.isdigit() for character in text):
        return False  # a::b is a name in several languages
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_phone(text: str) -> bool:
    """A number as people write one: international with + or 00, or national with a leading 0, brackets or US groups.

    Plain runs of digits are order numbers more often than telephone numbers, and dates are dates.
    """
    digits = sum(character.isdigit() for character in text)
    if text.startswith(("+", "00")):
        return 8 <= digits <= 16
    if _DATE.search(text) or text.startswith("0.") or not 9 <= digits <= 13:
        return False
    return bool(_US_PHONE.fullmatch(text)) or (text[0] in "0(" and bool(re.search(r"[ ()/.-]", text)))


_DATE = re.compile(r"\b\d{4}[-./]\d{1,2}[-./]\d{1,2}\b|\b\d{1,2}[-./]\d{1,2}[-./]\d{4}\b")
_US_PHONE = re.compile(r"(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}")
# Every repetition is bounded or starts only where no earlier one could: a line of ten megabytes takes linear time.
KINDS = (
    Kind(
        "KEY",
        re.compile(
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:[^-]|-(?!----)){0,20000}-----END [A-Z ]{0,40}PRIVATE KEY-----"
            r"|\b(?:sk|pk|rk)[-_](?:live_|test_|proj-|ant-|or-)?[\w-]{16,200}"
            r"|\b(?:gh[oprsu]_|github_pat_|glpat-|hf_|npm_|pypi-|xox[abeprs]-|ya29\.|SG\.|dop_v1_)[\w.-]{16,300}"
            r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[\w-]{35}"
            r"|\beyJ[\w-]{8,4000}\.[\w-]{8,8000}\.[\w-]{8,2000}"
        ),
    ),
    Kind("KEY", re.compile(r"(?i)\b(?:bearer|basic|token)[ :]{1,3}(?P<value>[\w.~+/=-]{16,4000})")),
    Kind(
        "KEY",
        re.compile(
            r"(?i)(?:api[_-]?key|secret|token|passw(?:or)?d|pwd)[\"']?\s{0,3}[:=]\s{0,3}[\"']?"
            r"(?P<value>(?!<[A-Z]+_\d)[^\s\"',;<>{}()\[\]]{6,500})"
        ),
    ),
    Kind("KEY", re.compile(r"://[^\s/:@]{1,100}:(?P<value>[^\s/@]{1,200})@")),
    Kind("EMAIL", re.compile(r"(?<![\w.+%-])[\w.+%-]{1,256}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")),
    Kind("UUID", re.compile(r"(?i)(?<![0-9a-f])[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![0-9a-f])")),
    Kind("CARD", re.compile(r"(?<![\d.])\d(?:[ -]?\d){12,18}(?!\d)"), _is_card),
    Kind("IP", re.compile(r"(?<![\w.:])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)"), _is_ip),
    Kind(
        "IP",
        re.compile(r"(?i)(?<![\w.:])(?=[0-9a-f]{0,4}:)[0-9a-f:]{2,39}(?:(?<=:)\d{1,3}(?:\.\d{1,3}){3})?(?![\w:]|\.\d)"),
        _is_ip,
    ),
    Kind("PHONE", re.compile(r"(?<![\w.,/:+-])(?:\+|\(\+?)?\d[\d ()./-]{6,22}\d(?!\w)"), _is_phone),
)
