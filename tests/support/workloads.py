"""A sample in every format that a workload comes in, made for the tests: one set of questions and answers."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

QUESTIONS = [
    "Repeat this line: the boat leaves at nine and the ferry leaves at ten.",
    "Write to anna@example.com that the parcel of order 4711 left the depot.",
    "What is the capital of France? Answer with one word.",
    "Repeat this line: the boat leaves at nine and the ferry leaves at noon.",
]
ANSWERS = [
    "the boat leaves at nine and the ferry leaves at ten.",
    "Dear anna@example.com, the parcel of order 4711 left the depot.",
    "Paris",
    "the boat leaves at nine and the ferry leaves at noon.",
]
FAMILIES = ["copy", "mail", "short", "copy"]


@dataclass(frozen=True)
class Sample:
    """One format: what the program calls it, whether it has answers, and a line of it."""

    read_as: str
    answered: bool
    line: Callable[[int, str, str], dict[str, Any]]


def _family(number: int) -> str:
    return FAMILIES[number % len(FAMILIES)]


def _body(question: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": question}]
    return {"model": "any", "messages": messages, "temperature": 0.7, "max_tokens": 8}


def _completion(answer: str) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
    return {"id": "chatcmpl-1", "choices": [choice]}


SAMPLES = {
    "native": Sample("native lines", False, lambda n, q, a: {
        "id": f"case-{n}", "family": _family(n), "messages": [{"role": "user", "content": q}], "max_tokens": 8}),
    "chat bodies": Sample("OpenAI chat lines", False, lambda n, q, a: _body(q)),
    "chat log": Sample("OpenAI chat lines", True, lambda n, q, a: {
        "request_id": f"r{n}", "family": _family(n), "request": _body(q), "response": _completion(a)}),
    "chat log, flat": Sample("OpenAI chat lines", True, lambda n, q, a: _body(q) | {"response": a}),
    "batch": Sample("OpenAI batch lines", False, lambda n, q, a: {
        "custom_id": f"b{n}", "method": "POST", "url": "/v1/chat/completions", "body": _body(q)}),
    "batch log": Sample("OpenAI batch lines", True, lambda n, q, a: {
        "custom_id": f"b{n}", "body": _body(q), "response": {"status_code": 200, "body": _completion(a) | {
            "usage": {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}}}}),
    "vLLM custom": Sample("vLLM custom dataset lines", False, lambda n, q, a: {"prompt": q}),
    "Spec-Bench": Sample("Spec-Bench question lines", False, lambda n, q, a: {
        "question_id": n, "category": _family(n), "turns": [q], "reference": [a]}),
    "SPEED-Bench": Sample("Spec-Bench question lines", False, lambda n, q, a: {
        "question_id": f"{n:08x}", "category": _family(n), "sub_category": "any", "turns": [q, "Why?"],
        "source": "made", "src_id": str(n), "difficulty": "easy", "multiturn": True}),
    "ShareGPT": Sample("ShareGPT conversations", True, lambda n, q, a: {
        "id": f"s{n}", "conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]}),
    "ShareGPT array": Sample("ShareGPT conversations", True, lambda n, q, a: {
        "id": f"s{n}_0", "conversations": [{"from": "human", "value": "Hello."}, {"from": "gpt", "value": "Hi."},
                                           {"from": "human", "value": q}, {"from": "gpt", "value": a}]}),
}


def write_sample(folder: Path, name: str) -> Path:
    """The sample of one format as a file."""
    path = folder / f"{name.replace(' ', '-').replace(',', '')}.jsonl"
    pairs = enumerate(zip(QUESTIONS, ANSWERS, strict=True))
    lines = [SAMPLES[name].line(number, question, answer) for number, (question, answer) in pairs]
    path.write_text(json.dumps(lines) if "array" in name else "".join(json.dumps(line) + "\n" for line in lines))
    return path
