"""Answers of a log: conversations and what was answered, tokenized by whoever has the model's tokenizer."""

from pathlib import Path

from specbench import UserError
from specbench.lookup.answers import Answer, Answers, packed
from specbench.words import count
from specbench.workload.case import Entry
from specbench.workload.inventory import Workload, read_workload
from specbench.workload.tokenizing import Tokenizer

# A text may be tokenized otherwise than it was generated; another tokenizer is off by more than this share.
_COUNT_TOLERANCE = 0.1
_SAMPLED = (
    "A log's answer may have been sampled: then it is one of many, and a greedy or another one takes other steps",
    "Another model tokenizes otherwise and answers otherwise: this speaks of the model that gave these answers",
)


def read_log(path: Path, tokenizer: Tokenizer) -> Answers:
    """Every answer of a log, in any of the formats of docs/workloads.md that hold answers.

    Raises UserError where the file holds no answers, and where the token counts that it holds are not those of
    `tokenizer`.
    """
    workload = read_workload(path)
    answers, counted, generated = [], 0, 0
    for entry in workload.entries:
        if not entry.answer:
            continue
        answer = _answer(path, entry, tokenizer)
        answers.append(answer)
        if entry.completion_tokens:
            counted += entry.completion_tokens
            generated += len(answer.output_ids)
    if not answers:
        raise UserError(f"{path} holds no answers, only what was asked: give a log with both, or measure a baseline")
    if abs(generated - counted) > _COUNT_TOLERANCE * counted:
        raise UserError(
            f"{path}: its answers had {counted:,} tokens and have {generated:,} with this tokenizer: name the "
            "tokenizer of the model that gave them"
        )
    return Answers(str(path), answers, notes=_notes(workload, len(answers)))


def _answer(path: Path, entry: Entry, tokenizer: Tokenizer) -> Answer:
    prompt_ids = tokenizer.prompt_ids(entry.case.messages)
    if entry.prompt_tokens is not None and entry.prompt_tokens != len(prompt_ids):
        raise UserError(
            f"{path} line {entry.line}: its prompt had {entry.prompt_tokens} tokens and has {len(prompt_ids)} with "
            "this tokenizer: name the tokenizer, with the chat template, of the model that answered"
        )
    output_ids = tokenizer.text_ids(entry.answer or "")
    if entry.completion_tokens != len(output_ids):  # equal: it was cut off at its limit, before a token that ends it
        output_ids = [*output_ids, tokenizer.end_id]
    limit = entry.case.max_tokens
    limit = None if limit is None else max(limit, len(output_ids))  # the same text may take a token more
    return Answer(entry.case.id, entry.case.family, packed(prompt_ids), packed(output_ids), limit)


def _notes(workload: Workload, answered: int) -> list[str]:
    notes = [note.rstrip(".") for note in workload.notes]
    if without := len(workload.entries) - answered:
        notes.append(f"{count(without, 'line')} without an answer {'is' if without == 1 else 'are'} left out")
    if workload.left_out:
        first = workload.left_out[0]
        number = len(workload.left_out)
        notes.append(f"{count(number, 'line')} cannot be read; the first is line {first.line}, which {first.reason}")
    return [*notes, *_SAMPLED]
