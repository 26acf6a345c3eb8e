"""What people read: numbers, and text from elsewhere in which nothing hides."""

import unicodedata

import pytest

from specbench import words


def test_every_character_that_nothing_is_drawn_for_is_shown() -> None:
    """Controls, marks of direction, zero widths, tags and halves of surrogate pairs; letters and emoji stay."""
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    numbers = set("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")
    for code in range(0x110000):
        character = chr(code)
        drawn = character in "\t\n" or character in numbers or 0x13430 <= code < 0x13460 or 0x1BCA0 <= code < 0x1BCA4
        if unicodedata.category(character) in hidden and not drawn:
            assert words.printable(character).startswith("\\"), f"U+{code:04X}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pa\u200bss", "pa\\u200bss"),
        ("\ufeffstart", "\\ufeffstart"),
        ("a\U000e0041\U000e007fb", "a\\U000e0041\\U000e007fb"),
        ("\ud800", "\\ud800"),
        ("\u3164", "\\u3164"),
        ("x\ufe00\ufe0f", "x\\ufe00\\ufe0f"),
        ("❤\ufe0f ü 漢字 عربي\t\n", "❤\ufe0f ü 漢字 عربي\t\n"),
    ],
)
def test_hidden_text_is_shown_and_text_is_left_alone(text: str, shown: str) -> None:
    assert words.printable(text) == shown


def test_numbers_are_written_one_way() -> None:
    assert [words.number(value) for value in (None, 0.5, 1234.5678)] == ["–", "0.500", "1,234.568"]
    assert [words.percent(value, 1) for value in (None, 0.123)] == ["–", "12.3%"]
    assert [words.chance(value) for value in (None, 0.0002, 0.04)] == ["–", "< 0.001", "0.040"]
    assert [words.count(value, "user") for value in (1, 1000)] == ["1 user", "1,000 users"]
