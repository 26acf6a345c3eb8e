"""What a step costs is found where it is known, and where it cannot be known nothing is made up."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from support import ROOT

from specbench import UserError
from specbench.lookup.cost import Steps, fit, given_cost, predict, read_cost
from specbench.lookup.figures import DeploymentRecord, LoadRecord

PUBLISHED = ROOT / "results" / "h200-smollm2-135m"


def timed(steps: Steps, ttft: float, undrafted: float, drafted: float) -> tuple[np.ndarray, np.ndarray]:
    ttft_s = np.full(len(steps.undrafted), ttft)
    return ttft_s, ttft_s + undrafted * steps.undrafted + drafted * steps.drafted


def test_known_costs_are_found() -> None:
    steps = Steps(np.array([10.0, 100, 3, 40]), np.array([20.0, 0, 15, 1]))
    cost = fit("one", steps, *timed(steps, 0.01, 0.003, 0.002))
    assert (cost.ttft_s, cost.undrafted_s, cost.drafted_s) == pytest.approx((0.01, 0.003, 0.002))


@pytest.mark.parametrize(
    ("undrafted", "drafted"),
    [
        ([100.0, 50], [0.0, 0]),  # nothing was drafted
        ([0.0, 0], [100.0, 50]),  # everything was
        ([10.0, 20], [20.0, 40]),  # the answers do not tell the two apart
    ],
)
def test_kinds_that_cannot_be_told_apart_cost_the_same(undrafted: list[float], drafted: list[float]) -> None:
    steps = Steps(np.array(undrafted), np.array(drafted))
    cost = fit("one", steps, *timed(steps, 0.01, 0.002, 0.002))
    assert (cost.undrafted_s, cost.drafted_s) == pytest.approx((0.002, 0.002))


def test_a_negative_cost_is_never_given() -> None:
    steps = Steps(np.array([100.0, 100, 110]), np.array([30.0, 60, 40]))
    ttft_s = np.full(3, 0.01)
    cost = fit("one", steps, ttft_s, ttft_s + np.array([0.3, 0.2, 0.31]))  # more drafted steps took less time
    assert cost.undrafted_s == cost.drafted_s > 0


def test_answers_of_one_token_cost_no_step() -> None:
    steps = Steps.baseline([1, 1])
    assert fit("one", steps, *timed(steps, 0.01, 0.002, 0.002)).undrafted_s == 0


def load_of(spread: list[float], shape_error: float | None) -> LoadRecord:
    baseline = [DeploymentRecord("b", 0.01, 0.001 * factor, 0.001 * factor) for factor in spread]
    ngram = [DeploymentRecord("n", 0.01, 0.0016 * factor, 0.0016 * factor) for factor in spread]
    return LoadRecord(baseline, ngram, shape_error)


def test_a_prediction_by_hand() -> None:
    baseline, ngram = Steps.baseline([101, 11]), Steps(np.array([20.0, 5]), np.array([20.0, 5]))
    first, second = predict(load_of([1.0], None), baseline, ngram, [[np.array([0])], [np.array([0]), np.array([1])]])
    assert first.ratio == pytest.approx((0.01 + 40 * 0.0016) / (0.01 + 100 * 0.001))
    other = (0.01 + 10 * 0.0016) / (0.01 + 10 * 0.001)
    assert second.ratio == pytest.approx(math.sqrt(first.ratio * other))
    assert first.step_cost_ratio == pytest.approx(1.6)
    assert (first.low, first.high) == (None, None)


def test_limits_grow_with_both_errors() -> None:
    baseline, ngram = Steps.baseline([101]), Steps(np.array([20.0]), np.array([20.0]))
    widths = []
    for spread, shape in (([1.0, 1.0], 0.05), ([1.0, 1.1], 0.05), ([1.0, 1.1], 0.2)):
        [estimate] = predict(load_of(spread, shape), baseline, ngram, [[np.array([0])]])
        assert estimate.low is not None and estimate.high is not None
        assert estimate.low < estimate.ratio < estimate.high
        widths.append(math.log(estimate.high / estimate.low))
    assert widths == sorted(widths) and widths[0] == pytest.approx(2 * 1.96 * 0.05, rel=0.01)
    [unknown] = predict(load_of([1.0, 1.1], None), baseline, ngram, [[np.array([0])]])
    assert unknown.low is None


def test_a_given_cost() -> None:
    [estimate] = predict(given_cost(1.5).loads["any"], Steps.baseline([10]), Steps(np.array([2.0]), np.array([1.0])), [
        [np.array([0])]
    ])  # fmt: skip
    assert estimate.ratio == pytest.approx((1 + 3 * 1.5) / 10)
    assert estimate.step_cost_ratio == 1.5


def test_the_published_cost() -> None:
    """The figures of facts that were found by an independent fit: 1.53, 1.79 and 2.36 ms a baseline step, within 6%."""
    loads = read_cost(PUBLISHED).loads
    assert list(loads) == ["1", "4", "8"]
    for load, expected in (("1", (1.53, 2.55, 1.91)), ("4", (1.79, 3.12, 3.22)), ("8", (2.36, 3.78, 4.00))):
        record = loads[load]
        assert (len(record.baseline), len(record.ngram)) == (4, 4)
        found = [np.mean([each.undrafted_s for each in record.baseline])]
        found += [np.mean([getattr(each, name) for each in record.ngram]) for name in ("undrafted_s", "drafted_s")]
        assert [1e3 * value for value in found] == pytest.approx(expected, rel=0.06)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """A copy of four published runs that a test may damage."""
    for name in ("01-baseline-c1", "02-ngram-c1", "03-ngram-c1", "04-baseline-c1"):
        shutil.copytree(PUBLISHED / name, tmp_path / name)
    return tmp_path


def edit(path: Path, change: str, value: object) -> None:
    document = json.loads(path.read_text())
    part = document
    *parents, last = change.split(".")
    for key in parents:
        part = part[key]
    part[last] = value
    path.write_text(json.dumps(document))


def test_runs_that_ended_early_are_left_out(experiment: Path) -> None:
    for name in ("manifest", "summary"):
        edit(experiment / "03-ngram-c1" / f"{name}.json", "status", "interrupted")
    (experiment / "04-baseline-c1" / "summary.json").unlink()
    [record] = read_cost(experiment).loads.values()
    assert [each.name for each in [*record.baseline, *record.ngram]] == ["01-baseline-c1", "02-ngram-c1"]


SPECULATION = "server.record.speculative_config"


@pytest.mark.parametrize(
    ("change", "value", "sentence"),
    [
        (f"{SPECULATION}.num_speculative_tokens", 3, "more than one setting"),
        (SPECULATION, None, "what was drafted"),
        (f"{SPECULATION}.method", "ngram-simple", "drafted by other rules than vLLM's"),
        ("server.model.id", "other", "more than one model"),
        ("inventory.sha256", "0", "more than one prompts file"),
    ],
)
def test_runs_that_cannot_be_taken_together(change: str, value: object, sentence: str, experiment: Path) -> None:
    edit(experiment / "02-ngram-c1" / "manifest.json", change, value)
    with pytest.raises(UserError, match=sentence):
        read_cost(experiment)


def test_runs_whose_steps_are_not_known(experiment: Path) -> None:
    (experiment / "02-ngram-c1" / "prompt-tokens.jsonl").unlink()
    with pytest.raises(UserError, match=r"has no prompt-tokens\.jsonl"):
        read_cost(experiment)


def test_folders_that_give_no_cost(experiment: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        read_cost(experiment / "nothing")
    with pytest.raises(UserError, match="no load that was measured in both modes"):
        read_cost(experiment / "01-baseline-c1")
