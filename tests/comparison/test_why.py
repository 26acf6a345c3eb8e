"""Steps × the cost of a step = decode time, and the gate that audits drafting, on what an H200 measured."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import ROOT

from benchmarks.simulated_runs import write_run
from specbench.comparison import audit
from specbench.comparison.assessment import Options, compare
from specbench.comparison.format import Comparison, Gate
from specbench.comparison.gates import check_gates
from specbench.comparison.pairing import pair
from specbench.comparison.steps import Steps, count_steps
from specbench.files import sha256_of
from specbench.record.directory import read_requests

RESULTS = ROOT / "results" / "h200-smollm2-135m"
Document = dict[str, Any]


def compared(load: int, *pairs: tuple[str, str]) -> Comparison:
    bases = [RESULTS / f"{base}-baseline-c{load}" for base, _ in pairs]
    candidates = [RESULTS / f"{candidate}-ngram-c{load}" for _, candidate in pairs]
    return compare(bases, candidates, Options(accept_floor=True))


@pytest.mark.parametrize("load", [1, 4, 8])
def test_steps_times_cost_is_the_ratio_of_decode_times(load: int) -> None:
    """Recomputed from requests.jsonl, for every family and case."""
    result = compared(load, ("01", "02"), ("04", "03"))
    assert result.why is not None and result.why.source == "replayed"
    logs: dict[str, dict[str, list[float]]] = {"base": {}, "candidate": {}}
    for deployment in result.deployments:
        for row in read_requests(Path(deployment.directory)):
            if row.phase == "measured":
                assert row.e2el_s is not None and row.ttft_s is not None
                logs[deployment.side].setdefault(row.case, []).append(math.log(row.e2el_s - row.ttft_s))
    ratios = {case: np.mean(logs["candidate"][case]) - np.mean(logs["base"][case]) for case in logs["base"]}
    for case, factors in result.why.cases.items():
        assert factors.steps is not None and factors.cost.ratio is not None
        assert factors.steps * factors.cost.ratio == pytest.approx(math.exp(ratios[case]))
        assert factors.steps <= 1 and factors.cost.ratio > 1
    for family, factors in [("", result.why.overall), *result.why.families.items()]:
        mine = [ratio for case, ratio in ratios.items() if case.startswith(family)]
        assert factors.decode == pytest.approx(math.exp(np.mean(mine)))
        assert factors.cost.low is not None and factors.cost.ratio is not None and factors.cost.high is not None
        assert factors.cost.low < factors.cost.ratio < factors.cost.high and factors.spread is not None


def test_copying_takes_few_steps_and_every_deployment_has_its_costs() -> None:
    why = compared(1, ("01", "02"), ("04", "03")).why
    assert why is not None
    steps = {family: factors.steps or 0.0 for family, factors in why.families.items()}
    assert steps["copy"] < 0.45 < 0.75 < steps["short"] <= steps["explain"] < 1
    for cost in why.deployments:
        assert cost.undrafted_ms is not None and 1 < cost.undrafted_ms < 4
        assert (cost.drafted_ms is None) == ("baseline" in cost.directory)
    assert "of the steps and each costs" in why.sentence and "it pays above" in why.sentence


def test_the_columns_are_printed_and_follow_the_primary_line(capsys: pytest.CaptureFixture[str]) -> None:
    import compare as door

    names = [str(RESULTS / name) for name in ("01-baseline-c1", "02-ngram-c1")]
    assert door.main([*names, "--primary", "copy"]) == 0
    printed = capsys.readouterr().out
    assert "why" in printed and "steps  cost/step" in printed and "95% interval" not in printed
    assert "Why: ngram takes 0.34 of the steps" in " ".join(printed.split())
    assert door.main([*names, "--and", *(str(RESULTS / name) for name in ("04-baseline-c1", "03-ngram-c1"))]) == 0
    assert "steps  cost/step  95% interval" in capsys.readouterr().out


def test_without_prompt_ids_nothing_is_guessed(tmp_path: Path) -> None:
    write_run(tmp_path / "baseline")
    write_run(tmp_path / "ngram", mode="ngram", order=1)
    result = compare([tmp_path / "baseline"], [tmp_path / "ngram"])
    assert result.why is None and "has no prompt-tokens.jsonl" in str(result.why_missing)
    gate = next(gate for gate in result.gates if gate.name == audit.NAME)
    assert gate.state == "not checked" and "no prompt-tokens.jsonl" in gate.sentence


def test_the_embedded_engine_is_taken_at_its_word(tmp_path: Path) -> None:
    """It drafts by other rules; it says of each answer with a draft how many drafted tokens were accepted."""

    def timings(manifest: Document, summary: Document, rows: list[Document]) -> None:
        manifest["server"]["engine"] = "llama.cpp"
        for row in rows:
            if row["family"] == "copy":
                row.update(draft_tokens=60, accepted_tokens=45)

    def engine(manifest: Document, summary: Document, rows: list[Document]) -> None:
        manifest["server"]["engine"] = "llama.cpp"

    write_run(tmp_path / "baseline", edit=engine)
    write_run(tmp_path / "ngram", mode="ngram", order=1, edit=timings)
    result = compare([tmp_path / "baseline"], [tmp_path / "ngram"])
    assert result.why is not None and result.why.source == "reported"
    assert result.why.families["copy"].steps == pytest.approx((90 - 45 - 1) / 89)
    assert result.why.families["explain"].steps == pytest.approx(1)
    assert [cost.undrafted_ms is None for cost in result.why.deployments] == [False, True]
    silent = write_run(tmp_path / "silent", mode="ngram", order=2, edit=engine)
    assert compare([tmp_path / "baseline"], [silent]).why is None


# ---- the audit


def audited(base: Path, candidate: Path) -> Gate:
    return next(gate for gate in check_gates(pair([base], [candidate])) if gate.name == audit.NAME)


@pytest.mark.parametrize("load", [1, 4, 8])
@pytest.mark.parametrize(("base", "candidate"), [("01", "02"), ("04", "03"), ("05", "06"), ("08", "07")])
def test_every_published_deployment_drafted_what_the_replay_says_to_the_unit(
    base: str, candidate: str, load: int
) -> None:
    gate = audited(RESULTS / f"{base}-baseline-c{load}", RESULTS / f"{candidate}-ngram-c{load}")
    assert (gate.state, gate.number) == ("ok", 0) and gate.sentence.endswith("to the unit")


def edited(tmp_path: Path, source: Path, **changes: Any) -> Path:
    """A copy of a directory whose record or counters say something else."""
    copy = shutil.copytree(source, tmp_path / source.name)
    manifest = json.loads((copy / "manifest.json").read_text())
    summary = json.loads((copy / "summary.json").read_text())
    manifest["server"]["record"]["speculative_config"].update(changes.pop("speculative_config", {}))
    manifest["request"].update(changes.pop("request", {}))
    summary["server"].update(changes)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    (copy / "summary.json").write_text(json.dumps(summary))
    assert summary.get("requests_sha256") in (None, sha256_of(copy / "requests.jsonl"))
    return copy


def test_a_record_that_says_five_where_the_server_drafted_three_is_caught(tmp_path: Path) -> None:
    base, three = RESULTS / "08-baseline-c1", RESULTS / "k" / "3-ngram-c1"
    assert audited(base, three).state == "ok"
    gate = audited(base, edited(tmp_path, three, speculative_config={"num_speculative_tokens": 5}))
    assert gate.state == "fired" and gate.number is not None and gate.number > audit.LARGEST_DIFFERENCE
    assert "where its prompts and answers give" in gate.sentence and "num_speculative_tokens" in str(gate.action)


def test_lost_drafts_are_counted_and_few_do_not_fire(tmp_path: Path) -> None:
    base, ngram = RESULTS / "01-baseline-c1", RESULTS / "02-ngram-c1"
    steps = count_steps(pair([base], [ngram]))[str(ngram)]
    assert isinstance(steps, Steps) and steps.drafts is not None
    few, many = (edited(tmp_path / str(lost), ngram, drafts=steps.drafts - lost) for lost in (1, 40))
    assert audited(base, few).state == "ok" and "within" in audited(base, few).sentence
    gate = audited(base, many)
    assert gate.state == "fired" and "(40 lost, " in gate.sentence


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"foreign_requests": 3}, "answered requests of others, which drafted too"),
        ({"drafts": None}, "does not say how much it drafted"),
        ({"request": {"temperature": 0.7}}, "only greedy answers can be replayed"),
        ({"speculative_config": {"method": "eagle"}}, "drafted by other rules"),
        ({"speculative_config": {"prompt_lookup_min": None}}, "does not say what was drafted"),
    ],
)
def test_what_cannot_be_audited_is_not_checked(changes: Document, says: str, tmp_path: Path) -> None:
    ngram = edited(tmp_path, RESULTS / "02-ngram-c1", **changes)
    base = RESULTS / "01-baseline-c1"
    if "request" in changes:
        base = shutil.copytree(base, tmp_path / base.name)
        manifest = json.loads((base / "manifest.json").read_text())
        manifest["request"].update(changes["request"])
        (base / "manifest.json").write_text(json.dumps(manifest))
    gate = audited(base, ngram)
    assert gate.state == "not checked" and says in gate.sentence and gate.action
