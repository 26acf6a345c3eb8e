"""How many steps of the target model each answer took: counted, replayed, or as the engine says; never guessed.

The baseline takes a step per token. vLLM's prompt lookup is replayed over token ids that are known
(specbench/lookup/replay.py). llama.cpp says of each answer how many drafted tokens it accepted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from specbench import UserError
from specbench.comparison.pairing import Pair
from specbench.comparison.sides import Floats, Run
from specbench.lookup.answers import model_limit, output_limits, recorded_setting
from specbench.lookup.replay import PromptIndex, replay_settings
from specbench.record.prompts import PROMPT_TOKENS, read_prompt_tokens

Source = Literal["counted", "replayed", "reported"]
_CHANCE = ("temperature", "top_k", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Steps after the prefill of one run's answers, [places]; NaN for an answer without a token.

    `drafted`: those that verified a draft, None where the source does not tell them apart. `drafts`, `draft_tokens`: of
    the whole run, where it was replayed.
    """

    source: Source
    all: Floats
    drafted: Floats | None
    drafts: int | None = None
    draft_tokens: int | None = None


class _Counts(NamedTuple):
    """Of one answer: steps with the prefill, drafts, and drafted tokens."""

    steps: int
    drafts: int
    draft_tokens: int


class Unknown(Exception):
    """Why the steps of a run are not known, in one sentence without its end."""


def count_steps(pair: Pair) -> Mapping[str, Steps | Unknown]:
    """The steps of every run, by its name, or why they are not known."""
    counted: dict[str, Steps | Unknown] = {}
    for run in pair.runs:
        try:
            counted[run.name] = _steps(run, pair)
        except Unknown as reason:
            counted[run.name] = reason
        except UserError as error:  # damaged, or of another run: the times stand without it
            counted[run.name] = Unknown(str(error))
    return counted


def _steps(run: Run, pair: Pair) -> Steps:
    tokens = np.where(run.tokens > 0, run.tokens, np.nan).astype(np.float64)
    if run.mode == "baseline":
        return Steps("counted", tokens - 1, np.zeros_like(tokens))
    if run.mode != "ngram":
        raise Unknown(f"{run.name} does not say its mode")
    if run.accepted is not None:
        return Steps("reported", tokens - run.accepted - 1, None)
    return _replayed(run, pair, tokens)


def _replayed(run: Run, pair: Pair, tokens: Floats) -> Steps:
    """Steps of an ngram run on vLLM: from token ids, or as bench.py replayed them before it dropped the ids."""
    if chance := [name for name in _CHANCE if run.manifest.request.get(name)]:
        raise Unknown(f"{run.name} was measured with {chance[0]}, and only greedy answers can be replayed")
    find = _kept_steps(run, pair) if run.manifest.no_text else _replayer(run, pair)
    every, drafted = np.full(len(tokens), np.nan), np.full(len(tokens), np.nan)
    drafts = draft_tokens = 0
    for number, places in enumerate(pair.places):
        known: dict[int, _Counts] = {}  # repeats of a case are nearly copies
        for place in places.tolist():
            output = int(run.output[place])
            if output not in known:
                known[output] = find(number, place)
            counts = known[output]
            if counts.steps:
                every[place], drafted[place] = counts.steps - 1, counts.drafts
            drafts += counts.drafts
            draft_tokens += counts.draft_tokens
    return Steps("replayed", every, drafted, drafts, draft_tokens)


def _replayer(run: Run, pair: Pair) -> Callable[[int, int], _Counts]:
    """What replays the answer to a case (its number) at a place."""
    prompts = read_prompt_tokens(Path(run.name))
    if prompts is None:
        raise Unknown(f"{run.name} has no {PROMPT_TOKENS}, the token ids of its prompts")
    setting = recorded_setting(Path(run.name), run.manifest)
    limits, longest = output_limits(run.manifest), model_limit(run.manifest)
    indexes: dict[str, PromptIndex] = {}  # of one case at a time

    def find(number: int, place: int) -> _Counts:
        case = pair.cases[number].id
        if case not in prompts:
            raise Unknown(f"{PROMPT_TOKENS} of {run.name} lacks the case {case!r}")
        if case not in indexes:
            indexes.clear()
            indexes[case] = PromptIndex(prompts[case], setting.prompt_lookup_min, setting.prompt_lookup_max)
        output_ids = _checked_ids(run, pair, place, limits[case])
        found = replay_settings(indexes[case], output_ids, [setting], limits[case], longest)[0]
        return _Counts(found.steps, found.drafts, found.draft_tokens)

    return find


def _kept_steps(run: Run, pair: Pair) -> Callable[[int, int], _Counts]:
    """The same from the file that bench.py --no-text leaves in place of token ids."""
    from specbench.client.withholding import STEPS, AnswerSteps  # the client is needed for such runs alone

    path = Path(run.name) / STEPS
    try:
        kept = msgspec.json.Decoder(AnswerSteps).decode_lines(path.read_bytes())
    except OSError:
        raise Unknown(f"{run.name} has no {STEPS}, which holds the steps of answers whose ids are not kept") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unknown(f"{path} is not what bench.py writes: {error}") from None
    setting = recorded_setting(Path(run.name), run.manifest)
    known = {(one.case, one.output): one for one in kept}

    def find(number: int, place: int) -> _Counts:
        case, shown = pair.cases[number].id, pair.outputs.text(int(run.output[place]))
        one = known.get((case, shown))
        if one is None or (one.num_speculative_tokens, one.prompt_lookup_min, one.prompt_lookup_max) != setting:
            raise Unknown(f"{STEPS} of {run.name} does not hold every answer under the setting that is recorded")
        return _Counts(one.steps, one.drafts, one.draft_tokens)

    return find


def _checked_ids(run: Run, pair: Pair, place: int, limit: int | None) -> list[int]:
    number = int(run.output[place])
    if pair.outputs.packed_ids(number) is None:
        raise Unknown(f"{run.name} holds no token ids of its answers")
    output_ids = pair.outputs.token_ids(number)
    if len(output_ids) != run.tokens[place]:
        raise Unknown(f"{run.name} has an answer of {len(output_ids)} token ids, counted as {run.tokens[place]} tokens")
    if limit is not None and len(output_ids) > limit:
        raise Unknown(f"{run.name} has an answer of {len(output_ids)} tokens where {limit} were asked for")
    return output_ids
