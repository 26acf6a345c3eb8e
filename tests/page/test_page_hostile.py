"""What a page does with hostile outputs, names and servers."""

import re
from pathlib import Path

from support.simulated_experiment import HOSTILE, MODES, SECRET, write_experiment

import report
from benchmarks.simulated_runs import write_run
from specbench.page import evidence


def test_outputs_are_escaped_made_visible_and_cut(page: str) -> None:
    assert "<script" not in page and "<img" not in page and "<svg onload" not in page
    assert "&lt;script&gt;" in page and "{{ 7 * 7 }}" in page
    assert "\\x1b[31m\\u202eevil\\u2066\\u200b\\U000e0041" in page
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", page)
    assert "w" * (evidence.CLAMP + 1) not in page
    assert f"the first {evidence.CLAMP:,} of {len(HOSTILE) + 100_000:,} characters" in page
    assert len(page.encode()) < 2_000_000


def test_nothing_that_lets_anyone_in_is_on_the_page(page: str) -> None:
    assert SECRET not in page and "REDACTED" in page


def test_cases_that_differ_most_and_outputs_given_most_stand_first(tmp_path: Path) -> None:
    def outputs(case: str, repeat: int, mode: str, load: int) -> str:
        if case == "copy-1":  # within the floor
            return str(repeat % 2)
        if case == "short-3" and mode == "ngram":
            return f"new {repeat if repeat < 2 else 'usual'}"
        return "old"

    load = evidence.gather([write_experiment(tmp_path / "x", loads=(1,), outputs=outputs)]).loads[0]
    assert list(load.outputs) == ["short-3", "copy-1"]
    assert [output.text for output in load.outputs["short-3"]][:2] == ["old", "new usual"]


def test_no_text_leaves_outputs_out(experiment: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.html"
    assert report.main([str(experiment), "--no-text", "--out", str(out)]) == 0
    text = out.read_text()
    assert "left out by --no-text" in text and "First divergence" in text
    assert "evil" not in text and "variant 1" not in text and "The answer to" not in text


def test_hostile_names_are_harmless_too(tmp_path: Path) -> None:
    family = "<script>document.title='owned'</script>\u202e"
    cases = [(f"{family}-{number}", family) for number in range(3)]
    for index, mode in enumerate(MODES):
        write_run(
            tmp_path / mode, mode=mode, cases=cases, order=index,
            outputs=lambda case, repeat, mode=mode: mode + "<b>" * (repeat % 2),
        )  # fmt: skip
    out = tmp_path / "p.html"
    assert report.main([str(tmp_path / "baseline"), str(tmp_path / "ngram"), "--out", str(out)]) == 0
    assert "<script" not in out.read_text() and "\u202e" not in out.read_text()
