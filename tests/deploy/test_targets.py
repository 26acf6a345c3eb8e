"""deploy/targets.py: the device before and after, and what a target takes."""

from pathlib import Path

import pytest
from support.experiments import run

from specbench import UserError
from specbench.deploy import targets
from specbench.deploy.gpus import gpu_memory, memory_held
from specbench.deploy.state import Deployment, Memory


def deployment(**parts: object) -> Deployment:
    known = {"index": 2, "name": "02-ngram", "mode": "ngram", "status": "ready", "started": "2026-01-01T00:00:00Z"}
    return Deployment(**{**known, **parts})  # type: ignore[arg-type]


def test_gpu_memory_is_read_per_gpu(gpu: Path) -> None:
    gpu.write_text("812")
    assert gpu_memory() == {"0 A GPU": 812}


@pytest.mark.usefixtures("no_gpu")
def test_without_nvidia_smi_there_is_no_gpu() -> None:
    assert gpu_memory() is None


@pytest.mark.parametrize(
    ("used", "sentences"),
    [
        ({"0 A": 204}, []),
        ({"0 A": 205}, ["0 A holds 205 MiB, held 4 before"]),
        ({"0 A": 0}, []),
        ({}, ["0 A is no longer there"]),
        (None, ["nvidia-smi does not answer"]),
    ],
)
def test_memory_held(used: dict[str, int] | None, sentences: list[str]) -> None:
    assert memory_held({"0 A": 4}, used) == sentences


def test_a_gpu_that_is_not_given_back_stops_the_experiment(
    tmp_path: Path, gpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "FREE_PATIENCE_S", 0.2)
    target = targets.VllmTarget(tmp_path, [], None, 1)
    stopped = deployment(gpu_memory_mib=Memory(free={"0 A GPU": 4}))
    assert target.prove_memory(stopped).not_proven == []
    gpu.write_text("70000")
    with pytest.raises(UserError, match="not free after 02-ngram was stopped: 0 A GPU holds 70000 MiB, held 4"):
        target.prove_memory(stopped)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--vllm", "no-such-vllm"], "no command 'no-such-vllm'"),
        (["--port", "1"], "--port after -- is set by experiment.py"),
        (["--mode=ngram"], "--mode after -- is set by experiment.py"),
        (["--num-speculative-tokens", "0"], "--num-speculative-tokens 0"),
    ],
)
@pytest.mark.usefixtures("gpu")
def test_bad_launcher_options(tmp_path: Path, options: list[str], sentence: str) -> None:
    answer = run("--target", "vllm", "--out", tmp_path / "out", "--", *options)
    assert answer.code == 2 and sentence in answer.error
    assert not (tmp_path / "out").exists()
