"""Conversations as they are sent: texts only. What is not text is refused by its name, never dropped."""

from collections.abc import Mapping
from typing import Any

from specbench.workload.case import Message, Refused, checked_text, is_text

_ROLES = {"system", "developer", "user", "assistant"}
# What an answer carries beside its text, and no chat template reads, may stand in a message: it is not sent.
_KEYS = {"role", "content", "name", "tool_calls", "function_call", "refusal", "annotations", "reasoning_content"}
_TEXT_PARTS = {"text", "input_text", "output_text"}
# The words that the type of a part holds, and how a person calls it.
_NOT_TEXT = {
    "image": "an image",
    "audio": "audio",
    "video": "a video",
    "file": "a file",
    "tool_result": "the result of a tool",
    "tool": "a call of a tool",
}


def conversation(value: Any) -> list[Message]:
    """The messages of a chat request, content given as parts joined.

    Raises Refused for images, audio, tools, roles that a chat template does not know, and messages without text.
    """
    if not isinstance(value, list) or not value:
        raise Refused("needs 'messages', a list with at least one message")
    return [_message(message, number) for number, message in enumerate(value, start=1)]


def up_to_last_user(messages: list[Message]) -> tuple[list[Message], str | None]:
    """What the model was asked last, with all that came before it, and the assistant's answer where one follows."""
    last = max((number for number, message in enumerate(messages) if message["role"] == "user"), default=None)
    if last is None:
        raise Refused("has no message of the role 'user'")
    after = messages[last + 1 :]
    answer = after[0]["content"] if after and after[0]["role"] == "assistant" else None
    return messages[: last + 1], answer


def text_of(content: Any, name: str) -> str:
    """Content as one text. Parts are joined by line breaks, as vLLM joins them for a template that takes texts."""
    if isinstance(content, list) and content:
        return checked_text("\n".join(_part(part, name) for part in content), name)
    return checked_text(content, name)


def refuse_tools(message: Mapping[str, Any], name: str) -> None:
    """Raise Refused where a message or request calls a tool, or offers some."""
    if message.get("tool_calls") or message.get("function_call"):
        raise Refused(f"holds a call of a tool in {name}, which is not measured")
    if message.get("tools") or message.get("functions"):
        raise Refused(f"offers tools in {name}, which become part of the prompt and are not measured")


def _message(message: Any, number: int) -> Message:
    if not isinstance(message, dict):
        raise Refused(f"has a message {number} that is not an object with 'role' and 'content'")
    role, content = message.get("role"), message.get("content")
    if len(message) == 2 and isinstance(role, str) and role in _ROLES and is_text(content):
        return message  # what nearly all are: no name for the refusal is made
    name = f"message {number}"
    if role in ("tool", "function"):
        raise Refused(f"holds the result of a tool in {name}, which is not measured")
    if not isinstance(role, str) or role not in _ROLES:
        raise Refused(f"needs a 'role' of {', '.join(sorted(_ROLES))} in {name}")
    refuse_tools(message, name)
    content = text_of(content, f"the 'content' of {name}")
    # Null fields are what a log writes for "not there".
    if unknown := sorted(key for key, field in message.items() if field is not None and key not in _KEYS):
        raise Refused(f"has the unknown key {unknown[0]!r} in {name}")
    speaker = message.get("name")
    if speaker is None:
        return {"role": role, "content": content}
    if not isinstance(speaker, str):
        raise Refused(f"needs a text as the 'name' of {name}")
    return {"role": role, "content": content, "name": speaker}


def _part(part: Any, name: str) -> str:
    if isinstance(part, str):
        return part
    kind = str(part.get("type")) if isinstance(part, dict) else ""
    if isinstance(part, dict) and kind in _TEXT_PARTS and isinstance(part.get("text"), str):
        return str(part["text"])
    for word, called in _NOT_TEXT.items():
        if word in kind:
            raise Refused(f"holds {called} in {name}, which is not measured: texts only")
    raise Refused(f"holds a part in {name} that is no text")
