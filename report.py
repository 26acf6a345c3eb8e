"""An experiment as one HTML page: should n-gram be turned on, for what, at which load, and how sure is that?

    python report.py results/trial
    python report.py baseline-c1 ngram-c1 baseline2-c1 ngram2-c1 --out page.html --no-text

DIR is an experiment (experiment.py --out), or several result directories of both modes (bench.py --out). The page is
one file that needs no network and runs no script. Every number on it is from compare.py's JSON or the result
directories. Model output is untrusted: escaped, control characters made visible, cut at CLAMP characters.
"""
import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from specbench import Parser, UserError
from specbench.files import check_writable, write_atomically
from specbench.words import printable

try:
    import jinja2

    from specbench.page.evidence import gather
    from specbench.page.page import page
except ModuleNotFoundError as error:
    print(f"report.py: the page needs {error.name}: pip install -r requirements-demo.txt", file=sys.stderr)
    sys.exit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Read, draw, write one file; print its path."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.out is not None:
            check_writable(arguments.out, "--out")
        try:
            evidence = gather(arguments.directories)
            content = page(evidence, text=not arguments.no_text).encode(errors="backslashreplace")
        except (KeyError, TypeError, AttributeError, jinja2.UndefinedError) as error:
            named = ", ".join(map(str, arguments.directories))
            raise UserError(f"a file of {named} lacks a key ({error}); it was edited: make it again") from None
        out = arguments.out or evidence.folder / "report.html"
        try:
            write_atomically(out, content)
        except OSError as error:
            raise UserError(f"cannot write {out}: {error.strerror}; name another file with --out") from None
    except UserError as error:
        print(f"report.py: {printable(str(error))}", file=sys.stderr)
        return 2
    print(out)
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="report.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "directories", nargs="+", type=Path, metavar="DIR", help="an experiment, or result directories of both modes"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.html", help="default: report.html in DIR, or here")
    parser.add_argument("--no-text", action="store_true", help="leave the model's outputs out of the page")
    return parser


if __name__ == "__main__":
    sys.exit(main())
