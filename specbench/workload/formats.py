"""The formats that a workload comes in: recognised by the keys of a line, each made into cases of one kind.

A format keeps the messages, the case's own `max_tokens`, its family and, where the line is of a log, the answer that
was given. What else a request says (temperature, model, …) is replaced by what bench.py sends.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specbench.workload.case import (
    DEFAULT_FAMILY,
    Case,
    Entry,
    Refused,
    checked_family,
    checked_max_tokens,
    checked_text,
    is_text,
)
from specbench.workload.conversation import conversation, refuse_tools, text_of, up_to_last_user
from specbench.workload.judging import check_expect

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Format:
    """One format: `marked` tells its lines by their keys, `entry` makes a case of a line and its number."""

    name: str
    marked: Callable[[Line], bool]
    entry: Callable[[Line, int], Entry]


def recognised(line: Line) -> Format | None:
    """The format that a line's keys tell; None where no format has such lines."""
    return next((known for known in FORMATS if known.marked(line)), None)


def accepts(current: Format, line: Line) -> bool:
    """Whether a line can be of the format that an earlier line of the file told."""
    if current.marked(line):
        return True
    return current is NATIVE and "messages" in line and not _LOGGED & line.keys()


# ---- native lines


_NATIVE_KEYS = {"id", "family", "messages", "max_tokens", "expect", "answer", "usage"}
_LOGGED = {"model", "choices", "response", "request", "body", "temperature", "stream"}


def _is_native(line: Line) -> bool:
    if "messages" not in line and "prompt" in line:
        return False
    return ("family" in line or "expect" in line) and not _LOGGED & line.keys()


def _native(line: Line, number: int) -> Entry:
    if unknown := sorted(set(line) - _NATIVE_KEYS):
        raise Refused(f"has the unknown key {unknown[0]!r}; a case has {', '.join(sorted(_NATIVE_KEYS))}")
    expect = line.get("expect")
    if expect is not None:
        check_expect(expect)
    case = Case(
        checked_text(line.get("id"), "'id'"),
        checked_family(line["family"]) if "family" in line else DEFAULT_FAMILY,
        conversation(line.get("messages")),
        checked_max_tokens(line.get("max_tokens")),
        expect,
    )
    answer = line.get("answer")
    if answer is not None and not isinstance(answer, str):
        raise Refused("needs a text as its 'answer'")
    return Entry(case, number, answer or None, *_token_counts(line.get("usage")))


# ---- OpenAI: bodies of requests, and logs of them


def _is_batch(line: Line) -> bool:
    return "custom_id" in line and ("body" in line or "response" in line)


def _is_chat(line: Line) -> bool:
    return "messages" in line or any(_has_messages(line.get(key)) for key in ("request", "body"))


def _has_messages(value: Any) -> bool:
    return isinstance(value, dict) and "messages" in value


def _chat(line: Line, number: int) -> Entry:
    body = line if "messages" in line else line["request" if _has_messages(line.get("request")) else "body"]
    return _request(line, body, number)


def _batch(line: Line, number: int) -> Entry:
    if "body" not in line:
        raise Refused("is the output of a batch, which has no messages: join it with the batch's input first")
    body = line["body"]
    if not _has_messages(body):
        raise Refused("needs 'messages' in its body: only requests to /v1/chat/completions are measured")
    return _request(line, body, number)


def _request(line: Line, body: Line, number: int) -> Entry:
    refuse_tools(body, "the request")
    messages, after = up_to_last_user(conversation(body["messages"]))
    max_tokens = body.get("max_tokens")
    case = Case(
        _id(line, number, "custom_id", "id", "request_id"),
        _family(line, body),
        messages,
        checked_max_tokens(body.get("max_completion_tokens") if max_tokens is None else max_tokens),
        None,
    )
    answer, usage = _answer(line)
    return Entry(case, number, answer or after, *_token_counts(usage))


def _answer(line: Line) -> tuple[str | None, Any]:
    """The answer's text and the usage of a line of a log; None where it has none."""
    response = line.get("response", line)
    if isinstance(response, str):
        return _said(response), line.get("usage")
    if not isinstance(response, dict):
        return None, line.get("usage")
    response = response["body"] if isinstance(response.get("body"), dict) else response
    usage = response.get("usage", line.get("usage"))
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return _said(line.get("answer", line.get("completion"))), usage
    message = choices[0].get("message")
    if not isinstance(message, dict):
        return _said(choices[0].get("text")), usage
    if message.get("tool_calls") or message.get("function_call"):
        raise Refused("holds an answer that calls a tool, which is not measured")
    content = message.get("content")
    return _said(text_of(content, "the answer") if isinstance(content, list) and content else content), usage


def _said(content: Any) -> str | None:
    """An answer's text; None where nothing was said."""
    return content if is_text(content) else None


def _token_counts(usage: Any) -> tuple[int | None, int | None]:
    """Prompt and completion tokens of a usage object."""
    if not isinstance(usage, dict):
        return None, None
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    prompt, completion = (count if type(count) is int and count >= 0 else None for count in counts)
    return prompt, completion


# ---- prompts, questions and conversations of data sets


def _is_prompt(line: Line) -> bool:
    return "prompt" in line and "messages" not in line


def _prompt(line: Line, number: int) -> Entry:
    messages = [{"role": "user", "content": checked_text(line["prompt"], "'prompt'")}]
    limit = line.get("max_tokens")
    case = Case(
        _id(line, number, "id", "request_id"),
        _family(line, line),
        messages,
        checked_max_tokens(line.get("output_tokens") if limit is None else limit),
        None,
    )
    answer, usage = _answer(line)
    return Entry(case, number, answer, *_token_counts(usage))


def _is_question(line: Line) -> bool:
    return "turns" in line


def _question(line: Line, number: int) -> Entry:
    """The first turn alone: the later ones are asked after the model's own answers, which the file does not hold."""
    turns = line["turns"]
    if not isinstance(turns, list) or not turns:
        raise Refused("needs 'turns', a list with at least one text")
    messages = [{"role": "user", "content": text_of(turns[0], "its first turn")}]
    case = Case(_id(line, number, "question_id", "id"), _family(line, line), messages, None, None)
    return Entry(case, number, later_turns=len(turns) - 1)


_SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "system": "system",
}


def _is_sharegpt(line: Line) -> bool:
    return "conversations" in line


def _sharegpt(line: Line, number: int) -> Entry:
    turns = line["conversations"]
    if not isinstance(turns, list) or not turns:
        raise Refused("needs 'conversations', a list with at least one turn")
    said = [_turn(turn, place) for place, turn in enumerate(turns, start=1)]
    if line.get("system"):
        said.insert(0, {"role": "system", "content": line["system"]})
    messages, answer = up_to_last_user(conversation(said))
    return Entry(Case(_id(line, number, "id"), _family(line, line), messages, None, None), number, answer)


def _turn(turn: Any, number: int) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise Refused(f"has a turn {number} that is not an object with 'from' and 'value'")
    speaker = turn.get("from", turn.get("role"))
    if isinstance(speaker, str) and any(word in speaker for word in ("tool", "function", "observation")):
        raise Refused(f"holds a call of a tool or its result in turn {number}, which is not measured")
    if not isinstance(speaker, str) or speaker not in _SPEAKERS:
        raise Refused(f"needs a 'from' of {', '.join(_SPEAKERS)} in turn {number}")
    return {"role": _SPEAKERS[speaker], "content": turn.get("value", turn.get("content"))}


# ---- what they share


def _id(line: Line, number: int, *keys: str) -> str:
    """The line's own name, else its number in the file."""
    for key in keys:
        value = line.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if value is not None:
            return checked_text(value, f"{key!r}")
    return f"line-{number}"


def _family(line: Line, body: Line) -> str:
    """`family`, else `category`, of the line or of its body's metadata; else the default."""
    metadata = body.get("metadata")
    for holder in (line, metadata if isinstance(metadata, dict) else {}):
        for key in ("family", "category"):
            if holder.get(key) is not None:
                return checked_family(holder[key])
    return DEFAULT_FAMILY


NATIVE = Format("native lines", _is_native, _native)
FORMATS = (
    Format("OpenAI batch lines", _is_batch, _batch),
    Format("ShareGPT conversations", _is_sharegpt, _sharegpt),
    Format("Spec-Bench question lines", _is_question, _question),
    NATIVE,
    Format("OpenAI chat lines", _is_chat, _chat),
    Format("vLLM custom dataset lines", _is_prompt, _prompt),
)
