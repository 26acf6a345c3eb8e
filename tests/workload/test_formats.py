"""Each format is recognised by its content and read to the same cases; what is not text is refused by its name."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ROOT
from support.workloads import ANSWERS, QUESTIONS, SAMPLES, write_sample

from specbench import UserError
from specbench.workload.case import DEFAULT_FAMILY
from specbench.workload.inventory import LeftOut, read_inventory, read_workload

USER = {"role": "user", "content": "hello"}


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_gives_the_same_questions_and_says_what_it_was_read_as(tmp_path: Path, name: str) -> None:
    path = write_sample(tmp_path, name)
    inventory = read_inventory(path)
    assert [case.messages[-1]["content"] for case in inventory.cases] == QUESTIONS
    said = "; ".join(inventory.notes)
    assert (SAMPLES[name].read_as in said) == (name != "native")
    workload = read_workload(path)
    assert workload.sha256 == inventory.sha256 and not workload.left_out and workload.format == SAMPLES[name].read_as
    answers = [entry.answer for entry in workload.entries]
    assert answers == (ANSWERS if SAMPLES[name].answered else [None] * len(QUESTIONS))


def test_system_messages_limits_families_and_token_counts_are_kept(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [{"role": "system", "content": "Be brief."}, USER], "max_tokens": 7}
    answer = {"choices": [{"message": {"role": "assistant", "content": "hi"}}],
              "usage": {"prompt_tokens": 12, "completion_tokens": 3}}
    batch = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    chat = {"request": {**body, "metadata": {"family": "greet"}}, "response": answer}
    for line, family in (({**batch, "response": {"status_code": 200, "body": answer}}, DEFAULT_FAMILY),
                         (chat, "greet"), ({**body, "family": "greet", **answer}, "greet")):
        (entry,) = read_workload(write(tmp_path / "log.jsonl", line)).entries
        assert entry.case.messages == body["messages"] and entry.case.max_tokens == 7 and entry.case.family == family
        assert (entry.answer, entry.prompt_tokens, entry.completion_tokens) == ("hi", 12, 3)


@pytest.mark.parametrize(
    "answered",
    [{"response": "\n"}, {"response": None}, {"response": {"error": "x"}}, {"choices": []}, {"choices": [{"text": 3}]},
     {"choices": [{"message": {"content": " "}}]}, {"choices": [{"message": {"content": 3}}]}, {"choices": [{}]},
     {"response": {"body": None, "choices": [{"message": None}]}}, {"answer": ["x"]}],
)
def test_a_line_whose_answer_says_nothing_is_a_case_without_one(tmp_path: Path, answered: dict[str, Any]) -> None:
    (entry,) = read_workload(write(tmp_path / "log", {"messages": [USER], **answered})).entries
    assert entry.answer is None and entry.case.messages == [USER]


def test_a_conversation_ends_with_the_last_user_message_unless_the_lines_are_native(tmp_path: Path) -> None:
    turns = [USER, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "and now?"},
             {"role": "assistant", "content": "bye"}]
    (logged,) = read_workload(write(tmp_path / "log.jsonl", {"model": "m", "messages": turns})).entries
    assert logged.case.messages == turns[:3] and logged.answer == "bye"
    (native,) = read_inventory(write(tmp_path / "n.jsonl", {"id": "a", "family": "f", "messages": turns})).cases
    assert native.messages == turns


def test_content_given_as_text_parts_is_joined(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "input_text", "text": "two"}]
    path = write(tmp_path / "p.jsonl", {"messages": [{"role": "user", "content": parts, "tool_calls": None}]})
    assert read_inventory(path).cases[0].messages == [{"role": "user", "content": "one\ntwo"}]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "an image"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "audio"),
        ({"role": "user", "content": [{"type": "video_url"}]}, "a video"),
        ({"role": "user", "content": [{"type": "tool_result"}]}, "the result of a tool"),
        ({"role": "assistant", "content": [{"type": "tool_use"}]}, "a call of a tool"),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}, "a call of a tool"),
        ({"role": "tool", "content": "42", "tool_call_id": "x"}, "the result of a tool"),
        ({"role": "user", "content": [{"type": "text", "text": 3}]}, "no text"),
        ({"role": "user", "content": [{"type": ["text"]}]}, "no text"),
        ({"role": "user", "content": [7]}, "no text"),
        ({"role": "user", "content": None}, "the 'content' of message 2"),
        ({"role": "user", "content": []}, "the 'content' of message 2"),
        ({"role": "user", "content": {"text": "x"}}, "the 'content' of message 2"),
        ({"role": ["user"], "content": "x"}, "needs a 'role'"),
        ("hello", "message 2"),
        ({"role": "user", "content": "a\0b"}, "NUL"),
    ],
)
@pytest.mark.parametrize("shape", ["native", "chat", "batch"])
def test_what_is_not_text_is_refused_by_its_name_with_the_line(
    tmp_path: Path, message: Any, says: str, shape: str
) -> None:
    def line(name: str, *messages: Any) -> dict[str, Any]:
        if shape == "native":
            return {"id": name, "family": "f", "messages": messages}
        return {"custom_id": name, "body": {"messages": messages}} if shape == "batch" else {"messages": messages}

    path = write(tmp_path / "p.jsonl", line("a", USER), line("b", USER, message))
    with pytest.raises(UserError) as error:
        read_inventory(path)
    assert f"{path} line 2 " in str(error.value) and says in str(error.value)
    workload = read_workload(path)
    assert [entry.line for entry in workload.entries] == [1]
    assert [(left.line, says in left.reason) for left in workload.left_out] == [(2, True)]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([{"custom_id": "a", "response": {"body": {}}}], "output of a batch"),
        ([{"custom_id": "a", "body": {"input": "x"}}], "needs 'messages' in its body"),
        ([{"messages": [USER], "tools": [{"type": "function"}]}], "offers tools"),
        ([{"messages": [USER], "choices": [{"message": {"content": None, "tool_calls": [1]}}]}], "calls a tool"),
        ([{"messages": [{"role": "system", "content": "x"}]}], "no message of the role 'user'"),
        ([{"messages": [USER], "max_tokens": "7"}], "max_tokens"),
        ([{"messages": [USER], "category": 3}], "'family'"),
        ([{"prompt": [1, 2, 3]}], "needs 'prompt'"),
        ([{"question_id": 1, "turns": []}], "'turns'"),
        ([{"question_id": 1, "turns": [{"a": 1}]}], "first turn"),
        ([{"conversations": [{"from": "human", "value": "x"}, {"from": "function_call", "value": "y"}]}], "a tool"),
        ([{"conversations": [{"from": "alien", "value": "x"}]}], "'from'"),
        ([{"conversations": "x"}], "'conversations'"),
        ([{"text": "x"}], "is of no known format: its keys are text"),
        ([{}], "is of no known format"),
        ([{"prompt": "x"}, {"messages": [USER]}], "line 2 has another format than line 1: OpenAI chat lines, not vLLM"),
        ([{"id": "a", "family": "f", "messages": [USER]}, {"conversations": []}], "another format than line 1"),
    ],
)
def test_a_bad_line_of_any_format_is_one_sentence(tmp_path: Path, lines: list[object], says: str) -> None:
    path = write(tmp_path / "p.jsonl", *lines)
    with pytest.raises(UserError) as error:
        read_inventory(path)
    assert says in str(error.value) and f"{path} line {len(lines)}" in str(error.value)


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ('{"id": "a\\ud800", "family": "f", "messages": []}', "id"),
        ('{"id": "a", "family": "f\\udfff", "messages": []}', "family"),
        ('{"messages": [{"role": "user", "content": "x\\udc00"}]}', r"messages\[0\].content"),
        ('{"prompt": "x", "metadata": {"k": ["\\udfff"]}}', r"metadata.k\[0\]"),
        ('{"prompt": "x", "metadata": {"\\udfff": 1}}', "a key of metadata"),
    ],
)
def test_half_surrogates_are_refused_wherever_they_stand(tmp_path: Path, line: str, place: str) -> None:
    with pytest.raises(UserError, match=f"line 1 holds half of a surrogate pair in {place}"):
        read_inventory(write(tmp_path / "p.jsonl", line))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff\xfe{\0}\0", "UTF-16"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"PAR1....", "Parquet"),
        (b'[{"prompt": "x"},', "is not one JSON array"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"prompt": "a\x00b"}\n', "line 1 is not JSON"),
        (b'{"prompt": "\xff"}\n', "line 1 is not UTF-8"),
        (b'{"prompt": NaN}\n', "line 1 needs 'prompt'"),
        (b"[]", "holds no case"),
        (b"[1, 2]", "line 1 is not a JSON object"),
    ],
)
def test_a_file_that_is_no_text_of_cases(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "p").write_bytes(content)
    with pytest.raises(UserError, match=says):
        read_inventory(tmp_path / "p")


def test_windows_line_ends_and_a_prompt_of_ten_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"prompt": "one"}\r\n\r\n{"prompt": "' + b"x" * 10_000_000 + b'"}\r\n')
    cases = read_inventory(path).cases
    assert [len(case.messages[0]["content"]) for case in cases] == [3, 10_000_000]
    assert [case.id for case in cases] == ["line-1", "line-3"]


def test_what_else_is_unexpected_is_said(tmp_path: Path) -> None:
    many = [{"prompt": f"p{n}", "family": f"f{n}"} for n in range(51)]
    assert any("51 families" in note for note in read_inventory(write(tmp_path / "a", *many)).notes)
    twins = [{"id": "A", "prompt": "x"}, {"id": "a", "prompt": "y"}]
    notes = "; ".join(read_inventory(write(tmp_path / "b", *twins)).notes)
    assert "'A' and 'a' differ only in case" in notes and "every case: 'default'" in notes
    turns = [{"question_id": 1, "category": "c", "turns": ["x", "y", "z"]}]
    assert any("2 later turns" in note for note in read_inventory(write(tmp_path / "c", *turns)).notes)
    assert read_inventory(ROOT / "prompts.jsonl").notes == []


def test_bad_lines_are_counted_and_none_is_skipped_in_silence(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "x"}, "{", {"prompt": ""}, "", {"prompt": "y", "id": "line-1"})
    assert [left.line for left in read_workload(path).left_out] == [2, 3, 5]


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(str.strip)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=5), st.sampled_from(["\n", "\r\n"]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_text_comes_through_every_format_unchanged(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]], end: str, ascii_only: bool
) -> None:
    path = tmp_path_factory.mktemp("f") / "p"
    for name, sample in SAMPLES.items():
        lines = [sample.line(number, question, answer) for number, (question, answer) in enumerate(pairs)]
        if name == "ShareGPT array":
            path.write_bytes(json.dumps(lines, ensure_ascii=ascii_only).encode())
        else:
            path.write_bytes(end.join(json.dumps(line, ensure_ascii=ascii_only) for line in lines).encode())
        workload = read_workload(path)
        assert [entry.case.messages[-1]["content"] for entry in workload.entries] == [pair[0] for pair in pairs]
        if sample.answered:
            assert [entry.answer for entry in workload.entries] == [pair[1] for pair in pairs]


KEYS = st.sampled_from([
    "id", "family", "messages", "role", "content", "type", "text", "prompt", "turns", "conversations", "from", "value",
    "body", "custom_id", "response", "choices", "message", "usage", "expect", "max_tokens", "tools", "metadata",
])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(KEYS, values, max_size=5), min_size=1, max_size=4), st.binary(max_size=8))
@settings(max_examples=300, deadline=None)
def test_no_line_is_a_traceback(tmp_path_factory: pytest.TempPathFactory, lines: list[Any], junk: bytes) -> None:
    path = tmp_path_factory.mktemp("f") / "p"
    path.write_bytes(b"\n".join([*(json.dumps(line).encode() for line in lines), junk]))
    try:
        workload = read_workload(path)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        assert all(isinstance(left, LeftOut) and left.reason for left in workload.left_out)


def test_a_device_without_an_end_is_refused() -> None:
    with pytest.raises(UserError, match="/dev/zero is a device"):
        read_inventory(Path("/dev/zero"))
