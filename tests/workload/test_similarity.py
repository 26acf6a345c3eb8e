"""Near-duplicates are those whose pieces say so, found among many, at little cost."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.workload.case import Case
from specbench.workload.similarity import NEAR, find_similar, folded, jaccard

WORDS = [start + end for start in ("ka", "lo", "mi", "ne", "pu", "sto", "tra", "vex") for end in ("", "n", "rt")]


def case(text: str, system: str = "") -> Case:
    messages = [{"role": "system", "content": system}] if system else []
    return Case("c", "f", [*messages, {"role": "user", "content": text}], None, None)


def pieces(text: str) -> set[bytes]:
    whole = "".join(text.split()).encode().lower().ljust(8, b"\0")
    return {whole[start : start + 8] for start in range(len(whole) - 7)}


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Z"]), min_size=1, max_size=60),
       st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Z"]), min_size=1, max_size=60))
@settings(max_examples=200, deadline=None)
def test_jaccard_is_what_the_sets_of_pieces_say(one: str, other: str) -> None:
    mine, theirs = (folded(case(text)) for text in (one, other))
    sets = [{text[start : start + 8] for start in range(len(text) - 7)} for text in (mine, theirs)]
    assert jaccard(mine, theirs) == pytest.approx(len(sets[0] & sets[1]) / len(sets[0] | sets[1]))


def test_letters_case_blanks_and_system_messages_do_not_count() -> None:
    cases = [case("Write to the harbor master.", "Be brief."), case("write  to the\nHARBOR master.", "Be long.")]
    similar = find_similar(cases)
    assert similar.near == {1: 0} and not similar.duplicates


def test_a_duplicate_has_the_same_messages() -> None:
    cases = [case("a"), case("b"), case("a"), case("a", "with a system message"), case("a")]
    assert find_similar(cases).duplicates == {2: 0, 4: 0}


@pytest.mark.parametrize("words", [12, 60, 400])
def test_of_many_prompts_those_near_an_earlier_one_are_found_and_no_others(words: int) -> None:
    generator = random.Random(words)
    texts = [" ".join(generator.choices(WORDS, k=words)) for _ in range(300)]
    changed = []
    for text in texts[:150]:
        copy = text.split()
        for place in generator.sample(range(words), generator.choice([1, words // 30 + 1, words // 8 + 1])):
            copy[place] = "zzz"
        changed.append(" ".join(copy))
    likeness = [
        len(pieces(one) & pieces(other)) / len(pieces(one) | pieces(other))
        for one, other in zip(texts, changed, strict=False)
    ]
    near = find_similar([case(text) for text in [*texts, *changed]]).near
    assert all(likeness[later - 300] >= NEAR - 0.01 or later < 300 for later in near)
    truly = {300 + number for number, alike in enumerate(likeness) if alike >= NEAR}
    assert len(truly) > 5 and len(truly - set(near)) <= len(truly) // 50
    assert all(near[later] == later - 300 for later in truly & set(near))


def test_long_texts_that_span_batches() -> None:
    generator = random.Random(0)
    text = "".join(generator.choices("abcdefghij", k=700_000))
    other = "".join(generator.choices("abcdefghij", k=700_000))
    assert find_similar([case(text), case(other), case("x" + text + "y"), case("z")]).near == {2: 0}


def test_texts_shorter_than_a_piece_and_one_case_alone() -> None:
    assert find_similar([case("hi"), case("ho"), case("hi ")]).near == {2: 0}
    assert find_similar([case("hi")]).near == find_similar([]).near == {}


def test_texts_of_one_repeated_piece_are_alike_whatever_their_length() -> None:
    assert np.isclose(jaccard(b"a" * 50, b"a" * 5000), 1.0)
    assert find_similar([case("a" * 50), case("a" * 5000)]).near == {1: 0}
