"""Right answers by case, family and overall; what a command said is read, never run; runs without texts compare too."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulated_runs import write_run
from specbench import UserError
from specbench.client.withholding import withheld
from specbench.comparison.assessment import Options, compare
from specbench.comparison.format import Comparison
from specbench.comparison.table import table
from specbench.record.directory import read_requests
from specbench.record.format import CaseRecord
from specbench.record.judged import judge_answers, measured_answers, write_judged

CASES = [("copy-1", "copy"), ("short-1", "short"), ("short-2", "short")]


def good(case: str, repeat: int) -> str:
    return f"{case} is Paris"


def worse(case: str, repeat: int) -> str:
    return f"{case} is {'London' if case == 'short-1' and repeat < 8 else 'Paris'}"


def compared(folder: Path, expect: Any, *, edit: Any = None, candidate: Any = worse) -> Comparison:
    sides = {"baseline": good, "ngram": candidate}
    for order, (mode, outputs) in enumerate(sides.items()):
        write_run(folder / mode, mode=mode, cases=CASES, repeats=10, outputs=outputs, expect=expect, order=order,
                  token_ids=False, edit=edit)
    return compare([folder / "baseline"], [folder / "ngram"], Options())


def test_a_family_that_answers_worse_is_found_where_another_does_not(tmp_path: Path) -> None:
    found = compared(tmp_path, {"copy-1": "Paris", "short-1": "Paris", "short-2": {"exact": "short-2 is Paris"}}).expect
    assert found is not None and (found.pairs, found.base_passed, found.candidate_passed) == (30, 30, 22)
    copy, short = found.families["copy"], found.families["short"]
    assert (copy.checked, copy.base_passed, copy.candidate_passed, copy.p) == (10, 10, 10, None)
    assert (short.checked, short.base_passed, short.candidate_passed) == (20, 20, 12)
    assert short.p == pytest.approx(2 * 0.5**8)
    assert found.cases["short-1"].candidate_passed == 2
    shown = " ".join(table(compared(tmp_path / "again", {"copy-1": "Paris", "short-1": "Paris"})).split())
    assert "By family: copy 10 and 10 of 10, short 10 and 2 of 10 (p = 0.0078)" in shown


def test_what_a_command_said_is_read_and_no_command_runs(tmp_path: Path) -> None:
    command = {"command": ["touch", str(tmp_path / "ran")]}
    assert compared(tmp_path, {"short-1": command}).expect is None
    case = CaseRecord("short-1", "short", None, "Paris", "0" * 64)  # what the command would say of these answers
    for mode in ("baseline", "ngram"):
        answers = measured_answers(read_requests(tmp_path / mode))
        write_judged(tmp_path / mode, judge_answers(answers, [case], allow_commands=False))
    found = compare([tmp_path / "baseline"], [tmp_path / "ngram"], Options()).expect
    assert found is not None and (found.pairs, found.base_passed, found.candidate_passed) == (10, 10, 2)
    assert not (tmp_path / "ran").exists()
    (tmp_path / "ngram" / "judged.json").unlink()  # an answer that only ngram gave is not judged now: no case counts
    assert compare([tmp_path / "baseline"], [tmp_path / "ngram"], Options()).expect is None


def without_text(manifest: dict[str, Any], summary: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """What bench.py --no-text would have written."""
    manifest["no_text"] = True
    for row in rows:
        row["text"], row["token_ids"] = withheld(row["text"], row["token_ids"], row["case"].encode()), None


def test_runs_without_texts_compare_as_those_with_them_and_say_no_place_where_outputs_part(tmp_path: Path) -> None:
    plain = compared(tmp_path / "plain", {}).equality
    private = compared(tmp_path / "private", {}, edit=without_text).equality
    assert private.verdict == plain.verdict and private.floor == plain.floor and private.counts == plain.counts
    assert {name: (case.verdict, case.p, case.shared) for name, case in private.cases.items()} == {
        name: (case.verdict, case.p, case.shared) for name, case in plain.cases.items()
    }
    assert plain.cases["short-1"].divergence is not None and private.cases["short-1"].divergence is None


def test_a_run_without_texts_is_not_compared_with_one_that_has_them(tmp_path: Path) -> None:
    compared(tmp_path, {})
    write_run(tmp_path / "other", mode="ngram", cases=CASES, repeats=10, outputs=good, token_ids=False, order=1,
              edit=without_text)
    with pytest.raises(UserError, match="differ in --no-text"):
        compare([tmp_path / "baseline"], [tmp_path / "other"], Options())
