"""A forecast for people: tables and sentences, as text for a terminal or as Markdown."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean
from typing import NamedTuple

import msgspec

from specbench.lookup.figures import (
    ANY_LOAD,
    CostRecord,
    DeploymentRecord,
    Estimate,
    Figures,
    Forecast,
    LoadRecord,
    SettingForecast,
    ranked,
    value,
)
from specbench.lookup.setting import ARTICLE, Setting
from specbench.words import count, some

FLAT = 0.02  # settings within this share of the best are as good as it
UNSURE = 0.05  # a ratio without limits is taken to be this uncertain (docs/forecast.md: the error of a forecast)
MOST_FAMILIES = 20
MOST_NAMED = 6


class Table(NamedTuple):
    """A title, the names of the columns, and rows of cells; the first column is text, the others are numbers."""

    title: str
    header: list[str]
    rows: list[list[str]]


def text(forecast: Forecast) -> str:
    """For a terminal."""
    parts = ["\n".join(_aligned(table)) for table in _tables(forecast)]
    return "\n\n".join([*parts, "\n".join(_sentences(forecast))])


def markdown(forecast: Forecast) -> str:
    """The same as Markdown."""
    parts = [f"{table.title}\n\n{markdown_table(table)}" for table in _tables(forecast)]
    return "\n\n".join([*parts, "\n".join(f"- {sentence}" for sentence in _sentences(forecast))]) + "\n"


def markdown_table(table: Table) -> str:
    """The rows of a table as Markdown, without its title."""
    rule = ["---", *("--:" for _ in table.header[1:])]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (table.header, rule, *map(_escaped, table.rows)))


def load_name(load: str) -> str:
    """1 user, 8 users; or any load."""
    return "any load" if load == ANY_LOAD else count(int(load), "user")


# ---- tables


def _tables(forecast: Forecast) -> Iterator[Table]:
    if len(forecast.settings) == 1:
        one = forecast.settings[0]
        yield _steps_table(forecast, one)
        yield _positions_table(one)
        if forecast.cost:
            yield _ratio_table(forecast, one)
            if ANY_LOAD not in forecast.cost.loads:
                yield cost_table(forecast.cost)
        return
    for load in forecast.loads:
        title = f"Predicted E2EL ratio of all answers at {load_name(load)}, ngram / baseline"
        yield _sweep_table(forecast, title, partial(_ratio_cell, load))
        yield _best_table(forecast, load)
    if not forecast.cost:
        title = "Tokens per step of all answers"
        yield _sweep_table(forecast, title, lambda each: f"{each.overall.tokens_per_step:.2f}")
        yield _best_table(forecast, None)
    yield _sweep_table(
        forecast, "Drafted tokens thrown away per token", lambda each: f"{each.overall.thrown_away:.2f}"
    )


def _ratio_cell(load: str, one: SettingForecast) -> str:
    return f"{_estimate(one.overall, load).ratio:.2f}"


def _steps_table(forecast: Forecast, one: SettingForecast) -> Table:
    header = ["", "answers", "tokens", "steps", "tokens/step", "steps with a draft", "thrown away", "break-even"]
    rows = [
        [
            name,
            f"{each.answers:,}",
            f"{each.tokens:,}",
            f"{each.steps:,}",
            f"{each.tokens_per_step:.2f}",
            f"{each.draft_coverage:.0%}",
            f"{each.thrown_away:.2f}",
            _number(each.break_even),
        ]
        for name, each in _lines(one)
    ]
    return Table(f"{forecast.source}: answers replayed with {one.setting}", header, rows)


def _positions_table(one: SettingForecast) -> Table:
    header = ["", *(str(position + 1) for position in range(one.num_speculative_tokens))]
    rows = [[name, *(f"{share:.0%}" for share in each.acceptance_per_position)] for name, each in _lines(one)]
    return Table("Share of drafts whose first, second, … token is accepted", header, rows)


def _ratio_table(forecast: Forecast, one: SettingForecast) -> Table:
    header = ["", *(load_name(load) for load in forecast.loads)]
    rows = [[name, *(_limits(_estimate(each, load)) for load in forecast.loads)] for name, each in _lines(one)]
    costs = [f"{_estimate(one.overall, load).step_cost_ratio:.2f}" for load in forecast.loads]
    rows.append(["cost of a step", *costs])
    assert forecast.cost is not None
    return Table(f"Predicted E2EL ratio, ngram / baseline; cost: {forecast.cost.source}", header, rows)


def cost_table(cost: CostRecord) -> Table:
    """What a step costs by load, in ms: means over the deployments of each mode."""
    rows = [
        ["step of the baseline", *(_mean_ms(each.baseline, "undrafted_s") for each in cost.loads.values())],
        ["step of ngram, no draft", *(_mean_ms(each.ngram, "undrafted_s") for each in cost.loads.values())],
        ["step of ngram, with a draft", *(_mean_ms(each.ngram, "drafted_s") for each in cost.loads.values())],
        ["TTFT of the baseline", *(_mean_ms(each.baseline, "ttft_s") for each in cost.loads.values())],
        ["TTFT of ngram", *(_mean_ms(each.ngram, "ttft_s") for each in cost.loads.values())],
    ]
    return Table(f"What was fitted to {cost.source} (ms)", ["", *map(load_name, cost.loads)], rows)


def _mean_ms(deployments: Sequence[DeploymentRecord], name: str) -> str:
    return f"{1e3 * fmean(getattr(each, name) for each in deployments):.2f}"


def _sweep_table(forecast: Forecast, title: str, cell: Callable[[SettingForecast], str]) -> Table:
    drafted = sorted({each.num_speculative_tokens for each in forecast.settings})
    bounds = sorted({(each.prompt_lookup_min, each.prompt_lookup_max) for each in forecast.settings})
    cells = {each.setting: cell(each) + ("*" if each.setting == ARTICLE else " ") for each in forecast.settings}
    rows = [[f"{low}–{high}", *(cells.get(Setting(k, low, high), "– ") for k in drafted)] for low, high in bounds]
    star = " (* the article's setting)" if ARTICLE in cells else ""
    return Table(f"{title}{star}", ["lookup", *(f"k = {k} " for k in drafted)], rows)


def _best_table(forecast: Forecast, load: str | None) -> Table:
    """The best setting of each family and of all, by the ratio at `load` or by tokens per step."""
    header = ["", "best", "there", "article's", f"within {FLAT:.0%}", "of these, drafts least", "there"]
    rows = []
    for name, _ in _lines(forecast.settings[0]):
        figures = {each.setting: _line(each, name) for each in forecast.settings}
        shown = {setting: f"{value(each, load):.2f}" for setting, each in figures.items()}
        best, near = ranked(figures, load, FLAT)
        share = f"{len(near)} of {len(figures)}"
        rows.append([name, str(best), shown[best], shown.get(ARTICLE, "–"), share, str(near[0]), shown[near[0]]])
    what = f"E2EL ratio at {load_name(load)}" if load else "tokens per step"
    return Table(f"The best setting by {what}", header, rows)


# ---- sentences


def _sentences(forecast: Forecast) -> Iterator[str]:
    if len(forecast.settings) == 1:
        yield _break_even(forecast.settings[0])
        for load in forecast.loads:
            yield would_pay(forecast.settings[0], load)
    else:
        yield from _flatness(forecast)
    if len(families := forecast.settings[0].families) > MOST_FAMILIES:
        yield f"The tables show all answers only, because there are {len(families)} families; --json writes every one."
    yield from _about_the_error(forecast)
    yield from (note[:1].upper() + note[1:] + "." for note in forecast.notes)


def would_pay(one: SettingForecast, load: str) -> str:
    """For which families ngram would pay at `load`, for which not, and what it needs."""
    groups: dict[str, list[str]] = {"pay": [], "not": [], "open": []}
    for name, each in one.families.items():
        estimate = _estimate(each, load)
        low, high = estimate.low or estimate.ratio / (1 + UNSURE), estimate.high or estimate.ratio * (1 + UNSURE)
        group = "pay" if high < 1 else "not" if low > 1 else "open"
        groups[group].append(f"{name if len(one.families) > 1 else 'these answers'} ({estimate.ratio:.2f})")
    parts = []
    if groups["pay"]:
        against = f", not for {_list(groups['not'], 'or')}" if groups["not"] else ""
        parts.append(f"would pay for {_list(groups['pay'], 'and')}{against}")
    elif groups["not"]:
        parts.append(f"would not pay for {_list(groups['not'], 'or')}")
    if groups["open"]:
        parts.append(f"could go either way for {_list(groups['open'], 'and')}")
    needed = _estimate(one.overall, load).step_cost_ratio
    start = "At any load" if load == ANY_LOAD else f"At {load_name(load)}"
    return f"{start} ngram {'; it '.join(parts)}; it needs more than {needed:.1f} tokens a step."


def _break_even(one: SettingForecast) -> str:
    if len(one.families) == 1:
        return f"ngram gains while a step costs less than {_number(one.overall.break_even)} times the baseline's."
    limits = [f"{_number(each.break_even)} for {name}" for name, each in one.families.items()]
    return f"ngram gains while a step costs less than this many times the baseline's: {some(limits, MOST_NAMED)}."


def _flatness(forecast: Forecast) -> Iterator[str]:
    loads: list[str | None] = [*forecast.loads] or [None]
    figures = {each.setting: each.overall for each in forecast.settings}
    for load in loads:
        best, near = ranked(figures, load, FLAT)
        what = f"At {load_name(load)} the least E2EL ratio is" if load else "The most tokens per step are"
        yield (
            f"{what} {value(figures[best], load):.2f}, with {best}; {len(near)} of {len(figures)} settings are within "
            f"{FLAT:.0%} of it, and of these {near[0]} drafts least."
        )
    yield (
        "As a rule a larger k takes fewer steps, and they may be dearer where the GPU is busy; "
        + ("these ratios take one cost for every k." if forecast.cost else "tokens per step do not show that.")
    )


def _about_the_error(forecast: Forecast) -> Iterator[str]:
    if forecast.cost is None:
        return
    if ANY_LOAD in forecast.cost.loads:
        yield "The cost was given, so the ratios have no limits; the prefill is taken to cost one step in both modes."
        return
    limited = {load: record for load, record in forecast.cost.loads.items() if _has_limits(record)}
    if limited:
        spread = ", ".join(f"{record.shape_error:.0%} at {load_name(load)}" for load, record in limited.items())
        yield (
            "The limits are for one new deployment of each mode. They hold the spread between the deployments that "
            f"gave the cost, and how far a case was from steps × cost ({spread})."
        )
    if len(limited) < len(forecast.loads):
        yield (
            "A ratio without limits rests on one deployment of a mode, which does not tell how far the next one lies "
            "away, or on too few cases."
        )
    drafted = forecast.cost.num_speculative_tokens
    if any(each.num_speculative_tokens != drafted for each in forecast.settings):
        yield f"The cost was measured with k = {drafted}; docs/forecast.md says how far it was checked for others."
    if forecast.cost.model and forecast.model != forecast.cost.model:
        answers = f"those of {forecast.model}" if forecast.model else "of a model that their source does not name"
        yield f"The cost is that of {forecast.cost.model}, the answers are {answers}."
    yield "How far such forecasts were off when they were checked stands in docs/forecast.md."


def _has_limits(record: LoadRecord) -> bool:
    return min(len(record.baseline), len(record.ngram)) >= 2 and record.shape_error is not None


# ---- cells


def _lines(one: SettingForecast) -> list[tuple[str, Figures]]:
    families = list(one.families.items()) if 1 < len(one.families) <= MOST_FAMILIES else []
    return [*families, ("overall", one.overall)]


def _line(one: SettingForecast, name: str) -> Figures:
    return one.overall if name == "overall" else one.families[name]


def _estimate(figures: Figures, load: str) -> Estimate:
    assert figures.e2el_ratio is not msgspec.UNSET
    return figures.e2el_ratio[load]


def _limits(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.ratio:.2f}"
    return f"{estimate.ratio:.2f} ({estimate.low:.2f}–{estimate.high:.2f})"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _list(names: Sequence[str], word: str) -> str:
    if len(names) == 1 or len(names) > MOST_NAMED:
        return some(names, MOST_NAMED)
    return f"{', '.join(names[:-1])} {word} {names[-1]}"


def _escaped(cells: Sequence[str]) -> list[str]:
    return [cell.strip().replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*") for cell in cells]


def _aligned(table: Table) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(table.header, *table.rows, strict=True)]
    yield table.title
    for cells in (table.header, *table.rows):
        first, *others = (
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        yield "  ".join([first, *others]).rstrip()
