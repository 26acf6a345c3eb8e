"""What experiment.py ends with: a line a load, the answer of each, and what to do next."""

from pathlib import Path

from support.simulated_experiment import write_experiment

from specbench.comparison.format import Comparison
from specbench.deploy.closing import answers, in_short, whats_next
from specbench.deploy.state import read_state
from specbench.page.evidence import gather


def results_of(folder: Path) -> list[Comparison]:
    return [load.result for load in gather([folder]).loads]


def test_the_end_is_a_table_with_a_line_a_load(tmp_path: Path) -> None:
    results = results_of(write_experiment(tmp_path / "x", loads=(1, 8), noise=0.001))
    table = in_short(results)
    assert table[0].split() == ["copy", "explain", "short", "overall", "verdict"]
    assert table[1].split() == ["1", "user", "0.67", "0.95", "1.00", "0.86", "depends"]
    assert table[2].startswith("8 users  ")
    assert len({line.rindex("  ") for line in table}) == 1  # the verdicts stand under each other


def test_every_load_has_its_answer_in_a_sentence(tmp_path: Path) -> None:
    """A mixed answer is the answer; one pair has none."""
    (mixed,) = results_of(write_experiment(tmp_path / "mixed", loads=(8,)))
    assert answers([mixed])[0].startswith("8 users: Depends: on for copy (9.") and mixed.verdict.mix is None
    (pair,) = results_of(write_experiment(tmp_path / "pair", loads=(1,), order="BN"))
    assert answers([pair])[0].startswith("1 user: No verdict: one deployment of each mode")


def test_a_hundred_families_do_not_widen_the_table(tmp_path: Path) -> None:
    cases = [(f"{number}-{one}", f"family-{number}") for number in range(30) for one in (1, 2)]
    (result,) = results_of(write_experiment(tmp_path / "x", loads=(1,), cases=cases, effect=0.2))
    assert in_short([result])[0].split() == ["overall", "verdict"]


def test_what_comes_next_stands_at_the_end_with_its_command(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "x", loads=(1, 8), order="BN")
    sentence, again, together = whats_next(results_of(folder), folder, read_state(folder).settings)
    assert sentence.startswith("Next: Deploy both modes once more, in the reverse order")
    assert again.startswith("  python experiment.py ") and together.startswith("  python report.py ")
