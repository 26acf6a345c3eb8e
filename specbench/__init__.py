"""What the scripts share: one noun per file, imports run one way.

inventory, transport <- stream
inventory, results, transport, stream <- load
inventory <- service
results <- pairing
polyaxon_run, equality, estimates and charts import none of the others
"""

import argparse
import re
from typing import NoReturn

__version__ = "1.0.0"

# C0 and C1 controls but tab and newline, and the marks that reorder text: harmless in a file, not on a terminal.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class UserError(Exception):
    """Unusable input: one sentence that says what is wrong and what to do. The scripts print it and exit 2."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong with a command line in one sentence, as the scripts do for every other mistake."""

    def error(self, message: str) -> NoReturn:
        """Print `PROG: sentence` and exit 2, without the usage."""
        self.exit(2, printable(f"{self.prog}: {message}; --help lists the options\n"))


def printable(text: str) -> str:
    """`text` with every character that could steer a terminal or reorder a line shown as `\\xNN` or `\\uNNNN`."""
    return _UNPRINTABLE.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)
