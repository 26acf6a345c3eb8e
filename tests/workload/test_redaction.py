"""What has a form is replaced, repeats stay equal, and look-alikes stay as they are."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.workload.case import Case, Entry
from specbench.workload.redaction import Redactor, texts


def redacted(text: str) -> str:
    return Redactor([text]).text(text)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("EMAIL", "anna.o'neil@example.com".replace("o'neil", "oneil")),
        ("EMAIL", "a+b@sub.example.co.uk"),
        ("EMAIL", "jürgen@münchen.de"),
        ("PHONE", "+49 30 1234567"),
        ("PHONE", "+442079460000"),
        ("PHONE", "(555) 123-4567"),
        ("PHONE", "555-123-4567"),
        ("PHONE", "1-800-555-0199"),
        ("PHONE", "030 1234567"),
        ("PHONE", "06 12 34 56 78"),
        ("PHONE", "0049 (0)30 1234567"),
        ("KEY", "sk-proj-AbCdEfGhIjKlMnOpQrStUv"),
        ("KEY", "ghp_16C7e42F292c6912E7710c838347Ae178B4a"),
        ("KEY", "AKIAIOSFODNN7EXAMPLE"),
        ("KEY", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVPmB92K27uhbUJU1p1r"),
        ("KEY", "-----BEGIN RSA PRIVATE KEY-----\nMIIE+abc/=\n-----END RSA PRIVATE KEY-----"),
        ("UUID", "123e4567-e89b-12d3-a456-426614174000"),
        ("IP", "192.168.10.44"),
        ("IP", "2001:db8::8a2e:370:7334"),
        ("IP", "::ffff:192.0.2.128"),
        ("CARD", "4111 1111 1111 1111"),
        ("CARD", "5500-0000-0000-0004"),
        ("CARD", "378282246310005"),
    ],
)
def test_each_kind_is_found_inside_a_sentence(kind: str, value: str) -> None:
    assert redacted(f"Before {value}, after.") == f"Before <{kind}_1>, after."
    assert redacted(f'{{"x": "{value}"}}') == f'{{"x": "<{kind}_1>"}}'
    assert redacted(value) == f"<{kind}_1>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Authorization: Bearer abcDEF1234567890xyz", "Authorization: Bearer <KEY_1>"),
        ("password = hunter22!", "password = <KEY_1>"),
        ('{"api_key": "abcdef123"}', '{"api_key": "<KEY_1>"}'),
        ("postgres://app:s3cr3tpw@db/x", "postgres://app:<KEY_1>@db/x"),
    ],
)
def test_a_secret_is_replaced_and_its_name_stays(text: str, expected: str) -> None:
    assert redacted(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "on 2024-05-06 at 12:30:45, or 06.05.2024 and 1/2/2024",
        "std::vector<int> a::b and dead::beef",
        "version 3.11.7 costs 1,234,567.89 of 3.14159265358979",
        "order 20240506123456 and part 4711-0815",
        "1234567812345678 is no card: its check digit is wrong",
        "the token of the day, a secret garden, password policy",
        "array[0] = 0; x = 0x7fffffff; 100 200 300 400",
        "999.999.999.999",
        "@mention and a@b",
        "0.123 456 789 012",
    ],
)
def test_what_only_looks_like_one_stays(text: str) -> None:
    assert redacted(text) == text


def test_repeats_stay_equal_and_different_values_stay_different() -> None:
    first, second = "a@example.com to b@example.com", "b@example.com to a@example.com"
    redactor = Redactor([first, second])
    assert redactor.text(first) == "<EMAIL_1> to <EMAIL_2>" and redactor.text(second) == "<EMAIL_2> to <EMAIL_1>"
    assert redactor.counts == {"EMAIL": 4} and redactor.distinct() == {"EMAIL": 2}


def test_a_redacted_text_is_redacted_again_without_a_mix_up() -> None:
    once = "<EMAIL_7> wrote to c@example.com; token: <KEY_1>"
    assert redacted(once) == "<EMAIL_7> wrote to <EMAIL_8>; token: <KEY_1>"


def test_every_text_of_an_entry_is_redacted_and_counts_of_changed_texts_are_dropped() -> None:
    mail = "a@example.com"
    case = Case(mail, mail, [{"role": "user", "content": mail, "name": mail}], 7, {"json": {"to": [mail]}})
    entry = Entry(case, 3, f"Dear {mail}", 10, 5)
    redactor = Redactor(texts([entry]))
    result = redactor.entry(entry)
    assert mail not in json.dumps([result.case.id, result.case.family, result.case.messages, result.case.expect])
    assert result.answer == "Dear <EMAIL_1>" and result.prompt_tokens is result.completion_tokens is None
    plain = Entry(Case("x", "f", [{"role": "user", "content": "hi"}], None, None), 1, "ho", 10, 5)
    assert Redactor(texts([plain])).entry(plain) == plain


VALUES = ["a@example.com", "+49 30 1234567", "4111 1111 1111 1111", "192.168.10.44", "plain words"]


@given(st.lists(st.sampled_from(VALUES), min_size=1, max_size=12))
@settings(max_examples=100, deadline=None)
def test_equal_values_have_equal_placeholders_and_no_value_is_left(values: list[str]) -> None:
    result = redacted("; ".join(values)).split("; ")
    assert len(result) == len(values)
    for value, replaced in zip(values, result, strict=True):
        assert (value == replaced) == (value == "plain words")
        assert result[values.index(value)] == replaced


@pytest.mark.parametrize("piece", ["a", "1", "1 ", "a.", ":", "+", "eyJ", "-----BEGIN PRIVATE KEY-----", "token=", "://a:"])
def test_no_text_takes_more_than_linear_time(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    redacted(text)  # a quadratic pattern would take hours, and pytest-timeout ends it
