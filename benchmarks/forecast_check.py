#!/usr/bin/env python3
"""Hold forecasts against what was measured: the tables of docs/forecast.md, in Markdown.

    python benchmarks/forecast_check.py
    python benchmarks/forecast_check.py --cost results/EXPERIMENT --base B-c1 --candidate N-c1 [--outputs OTHER-c1]

Without options: every check of the published results. The cost must come from other deployments than the candidate, or
nothing is forecast. --outputs are the answers that are replayed; without it those of --base.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from specbench import Parser, UserError
from specbench.lookup.checking import Check, check
from specbench.lookup.cost import cost_of, read_cost
from specbench.lookup.table import cost_table, load_name, markdown_table

PUBLISHED = Path(__file__).resolve().parents[1] / "results" / "h200-smollm2-135m"
LOADS = (1, 4, 8)
HALVES = ((("01", "04"), ("02", "03")), (("05", "08"), ("06", "07")))  # (baselines, ngrams) of BNNBBNNB


def published_checks() -> Iterator[tuple[str, Check]]:
    """(what is forecast, the check) of the published results."""
    for load in LOADS:
        for given, tested in (HALVES, HALVES[::-1]):
            cost = cost_of("", [*_runs(given[0], "baseline", load), *_runs(given[1], "ngram", load)])
            base, candidate = _runs(tested[0], "baseline", load), _runs(tested[1], "ngram", load)
            name = f"deployments {', '.join(tested[1])}, cost from {', '.join(given[1])}"
            yield name, check(cost, base, base, candidate)
    cost = read_cost(PUBLISHED)
    for pair in ("2", "1"):
        for load in (1, 8):
            base, candidate = (PUBLISHED / "varied" / f"{pair}-{mode}-c{load}" for mode in ("baseline", "ngram"))
            slow = ", on a slow host" if pair == "1" else ""
            yield f"100 varied prompts, pair {pair}{slow}", check(cost, [base], [base], [candidate])
    for drafted in (3, 8):
        base = PUBLISHED / "08-baseline-c1"
        yield f"k = {drafted}, cost from k = 5", check(cost, [base], [base], [PUBLISHED / "k" / f"{drafted}-ngram-c1"])


def _runs(numbers: Sequence[str], mode: str, load: int) -> list[Path]:
    return [PUBLISHED / f"{number}-{mode}-c{load}" for number in numbers]


def row(name: str, checked: Check, families: Sequence[str]) -> str:
    """One line of the table: predicted → measured by family, then the cases' errors and the drafts."""
    by_name = {each.name: each for each in checked.families}
    ratios = [f"{by_name[name].predicted.ratio:.2f} → {by_name[name].measured:.2f}" for name in families]
    drafts = ", ".join(f"{replayed} / {counted}" for replayed, counted in checked.drafts)
    errors = f"{checked.median_error:.1%}, {checked.largest_error:.0%}"
    return "| " + " | ".join([name, load_name(checked.load), *ratios, errors, drafts]) + " |"


def table(checks: Sequence[tuple[str, Check]]) -> str:
    """Every check in a table of Markdown."""
    families = [each.name for each in checks[0][1].families]
    header = ["forecast of", "load", *families, "error of a case: median, largest", "drafts: replay / server"]
    rule = ["---"] * len(header)
    lines = ["| " + " | ".join(cells) + " |" for cells in (header, rule)]
    return "\n".join([*lines, *(row(name, checked, families) for name, checked in checks)])


def main() -> int:
    parser = Parser(prog="forecast_check.py", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--cost", type=Path, help="folder of the experiment that gives the cost of a step")
    for option in ("base", "candidate", "outputs"):
        parser.add_argument(f"--{option}", type=Path, nargs="+", default=[], metavar="DIRECTORY")
    arguments = parser.parse_args()
    try:
        if arguments.cost is None:
            print(f"{markdown_table(cost_table(read_cost(PUBLISHED)))}\n\n{table(list(published_checks()))}")
            return 0
        if not arguments.base or not arguments.candidate:
            raise UserError("--cost needs --base and --candidate, the deployments that the forecast is held against")
        outputs = arguments.outputs or arguments.base
        checked = check(read_cost(arguments.cost), outputs, arguments.base, arguments.candidate)
        print(table([(arguments.candidate[0].name, checked)]))
    except UserError as error:
        print(f"forecast_check.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
