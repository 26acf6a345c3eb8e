"""How long prompts and answers are, what room a model leaves them, and how much of an answer stands in its prompt."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specbench.words import count
from specbench.workload.case import Entry

if TYPE_CHECKING:
    from specbench.workload.tokenizing import Tokenizer  # with its HTTP client it takes longer to import than all else

NGRAM = 3  # the middle of the lengths that vLLM looks up here (2 to 4)
_WORDS = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Length:
    """One entry measured. Lengths are in the unit of the whole survey; None where there is no answer."""

    prompt: int
    answer: int | None
    ngrams: int
    found: int
    """How many of the answer's `ngrams` stand in the prompt."""


def measure(entry: Entry, tokenizer: "Tokenizer | None") -> Length:
    """Lengths in tokens, chat template included, or without a tokenizer in characters; overlap in tokens or words."""
    case, answer = entry.case, entry.answer
    if tokenizer is not None:
        prompt_ids = tokenizer.prompt_ids(case.messages)
        answer_ids = None if answer is None else tokenizer.text_ids(answer)
        found = (0, 0) if answer_ids is None else overlap(prompt_ids, answer_ids)
        return Length(len(prompt_ids), None if answer_ids is None else len(answer_ids), *found)
    characters = sum(len(message["content"]) for message in case.messages)
    if answer is None:
        return Length(characters, None, 0, 0)
    words = [word for message in case.messages for word in _WORDS.findall(message["content"])]
    return Length(characters, len(answer), *overlap(words, _WORDS.findall(answer)))


def overlap(prompt: Sequence[int] | Sequence[str], answer: Sequence[int] | Sequence[str]) -> tuple[int, int]:
    """How many n-grams of NGRAM tokens or words the answer has, and how many of them stand in the prompt."""
    asked = set(zip(*(prompt[offset:] for offset in range(NGRAM)), strict=False))
    answered = list(zip(*(answer[offset:] for offset in range(NGRAM)), strict=False))
    return len(answered), sum(ngram in asked for ngram in answered)


@dataclass(frozen=True, slots=True)
class Room:
    """What must fit together: the model's limit, and what is added to a prompt (all in tokens)."""

    limit: int
    max_tokens: int
    drafted: int

    def left(self, entry: Entry, length: Length) -> int:
        """Tokens that are left when the case's longest answer is out; below 0 the server drafts nothing for it."""
        return self.limit - length.prompt - (entry.case.max_tokens or self.max_tokens) - self.drafted

    def sentence(self, worst: Entry, length: Length, beyond: int) -> str:
        """What is wrong where `beyond` cases do not fit."""
        wanted = worst.case.max_tokens or self.max_tokens
        return (
            f"{count(beyond, 'case')} too long for the model's {self.limit:,} tokens: the longest, {worst.case.id}, "
            f"wants {length.prompt:,} + {wanted} for its answer + {self.drafted} drafted"
        )
