"""deploy/opening.py and deploy/state.py: how an experiment begins and goes on, and what it refuses."""

import json
from pathlib import Path

import msgspec
import pytest
from support import ROOT
from support.experiments import run

import experiment
from specbench import UserError
from specbench.deploy import opening
from specbench.deploy.opening import Given, held, new_experiment, new_settings, target_of
from specbench.deploy.polyaxon_target import PolyaxonTarget
from specbench.deploy.state import check_order, read_state
from specbench.files import json_bytes


def given(*arguments: object) -> Given:
    return experiment.parse([*map(str, arguments)])


# ---- the order


@pytest.mark.parametrize("order", ["BN", "NB", "BNNB", "NBBN", "BNNBBN", "BNNBBNNB"])
def test_an_alternating_order_is_taken(order: str) -> None:
    check_order(order)


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ("BBNN", "does not alternate"),
        ("BNBN", "does not alternate"),
        ("BBN", "does not alternate"),
        ("BNN", "does not alternate"),
        ("BNNBNB", "does not alternate"),
        ("BB", "both modes"),
        ("B", "both modes"),
        ("", "both modes"),
        ("BXNB", "holds X"),
        ("bnnb", "holds b, n"),
    ],
)
def test_any_other_order_is_refused(order: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        check_order(order)


# ---- bad input: one sentence, exit 2, nothing made


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "--target is missing"),
        (["--target", "local", "--mix", "copy=2"], "with a weight from 0 to 1"),
        (["--target", "local", "--mix", "poems=1"], "--mix names the family 'poems'"),
        (["--target", "local", "--primary", "poems"], "--primary is 'poems'"),
        (["--target", "local", "--order", "BB"], "both modes"),
        (["--target", "local", "--concurrency", "1,1"], "--concurrency 1,1"),
        (["--target", "local", "--concurrency", "0"], "--concurrency 0"),
        (["--target", "local", "--concurrency", "1,x"], "--concurrency 1,x"),
        (["--target", "local", "--concurrency", "9" * 5000], "--concurrency 999"),
        (["--target", "local", "--repeats", "0"], "--repeats 0"),
        (["--target", "local", "--repeats", "100001"], "--repeats 100,001: must be at most 100,000"),
        (["--target", "local", "--prompts", "none.jsonl"], "none.jsonl"),
        (["--target", "local", "--", "--model", "m"], "no options after --"),
        (["--target", "vllm"], "no GPU"),
        (["--resume"], "nothing to --resume"),
        (["--target", "local", "--port", "99999"], "--port 99999 must be from 1 to 65535"),
        (["--target", "local", "--port", "0"], "--port 0 must be from 1 to 65535"),
        (["--target", "local", "--startup-timeout", "0"], "--startup-timeout 0 must be"),
        (["--target", "local", "--startup-timeout", "inf"], "--startup-timeout inf must be"),
        (["--target", "local", "--startup-timeout", "nan"], "--startup-timeout nan must be"),
        (["--target", "local", "-p", "demo"], "--project is for --target polyaxon"),
        (["--target", "vllm", "--owner", "me", "--queue", "q"], "--owner, --queue is for --target polyaxon"),
        (["--target", "local", "--approve"], "--approve is for --target polyaxon"),
        (["--target", "vllm", "--insecure-http"], "--insecure-http is for --target polyaxon"),
        (["--target", "polyaxon", "-p", "demo", "--port", "8000"], "--port is for --target local and vllm"),
    ],
)
@pytest.mark.usefixtures("no_gpu")
def test_bad_input(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    answer = run("--out", tmp_path / "out", *arguments)
    assert answer.code == 2
    assert answer.error.startswith("experiment.py: ") and sentence in answer.error and answer.error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    answer = run("--target", "local", "--out", tmp_path)
    assert answer.code == 2 and "not an empty folder" in answer.error
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("arguments", [["--target", "moon"], ["--repeats", "x"], ["--no-such"]])
def test_a_bad_command_line_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        experiment.main(["--out", str(tmp_path / "out"), *arguments])
    error = capsys.readouterr().err
    assert error.startswith("experiment.py: ") and error.count("\n") == 1


@pytest.mark.parametrize("cut", [0, 10, None])
def test_what_a_kill_before_the_first_save_left_can_be_used_again(tmp_path: Path, prompts: Path, cut: int) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "prompts.jsonl").write_bytes(prompts.read_bytes()[:cut])
    (out / "experiment.json.part").write_text("{")
    state = new_experiment(given("--target", "local", "--out", out, "--prompts", prompts))
    assert state.settings.target == "local"
    assert (out / "prompts.jsonl").read_bytes() == prompts.read_bytes()


def test_other_prompts_in_the_folder_are_left_alone(tmp_path: Path, prompts: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "prompts.jsonl").write_text("mine")
    with pytest.raises(UserError, match="not an empty folder"):
        new_experiment(given("--target", "local", "--out", out, "--prompts", prompts))
    assert (out / "prompts.jsonl").read_text() == "mine"


SETTINGS = {**opening.DEFAULTS, "repeats": 10, "target": "local", "prompts_sha256": ""}
PARTS = {
    "format": 1, "id": "1", "settings": SETTINGS, "status": "stopped", "device": {}, "deployments": [],
    "comparisons": {},
}  # fmt: skip
DEPLOYMENT = {"index": 1, "name": "01-baseline", "mode": "baseline", "status": "done", "started": "2026-01-01T00:00Z"}
LOAD = {"directory": "01-baseline-c1", "status": "done"}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([], "has format None"),
        ({}, "has format None"),
        ("text", "has format None"),
        ([[[[]]]], "has format None"),
        ({**PARTS, "format": 99}, "has format 99, this version reads"),
        ({"format": 1}, "missing required field `settings`"),
        ({**PARTS, "settings": {}}, "missing required field `order`"),
        ({**PARTS, "settings": {**SETTINGS, "order": "BBNN"}}, "does not alternate"),
        ({**PARTS, "settings": {**SETTINGS, "repeats": 10**30}}, "$.settings.repeats"),
        ({**PARTS, "settings": {**SETTINGS, "concurrency": [1e308]}}, "$.settings.concurrency"),
        ({**PARTS, "deployments": [{}]}, "missing required field `index`"),
        ({**PARTS, "deployments": [{**DEPLOYMENT, "log": "../../.ssh/id"}]}, "$.deployments[0].log"),
        ({**PARTS, "deployments": [{**DEPLOYMENT, "process": {"pid": -1}}]}, "$.deployments[0].process.pid"),
        (
            {**PARTS, "deployments": [{**DEPLOYMENT, "loads": {"1": {**LOAD, "directory": "../1"}}}]},
            "$.deployments[0].loads[...].directory",
        ),
        ({**PARTS, "comparisons": {"1": {"json": "/etc/passwd", "pairs": [["a", "b"]]}}}, "$.comparisons[...].json"),
        ({**PARTS, "comparisons": {"1": {"json": "a", "pairs": [["--and", "b"]]}}}, "$.comparisons[...].pairs"),
    ],
)
def test_a_state_edited_by_hand_is_one_sentence(tmp_path: Path, content: object, sentence: str) -> None:
    (tmp_path / "experiment.json").write_text(json.dumps(content))
    answer = run("--out", tmp_path, "--resume")
    assert answer.code == 2 and sentence in answer.error and answer.error.count("\n") == 1, answer.error


@pytest.mark.parametrize("text", ["", "{", '{"format": 1, "settings": ' + "[" * 100_000, "\ud800"])
def test_a_state_that_is_no_json_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "experiment.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    answer = run("--out", tmp_path, "--resume")
    assert answer.code == 2 and "is not JSON" in answer.error and answer.error.count("\n") == 1, answer.error


def test_a_state_is_written_as_it_was_read() -> None:
    """The published experiments, byte for byte: names, order and absence of every key."""
    for path in sorted((ROOT / "results").glob("**/experiment.json")):
        assert json_bytes(read_state(path.parent)) == path.read_bytes()


def test_polyaxon_gets_the_params_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "RunApi", lambda *_, **__: None)
    wanted = given("--target", "polyaxon", "--out", tmp_path, "-p", "me/demo", "--", "-P", "hub_token=s3cret")
    settings = new_settings(wanted)
    assert b"s3cret" not in msgspec.json.encode(settings)
    target = target_of(settings, wanted, "1")
    assert isinstance(target, PolyaxonTarget) and target.params == {"hub_token": "s3cret"}


def test_a_second_experiment_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(UserError, match="another experiment"), held(tmp_path):
        pass
    with held(tmp_path):
        pass  # free again


# ---- repeats and schedules


@pytest.mark.parametrize(
    ("arguments", "repeats", "seeds"),
    [
        ([], {1: 10, 4: 40, 8: 80}, [0, 1]),
        (["--concurrency", "2,64", "--order", "BNNBBN"], {2: 20, 64: 640}, [0, 1, 2]),
        (["--concurrency", "10000", "--order", "NB"], {10_000: 100_000}, [0]),
        (["--repeats", "3"], 3, [0, 1]),
    ],
)
def test_each_load_has_as_many_repeats_per_user_and_each_pair_its_own_schedule(
    arguments: list[str], repeats: object, seeds: list[int]
) -> None:
    settings = new_settings(given("--target", "local", "--out", "out", *arguments))
    assert (settings.repeats, settings.seeds) == (repeats, seeds)
    places = range(1, len(settings.order) + 1)
    assert [settings.seed_of(place) for place in places] == [seed for seed in seeds for _ in "BN"]


def test_an_experiment_of_the_first_format_goes_on_with_what_it_had() -> None:
    """The published experiments: the same repeats at every load, one schedule."""
    state = read_state(ROOT / "results" / "h200-smollm2-135m")
    assert state.format == 1
    assert {state.settings.repeats_at(load) for load in state.settings.concurrency} == {10}
    assert {state.settings.seed_of(place) for place in range(1, 9)} == {0}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"concurrency": [1, 1]}, "a load stands twice"),
        ({"repeats": {"1": 10}}, "name other loads"),
        ({"seeds": [1, 2, 3]}, "does not hold one per pair"),
        ({"repeats": {"1": 0}}, "$.settings.repeats"),
    ],
)
def test_settings_that_contradict_each_other_are_one_sentence(
    tmp_path: Path, change: dict[str, object], sentence: str
) -> None:
    document = {**PARTS, "format": 2, "settings": {**SETTINGS, **change}}
    (tmp_path / "experiment.json").write_text(json.dumps(document))
    answer = run("--out", tmp_path, "--resume")
    assert answer.code == 2 and sentence in answer.error and answer.error.count("\n") == 1, answer.error


def test_a_deployment_that_is_not_of_the_order_is_one_sentence(tmp_path: Path) -> None:
    for place in ({"index": 2}, {"index": 99}):
        (tmp_path / "experiment.json").write_text(json.dumps({**PARTS, "deployments": [{**DEPLOYMENT, **place}]}))
        answer = run("--out", tmp_path, "--resume")
        assert answer.code == 2 and "01-baseline is not what stands in $.settings.order" in answer.error
