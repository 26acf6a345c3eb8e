"""What the scripts share: one noun per file, imports run one way.

inventory <- results <- transport <- stream <- load
service   polyaxon_run   results <- pairing   equality   estimates
"""

import re

__version__ = "1.0.0"

# C0 and C1 controls but tab and newline, and the marks that reorder text: harmless in a file, not on a terminal.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class UserError(Exception):
    """Unusable input: one sentence that says what is wrong and what to do. The scripts print it and exit 2."""


def printable(text: str) -> str:
    """`text` with every character that could steer a terminal or reorder a line shown as `\\xNN` or `\\uNNNN`."""
    return _UNPRINTABLE.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)
