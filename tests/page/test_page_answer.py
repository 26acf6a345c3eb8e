"""The answer in words: what each verdict says, and what to do next."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.simulated_experiment import MODES, Tables, write_experiment

import report
from benchmarks.simulated_runs import write_run
from specbench.comparison.assessment import Options, compare
from specbench.comparison.format import Comparison, Interval, Word
from specbench.page.answer import answer, break_even_share, interval_words

Write = Callable[..., Comparison]


@pytest.fixture
def compared(tmp_path: Path) -> Write:
    """Simulated deployments in the order BNNB, or as many as `order` says, compared as experiment.py does."""

    def write(order: str = "BNNB", effect: Any = 0.0, **options: Any) -> Comparison:
        sides: dict[str, list[Path]] = {mode: [] for mode in MODES}
        for index, letter in enumerate(order):
            mode = MODES[letter == "N"]
            path = tmp_path / f"{index}-{mode}"
            shift = 0.004 * (-1) ** (index // 2)
            given = {
                name: value[mode] if isinstance(value, dict) and mode in value else value
                for name, value in options.items()
            }
            write_run(
                path, mode=mode, order=index, seed=index, repeats=6, deployment=shift,
                effect=effect if mode == "ngram" else 0.0, **given,
            )  # fmt: skip
            sides[mode].append(path)
        return compare(sides["baseline"], sides["ngram"], Options(accept_floor=True))

    return write


def interval(ratio: float, low: float | None = None, high: float | None = None) -> Interval:
    return Interval(ratio, low, high, None, "", 1.0, ratio, ratio)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (interval(0.79, 0.74, 0.85), "21% less time (95% interval: 15% to 26% less)"),
        (interval(1.062, 1.012, 1.112), "6.2% more time (95% interval: 1.2% to 11% more)"),
        (interval(0.98, 0.9, 1.05), "2.0% less time (95% interval: 10% less to 5.0% more)"),
        (interval(0.87), "13% less time"),
    ],
)
def test_the_effect_in_words(given: Interval, words: str) -> None:
    assert interval_words(given) == words


EVERY: dict[Word | None, tuple[dict[str, Any], str, str]] = {
    Word.FASTER: ({"effect": -0.3}, "good", "Yes: 26% less time"),
    Word.SLOWER: ({"effect": 0.3}, "bad", "No: 35% more time"),
    Word.NO_DIFFERENCE: ({}, "same", "No clear difference"),
    Word.DEPENDS: ({"effect": {"copy": -0.4, "explain": 0.2, "short": 0.2}}, "depends", "Depends:"),
    None: ({"order": "BN", "effect": -0.3}, "unknown", "No verdict"),
    Word.NOT_COMPARABLE: (
        {"outputs": {"baseline": lambda case, repeat: "one", "ngram": lambda case, repeat: "other"}},
        "stop", "Not comparable",
    ),
    Word.SUSPECT: ({"effect": -0.3, "summary": {"server": {"preemptions": 3}}}, "stop", "Suspect"),
}  # fmt: skip


@pytest.mark.parametrize("word", EVERY, ids=str)
def test_every_verdict_has_an_answer(word: Word | None, compared: Write) -> None:
    options, kind, lead = EVERY[word]
    result = compared(**options)
    assert result.verdict.verdict is word
    found = answer(result)
    assert found.kind == kind and found.lead.startswith(lead.split(" ")[0])
    assert any("time" in sentence and "ngram takes" in sentence for sentence in found.sentences)
    assert bool(found.parts) == (word is Word.DEPENDS)


def test_a_mixed_answer_is_the_answer(compared: Write) -> None:
    """The badge says for what it is on and for what off, in the words of the verdict."""
    result = compared(effect={"copy": -0.4, "explain": 0.2, "short": 0.2})
    found = answer(result)
    badge = f"{found.lead} {', '.join(words for _, words in found.parts)}"
    assert badge == result.verdict.sentence
    assert badge.startswith("Depends: on for copy (3") and ", off for explain (2" in badge and " and short (2" in badge
    assert [kind for kind, _ in found.parts] == ["good", "bad"]


def test_the_share_of_requests_from_which_it_pays(compared: Write) -> None:
    """The weighted mean of logs is 0 there: with -0.4 for copy and 0.2 for the others that is one third."""
    result = compared(effect={"copy": -0.4, "explain": 0.2, "short": 0.2}, noise=0.0001)
    share = break_even_share(list(result.metrics["e2el"].families.values()))
    assert share == pytest.approx(1 / 3, abs=0.02)
    assert f"once about {share:.0%} of the requests are copy" in " ".join(answer(result).sentences)


def test_a_gate_that_fires_at_two_loads_is_told_once(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "x", loads=(1, 4), order="BN", summary={"server": {"preemptions": 3}})
    assert report.main([str(folder)]) == 0
    text = (folder / "report.html").read_text()
    assert text.count("<li><b>preemptions</b>") == 1 and "1 user: 01-baseline-c1" in text and "4 users: 01-" in text
    assert all(cell.startswith("! 1 fired") for cell in Tables(text).tables["Decision table"][-1][1:])


def test_gates_are_listed_with_what_was_seen_at_every_load(tmp_path: Path) -> None:
    """Another number at each load: each stands there with its load."""
    folder = write_experiment(tmp_path / "x", loads=(1, 4), order="BN")
    for load, lag in ((1, 0.2), (4, 1.7)):
        for path in folder.glob(f"*-c{load}/summary.json"):
            path.write_text(path.read_text().replace('"loop_lag_p99_ms": 0.6', f'"loop_lag_p99_ms": {lag}'))
    (folder / "compare-c1.json").unlink()
    (folder / "compare-c4.json").unlink()
    assert report.main([str(folder)]) == 0
    row = next(row for row in Tables((folder / "report.html").read_text()).tables["Gates"] if row[0] == "client lag")
    assert row[1:3] == ["✓ ok", "✓ ok"]
    # Of the median E2EL, which users share: 0.2 ms at 1 user, 1.7 ms at 4.
    assert "1 user: the client's event loop lagged" in row[3] and "; 4 users: the client's event loop" in row[3]
