"""The token ids of each prompt, from the server itself: n-gram drafting looks its proposals up in them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import httpx

from specbench.client.control import ControlClient
from specbench.record.format import PromptTokenSource
from specbench.workload.case import Case

TokenIds = dict[str, list[int]]  # by case id


async def tokenized(client: ControlClient, cases: Sequence[Case], request: Mapping[str, Any]) -> TokenIds | None:
    """Each case's prompt by the server's own POST /tokenize, chat template included; None where it has none.

    vLLM's takes a conversation; llama.cpp's takes a text, which its POST /apply-template makes of a conversation.
    """
    prompts: TokenIds = {}
    try:
        for case in cases:
            shared = {"messages": case.messages, "chat_template_kwargs": request["chat_template_kwargs"]}
            body = {"model": request["model"], **shared, "add_generation_prompt": True}
            answer = await _post(client, "tokenize", body)
            if not answer.get("tokens"):
                text = (await _post(client, "apply-template", shared))["prompt"]
                body = {"content": text, "add_special": True, "parse_special": True}
                answer = await _post(client, "tokenize", body)
            prompts[case.id] = [int(token) for token in answer["tokens"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return prompts


async def _post(client: ControlClient, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, body)
    if answer.status != 200 or not isinstance(answer.json, dict):
        raise ValueError(f"POST /{path} answers with no JSON object")
    return answer.json


def choose(
    cases: Sequence[Case], streamed: TokenIds, tokenized: TokenIds | None, counts: Mapping[str, int | None]
) -> tuple[TokenIds | None, PromptTokenSource]:
    """The prompts that agree with what the server counted, and where they come from or why there are none.

    Args:
        cases: every one must have its prompt.
        streamed: from the first event of each warm-up answer (`prompt_token_ids`).
        tokenized: from `tokenized`.
        counts: prompt_tokens of each warm-up answer's usage.
    """
    reason = "the server sends no prompt_token_ids and has no POST /tokenize"
    sources: list[tuple[Literal["stream", "tokenize"], TokenIds | None]]
    sources = [("stream", streamed), ("tokenize", tokenized)]
    for source, prompts in sources:
        if not prompts or any(case.id not in prompts for case in cases):
            continue
        differing = [case.id for case in cases if counts.get(case.id) not in (None, len(prompts[case.id]))]
        if not differing:
            return {case.id: prompts[case.id] for case in cases}, PromptTokenSource(source, None)
        name = differing[0]
        teller = "stream" if source == "stream" else "POST /tokenize"
        reason = (
            f"the server's {teller} gives {len(prompts[name])} tokens for the prompt of {name}, and its usage counts "
            f"{counts[name]}"
        )
    return None, PromptTokenSource(None, reason)
