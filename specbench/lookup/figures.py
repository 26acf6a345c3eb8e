"""What a forecast says, as it stands in its JSON (docs/forecast.md)."""

from collections.abc import Mapping

import msgspec

from specbench.lookup.setting import ARTICLE, Setting

FORMAT = 1
ANY_LOAD = "any"  # the load of a cost that was not measured but given


class Estimate(msgspec.Struct):
    """A predicted ratio, ngram / baseline; low and high are 95% limits for one new deployment of each mode.

    They are None where the cost was given, or where one deployment of a mode cannot tell how far two lie apart.
    `step_cost_ratio` is how much dearer a step is here: ngram pays where there are more tokens in a step.
    """

    ratio: float
    low: float | None
    high: float | None
    step_cost_ratio: float


class Figures(msgspec.Struct, kw_only=True):
    """The replay of some answers under one setting. Steps include the prefill, which emits the first token."""

    answers: int
    tokens: int
    steps: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: list[int]
    tokens_per_step: float
    break_even: float | None
    """Tokens per step after the prefill: ngram gains where a step costs less than this many of the baseline's.

    None where every answer is a single token."""
    e2el_ratio: dict[str, Estimate] | msgspec.UnsetType = msgspec.UNSET

    @property
    def draft_coverage(self) -> float:
        """The share of steps that verify a draft."""
        return self.drafts / self.steps

    @property
    def thrown_away(self) -> float:
        """Drafted tokens that were not accepted, per token of the answers."""
        return (self.draft_tokens - self.accepted_tokens) / self.tokens

    @property
    def acceptance_per_position(self) -> list[float]:
        """The share of drafts whose first, second, … token was accepted."""
        return [accepted / self.drafts if self.drafts else 0.0 for accepted in self.accepted_per_position]


class SettingForecast(msgspec.Struct, kw_only=True):
    """One setting: all answers, those of each family, those of each case."""

    num_speculative_tokens: int
    prompt_lookup_min: int
    prompt_lookup_max: int
    overall: Figures
    families: dict[str, Figures]
    cases: dict[str, Figures]

    @property
    def setting(self) -> Setting:
        """The three numbers as one value."""
        return Setting(self.num_speculative_tokens, self.prompt_lookup_min, self.prompt_lookup_max)


class DeploymentRecord(msgspec.Struct):
    """What one deployment took: seconds to the first token, and seconds per step."""

    name: str
    ttft_s: float
    undrafted_s: float
    drafted_s: float


class LoadRecord(msgspec.Struct):
    """The deployments of each mode at one load."""

    baseline: list[DeploymentRecord]
    ngram: list[DeploymentRecord]
    shape_error: float | None
    """Standard deviation of what a case's measured log ratio differs from the one that these costs give."""


class CostRecord(msgspec.Struct):
    """Where the cost of a step came from, and what it is by load (specbench/lookup/cost.py)."""

    source: str
    model: str | None
    num_speculative_tokens: int | None
    loads: dict[str, LoadRecord]


class Forecast(msgspec.Struct, kw_only=True):
    """Everything that forecast.py says."""

    format: int = FORMAT
    source: str
    model: str | None
    notes: list[str]
    cost: CostRecord | None
    settings: list[SettingForecast]

    @property
    def loads(self) -> list[str]:
        """The loads that have a predicted ratio, in their order."""
        return list(self.cost.loads) if self.cost else []

    def find(self, setting: Setting = ARTICLE) -> SettingForecast | None:
        """The forecast of one setting."""
        return next((each for each in self.settings if each.setting == setting), None)


def value(figures: Figures, load: str | None) -> float:
    """What settings are judged by: the predicted E2EL ratio at `load`, or tokens per step where there is no load."""
    if load is None:
        return figures.tokens_per_step
    assert figures.e2el_ratio is not msgspec.UNSET
    return figures.e2el_ratio[load].ratio


def ranked(figures: Mapping[Setting, Figures], load: str | None, share: float) -> tuple[Setting, list[Setting]]:
    """The best of some settings, and all whose value is within `share` of its value, that which drafts least first."""
    values = {setting: value(each, load) for setting, each in figures.items()}
    best = min(values, key=lambda setting: (values[setting] if load else -values[setting], setting))
    near = [setting for setting in values if abs(values[setting] / values[best] - 1) <= share]
    return best, sorted(near, key=lambda setting: (figures[setting].draft_tokens, setting))
