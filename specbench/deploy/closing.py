"""What a person reads when the experiment is complete."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.deploy.state import State
from specbench.words import count, printable, ratio


def closing(folder: Path, state: State) -> str:
    """Each load's table in full, then one line a load, then what could not be proven."""
    blocks = []
    results = []
    for load in state.settings.concurrency:
        comparison = state.comparisons[load]
        users = count(load, "user")
        blocks += [f"==== {users}", (folder / str(comparison.text)).read_text()]
        results.append((users, json.loads((folder / comparison.json).read_bytes())))
    blocks += ["==== In short: end-to-end latency (E2EL), ngram / baseline; below 1 ngram is faster"]
    blocks += in_short(results)
    for users, result in results:
        if result["verdict"]["verdict"] == "not comparable":
            blocks.append(f"{users}: {printable(result['verdict']['sentence'])}.")
    unproven = {sentence for one in state.deployments if one.proof for sentence in one.proof.not_proven}
    blocks += [f"Not proven between deployments: {printable(sentence)}" for sentence in sorted(unproven)]
    return "\n".join(blocks)


def in_short(results: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """A line a load (its name, compare.py's JSON): the ratio of each family and overall, and the verdict."""
    rows: list[list[str]] = []
    for load, result in results:
        metric = result["metrics"]["e2el"]
        lines = [*metric["families"].values(), metric["overall"]]
        if not rows:
            rows.append(["", *(printable(line["name"]) for line in lines), "verdict"])
        verdict = printable(str(result["verdict"]["verdict"] or "no verdict"))
        rows.append([load, *(ratio(line["interval"]["ratio"], digits=2) for line in lines), verdict])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[-1] = 0
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
