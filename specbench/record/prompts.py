"""prompt-tokens.jsonl in a result directory: the prompt of every case as the server tokenized it.

Token ids are text in another form: whoever has the tokenizer can read them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from specbench import UserError
from specbench.files import write_atomically

PROMPT_TOKENS = "prompt-tokens.jsonl"


class PromptTokens(msgspec.Struct):
    """One line: a case and its prompt, chat template included."""

    case: str
    token_ids: list[Annotated[int, msgspec.Meta(ge=0, lt=2**31)]]


def write_prompt_tokens(directory: Path, prompts: Mapping[str, Sequence[int]]) -> None:
    """Write {case id: token ids}, a line per case in their order, whole or not at all."""
    encode = msgspec.json.encode
    lines = [encode(PromptTokens(case, list(token_ids))) + b"\n" for case, token_ids in prompts.items()]
    write_atomically(directory / PROMPT_TOKENS, b"".join(lines))


def read_prompt_tokens(directory: Path) -> dict[str, list[int]] | None:
    """{case id: token ids}; None where the directory has no such file.

    Raises UserError naming the line that bench.py did not write.
    """
    path = directory / PROMPT_TOKENS
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    decoder = msgspec.json.Decoder(PromptTokens)
    prompts: dict[str, list[int]] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            prompt = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{path} line {number} is not what bench.py writes: {error}") from None
        if prompt.case in prompts:
            raise UserError(f"{path} line {number}: the case {prompt.case!r} stands in an earlier line already")
        prompts[prompt.case] = prompt.token_ids
    return prompts
