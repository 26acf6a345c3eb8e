"""Answers whose token ids are known: of a result directory, ready to be replayed."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from specbench import UserError
from specbench.lookup.setting import Setting
from specbench.record.directory import check_unedited, read_manifest, read_requests, read_summary
from specbench.record.format import Manifest, Request
from specbench.record.prompts import PROMPT_TOKENS, read_prompt_tokens
from specbench.words import count

# Parameters with which vLLM's answer depends on chance, or with which it does not draft.
_CHANCE = ("temperature", "top_k", "presence_penalty", "frequency_penalty")


class Answer(NamedTuple):
    """One answer: what was asked, what was said, both as token ids, and how long it might have become."""

    case: str
    family: str
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    max_tokens: int | None = None


def packed(token_ids: Iterable[int]) -> "array[int]":
    """Token ids in 4 bytes each, where a list takes 36. Raises UserError for one that no model has."""
    try:
        return array("i", token_ids)
    except OverflowError:
        raise UserError("a token id is too large to be one: the ids were edited, or are no token ids") from None


@dataclass
class Answers:
    """Answers of one source. `notes` are sentences about what the reader should know of them."""

    source: str
    answers: list[Answer]
    model: str | None = None
    max_model_len: int | None = None
    notes: list[str] = field(default_factory=list)


def read_answers(directory: Path) -> Answers:
    """The measured answers of a complete result directory.

    Raises UserError where the token ids are missing or contradict what the server counted, and where the answers were
    sampled, so that another run would give others.
    """
    manifest = read_manifest(directory)
    check_unedited(directory, manifest, read_summary(directory))
    _check_greedy(directory, manifest.request)
    prompts = read_prompt_tokens(directory)
    packed_prompts = {case: packed(token_ids) for case, token_ids in (prompts or {}).items()}
    limits = output_limits(manifest)
    answers, failed, empty = [], 0, 0
    for request in read_requests(directory):
        if request.phase != "measured":
            continue
        if request.outcome != "ok":
            failed += 1
            continue
        limit = limits.get(request.case)
        output_ids = checked_output_ids(directory, manifest, prompts, request, limit)
        if not output_ids:
            empty += 1
            continue
        ids = packed_prompts[request.case], packed(output_ids)
        answers.append(Answer(request.case, request.family, *ids, limit))
    place = {case.id: number for number, case in enumerate(manifest.inventory.cases)}
    answers.sort(key=lambda answer: place.get(answer.case, len(place)))
    if not answers:
        raise UserError(f"{directory} holds no answer that ended ok; run bench.py again with a fresh --out")
    notes = [f"{count(failed, 'request')} that did not end ok are left out"] if failed else []
    notes += [f"{count(empty, 'answer')} without a token are left out"] if empty else []
    return Answers(str(directory), answers, manifest.server.model.id, model_limit(manifest), notes)


def output_limits(manifest: Manifest) -> dict[str, int | None]:
    """max_tokens of every case's requests."""
    usual = manifest.request.get("max_tokens")
    if usual is not None and not isinstance(usual, int):
        raise UserError(f"the manifest says max_tokens {usual!r}, which is no number: it was edited")
    return {case.id: case.max_tokens or usual for case in manifest.inventory.cases}


def model_limit(manifest: Manifest) -> int | None:
    """The server's limit of prompt and answer together, in tokens; None where it is not known."""
    limit = manifest.server.model.max_model_len or (manifest.server.record or {}).get("max_model_len")
    return limit if isinstance(limit, int) else None


def recorded_setting(directory: Path, manifest: Manifest) -> Setting:
    """The setting that an ngram deployment ran with; UserError where it is not recorded, or of other rules."""
    recorded = manifest.launched.speculative_config
    if recorded and recorded.method not in (None, "ngram"):
        raise UserError(
            f"{directory} drafted by other rules than vLLM's ({recorded.method}), so its steps cannot be replayed; "
            "measure on vLLM"
        )
    numbers = (
        (recorded.num_speculative_tokens, recorded.prompt_lookup_min, recorded.prompt_lookup_max) if recorded else ()
    )
    drafted, low, high = (*numbers, None, None, None)[:3]
    if drafted is None or low is None or high is None:
        raise UserError(
            f"{directory} does not say what was drafted (its manifest holds no speculative_config): start the server "
            "with launch_vllm.py and measure again"
        )
    return Setting(drafted, low, high)


def _check_greedy(directory: Path, request: Mapping[str, Any]) -> None:
    for name in _CHANCE:
        if request.get(name):
            raise UserError(
                f"{directory} was measured with {name} {request[name]}: only greedy answers (temperature 0, no "
                "penalties) are the same with and without drafting"
            )


def checked_output_ids(
    directory: Path,
    manifest: Manifest,
    prompts: Mapping[str, list[int]] | None,
    request: Request,
    limit: int | None,
) -> list[int]:
    """The ids of a request's answer, once they and those of its prompt are as many as the server counted.

    Raises UserError where ids are missing or contradict the counts or `limit`, the request's max_tokens.
    """
    output_ids = request.token_ids
    if manifest.no_text:
        raise UserError(
            f"{directory} was measured with --no-text: the steps of its answers stand in steps.jsonl, where the server "
            "gave their token ids; other settings cannot be tried"
        )
    if output_ids is None:
        engine = manifest.server.engine or "its server"
        raise UserError(
            f"{directory} holds no token ids of its answers, because {engine} streams text alone: its steps cannot be "
            "replayed; measure on vLLM, or forecast from a log with --logs"
        )
    if prompts is None:
        source = manifest.prompt_tokens
        why = f", because {source.missing}" if source and source.missing else ""
        raise UserError(
            f"{directory} has no {PROMPT_TOKENS}, the token ids of its prompts{why}: measure again with this version "
            "of bench.py, or add the file with benchmarks/prompt_tokens.py"
        )
    if request.case not in prompts:
        raise UserError(f"{directory / PROMPT_TOKENS} lacks the case {request.case!r}: it is of another run")
    for kind, ids, counted in (
        ("prompt", prompts[request.case], request.prompt_tokens),
        ("answer", output_ids, request.completion_tokens),
    ):
        if counted is not None and counted != len(ids):
            raise UserError(
                f"{directory}: the {kind} of {request.case} has {len(ids)} token ids and the server counted {counted} "
                "tokens: the ids are of another tokenizer, template or run"
            )
    if limit is not None and len(output_ids) > limit:
        raise UserError(
            f"{directory}: an answer to {request.case} has {len(output_ids)} tokens, and at most {limit} were asked "
            "for: the server did not keep to max_tokens, or the directory was edited"
        )
    longest = model_limit(manifest)
    if longest is not None and len(prompts[request.case]) + len(output_ids) > longest:
        raise UserError(
            f"{directory}: {request.case} and its answer are longer than the server's max_model_len {longest}: the "
            "directory was edited"
        )
    return output_ids
