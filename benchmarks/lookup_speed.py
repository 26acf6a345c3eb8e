#!/usr/bin/env python3
"""Time and memory of the replay: 10,000 answers of 128 tokens after prompts of 500, one core.

    python benchmarks/lookup_speed.py

Bars (docs/forecast.md): one setting in 5 s, 24 settings in 60 s, 300 MB. No two answers and no two prompts are equal,
so nothing is remembered from one to the next. Half of an answer is copied from its prompt, in pieces, as an edit is.
"""

import platform
import random
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from specbench.lookup.answers import Answer, Answers, packed
from specbench.lookup.forecast import forecast
from specbench.lookup.setting import ARTICLE, Setting, grid
from specbench.words import count

ANSWERS, PROMPT, OUTPUT, VOCABULARY = 10_000, 500, 128, 50_000
SETTINGS_24 = grid((1, 2, 3, 5, 8, 12), (2, 3), (4, 6))
BARS = {1: 5.0, len(SETTINGS_24): 60.0}
MOST_MB = 300.0


def main() -> int:
    answers = Answers("made up", [make_answer(number) for number in range(ANSWERS)], max_model_len=2048)
    held = peak_mb()
    print(f"{platform.machine()}, Python {platform.python_version()}; {held:.0f} MB once the answers are made")
    missed = False
    for settings in ([ARTICLE], SETTINGS_24):
        seconds = timed(answers, settings)
        bar = BARS[len(settings)]
        missed |= seconds > bar
        name = count(len(settings), "setting")
        print(f"{name}: {seconds:.1f} s of one core (bar {bar:g} s), peak {peak_mb():.0f} MB")
    missed |= peak_mb() > MOST_MB
    print("a bar is missed" if missed else "every bar is met")
    return int(missed)


def make_answer(number: int) -> Answer:
    """A prompt of random tokens, and an answer of which half is copied from it in pieces of 2 to 19 tokens."""
    generator = random.Random(number)
    prompt = [generator.randrange(VOCABULARY) for _ in range(PROMPT)]
    output: list[int] = []
    while len(output) < OUTPUT:
        start, length = generator.randrange(PROMPT - 20), generator.randrange(2, 20)
        output += prompt[start : start + length]
        output += [generator.randrange(VOCABULARY) for _ in range(length)]
    return Answer(f"case-{number}", f"family-{number % 3}", packed(prompt), packed(output[:OUTPUT]), OUTPUT)


def timed(answers: Answers, settings: Sequence[Setting]) -> float:
    """CPU seconds of a whole forecast."""
    start = time.process_time()
    forecast(answers, settings)
    return time.process_time() - start


def peak_mb() -> float:
    """The most memory that this process has held (MB)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


if __name__ == "__main__":
    raise SystemExit(main())
