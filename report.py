"""An experiment as one HTML page: should n-gram be turned on, for what, at which load, and how sure is that?

    python report.py results/trial
    python report.py results/trial --mix copy=0.7,explain=0.2,short=0.1 --out mix.html
    python report.py baseline-c1 ngram-c1 baseline2-c1 ngram2-c1 --out page.html --no-text

DIR is an experiment (experiment.py --out), or several result directories of both modes (bench.py --out). The page is
one file that needs no network and runs no script. Every number on it is from compare.py's JSON or the result
directories. Model output is untrusted: escaped, hidden characters made visible, long ones cut.
Exit 0: the page is written. 2: unusable input, one sentence on stderr.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from specbench import Parser, UserError, path_argument, terminal
from specbench.files import check_writable, write_output

PAGE = "report.html"


def main(argv: Sequence[str] | None = None) -> int:
    """Read, draw, write one file; print its path."""
    arguments = _parser().parse_args(argv)
    try:
        out = arguments.out or _default_out(arguments.directories)
        check_writable(out, "--out")
        write_output(out, _page(arguments), "--out")
    except ModuleNotFoundError as error:
        terminal.say(f"report.py: the page needs {error.name}: pip install -r requirements-demo.txt")
        return 2
    except UserError as error:
        terminal.say(f"report.py: {error}")
        return 2
    if out.is_file():  # not a device, into which the page itself was written
        print(out)
    return 0


def _page(arguments: argparse.Namespace) -> bytes:
    # Not at the top: this takes up to a second, in which terminal.run makes one sentence of Ctrl-C.
    from specbench.comparison.assessment import Options
    from specbench.comparison.mix import parse_mix
    from specbench.page.evidence import gather
    from specbench.page.page import page

    options = Options(parse_mix(arguments.mix), arguments.primary, accept_floor=True)
    try:
        content = page(gather(arguments.directories, options), text=not arguments.no_text)
    except RecursionError:
        raise UserError("a manifest holds values nested too deeply to be shown; it was edited: measure again") from None
    return content.encode(errors="backslashreplace")


def _default_out(directories: Sequence[Path]) -> Path:
    """In the experiment's folder, or here."""
    experiment = len(directories) == 1 and directories[0].is_dir() and not (directories[0] / "manifest.json").exists()
    return directories[0] / PAGE if experiment else Path(PAGE)


def _parser() -> Parser:
    parser = Parser(prog="report.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    kinds = "an experiment, or result directories of both modes"
    add("directories", nargs="+", type=path_argument, metavar="DIR", help=kinds)
    add("--out", type=path_argument, metavar="FILE.html", help="default: report.html in DIR, or here")
    add("--mix", metavar="FAMILY=WEIGHT,…", help="weigh families by the intended traffic; sums to 1")
    primary = "the one line to conclude from, named before looking (default: overall, or --mix)"
    add("--primary", default="overall", metavar="overall|FAMILY", help=primary)
    add("--no-text", action="store_true", help="leave the model's outputs out of the page")
    return parser


if __name__ == "__main__":
    sys.exit(terminal.run("report.py", main))
