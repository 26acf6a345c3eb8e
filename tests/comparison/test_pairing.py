"""What pairs, what is refused and in which words, and every gate in its three states."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.simulated_runs import NINE, write_run
from specbench import UserError
from specbench.comparison.gates import Gate, check_gates
from specbench.comparison.pairing import Pair, pair
from specbench.comparison.sides import Outputs, read_run

Document = dict[str, Any]


def at(document: Document, path: str, value: Any) -> None:
    *parents, key = path.split(".")
    for name in parents:
        document = document[name]
    document[key] = value


def manifest_edit(path: str, value: Any) -> Callable[..., None]:
    return lambda manifest, summary, rows: at(manifest, path, value)


def two(folder: Path, *, base: Document | None = None, candidate: Document | None = None) -> Pair:
    """A pair of healthy directories but for what is given."""
    paths = [folder / "baseline-c1", folder / "ngram-c1"]
    write_run(paths[0], **{"repeats": 2, **(base or {})})
    write_run(paths[1], **{"repeats": 2, "mode": "ngram", "order": 1, "seed": 2, **(candidate or {})})
    return pair(paths[:1], paths[1:])


def refusal(folder: Path, **sides: Document) -> str:
    with pytest.raises(UserError) as caught:
        two(folder, **sides)
    return str(caught.value)


# ---- arrays


def test_arrays_are_by_case_and_repeat_whatever_the_order_of_completion(tmp_path: Path) -> None:
    straight = two(tmp_path / "a")
    backwards = two(tmp_path / "b", candidate={"edit": lambda manifest, summary, rows: rows.reverse()})
    for metric in ("e2el", "ttft", "tpot"):
        np.testing.assert_array_equal(straight.candidates[0].times[metric], backwards.candidates[0].times[metric])
    np.testing.assert_array_equal(straight.bases[0].position, backwards.candidates[0].position)


def test_warmups_are_left_out(tmp_path: Path) -> None:
    def add_warmup(manifest: Document, summary: Document, rows: list[Document]) -> None:
        rows.insert(0, {**rows[0], "phase": "warmup", "repeat": None, "position": None, "e2el_s": 99.0})

    loaded = two(tmp_path, base={"edit": add_warmup}).bases[0]
    assert len(loaded.times["e2el"]) == 18
    assert loaded.times["e2el"].max() < 2


def test_tpot_is_missing_where_a_request_has_one_token(tmp_path: Path) -> None:
    def one_token(manifest: Document, summary: Document, rows: list[Document]) -> None:
        next(row for row in rows if (row["case"], row["repeat"]) == ("copy-3", 1))["completion_tokens"] = 1

    times = two(tmp_path, base={"edit": one_token}).bases[0].times
    assert np.flatnonzero(np.isnan(times["tpot"])).tolist() == [5]
    assert not np.isnan(times["e2el"]).any()


def test_an_answer_without_text_is_compared_on_its_whole_time_and_its_output(tmp_path: Path) -> None:
    """Its first token was the end of the answer."""

    def no_text(manifest: Document, summary: Document, rows: list[Document]) -> None:
        for row in rows:
            if row["case"] == "short-1":
                row.update(text="", token_ids=[2], ttft_s=None, decode_s=None, completion_tokens=1, first_tokens=None)

    found = two(tmp_path, base={"edit": no_text}, candidate={"edit": no_text})
    times = found.bases[0].times
    assert np.isfinite(times["e2el"]).all()
    for metric in ("ttft", "tpot"):
        assert np.flatnonzero(np.isnan(times[metric])).tolist() == [12, 13]
    assert found.outputs.text(int(found.bases[0].output[12])) == ""


def test_each_pair_may_have_a_schedule_of_its_own(tmp_path: Path) -> None:
    paths = {}
    for order, (mode, seed) in enumerate((("baseline", 1), ("ngram", 1), ("ngram", 2), ("baseline", 2))):
        paths[mode, seed] = write_run(tmp_path / f"{mode}{seed}", mode=mode, repeats=2, order=order, schedule_seed=seed)
    bases, candidates = ([paths[mode, seed] for seed in (1, 2)] for mode in ("baseline", "ngram"))
    found = pair(bases, candidates)
    assert not np.array_equal(found.bases[0].position, found.bases[1].position)
    np.testing.assert_array_equal(found.bases[1].position, found.candidates[1].position)
    with pytest.raises(UserError, match="are a pair and differ in schedule; run both modes of a pair with the same"):
        pair(bases, candidates[::-1])


def test_equal_outputs_are_stored_once() -> None:
    outputs = Outputs()
    numbers = [outputs.add("a", [1, 2]), outputs.add("a", [1, 2]), outputs.add("a", [1, 3]), outputs.add("a", None)]
    assert numbers == [0, 0, 1, 2]
    assert outputs.token_ids(1) == [1, 3]
    assert outputs.token_ids(2) == [] and outputs.packed_ids(2) is None


# ---- what does not pair

DIFFERENCES = [
    ("inventory.sha256", "f" * 64, "differ in inventory", "--prompts"),
    ("schedule.sha256", "f" * 64, "are a pair and differ in schedule", "--seed"),
    ("concurrency", 8, "differ in concurrency: 1 and 8", "--concurrency"),
    ("server.model.id", "other/model", "differ in model: Qwen/Qwen3-4B and other/model", "one model"),
    ("server.model.max_model_len", 4096, "limit max_model_len: 2048 and 4096", "one limit"),
    ("server.record.revision", "f" * 40, "model revision", "--revision"),
    ("server.engine", "llama.cpp", "differ in engine", "one engine"),
    ("timeout_s", 5.0, "limit timeout_s", "--timeout"),
    ("inactivity_timeout_s", 5.0, "limit inactivity_timeout_s", "--inactivity-timeout"),
    ("request.max_tokens", 64, "request parameter max_tokens: 128 and 64", "same parameters"),
    ("request.seed", 7, "request parameter seed", "same parameters"),
]


@pytest.mark.parametrize(("path", "value", "what", "action"), DIFFERENCES, ids=[row[0] for row in DIFFERENCES])
def test_sides_that_differ_are_refused(tmp_path: Path, path: str, value: Any, what: str, action: str) -> None:
    sentence = refusal(tmp_path, candidate={"edit": manifest_edit(path, value)})
    assert what in sentence and action in sentence
    assert "baseline-c1" in sentence and "ngram-c1" in sentence


def test_different_repeats_are_refused(tmp_path: Path) -> None:
    assert "differ in number of repeats: 2 and 3" in refusal(tmp_path, candidate={"repeats": 3})


def test_a_server_without_a_record_still_pairs(tmp_path: Path) -> None:
    assert two(tmp_path, candidate={"edit": manifest_edit("server.record", None)}).candidates[0].record == {}


def test_other_cases_under_one_digest_are_refused(tmp_path: Path) -> None:
    def rename(manifest: Document, summary: Document, rows: list[Document]) -> None:
        manifest["inventory"]["cases"][0]["expect"] = "x"

    assert "other cases under one inventory digest" in refusal(tmp_path, candidate={"edit": rename})


def test_another_order_of_requests_is_refused(tmp_path: Path) -> None:
    def swap(manifest: Document, summary: Document, rows: list[Document]) -> None:
        rows[0]["position"], rows[1]["position"] = rows[1]["position"], rows[0]["position"]

    assert "different orders" in refusal(tmp_path, candidate={"edit": swap})


def test_the_same_directory_twice_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", repeats=1)
    with pytest.raises(UserError, match="is given twice"):
        pair([path], [tmp_path / "." / "run"])


def test_a_copy_of_a_directory_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", repeats=1)
    shutil.copytree(path, tmp_path / "copy")
    with pytest.raises(UserError, match="is a copy of"):
        pair([path], [tmp_path / "copy"], allow_same_mode=True)


@pytest.mark.parametrize("side", [0, 1], ids=["base", "candidate"])
def test_two_runs_of_one_deployment_are_not_two_deployments(tmp_path: Path, side: int) -> None:
    bases = [write_run(tmp_path / f"b{n}", repeats=1, order=n) for n in (0, 3)]
    candidates = [write_run(tmp_path / f"n{n}", mode="ngram", repeats=1, order=n) for n in (1, 2)]
    first, second = (path / "manifest.json" for path in (bases, candidates)[side])
    manifest = json.loads(second.read_text())
    manifest["server"]["record"]["boot_id"] = json.loads(first.read_text())["server"]["record"]["boot_id"]
    second.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="two runs of one deployment"):
        pair(bases, candidates)


def test_one_mode_on_both_sides_needs_the_flag(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / f"b{n}", repeats=1, order=n) for n in (0, 1)]
    with pytest.raises(UserError, match=r"are both baseline.*--allow-same-mode"):
        pair(paths[:1], paths[1:])
    assert pair(paths[:1], paths[1:], allow_same_mode=True).candidates[0].mode == "baseline"


def test_modes_mixed_on_one_side_are_refused(tmp_path: Path) -> None:
    bases = [write_run(tmp_path / "b", repeats=1), write_run(tmp_path / "n", mode="ngram", repeats=1, order=1)]
    candidates = [write_run(tmp_path / f"n{n}", mode="ngram", repeats=1, order=n) for n in (2, 3)]
    with pytest.raises(UserError, match="stand on one side; name base and candidate in turn"):
        pair(bases, candidates)


def test_a_mode_that_is_not_said_is_refused(tmp_path: Path) -> None:
    assert "does not say its mode" in refusal(tmp_path, candidate={"edit": manifest_edit("mode", None)})


# ---- what is no complete, honest result directory


def test_a_path_that_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a directory"):
        read_run(tmp_path / "nowhere", "base", Outputs())


def test_no_summary_says_how_far_the_run_came(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", repeats=2)
    (path / "summary.json").unlink()
    lines = (path / "requests.jsonl").read_text().splitlines(keepends=True)
    compact = [json.dumps(json.loads(line), separators=(",", ":")) + "\n" for line in lines[:5]]
    (path / "requests.jsonl").write_text("".join(compact))
    with pytest.raises(UserError, match="5 of 18 requests"):
        read_run(path, "base", Outputs())


def test_an_interrupted_run_is_refused(tmp_path: Path) -> None:
    def interrupt(manifest: Document, summary: Document, rows: list[Document]) -> None:
        summary["status"] = "interrupted"
        summary["requests"]["measured"] = 7

    assert "is interrupted, after 7 of 18 requests" in refusal(tmp_path, base={"edit": interrupt})


@pytest.mark.parametrize("file", ["manifest.json", "summary.json"])
def test_a_future_format_is_refused(tmp_path: Path, file: str) -> None:
    path = write_run(tmp_path / "run", repeats=1)
    document = json.loads((path / file).read_text())
    (path / file).write_text(json.dumps({**document, "format": 2}))
    with pytest.raises(UserError, match="has format 2"):
        read_run(path, "base", Outputs())


def test_missing_requests_are_named(tmp_path: Path) -> None:
    def drop(manifest: Document, summary: Document, rows: list[Document]) -> None:
        rows[:] = [row for row in rows if (row["case"], row["repeat"]) not in (("copy-1", 0), ("short-3", 1))]

    sentence = refusal(tmp_path, candidate={"edit": drop})
    assert "2 of 18 requests are missing: copy-1 repeat 0, short-3 repeat 1" in sentence


def test_requests_that_are_not_ok_are_named_with_their_error(tmp_path: Path) -> None:
    def fail(manifest: Document, summary: Document, rows: list[Document]) -> None:
        row = next(row for row in rows if row["case"] == "copy-2" and row["repeat"] == 1)
        row.update(outcome="timeout", error="no answer in 300 s", e2el_s=None, decode_s=None)

    sentence = refusal(tmp_path, base={"edit": fail})
    assert "1 of 18 requests are not ok: copy-2 repeat 1 (timeout: no answer in 300 s)" in sentence


def test_many_missing_requests_are_counted(tmp_path: Path) -> None:
    def halve(manifest: Document, summary: Document, rows: list[Document]) -> None:
        del rows[2:]

    assert "16 of 18 requests are missing" in refusal(tmp_path, base={"edit": halve})
    assert "and 4 more" in refusal(tmp_path / "again", base={"edit": halve})


def test_a_request_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    sentence = refusal(tmp_path, base={"edit": lambda manifest, summary, rows: rows.append(rows[3])})
    assert "is there twice" in sentence


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("case", "unknown", "case 'unknown' repeat"),
        ("repeat", 9, "repeat 9 at position"),
        ("position", 99, "at position 99"),
        ("family", "other", "another family or prompt"),
        ("prompt_sha256", "f" * 64, "another family or prompt"),
        ("e2el_s", -1.0, "line 6"),
        ("e2el_s", float("nan"), "line 6"),
        ("ttft_s", 0.0, "took 0 s"),
        ("note", "hello", "line 6"),
        ("token_ids", [2**40], "no vocabulary"),
    ],
)
def test_an_edited_line_is_refused(tmp_path: Path, key: str, value: Any, words: str) -> None:
    def edit(manifest: Document, summary: Document, rows: list[Document]) -> None:
        rows[5][key] = value

    assert words in refusal(tmp_path, base={"edit": edit})


def test_a_file_cut_off_in_mid_line_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", repeats=2)
    content = (path / "requests.jsonl").read_bytes()
    (path / "requests.jsonl").write_bytes(content[:-20])
    with pytest.raises(UserError, match="line 18 is cut off"):
        read_run(path, "base", Outputs())


@pytest.mark.parametrize("key", ["mode_verified", "server", "inventory", "schedule", "started", "client"])
def test_a_manifest_without_a_needed_key_is_refused(tmp_path: Path, key: str) -> None:
    sentence = refusal(tmp_path, base={"edit": lambda manifest, summary, rows: manifest.pop(key)})
    assert f"manifest.json is not what bench.py writes: Object missing required field `{key}`" in sentence


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("mode", 7),
        ("concurrency", 0),
        ("started", "2026-03-02T09:00:00"),
        ("inventory.cases", []),
        ("schedule.requests", 19),
        ("server.record", []),
        ("server.record.argv", [1]),
        ("server.record.max_num_seqs", "8"),
        ("server.record.speculative_config", {"num_speculative_tokens": "5"}),
        ("server.model.max_model_len", -1),
    ],
)
def test_a_manifest_of_another_shape_is_refused(tmp_path: Path, path: str, value: Any) -> None:
    assert "manifest.json" in refusal(tmp_path, candidate={"edit": manifest_edit(path, value)})


def test_a_pattern_that_is_none_is_refused(tmp_path: Path) -> None:
    sentence = refusal(tmp_path, base={"expect": {"copy-1": "("}}, candidate={"expect": {"copy-1": "("}})
    assert "case 'copy-1' has an expect that is not a regular expression" in sentence


@pytest.mark.parametrize(
    ("section", "key", "value"), [("server", "drafts", "many"), ("client", "cpu_share", []), ("server", "restarted", 3)]
)
def test_a_summary_of_another_shape_is_refused(tmp_path: Path, section: str, key: str, value: Any) -> None:
    sentence = refusal(tmp_path, candidate={"summary": {section: {key: value}}})
    assert "summary.json is not what bench.py writes: Expected" in sentence and f"$.{section}.{key}" in sentence


def test_labels_that_are_no_numbers_are_not_checked(tmp_path: Path) -> None:
    edit = manifest_edit("server.cache_config.num_gpu_blocks", "None")
    assert gate(two(tmp_path, candidate={"edit": edit}), "kv blocks").state == "not checked"


# ---- gates


def gate(pair_: Pair, name: str) -> Gate:
    return next(gate for gate in check_gates(pair_) if gate.name == name)


def test_a_healthy_pair_fires_no_gate(tmp_path: Path) -> None:
    gates = check_gates(two(tmp_path))
    # These answers are made up, so their drafting cannot be audited (tests/comparison/test_why.py).
    others = [gate for gate in gates if gate.name != "drafting audit"]
    assert {gate.state for gate in others} == {"ok"}, [gate for gate in others if gate.state != "ok"]
    assert len({gate.name for gate in gates}) == len(gates) == 18


RECORD = "server.record."


def graph_mode(asked: str | None, ran: str | None, coverage: float | None = 0.75) -> Document:
    """What a run is given whose engine ran this graph mode, with this share of its steps drafted."""

    def both(manifest: Document, summary: Document, rows: list[Document]) -> None:
        manifest["server"]["record"] |= {"cudagraph_mode": asked, "cudagraph_mode_ran": ran}

    return {"edit": both, "summary": {"server": {"draft_coverage": coverage}}}


FIRED = [
    ("drafts in ngram", {"summary": {"server": {"drafts": 0}}}, 0, "ngram-c1 drafted nothing"),
    ("server restarted", {"summary": {"server": {"restarted": True}}}, 1, "restarted during the run"),
    ("foreign requests", {"summary": {"server": {"foreign_requests": 4}}}, 4, "answered 4 requests"),
    ("prefix cache hits", {"summary": {"server": {"prefix_cache_hits": 512}}}, 512, "reused 512 cached"),
    ("prefix caching", {"edit": manifest_edit(RECORD + "prefix_caching", True)}, 2, "ngram-c1"),
    ("preemptions", {"summary": {"server": {"preemptions": 3}}}, 3, "preempted requests 3 times"),
    ("client cpu", {"summary": {"client": {"cpu_share": 0.93}}}, 0.93, "used 93% of its core"),
    ("capture size", {"edit": manifest_edit(RECORD + "cudagraph_capture_size", 4)}, 4, "users need 6"),
    ("graph mode", graph_mode("vllm-default", "FULL_AND_PIECEWISE"), 0.25, "25% of its steps drafted nothing"),
    ("kv blocks", {"edit": manifest_edit("server.cache_config.num_gpu_blocks", "9")}, 9, "need 128"),
    ("gpu", {"edit": manifest_edit(RECORD + "gpus", [{"name": "H100", "memory_mib": 1}])}, 2, "H100"),
    ("driver", {"edit": manifest_edit(RECORD + "driver", "570.1")}, 2, "570.1"),
    ("version", {"edit": manifest_edit("server.version", "0.12.0")}, 2, "0.11.2 and 0.12.0"),
    ("flags", {"edit": manifest_edit(RECORD + "environment", {"VLLM_X": "1"})}, 2, "VLLM_X=1"),
    ("compile cache", {"edit": manifest_edit(RECORD + "compile_cache", "cold")}, 1, "ngram-c1 compiled at start"),
]


@pytest.mark.parametrize(("name", "candidate", "number", "words"), FIRED, ids=[row[0] for row in FIRED])
def test_a_gate_fires_alone(tmp_path: Path, name: str, candidate: Document, number: float, words: str) -> None:
    gates = check_gates(two(tmp_path, candidate=candidate))
    fired = [gate for gate in gates if gate.state == "fired"]
    assert [gate.name for gate in fired] == [name]
    assert fired[0].number == number
    assert words in fired[0].sentence
    assert fired[0].action


def test_kv_blocks_may_differ_while_each_cache_holds_every_user(tmp_path: Path) -> None:
    """As on a real H200: 344,440 blocks and 344,611, where eight users at full length need 1,024."""
    edit = manifest_edit("server.cache_config.num_gpu_blocks", "51200")
    found = gate(two(tmp_path, candidate={"edit": edit}), "kv blocks")
    assert (found.state, found.number) == ("ok", 51200)


def test_drafts_in_the_baseline_fire(tmp_path: Path) -> None:
    fired = gate(two(tmp_path, base={"summary": {"server": {"drafts": 12}}}), "drafts in baseline")
    assert (fired.state, fired.number) == ("fired", 12)


def test_loop_lag_needs_both_limits(tmp_path: Path) -> None:
    def lag(folder: str, milliseconds: float, repeats: int = 2) -> Gate:
        summary = {"client": {"loop_lag_p99_ms": milliseconds}}
        return gate(two(tmp_path / folder, base={"summary": summary}), "client lag")

    assert lag("below both", 1.9).state == "ok"
    assert lag("2 ms, but below 1% of 700 ms", 6.0).state == "ok"
    assert lag("beyond both", 30.0).state == "fired"


def test_a_lag_below_two_milliseconds_counts_as_one_percent_at_most(tmp_path: Path) -> None:
    run = {"summary": {"client": {"loop_lag_p99_ms": 1.9}}, "cases": [("short-1", "short"), ("short-2", "short")]}
    found = gate(two(tmp_path, base=run, candidate=run), "client lag")  # 1.6% of 0.12 s
    assert (found.state, found.number) == ("ok", 0.01)


def test_capture_size_of_none_is_vllms_own_default(tmp_path: Path) -> None:
    edit = manifest_edit("server.record.cudagraph_capture_size", None)
    eight = {"concurrency": 8, "edit": edit}
    fired = gate(two(tmp_path, base=eight, candidate=eight), "capture size")
    assert (fired.state, fired.number, fired.threshold) == ("fired", 16, 48)
    assert "--max-cudagraph-capture-size 48" in str(fired.action)


@pytest.mark.parametrize(("size", "state"), [(24, "ok"), (23, "fired")])
def test_capture_size_need_not_reach_beyond_max_num_seqs(tmp_path: Path, size: int, state: str) -> None:
    """Eight users on a server that takes four at once: 4 × (5 + 1) tokens a step."""

    def four(manifest: Document, summary: Document, rows: list[Document]) -> None:
        manifest["server"]["record"] |= {"max_num_seqs": 4, "cudagraph_capture_size": size}

    run = {"concurrency": 8, "edit": four}
    found = gate(two(tmp_path, base=run, candidate=run), "capture size")
    assert (found.state, found.threshold) == (state, 24)


def test_a_card_that_cannot_run_full_is_named(tmp_path: Path) -> None:
    """Full was asked for and the engine fell back: nothing to do, so the gate tells and does not fire."""
    run = graph_mode("full", "FULL_AND_PIECEWISE")
    found = gate(two(tmp_path, base=run, candidate=run), "graph mode")
    assert (found.state, found.number, found.action) == ("ok", 0.25, None)
    assert "ngram-c1 ran the graph mode FULL_AND_PIECEWISE" in found.sentence
    assert "this card's attention backend cannot run them" in found.sentence


@pytest.mark.parametrize("mode", ["PIECEWISE", "NONE"])
def test_no_full_graph_in_either_mode_is_no_difference(tmp_path: Path, mode: str) -> None:
    run = graph_mode("vllm-default", mode)
    assert gate(two(tmp_path / "both", base=run, candidate=run), "graph mode").state == "ok"
    assert gate(two(tmp_path / "one", candidate=run), "graph mode").state == "fired"


def test_a_graph_mode_that_nothing_reports_is_not_checked(tmp_path: Path) -> None:
    """As in records of earlier versions, and where the engine did not answer."""
    for asked in ("full", "vllm-default", None):
        found = gate(two(tmp_path / str(asked), candidate=graph_mode(asked, None)), "graph mode")
        assert found.state == "not checked" and "ngram-c1: which CUDA-graph mode ran is not known" in found.sentence


def test_steps_of_an_unknown_share_all_count(tmp_path: Path) -> None:
    run = graph_mode("vllm-default", "FULL_AND_PIECEWISE", coverage=None)
    assert gate(two(tmp_path, candidate=run), "graph mode").number == 1


def test_the_public_part_of_the_version_is_compared(tmp_path: Path) -> None:
    assert gate(two(tmp_path, candidate={"edit": manifest_edit("server.version", "0.11.2")}), "version").state == "ok"


def test_cold_on_both_sides_is_no_difference(tmp_path: Path) -> None:
    cold = {"edit": manifest_edit("server.record.compile_cache", "cold")}
    assert gate(two(tmp_path, base=cold, candidate=cold), "compile cache").state == "ok"


def test_address_and_mode_in_the_flags_may_differ(tmp_path: Path) -> None:
    def argv(port: str, mode: str) -> Callable[..., None]:
        return manifest_edit("server.record.argv", ["serve.py", "--mode", mode, "--port", port, "--k", "5"])

    same = two(tmp_path, base={"edit": argv("1", "baseline")}, candidate={"edit": argv("2", "ngram")})
    assert gate(same, "flags").state == "ok"


def test_caching_on_in_both_modes_may_hit(tmp_path: Path) -> None:
    side = {
        "summary": {"server": {"prefix_cache_hits": 512}},
        "edit": manifest_edit("server.record.prefix_caching", True),
    }
    both = two(tmp_path, base=side, candidate=side)
    assert gate(both, "prefix cache hits").state == gate(both, "prefix caching").state == "ok"


def test_what_the_server_does_not_say_is_not_checked(tmp_path: Path) -> None:
    def silence(manifest: Document, summary: Document, rows: list[Document]) -> None:
        manifest["server"].update(record=None, cache_config=None, version=None)
        summary["server"] = {}

    gates = check_gates(two(tmp_path, candidate={"edit": silence}))
    unchecked = {gate.name for gate in gates if gate.state == "not checked"}
    assert unchecked == {gate.name for gate in gates} - {"drafts in baseline", "client cpu", "client lag"}
    assert all(gate.action for gate in gates if gate.state == "not checked")


def test_the_nine_cases_keep_their_families(tmp_path: Path) -> None:
    loaded = two(tmp_path)
    assert loaded.families == ("copy", "explain", "short")
    assert [loaded.families[number] for number in loaded.family] == [family for _, family in NINE]
