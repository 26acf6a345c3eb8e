"""One seed is one schedule; every repeat holds every case once; the warm-up ends as it must."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from support import ROOT

from specbench.workload.case import Case
from specbench.workload.inventory import Inventory, read_inventory
from specbench.workload.schedule import schedule, schedule_manifest, warmup


@given(count=st.integers(1, 30), repeats=st.integers(1, 6), seed=st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_every_repeat_holds_every_case_once(count: int, repeats: int, seed: int) -> None:
    inventory = Inventory("p", [Case(f"c{n}", "f", [], None, None) for n in range(count)], "x")
    items = schedule(inventory, repeats, seed)
    assert [item.position for item in items] == list(range(count * repeats))
    for repeat in range(repeats):
        block = items[repeat * count : (repeat + 1) * count]
        assert {item.repeat for item in block} == {repeat}
        assert sorted(item.case.id for item in block) == sorted(case.id for case in inventory.cases)
    assert schedule(inventory, repeats, seed) == items


def test_the_seed_changes_the_digest() -> None:
    inventory = read_inventory(ROOT / "prompts.jsonl")
    first_seed, other_seed = (schedule_manifest(schedule(inventory, 2, seed), 2, seed) for seed in (0, 1))
    assert first_seed["requests"] == 18 and first_seed["sha256"] != other_seed["sha256"]


def test_the_warmup_ends_with_three_repetitive_prompts() -> None:
    inventory = read_inventory(ROOT / "prompts.jsonl")
    items = warmup(inventory)
    assert [item.case for item in items[:-3]] == inventory.cases
    assert all(item.repeat is None and item.position is None for item in items)
    assert [item.case.family for item in items[-3:]] == ["warmup"] * 3


def test_the_digest_is_that_of_a_published_run() -> None:
    published = json.loads((ROOT / "results/h200-smollm2-135m/01-baseline-c1/manifest.json").read_text())["schedule"]
    inventory = read_inventory(ROOT / "prompts.jsonl")
    repeats, seed = published["repeats"], published["seed"]
    assert schedule_manifest(schedule(inventory, repeats, seed), repeats, seed) == published
