"""What a person reads when the experiment is complete."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from specbench.comparison.format import Comparison
from specbench.deploy.next_steps import next_steps
from specbench.deploy.state import Settings, State
from specbench.words import count, listed, printable, ratio

MOST_FAMILIES = 6  # columns of the last table; beyond it overall alone


def closing(folder: Path, state: State) -> str:
    """Each load's table in full, then one line a load, its answer, what to do next, and what could not be proven."""
    blocks = []
    results = []
    for load in state.settings.concurrency:
        comparison = state.comparisons[load]
        blocks += [f"==== {count(load, 'user')}", (folder / str(comparison.text)).read_text()]
        results.append(msgspec.json.decode((folder / comparison.json).read_bytes(), type=Comparison))
    blocks += ["==== In short: end-to-end latency (E2EL), ngram / baseline; below 1 ngram is faster"]
    blocks += in_short(results)
    blocks += answers(results)
    blocks += whats_next(results, folder, state.settings)
    unproven = {sentence for one in state.deployments if one.proof for sentence in one.proof.not_proven}
    blocks += [f"Not proven between deployments: {printable(sentence)}" for sentence in sorted(unproven)]
    return "\n".join(blocks)


def in_short(results: Sequence[Comparison]) -> list[str]:
    """A line a load: the ratio of each family and overall, and the verdict."""
    rows: list[list[str]] = []
    for result in results:
        metric = result.metrics["e2el"]
        families = list(metric.families.values())
        lines = [*(families if len(families) <= MOST_FAMILIES else []), metric.overall]
        if not rows:
            rows.append(["", *(printable(line.name) for line in lines), "verdict"])
        word = result.verdict.verdict
        verdict = "no verdict" if word is None else word.value
        ratios = [ratio(line.interval.ratio, digits=2) for line in lines]
        rows.append([count(result.concurrency, "user"), *ratios, verdict])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[-1] = 0
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def answers(results: Sequence[Comparison]) -> list[str]:
    """The verdict of each load in a sentence."""
    return [f"{count(result.concurrency, 'user')}: {printable(result.verdict.sentence)}." for result in results]


def whats_next(results: Sequence[Comparison], folder: Path, settings: Settings) -> Iterator[str]:
    """The step that would sharpen the answer most, for loads with one step together, and its commands."""
    for step in next_steps(results, folder, settings):
        loads = "" if len(step.loads) == len(results) else f", {listed([count(load, 'user') for load in step.loads])}"
        yield f"Next{loads}: {printable(step.sentence)}."
        yield from (f"  {printable(command)}" for command in step.commands)
