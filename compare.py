"""Compare result directories of two modes: same requests? same outputs? which is faster, and may one say so?

    python compare.py baseline-c1 ngram-c1
    python compare.py baseline-c1 ngram-c1 --and baseline2-c1 ngram2-c1 --json comparison.json
    python compare.py baseline-c8 ngram-c8 --accept-floor --show copy-1

Base first. Exit 0: comparable and equal. 1: not (outputs differ, or a gate fired). 2: unusable input.
One deployment of each mode describes these two and concludes nothing. docs/comparison.md describes the table and the
JSON, docs/statistics.md the method.
"""

import argparse
from collections.abc import Sequence

from specbench import Parser, UserError, path_argument
from specbench.comparison.assessment import Options, assess
from specbench.comparison.format import Comparison
from specbench.comparison.mix import parse_mix
from specbench.comparison.pairing import pair
from specbench.comparison.table import json_bytes, markdown_bytes, show_case, table
from specbench.files import check_writable, write_output
from specbench.terminal import run, say


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print the table, write what was asked for; the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        for option in ("json", "markdown"):
            if (path := getattr(arguments, option)) is not None:
                check_writable(path, f"--{option}")
        result, shown = _compared(arguments)
        for option, content in (("json", json_bytes), ("markdown", markdown_bytes)):
            if (path := getattr(arguments, option)) is not None:
                write_output(path, content(result), f"--{option}")
    except UserError as error:
        say(f"compare.py: {error}")
        return 2
    print(table(result))
    if shown is not None:
        print(f"\n{shown}")
    return result.exit_code


def _compared(arguments: argparse.Namespace) -> tuple[Comparison, str | None]:
    """The result, and the case that --show asks for."""
    options = Options(
        mix=parse_mix(arguments.mix),
        primary=arguments.primary,
        accept_floor=arguments.accept_floor,
        allow_same_mode=arguments.allow_same_mode,
        spread_from=tuple(arguments.spread_from),
    )
    bases = [arguments.base, *(base for base, _ in arguments.more)]
    candidates = [arguments.candidate, *(candidate for _, candidate in arguments.more)]
    both = pair(bases, candidates, options.allow_same_mode)
    result = assess(both, options)
    return result, None if arguments.show is None else show_case(both, result, arguments.show)


def _parser() -> Parser:
    parser = Parser(prog="compare.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "base", type=path_argument, metavar="BASE", help="result directory of the base, as a rule the baseline"
    )
    parser.add_argument("candidate", type=path_argument, metavar="CANDIDATE", help="result directory of the candidate")
    parser.add_argument(
        "--and", dest="more", nargs=2, type=path_argument, action="append", default=[], metavar=("BASE", "CANDIDATE"),
        help="another deployment of each side; may be given again",
    )  # fmt: skip
    parser.add_argument("--json", type=path_argument, metavar="FILE", help="write everything (docs/comparison.md)")
    parser.add_argument("--markdown", type=path_argument, metavar="FILE", help="write the table as Markdown")
    parser.add_argument("--show", metavar="CASE", help="print every distinct output of a case")
    parser.add_argument("--mix", metavar="FAMILY=WEIGHT,…", help="weigh families by the intended traffic; sums to 1")
    parser.add_argument(
        "--primary", default="overall", metavar="overall|FAMILY",
        help="the one verdict to conclude from, named before looking (default: overall, or --mix)",
    )  # fmt: skip
    parser.add_argument(
        "--accept-floor", action="store_true", help="pass outputs that are within the baseline's variation"
    )
    parser.add_argument(
        "--spread-from", nargs="+", type=path_argument, default=[], metavar="EXPERIMENT",
        help="declare that deployments spread as in these earlier experiments on the same stack, and use both",
    )  # fmt: skip
    parser.add_argument("--allow-same-mode", action="store_true", help="compare a mode with itself")
    return parser


if __name__ == "__main__":
    raise SystemExit(run("compare.py", main))
