"""The replay of every published ngram directory equals what vLLM itself counted while it ran."""

from collections import Counter
from pathlib import Path

import pytest
from support import ROOT

from specbench.lookup.replay import PromptIndex, Replay, replay_settings
from specbench.lookup.setting import Setting
from specbench.record.directory import read_manifest, read_requests, read_summary
from specbench.record.format import Manifest, Request
from specbench.record.prompts import read_prompt_tokens

PUBLISHED = ROOT / "results"
COUNTED = sorted(
    path.parent for path in PUBLISHED.glob("h200-*/**/summary.json") if read_summary(path.parent).server.drafts
)


def setting_of(manifest: Manifest) -> Setting:
    recorded = manifest.launched.speculative_config
    assert recorded is not None
    drafted, low, high = recorded.num_speculative_tokens, recorded.prompt_lookup_min, recorded.prompt_lookup_max
    assert drafted and low and high
    return Setting(drafted, low, high)


def replays(directory: Path, setting: Setting) -> list[tuple[Request, Replay]]:
    prompts = read_prompt_tokens(directory)
    assert prompts is not None
    manifest = read_manifest(directory)
    index = {case: PromptIndex(ids, *setting[1:]) for case, ids in prompts.items()}
    max_tokens, max_model_len = manifest.request["max_tokens"], manifest.server.model.max_model_len
    found = []
    for row in read_requests(directory):
        if row.phase == "measured":
            assert row.outcome == "ok" and row.token_ids is not None
            result = replay_settings(index[row.case], row.token_ids, [setting], max_tokens, max_model_len)
            found.append((row, result[0]))
    return found


def test_every_deployment_that_drafted_is_here() -> None:
    assert len(COUNTED) >= 20


@pytest.mark.parametrize("directory", COUNTED, ids=lambda path: str(path.relative_to(PUBLISHED)))
def test_to_the_unit(directory: Path) -> None:
    setting = setting_of(read_manifest(directory))
    pairs = replays(directory, setting)
    counted = read_summary(directory).server
    assert sum(one.drafts for _, one in pairs) == counted.drafts
    assert sum(one.draft_tokens for _, one in pairs) == counted.draft_tokens
    # What agrees behind the end of an answer is counted by the server and stands in no output: only an answer that
    # ended by itself has a behind, and only where its last step had a draft.
    behind = sum(
        one.drafted[-1] - one.accepted[-1] for row, one in pairs if row.finish_reason == "stop" and one.steps > 1
    )
    positions: Counter[int] = Counter()
    for _, one in pairs:
        positions.update(dict(enumerate(one.accepted_per_position)))
    accepted = sum(positions.values())
    assert counted.accepted_tokens is not None
    assert accepted <= counted.accepted_tokens <= accepted + behind
    lost = [times - positions[position] for position, times in enumerate(counted.accepted_per_position)]
    assert all(missing >= 0 for missing in lost) and sum(lost) == counted.accepted_tokens - accepted


@pytest.mark.parametrize("directory", COUNTED, ids=lambda path: str(path.relative_to(PUBLISHED)))
def test_every_prompt_is_as_long_as_the_server_counted(directory: Path) -> None:
    prompts = read_prompt_tokens(directory)
    assert prompts is not None
    assert {row.case: len(prompts[row.case]) for row in read_requests(directory) if row.case in prompts} == {
        row.case: row.prompt_tokens for row in read_requests(directory) if row.case in prompts
    }
