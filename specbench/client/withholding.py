"""--no-text: a result directory that holds no text and no token ids, and still tells which answers are equal.

In place of an answer stand its lengths and two digests, of the text and of the token ids. Equal answers have equal
digests, in every run of the same case. They are keyed with the messages of the case: whoever does not have the prompt
cannot try out what a short answer may have been. What needs the answers themselves is done at the end of the run:
judging them, and counting the steps that n-gram drafting takes for them. Until then each distinct one is in memory.
"""

import hashlib
import hmac
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from specbench import UserError
from specbench.client.prompts import TokenIds
from specbench.files import write_atomically
from specbench.lookup.replay import replay
from specbench.lookup.setting import ARTICLE, Setting
from specbench.record.directory import ResultDirectory
from specbench.record.format import LaunchRecord, Request, Speculation
from specbench.words import count
from specbench.workload.case import Case, compact

STEPS = "steps.jsonl"
_QUOTING = ("malformed", "stream_error", "http_error")  # outcomes whose error is made of what the server sent


class AnswerSteps(msgspec.Struct, kw_only=True):
    """One line of steps.jsonl: what n-gram drafting does for one distinct answer. `output` is the row's `text`."""

    case: str
    output: str
    num_speculative_tokens: int
    prompt_lookup_min: int
    prompt_lookup_max: int
    tokens: int
    steps: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int


class WithholdingDirectory(ResultDirectory):
    """The write side of a result directory whose rows hold digests for answers."""

    def __init__(self, path: Path, cases: Sequence[Case]) -> None:
        super().__init__(path)
        self._keys = {case.id: compact(case.messages).encode("ascii") for case in cases}
        self._max_tokens = {case.id: case.max_tokens for case in cases}
        self._known: dict[tuple[str, str], tuple[str, array[int] | None]] = {}

    def append(self, request: Request) -> None:
        """Add one line without its answer, and without an error that may quote it or the prompt."""
        if request.error and request.outcome in _QUOTING:
            kept = f"not kept: {count(len(request.error), 'character')} that may quote the prompt or the answer"
            request = msgspec.structs.replace(request, error=kept)
        if not request.text and not request.token_ids:
            super().append(request)
            return
        shown = withheld(request.text, request.token_ids, self._keys.get(request.case, b""))
        if request.phase == "measured" and request.outcome == "ok" and (request.case, shown) not in self._known:
            ids = None if request.token_ids is None else array("q", request.token_ids)
            self._known[request.case, shown] = request.text, ids
        super().append(msgspec.structs.replace(request, text=shown, token_ids=None))

    def answers(self) -> Iterator[tuple[str, str, str]]:
        """(case, what stands for the answer, the answer) of every distinct answer that was measured."""
        for (case, shown), (text, _) in self._known.items():
            yield case, shown, text

    def write_steps(
        self, prompts: TokenIds, launched: LaunchRecord, *, max_tokens: int, max_model_len: int | None
    ) -> list[str]:
        """Write STEPS, from the prompts' token ids: under the setting of the server, or the article's for a baseline.

        Nothing is written where no answer has its ids and those of its prompt. Returns warnings: answers whose ids
        contradict their limits have no steps.
        """
        setting = _setting(launched)
        lines, problems = [], []
        for (case, shown), (_, ids) in self._known.items():
            if ids is None or case not in prompts:
                continue
            try:
                found = replay(prompts[case], ids, setting, self._max_tokens[case] or max_tokens, max_model_len)
            except (UserError, ValueError) as error:
                problems.append(f"{STEPS} lacks an answer to {case}: {error}")
                continue
            lines.append(
                msgspec.json.encode(
                    AnswerSteps(
                        case=case,
                        output=shown,
                        **setting._asdict(),
                        tokens=found.tokens,
                        steps=found.steps,
                        drafts=found.drafts,
                        draft_tokens=found.draft_tokens,
                        accepted_tokens=found.accepted_tokens,
                    )
                )
                + b"\n"
            )
        if lines:
            write_atomically(self.path / STEPS, b"".join(lines))
        return problems[:1]


def withheld(text: str, token_ids: Sequence[int] | None, key: bytes) -> str:
    """What stands in a row for an answer: the same for the same text and ids."""
    shown = f"not kept: {len(text):,} characters, HMAC-SHA-256 {_digest(text.encode('utf-8', 'surrogatepass'), key)}"
    if token_ids is not None:
        shown += f"; {len(token_ids):,} token ids, HMAC-SHA-256 {_digest(array('q', token_ids).tobytes(), key)}"
    return shown


def _digest(content: bytes, key: bytes) -> str:
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def _setting(launched: LaunchRecord) -> Setting:
    known = launched.speculative_config or Speculation()
    drafted, low, high = known.num_speculative_tokens, known.prompt_lookup_min, known.prompt_lookup_max
    return ARTICLE if drafted is None or low is None or high is None else Setting(drafted, low, high)
