"""--spread-from: what earlier experiments lend, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import compare
from benchmarks.simulated_runs import write_run
from specbench import UserError
from specbench.comparison.assessment import Options
from specbench.comparison.assessment import compare as compare_directories
from specbench.comparison.format import Comparison

Document = dict[str, Any]
SHIFTS = (0.03, -0.03, 0.02, -0.01)


def experiment(
    folder: Path, order: int, deployments: int = 4, edit: Callable[..., None] | None = None, users: int = 1
) -> Path:
    """An experiment of pairs in alternating order, its state as far as it is read here."""
    names = []
    for number in range(deployments):
        mode = "baseline" if number % 4 in (0, 3) else "ngram"
        names.append(f"{number}-{mode}")
        write_run(
            folder / names[-1], mode=mode, repeats=5, order=order + number, seed=order + number, concurrency=users,
            schedule_seed=order + number // 2, deployment=SHIFTS[number % 4], edit=edit,
        )  # fmt: skip
    pairs = [sorted(names[start : start + 2], key=lambda name: "ngram" in name) for start in range(0, deployments, 2)]
    state = {"format": 1, "comparisons": {str(users): {"json": "x.json", "pairs": pairs}}}
    (folder / "experiment.json").write_text(json.dumps(state))
    return folder


def compared(folder: Path, *earlier: Path) -> Comparison:
    pairs = json.loads((folder / "experiment.json").read_text())["comparisons"]["1"]["pairs"]
    bases, candidates = ([folder / name for name in names] for names in zip(*pairs, strict=True))
    return compare_directories(bases, candidates, Options(spread_from=earlier))


def test_earlier_deployments_narrow_every_line_and_are_declared(tmp_path: Path) -> None:
    now = experiment(tmp_path / "now", 0)
    earlier = [experiment(tmp_path / "one", 10, deployments=8), experiment(tmp_path / "two", 30)]
    alone, both = compared(now), compared(now, *earlier)
    for metric in ("e2el", "ttft"):
        for one, other in zip(alone.metrics[metric].lines, both.metrics[metric].lines, strict=True):
            assert one.interval.low is not None and other.interval.low is not None
            assert other.interval.low > one.interval.low
            assert one.spread == other.spread
    assumption = both.primary.interval.assumption
    # Two deployments of each mode here, four and two earlier: 2 + 6 + 2 degrees of freedom.
    assert "10 degrees of freedom" in assumption and "on 8 degrees of freedom, beside" in assumption
    assert both.spread_from == [str(folder) for folder in earlier] and alone.spread_from == []


def record(key: str, value: Any) -> Callable[..., None]:
    def edit(manifest: Document, summary: Document, rows: list[Document]) -> None:
        manifest["server"]["record"][key] = value

    return edit


def server(key: str, value: Any) -> Callable[..., None]:
    def edit(manifest: Document, summary: Document, rows: list[Document]) -> None:
        manifest["server"][key] = value

    return edit


STACKS = {
    "engine": server("engine", "llama.cpp"),
    "version": server("version", "0.12.0"),
    "model": server("model", {"id": "other", "root": "other", "max_model_len": 2048}),
    "model revision": record("revision", "f" * 40),
    "GPU": record("gpus", [{"name": "NVIDIA L4"}]),
    "flags": record("argv", ["vllm", "serve", "Qwen/Qwen3-4B", "--max-num-seqs", "16"]),
}


@pytest.mark.parametrize("what", STACKS)
def test_another_stack_is_refused_in_one_sentence(what: str, tmp_path: Path) -> None:
    now, earlier = experiment(tmp_path / "now", 0), experiment(tmp_path / "earlier", 10, edit=STACKS[what])
    with pytest.raises(UserError, match=rf"earlier cannot be used: .* differ in {what}, and deployments of another"):
        compared(now, earlier)


def test_another_load_one_pair_and_the_same_runs_are_refused(tmp_path: Path) -> None:
    now = experiment(tmp_path / "now", 0)
    for earlier, says in (
        (experiment(tmp_path / "eight", 10, users=8), r"has no comparison at this load \(1\); it has: 8"),
        (experiment(tmp_path / "pair", 20, deployments=2), "one deployment of each mode at this load"),
        (now, "again; name an earlier experiment"),
        (tmp_path / "nowhere", "cannot read"),
    ):
        with pytest.raises(UserError, match=says):
            compared(now, earlier)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"comparisons": 7}', b'{"comparisons": ' + b"[" * 100_000])
def test_a_damaged_state_is_one_sentence(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now, earlier = experiment(tmp_path / "now", 0), tmp_path / "earlier"
    earlier.mkdir()
    (earlier / "experiment.json").write_bytes(content)
    names = [str(now / name) for name in ("0-baseline", "1-ngram", "3-baseline", "2-ngram")]
    assert compare.main([*names[:2], "--and", *names[2:], "--spread-from", str(earlier)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("compare.py: ") and "--spread-from cannot use it" in said and said.count("\n") == 1
    assert compare.main([*names[:2], "--spread-from", str(earlier)]) == 2
    assert "narrows an interval over deployments, and here is one of each mode" in capsys.readouterr().err


def test_a_path_out_of_the_experiment_is_refused(tmp_path: Path) -> None:
    now, earlier = experiment(tmp_path / "now", 0), experiment(tmp_path / "earlier", 10)
    state = json.loads((earlier / "experiment.json").read_text())
    state["comparisons"]["1"]["pairs"][0][0] = "../now/0-baseline"
    (earlier / "experiment.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match="outside of the experiment's folder; it was edited"):
        compared(now, earlier)
