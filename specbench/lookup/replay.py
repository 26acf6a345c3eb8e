"""N-gram drafting replayed: the steps that vLLM 0.11.2 takes for an answer whose token ids are known.

A greedy answer does not depend on drafting, so an answer that was given without drafting tells every step that drafting
would take (docs/forecast.md). The rules, with their place in vLLM's source:

* **Propose** (v1/spec_decode/ngram_proposer.py). The context is all tokens so far. Of its suffixes of
  `prompt_lookup_max` down to `prompt_lookup_min` tokens the longest that occurs earlier wins, and of its occurrences
  the earliest; it may overlap the suffix. What follows it is drafted: at most `num_speculative_tokens`, and no further
  than the context reaches. (The proposer's own cut at max_model_len never binds: the scheduler's is tighter.)
* **Do not propose** (v1/worker/gpu_model_runner.py, `input_fits_in_drafter`) after a step that, with its own draft and
  `num_speculative_tokens` more, would pass max_model_len. On a server this stops drafting for the whole batch; here a
  sequence only stops itself.
* **Cut** (v1/core/sched/scheduler.py). With r tokens still to come before max_tokens or max_model_len, at most r - 1
  are drafted. A step whose draft is cut to nothing is a step without a draft.
* **Verify.** The part of the draft that agrees with the answer is accepted, and the target model adds one token. The
  prefill is the first step; it has no draft and gives one token.

Fast, because the earliest occurrence of an n-gram never moves while the answer grows: a dictionary per n-gram size,
built once per prompt, gives it, and a second one holds what the answer adds. How far a draft agrees with the answer
depends on the two bounds alone, so settings that differ in `num_speculative_tokens` share it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from specbench.lookup.setting import Setting

_NONE = 0  # no earlier occurrence: what follows an n-gram stands at 1 or later


@dataclass(frozen=True, slots=True)
class Replay:
    """The steps of one answer: entry i of each list belongs to step i, in tokens; the prefill is step 0."""

    drafted: list[int]
    accepted: list[int]
    emitted: list[int]

    @property
    def steps(self) -> int:
        """Iterations of the target model, the prefill included."""
        return len(self.emitted)

    @property
    def tokens(self) -> int:
        """Tokens of the answer."""
        return sum(self.emitted)

    @property
    def drafts(self) -> int:
        """Steps that verified a draft: vllm:spec_decode_num_drafts."""
        return len(self.drafted) - self.drafted.count(0)

    @property
    def draft_tokens(self) -> int:
        """Tokens that were scheduled as drafts: vllm:spec_decode_num_draft_tokens."""
        return sum(self.drafted)

    @property
    def accepted_tokens(self) -> int:
        """Drafted tokens that stand in the answer.

        vllm:spec_decode_num_accepted_tokens also counts what agrees behind the end of the answer, which no output
        shows: by up to `num_speculative_tokens` an answer it may be larger.
        """
        return sum(self.accepted)

    @property
    def accepted_per_position(self) -> list[int]:
        """How often the first, the second, … token of a draft was accepted; as long as the longest accepted run."""
        longest = max(self.accepted, default=0)
        return [sum(accepted > position for accepted in self.accepted) for position in range(longest)]


class PromptIndex:
    """Where each n-gram of a prompt first ends, for every size from `shortest` to `longest` tokens."""

    def __init__(self, prompt_ids: Sequence[int], shortest: int, longest: int) -> None:
        self.prompt_ids = list(prompt_ids)
        self.sizes = range(shortest, longest + 1)
        self._first_ends = [_first_ends(self.prompt_ids, size) for size in self.sizes]

    def continuations(self, output_ids: Sequence[int]) -> list[list[int]]:
        """What follows the suffix of the context, by size and by how much of the answer is there.

        Returns:
            A list per size; its entry i, for 1 ≤ i < len(output_ids), is the position in prompt + answer right after
            the earliest earlier occurrence of the last `size` tokens of prompt + output_ids[:i], 0 where there is none.
        """
        tokens = [*self.prompt_ids, *output_ids]
        start = len(self.prompt_ids)
        result = []
        for size, in_prompt in zip(self.sizes, self._first_ends, strict=True):
            in_answer: dict[tuple[int, ...], int] = {}
            found = [_NONE] * len(output_ids)
            first_end = max(start + 1, size)
            for end, suffix in enumerate(_grams(tokens[first_end - size : -1], size), start=first_end):
                first = in_prompt.get(suffix) or in_answer.setdefault(suffix, end)
                if first < end:
                    found[end - start] = first
            result.append(found)
        return result


def replay(
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    setting: Setting,
    max_tokens: int | None = None,
    max_model_len: int | None = None,
) -> Replay:
    """The steps that greedy decoding of `output_ids` takes under `setting`.

    Args:
        prompt_ids: the prompt as the server tokenizes it, chat template included.
        output_ids: the whole answer, with its end-of-sequence token where it ended with one.
        setting: what is drafted.
        max_tokens: the request's limit; None where there was none but max_model_len.
        max_model_len: the server's limit of prompt and answer together, in tokens; None for no limit.
    """
    index = PromptIndex(prompt_ids, setting.prompt_lookup_min, setting.prompt_lookup_max)
    return replay_settings(index, output_ids, [setting], max_tokens, max_model_len)[0]


def replay_settings(
    index: PromptIndex,
    output_ids: Sequence[int],
    settings: Iterable[Setting],
    max_tokens: int | None = None,
    max_model_len: int | None = None,
) -> list[Replay]:
    """The same for several settings, whose n-gram sizes `index` must hold; a Replay per setting, in their order."""
    settings = list(settings)
    if max_tokens is not None and len(output_ids) > max_tokens:
        raise ValueError(f"an answer of {len(output_ids)} tokens is longer than max_tokens {max_tokens}")
    tokens = [*index.prompt_ids, *output_ids]
    start = len(index.prompt_ids)
    model_limit = max_model_len or len(tokens) + 1_000_000  # far enough that nothing is cut
    limit = min(model_limit, start + max_tokens) if max_tokens else model_limit
    found = index.continuations(output_ids)
    most = {bounds: max(s[0] for s in settings if s[1:] == bounds) for bounds in {s[1:] for s in settings}}
    agreements = {
        (low, high): _agreements(tokens, start, found[low - index.sizes.start : high + 1 - index.sizes.start], drafted)
        for (low, high), drafted in most.items()
    }
    return [_walk(agreements[s[1:]], len(output_ids), start, s[0], limit, model_limit) for s in settings]


def _grams(tokens: list[int], size: int) -> Iterator[tuple[int, ...]]:
    """Every n-gram of `size` tokens, in order."""
    return zip(*(tokens[offset:] for offset in range(size)), strict=False)


def _first_ends(prompt_ids: list[int], size: int) -> dict[tuple[int, ...], int]:
    grams = list(_grams(prompt_ids, size))
    # Later entries replace earlier ones, so the last n-gram goes in first and the earliest stays.
    return dict(zip(reversed(grams), range(len(grams) - 1 + size, size - 1, -1), strict=True))


def _agreements(tokens: list[int], start: int, found: list[list[int]], most: int) -> list[tuple[int, int]]:
    """By answer tokens so far: how much could be drafted, at most `most`, and how much of that agrees.

    `found` holds the continuations of the sizes from prompt_lookup_min to prompt_lookup_max. A suffix that occurs
    earlier brings its own suffixes with it, so the largest size that found something is the longest match.
    """
    longest = found[0]
    for larger in found[1:]:
        longest = [position or shorter for position, shorter in zip(larger, longest, strict=True)]
    result = []
    for end, follows in enumerate(longest, start=start):
        if not follows:
            result.append((0, 0))
            continue
        available = min(most, end - follows)
        agreed = 0
        for drafted, right in zip(tokens[follows : follows + available], tokens[end : end + available], strict=False):
            if drafted != right:
                break
            agreed += 1
        result.append((available, agreed))
    return result


def _walk(
    agreements: list[tuple[int, int]], answer: int, start: int, most: int, limit: int, model_limit: int
) -> Replay:
    """The steps of an answer of `answer` tokens, drafting at most `most` tokens a step."""
    if not answer:
        return Replay([], [], [])
    drafted, accepted, emitted = [0], [0], [1]
    length = start  # tokens that the last step read, its draft included
    count = 1
    while count < answer:
        end = start + count
        available, agreed = agreements[count]
        draft = 0
        if available and length + most <= model_limit:
            draft = max(0, min(most, available, limit - 1 - end))
        right = min(draft, agreed)
        given = min(right + 1, answer - count)
        drafted.append(draft)
        accepted.append(right)
        emitted.append(given)
        length = end + draft
        count += given
    return Replay(drafted, accepted, emitted)
