"""experiment.py --no-text: the folder holds no prompt and no answer, and ends in a comparison all the same."""

import json
from pathlib import Path

import pytest
from support.experiments import on_vllm, run, state
from support.vllm_standin import recorded_stream

import compare
import report
from specbench.record.directory import read_manifest, read_requests


def answer(mode: str) -> str:
    """The text of the recorded stream that the stand-in serves."""
    events = b"".join(recorded_stream(mode)).decode().split("\n\n")
    chunks = [json.loads(event[6:]) for event in events if event.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


@pytest.mark.usefixtures("gpu")
def test_a_whole_experiment_without_texts(
    tmp_path: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    whole = run(*on_vllm(prompts, out, "--no-text", order="BN", loads="1"))
    assert whole.code == 0, whole.error
    assert state(out)["settings"]["no_text"] is True and not (out / "prompts.jsonl").exists()
    base, candidate = out / "01-baseline-c1", out / "02-ngram-c1"
    assert read_manifest(base).no_text and {row.text[:8] for row in read_requests(base)} == {"not kept"}

    assert compare.main([str(base), str(candidate), "--json", str(tmp_path / "c.json"), "--show", "copy-1"]) in (0, 1)
    shown = capsys.readouterr().out
    assert "not kept: " in shown and "HMAC" in shown
    compared = json.loads((tmp_path / "c.json").read_text())
    assert all(case["divergence"] is None for case in compared["equality"]["cases"].values())
    assert report.main([str(out), "--out", str(tmp_path / "page.html")]) == 0
    assert "YOUR-PROMPTS.jsonl --no-text" in (tmp_path / "page.html").read_text()

    readable = [json.loads(line)["messages"][0]["content"] for line in prompts.read_text().splitlines()]
    readable += [answer(mode)[:40] for mode in ("baseline", "ngram")]
    for path in (path for path in [*out.rglob("*"), tmp_path / "page.html"] if path.is_file()):
        content = path.read_bytes().decode(errors="replace")
        assert not [text for text in readable if text in content or json.dumps(text)[1:-1] in content], path

    assert "give the --prompts that it began with" in run("--out", out, "--resume").error
    again = run("--out", out, "--resume", "--prompts", prompts)
    assert again.code == 0, again.error
    prompts.write_text(prompts.read_text().replace("2 + 2", "3 + 3"))
    assert "prompts_sha256 was" in run("--out", out, "--resume", "--prompts", prompts).error
