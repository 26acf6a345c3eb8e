"""What to do next at each load: the right step for what was found, and commands that work."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.simulated_experiment import write_experiment

from benchmarks.simulated_runs import write_run
from specbench.comparison.format import Comparison
from specbench.deploy.next_steps import NextStep, experiment_command, next_steps
from specbench.deploy.state import State, check_order, read_state
from specbench.page.evidence import gather


def read(folder: Path) -> tuple[State, list[Comparison]]:
    state = read_state(folder)
    return state, [load.result for load in gather([folder]).loads]


def steps_of(folder: Path, **options: Any) -> list[NextStep]:
    state, results = read(folder)
    return next_steps(results, folder, state.settings, **options)


def test_one_pair_is_deployed_again_in_the_reverse_order(tmp_path: Path) -> None:
    """Both loads in one command, and the page of all four deployments."""
    (step,) = steps_of(write_experiment(tmp_path / "x", loads=(1, 4), order="BN"))
    assert step.loads == (1, 4) and "in the reverse order" in step.sentence
    again, together = map(shlex.split, step.commands)
    assert again[again.index("--order") + 1] == "NB"
    assert again[again.index("--concurrency") + 1] == "1,4" and again[again.index("--repeats") + 1] == "6"
    assert again[again.index("--out") + 1] == f"{tmp_path}/x-more"
    assert again[again.index("--prompts") + 1] == f"{tmp_path}/x/prompts.jsonl"
    places = [f"{tmp_path}/{name}/*-c{load}" for load in (1, 4) for name in ("x", "x-more")]
    assert together == ["python", "report.py", *places, "--out", f"{tmp_path}/x-more/all.html"]


def test_the_page_of_all_deployments_is_made_as_the_step_says(tmp_path: Path) -> None:
    """The second command, with both experiments there: what was no verdict becomes one."""
    first = write_experiment(tmp_path / "x", loads=(1,), order="BN")
    assert [load.result.verdict.verdict for load in gather([first]).loads] == [None]
    # The second experiment began later: its places in the order come after those of the first.
    write_experiment(tmp_path / "x-more", loads=(1,), order="NB", first=2)
    directories = sorted([*first.glob("*-c1"), *(tmp_path / "x-more").glob("*-c1")])
    (load,) = gather(directories).loads
    assert load.result.verdict.verdict is not None and list(load.result.order) == [
        "base", "candidate", "candidate", "base",
    ]  # fmt: skip


def test_the_order_goes_on_alternating(tmp_path: Path) -> None:
    """An undecided effect on noisy deployments: as many more as the advice says, alternating with what is there."""
    folder = write_experiment(tmp_path / "x", loads=(3,), effect=0.0, noise=0.2)
    (step,) = steps_of(folder)
    assert "would find a difference of 10%" in step.sentence
    words = shlex.split(step.commands[0])
    order = words[words.index("--order") + 1]
    check_order("BNNB" + order)


def test_families_that_differ_are_weighed(tmp_path: Path) -> None:
    """The command has a share for every family, and together they are 1."""
    folder = write_experiment(tmp_path / "x", loads=(8,))
    (step,) = steps_of(folder)
    words = shlex.split(step.commands[0])
    assert words[:3] == ["python", "report.py", str(folder)]
    shares = dict(part.split("=") for part in words[words.index("--mix") + 1].split(","))
    assert set(shares) == {"copy", "explain", "short"} and sum(map(float, shares.values())) == pytest.approx(1)


def test_changed_outputs_are_to_be_read_first(tmp_path: Path) -> None:
    def outputs(case: str, repeat: int, mode: str, load: int) -> str:
        return mode if case == "copy-1" else "same"

    (step,) = steps_of(write_experiment(tmp_path / "x", loads=(1,), outputs=outputs))
    assert step.sentence.startswith("Read how the outputs of copy-1 changed")
    words = shlex.split(step.commands[0])
    assert words[:4] == ["python", "compare.py", f"{tmp_path}/x/01-baseline-c1", f"{tmp_path}/x/02-ngram-c1"]
    assert words[-2:] == ["--show", "copy-1"] and words.count("--and") == 1


def test_a_gate_that_fired_is_mended(tmp_path: Path) -> None:
    (step,) = steps_of(write_experiment(tmp_path / "x", loads=(1,), summary={"server": {"preemptions": 3}}))
    assert step.sentence.startswith("Mend what the gates found") and "--gpu-memory-utilization" in step.sentence
    assert "--out " + str(tmp_path / "x-again") in step.commands[0]


def test_what_is_settled_asks_for_other_settings_or_other_prompts(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "x", loads=(2,), effect=-0.3)
    (known,) = steps_of(folder, has_token_ids=True)
    assert known.commands == (f"python forecast.py {folder}/01-baseline-c2 --cost {folder} --sweep",)
    (unknown,) = steps_of(folder)
    assert "--prompts YOUR-PROMPTS.jsonl" in unknown.commands[0]


def test_loose_directories_get_commands_that_name_them(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "x", loads=(1,), order="BN")
    results = [load.result for load in gather(sorted(folder.glob("*-c1"))).loads]
    (step,) = next_steps(results, Path(), None)
    assert step.commands == (
        f"python compare.py {folder}/01-baseline-c1 {folder}/02-ngram-c1 --and BASELINE2 NGRAM2 --accept-floor",
    )


def test_repeats_that_grow_with_the_load_are_the_default_and_not_given(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "x", loads=(1, 4), order="BN")
    document = json.loads((folder / "experiment.json").read_text())
    document["format"] = 2
    document["settings"]["repeats"] = {"1": 10, "4": 40}
    (folder / "experiment.json").write_text(json.dumps(document))
    settings = read_state(folder).settings
    assert "--repeats" not in experiment_command(settings, folder, "again")
    assert "--repeats 40 " in experiment_command(settings, folder, "again", loads=[4])


def test_commands_are_given_as_from_the_readme_s_folder() -> None:
    published = ROOT / "results" / "h200-smollm2-135m"
    words = shlex.split(experiment_command(read_state(published).settings, published, "again"))
    assert (ROOT / words[words.index("--prompts") + 1]).is_file()
    assert words[words.index("--out") + 1] == "results/h200-smollm2-135m-again"


def test_what_was_named_beforehand_is_named_again(tmp_path: Path) -> None:
    """Mix and primary line are in the state, in the command to do it again, and on a page that compares again."""
    folder = write_experiment(tmp_path / "x", loads=(1,))
    document = json.loads((folder / "experiment.json").read_text())
    document["settings"] |= {"mix": {"copy": 0.25, "explain": 0.5, "short": 0.25}, "primary": "copy"}
    (folder / "experiment.json").write_text(json.dumps(document))
    settings = read_state(folder).settings
    assert "--mix copy=0.25,explain=0.5,short=0.25 --primary copy" in experiment_command(settings, folder, "again")
    (folder / "compare-c1.json").unlink()
    (load,) = gather([folder]).loads
    assert load.result.verdict.line == "copy" and load.result.verdict.mix == settings.mix


def test_a_machine_that_nobody_can_measure_on_is_to_be_steadied(tmp_path: Path) -> None:
    """Not a hundred deployments more: the command is the experiment once more, in its own order."""
    folder = write_experiment(tmp_path / "x", loads=(1,), effect=0.0, order="BNNB")
    for path in folder.glob("0[34]-*-c1"):
        shutil.rmtree(path)
    for index, (mode, shift) in enumerate((("ngram", 0.6), ("baseline", -0.6)), start=2):
        name = f"{index + 1:02d}-{mode}-c1"
        write_run(folder / name, mode=mode, order=index, repeats=6, deployment=shift, seed=index)
    (folder / "compare-c1.json").unlink()
    (step,) = steps_of(folder)
    assert "see that nothing else uses this machine" in step.sentence
    (command,) = map(shlex.split, step.commands)
    assert command[command.index("--order") + 1] == "BNNB"
