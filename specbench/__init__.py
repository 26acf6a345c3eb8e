"""What the scripts share: one noun per file.

A wing per subject on a shared ground floor; imports run downward only (docs/architecture.md).
"""

import argparse
from pathlib import Path
from typing import NoReturn

from specbench.words import printable

__version__ = "1.0.0"

class UserError(Exception):
    """Unusable input: one sentence that says what is wrong and what to do. The scripts print it and exit 2."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong with a command line in one sentence, as the scripts do for every other mistake."""

    def error(self, message: str) -> NoReturn:
        """Print `PROG: sentence` and exit 2, without the usage."""
        self.exit(2, printable(f"{self.prog}: {message}; --help lists the options\n"))


def path_argument(text: str) -> Path:
    """The `type` of an argparse argument that names a file or a folder: an empty name is a mistake in a script."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the name is empty")
    return Path(text)
