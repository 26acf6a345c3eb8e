"""The order in which cases are sent. Both modes send one schedule, and its digest proves it."""

import json
import random
from collections.abc import Sequence
from typing import Any

import msgspec

from specbench.workload.case import Case
from specbench.workload.inventory import Inventory, list_digest

WARMUP_FAMILY = "warmup"
_REPETITIVE_TOKENS = 32  # several proposals, verified: after the first nothing is left to compile
_REPETITIVE = (
    "Repeat this line ten times, exactly: red green blue red green blue red green blue",
    "Continue the pattern without stopping: one two three four one two three four one two three four",
    "Write the word list again and again: north east south west north east south west north east south west",
)


class Item(msgspec.Struct, frozen=True, gc=False):  # a million of them are made before a long run: 0.1 s so
    """One request to send. `repeat` and `position` count from 0 and are None in the warm-up."""

    case: Case
    repeat: int | None
    position: int | None


def schedule(inventory: Inventory, repeats: int, seed: int) -> list[Item]:
    """repeats × inventory, shuffled inside each repeat.

    Shuffling inside repeats keeps drift of a run off the differences between cases: under slow noise those are 30%
    tighter than after one shuffle over everything (docs/statistics.md).
    """
    generator = random.Random(seed)
    items: list[Item] = []
    for repeat in range(repeats):
        order = list(inventory.cases)
        generator.shuffle(order)
        items += [Item(case, repeat, position) for position, case in enumerate(order, start=len(items))]
    return items


def schedule_manifest(items: Sequence[Item], repeats: int, seed: int) -> dict[str, Any]:
    """What manifest.json holds of a schedule; the digest covers which case is sent at which position."""
    names = {item.case.id: json.dumps(item.case.id) for item in items[: len(items) // repeats]}
    sha256 = list_digest(f"[{names[item.case.id]},{item.repeat}]" for item in items)
    return {"sha256": sha256, "requests": len(items), "repeats": repeats, "seed": seed}


def warmup(inventory: Inventory) -> list[Item]:
    """Every case once, then three strongly repetitive prompts: vLLM's proposer compiles at its first real proposal."""
    repetitive = [
        Case(f"warmup-repeat-{number}", WARMUP_FAMILY, [{"role": "user", "content": text}], _REPETITIVE_TOKENS, None)
        for number, text in enumerate(_REPETITIVE, start=1)
    ]
    return [Item(case, None, None) for case in [*inventory.cases, *repetitive]]
