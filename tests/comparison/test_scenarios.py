"""Twelve situations, each with known truth: would a reader of the table alone decide rightly?

Every test looks at what compare.py prints and its exit code, at nothing else.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import compare
from benchmarks.simulated_runs import write_run

REDEPLOY = (0.004, -0.006, 0.005, -0.003)  # shifts of the four deployments


class Experiment:
    """Runs BNNB, compares, and reads the printed table."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys
        self.code = -1
        self.text = ""

    def compare(self, *options: str, first_base: Mapping[str, Any] | None = None, **sides: Any) -> "Experiment":
        """`base` and `candidate`: arguments of write_run; `first_base` adds to the first deployment's."""
        base, candidate = sides.get("base", {}), sides.get("candidate", {})
        names = ("baseline", "ngram", "ngram2", "baseline2")
        for order, (name, shift) in enumerate(zip(names, REDEPLOY, strict=True)):
            side = candidate if name.startswith("ngram") else base
            arguments = {"deployment": shift, **side, **((first_base or {}) if order == 0 else {})}
            mode = name.removesuffix("2")
            seeds = {"seed": order, "schedule_seed": int(name.endswith("2"))}
            write_run(self._folder / name, mode=mode, repeats=10, order=order, **seeds, **arguments)
        paths = [str(self._folder / name) for name in names]
        self.code = compare.main([paths[0], paths[1], "--and", paths[3], paths[2], *options])
        self.text = self._capsys.readouterr().out
        return self

    def verdict(self, row: str) -> str:
        """The last cells of a row, without the mark of a line that is not the primary."""
        line = next(line for line in self.text.splitlines() if line.startswith(f"{row} "))
        return line.rpartition("%")[2].strip().removesuffix(" *")

    def says(self, words: str) -> bool:
        return words in " ".join(self.text.split())


@pytest.fixture
def experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Experiment:
    return Experiment(tmp_path, capsys)


def test_1_a_real_effect_is_concluded(experiment: Experiment) -> None:
    experiment.compare(candidate={"effect": -0.2})
    assert experiment.code == 0
    assert experiment.verdict("E2EL overall") == "faster"
    assert experiment.says("Faster: ngram takes 18% less time than baseline (overall; 2 deployments of each mode,")
    assert experiment.says("all 9 cases gave one and the same output")


def test_2_no_effect_is_not_concluded(experiment: Experiment) -> None:
    experiment.compare(candidate={"effect": 0.0})
    assert experiment.code == 0
    assert {experiment.verdict(f"E2EL {row}") for row in ("overall", "copy", "explain", "short")} == {
        "no clear difference"
    }


def test_3_an_effect_in_one_family_is_seen_there_and_nowhere_else(experiment: Experiment) -> None:
    experiment.compare("--primary", "copy", candidate={"effect": {"copy": -0.4}})
    assert experiment.code == 0
    assert experiment.verdict("E2EL copy") == "faster"
    assert experiment.verdict("E2EL explain") == experiment.verdict("E2EL short") == "no clear difference"
    assert experiment.says("Faster: ngram takes 33% less time than baseline (copy; ")
    assert experiment.says("* wrong in 5% of comparisons without an effect, each row on its own;")


def test_3b_families_that_differ_are_the_answer(experiment: Experiment) -> None:
    experiment.compare(candidate={"effect": {"copy": -0.4, "explain": 0.3}})
    assert experiment.code == 0
    assert experiment.says("Depends: on for copy (33% less), off for explain (34% more), no clear difference for short")


def test_4_faster_at_one_user_and_slower_at_eight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = {}
    for users, effect in ((1, -0.3), (8, 0.3)):
        load = Experiment(tmp_path / f"c{users}", capsys)
        load.compare(base={"concurrency": users}, candidate={"concurrency": users, "effect": effect})
        assert load.code == 0
        assert load.says(f"{users} user{'s' * (users > 1)}, 9 cases")
        verdicts[users] = load.verdict("E2EL overall")
    assert verdicts == {1: "faster", 8: "slower"}


def test_5_outputs_that_differ_for_good_are_not_comparable(experiment: Experiment) -> None:
    def other(case: str, repeat: int) -> str:
        return "Something else." if case == "copy-1" else f"The answer to {case}."

    experiment.compare("--accept-floor", candidate={"effect": -0.3, "outputs": other})
    assert experiment.code == 1
    assert experiment.verdict("E2EL overall") == experiment.verdict("E2EL copy") == "not comparable"
    assert experiment.verdict("E2EL short") == "faster"
    assert experiment.says("Not comparable: outputs changed in 1 case of 9 (a permutation test of each case, p = ")
    assert experiment.says("after correction for 1 case): copy-1; with these answers a change is found with 80% power")


def vary(case: str, repeat: int) -> str:
    """Two outputs for one case, in turn: what rounding under load does."""
    return f"{case} {repeat % 2 if case == 'copy-1' else 0}"


def test_6_outputs_that_vary_as_the_baselines_do_pass_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = {"base": {"outputs": vary}, "candidate": {"outputs": vary, "effect": -0.3}}
    strict = Experiment(tmp_path / "strict", capsys).compare(**sides)
    assert strict.code == 1
    assert strict.verdict("E2EL overall") == "not comparable"
    assert strict.says("the outputs of 1 of 9 cases are not identical (copy-1)")
    assert strict.says("they are within the baseline's variation, which --accept-floor passes")
    accepted = Experiment(tmp_path / "accepted", capsys).compare("--accept-floor", **sides)
    assert accepted.code == 0
    assert accepted.verdict("E2EL overall") == "faster"
    assert accepted.says("Outputs: within the baseline's variation, because")


def cold(manifest: dict[str, Any], summary: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    manifest["server"]["record"]["compile_cache"] = "cold"


def test_7_a_cold_first_deployment_is_no_speedup(experiment: Experiment) -> None:
    experiment.compare(first_base={"edit": cold, "deployment": 0.3})
    assert experiment.code == 1
    assert experiment.verdict("E2EL overall") == "suspect"
    assert experiment.says("Suspect: something other than the mode could explain a difference (compile cache)")
    assert experiment.says("baseline compiled at start and the other side loaded a warm cache; deploy both modes once")


@pytest.mark.parametrize(
    ("gate", "summary", "number", "advice"),
    [
        ("client cpu", {"client": {"cpu_share": 0.97}}, "used 97% of its core", "lower --concurrency"),
        ("prefix cache hits", {"server": {"prefix_cache_hits": 900}}, "reused 900 cached", "prefix_caching off"),
        ("server restarted", {"server": {"restarted": True}}, "the server restarted", "read the server's log"),
        ("foreign requests", {"server": {"foreign_requests": 41}}, "answered 41 requests", "keep everybody else off"),
    ],
    ids=["8_client_saturated", "9_cache_hits", "10_server_restarted", "11_foreign_traffic"],
)
def test_8_to_11_a_confound_makes_the_verdict_suspect(
    experiment: Experiment, gate: str, summary: dict[str, Any], number: str, advice: str
) -> None:
    experiment.compare(candidate={"effect": -0.2, "summary": summary})
    assert experiment.code == 1
    assert experiment.verdict("E2EL overall") == experiment.verdict("E2EL copy") == "suspect"
    assert experiment.says(f"could explain a difference ({gate})") and experiment.says(f"GATE {gate}: ")
    assert experiment.says(number) and experiment.says(advice)


def test_12_shorter_outputs_are_not_faster_work(experiment: Experiment) -> None:
    def shorter(manifest: dict[str, Any], summary: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["family"] == "explain":
                row.update(text=row["text"][:8], token_ids=row["token_ids"][:2], completion_tokens=64)

    experiment.compare("--accept-floor", candidate={"effect": {"explain": -0.6}, "edit": shorter})
    assert experiment.code == 1
    assert experiment.verdict("E2EL overall") == "not comparable"
    assert experiment.says("shorter output is not faster work: explain-1 (128 → 64 tokens), explain-2")
    assert experiment.says("tokens/answer 76.7 55.3 0.722")
