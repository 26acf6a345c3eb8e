"""A sample keeps the families' shares, is the same when drawn again, and is written down with its origin."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.workloads import SAMPLES, write_sample

from specbench import UserError
from specbench.workload.case import Case, Entry
from specbench.workload.frozen import line, origin_path, write
from specbench.workload.inventory import read_inventory, read_workload
from specbench.workload.sampling import sample, shares


def entries(**families: int) -> list[Entry]:
    cases = [Case(f"{family}-{n}", family, [{"role": "user", "content": "x"}], None, None)
             for family, count in families.items() for n in range(count)]
    return [Entry(case, number) for number, case in enumerate(cases, start=1)]


@given(st.lists(st.integers(1, 500), min_size=1, max_size=12), st.data())
@settings(max_examples=200, deadline=None)
def test_shares_are_proportional_and_never_nothing_or_too_many(counts: list[int], data: st.DataObject) -> None:
    total = data.draw(st.integers(len(counts), sum(counts)))
    given_places = shares(counts, total)
    assert sum(given_places) == total
    assert all(1 <= places <= count for places, count in zip(given_places, counts, strict=True))
    if all(total * count >= sum(counts) for count in counts):  # no family needs the place that it would not get
        exact = [total * count / sum(counts) for count in counts]
        assert all(abs(places - share) < 1 for places, share in zip(given_places, exact, strict=True))


def test_the_same_seed_draws_the_same_cases_whatever_their_order() -> None:
    everything = entries(a=60, b=30, c=10)
    drawn = sample(everything, 20, 1, by_family=True)
    assert Counter(entry.case.family for entry in drawn) == {"a": 12, "b": 6, "c": 2}
    ids = {entry.case.id for entry in drawn}
    assert ids == {entry.case.id for entry in sample(everything[::-1], 20, 1, by_family=True)}
    assert ids != {entry.case.id for entry in sample(everything, 20, 2, by_family=True)}
    assert [entry.line for entry in drawn] == sorted(entry.line for entry in drawn)


def test_every_case_is_drawn_equally_often() -> None:
    everything = entries(a=30)
    drawn = Counter(entry.case.id for seed in range(600) for entry in sample(everything, 10, seed, by_family=False))
    assert len(drawn) == 30 and max(drawn.values()) < 270 and min(drawn.values()) > 130  # 200 ± 6 standard deviations


def test_a_sample_that_cannot_be_drawn_is_a_sentence() -> None:
    with pytest.raises(UserError, match="more than the 3 cases"):
        sample(entries(a=3), 4, 0, by_family=True)
    with pytest.raises(UserError, match="less than the 3 families"):
        sample(entries(a=1, b=1, c=1), 2, 0, by_family=True)


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_frozen_reads_back_as_the_same_cases_and_answers(tmp_path: Path, name: str) -> None:
    source = write_sample(tmp_path, name)
    workload = read_workload(source)
    out = tmp_path / "frozen.jsonl"
    origin = write(out, workload.entries, source=source, workload=workload, step="freeze", options={})
    again = read_workload(out)
    assert again.format == "native lines" and again.sha256 == workload.sha256 == origin.sha256
    kept = [(entry.case, entry.answer, entry.prompt_tokens, entry.completion_tokens) for entry in workload.entries]
    assert kept == [(entry.case, entry.answer, entry.prompt_tokens, entry.completion_tokens) for entry in again.entries]
    assert read_inventory(out).sha256 == read_inventory(source).sha256
    assert b"".join(line(entry) for entry in again.entries) == out.read_bytes()
    if name != "native":  # what is native may have been written otherwise
        assert origin.read_as == SAMPLES[name].read_as


def test_the_origin_says_what_was_left_out_and_where_its_source_came_from(tmp_path: Path) -> None:
    source = tmp_path / "log.jsonl"
    source.write_text('{"prompt": "x"}\n{\n{"prompt": "y"}\n')
    workload = read_workload(source)
    write(tmp_path / "a.jsonl", workload.entries, source=source, workload=workload, step="freeze", options={})
    again = read_workload(tmp_path / "a.jsonl")
    write(tmp_path / "b.jsonl", again.entries[:1], source=tmp_path / "a.jsonl", workload=again, step="sample",
          options={"n": 1})
    origin = json.loads(origin_path(tmp_path / "b.jsonl").read_text())
    assert origin["cases"] == 1 and origin["earlier"]["left_out"] == 1 and origin["earlier"]["cases"] == 2
    assert origin["earlier"]["left_out_lines"][0]["line"] == 2
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("\n")
    write(tmp_path / "c.jsonl", again.entries, source=tmp_path / "a.jsonl", workload=again, step="freeze", options={})
    assert json.loads(origin_path(tmp_path / "c.jsonl").read_text())["earlier"] is None  # a was edited since


def test_nothing_is_written_over(tmp_path: Path) -> None:
    source = write_sample(tmp_path, "native")
    workload = read_workload(source)
    (tmp_path / "there").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "requests.jsonl").touch()
    for out in (tmp_path / "there", source, tmp_path / "run" / "new.jsonl", tmp_path / "none" / "new.jsonl"):
        with pytest.raises(UserError):
            write(out, workload.entries, source=source, workload=workload, step="freeze", options={})
    assert (tmp_path / "there").read_text() == "mine" and read_workload(source).sha256 == workload.sha256
