"""A setting of vLLM's n-gram drafting: how much is drafted, and how long a match has to be."""

from collections.abc import Iterable
from typing import NamedTuple

from specbench import UserError

MOST_DRAFTED = 128  # vLLM 0.11.2 asserts this at run time


class Setting(NamedTuple):
    """The three numbers of vLLM's --speculative-config for the method ngram, in tokens."""

    num_speculative_tokens: int
    prompt_lookup_min: int
    prompt_lookup_max: int

    def __str__(self) -> str:
        return f"k = {self.num_speculative_tokens}, lookup {self.prompt_lookup_min}–{self.prompt_lookup_max}"


ARTICLE = Setting(num_speculative_tokens=5, prompt_lookup_min=2, prompt_lookup_max=4)


def check_setting(setting: Setting) -> Setting:
    """`setting` itself; UserError where vLLM 0.11.2 would refuse it."""
    drafted, low, high = setting
    if not 1 <= drafted <= MOST_DRAFTED:
        raise UserError(f"--num-speculative-tokens {drafted} is not between 1 and {MOST_DRAFTED}, as vLLM requires")
    if low < 1:
        raise UserError(f"--prompt-lookup-min {low} is below 1, which vLLM refuses")
    if low > high:
        raise UserError(f"--prompt-lookup-min {low} is above --prompt-lookup-max {high}, which vLLM refuses")
    return setting


def grid(drafted: Iterable[int], lows: Iterable[int], highs: Iterable[int]) -> list[Setting]:
    """Every setting of these numbers that vLLM accepts, in their order."""
    highs = list(highs)
    lows = list(lows)
    return [Setting(k, low, high) for k in drafted for low in lows for high in highs if low <= high]
