"""The forecast's figures are the replays' sums, and its words say what the figures say."""

import math
import re

import msgspec
import pytest
from support import ROOT

from specbench import UserError
from specbench.lookup.answers import Answer, Answers, read_answers
from specbench.lookup.cost import given_cost, read_cost
from specbench.lookup.figures import CostRecord, DeploymentRecord, Estimate, Figures, Forecast, LoadRecord, ranked
from specbench.lookup.forecast import forecast, sweep
from specbench.lookup.replay import replay
from specbench.lookup.setting import ARTICLE, Setting, check_setting, grid
from specbench.lookup.table import markdown, text, would_pay
from specbench.record.directory import read_summary

PUBLISHED = ROOT / "results" / "h200-smollm2-135m"
COPIES = list(range(100, 140))
SAYS_NEW = list(range(200, 220))


def some_answers() -> Answers:
    """Two cases that copy their prompt, one of them answered in two ways, and one that does not."""
    return Answers(
        "made up",
        [
            Answer("copy-1", "copy", [1, 2, *COPIES, 1], [2, *COPIES[:30]]),
            Answer("copy-1", "copy", [1, 2, *COPIES, 1], [2, *COPIES[:10], 7]),
            Answer("copy-2", "copy", [5, *COPIES], [*COPIES[:20], 9], 21),
            Answer("new-1", "new", [5, 6, 7], SAYS_NEW),
        ],
        max_model_len=2048,
    )


def test_figures_are_the_sums_of_the_replays() -> None:
    answers = some_answers()
    settings = grid([1, 5], [2], [2, 4])
    result = forecast(answers, settings)
    assert [each.setting for each in result.settings] == settings
    for each in result.settings:
        replays = {
            family: [
                replay(answer.prompt_ids, answer.output_ids, each.setting, answer.max_tokens, 2048)
                for answer in answers.answers
                if family in ("overall", answer.family)
            ]
            for family in ("copy", "new", "overall")
        }
        for family, figures in [*each.families.items(), ("overall", each.overall)]:
            ones = replays[family]
            assert figures.answers == len(ones)
            for name in ("tokens", "steps", "drafts", "draft_tokens", "accepted_tokens"):
                assert getattr(figures, name) == sum(getattr(one, name) for one in ones), (family, name)
            assert len(figures.accepted_per_position) == each.num_speculative_tokens
            assert sum(figures.accepted_per_position) == figures.accepted_tokens
            assert figures.tokens_per_step == figures.tokens / figures.steps
            assert figures.break_even == (figures.tokens - len(ones)) / (figures.steps - len(ones))
        assert each.cases["copy-1"].answers == 2
        assert sum(case.steps for case in each.cases.values()) == each.overall.steps


def test_nothing_repeated_gains_nothing() -> None:
    new = forecast(some_answers()).settings[0].families["new"]
    assert (new.tokens_per_step, new.break_even, new.draft_coverage, new.thrown_away) == (1.0, 1.0, 0.0, 0.0)
    assert new.acceptance_per_position == [0.0] * 5


def test_an_answer_of_one_token_has_no_break_even() -> None:
    [one] = forecast(Answers("", [Answer("a", "f", [1], [2])])).settings
    assert one.overall.break_even is None
    assert "–" in text(forecast(Answers("", [Answer("a", "f", [1], [2])], max_model_len=9)))


def test_a_published_baseline_forecasts_the_counters_of_ngram() -> None:
    figures = forecast(read_answers(PUBLISHED / "01-baseline-c1")).settings[0].overall
    counted = read_summary(PUBLISHED / "02-ngram-c1").server
    assert (figures.drafts, figures.draft_tokens) == (counted.drafts, counted.draft_tokens)
    assert figures.accepted_per_position == counted.accepted_per_position
    assert figures.steps == 5310 - 1610


def test_the_sweep_holds_the_article_and_here_more_drafts_give_no_more_steps() -> None:
    result = sweep(read_answers(PUBLISHED / "01-baseline-c1"))
    assert result.find() is not None
    steps = {each.setting: each.overall.steps for each in result.settings}
    for setting, taken in steps.items():
        larger = setting._replace(num_speculative_tokens=setting.num_speculative_tokens + 1)
        assert steps.get(larger, 0) <= taken
    best, near = ranked({each.setting: each.overall for each in result.settings}, None, 0.02)
    assert steps[best] == min(steps.values())
    assert best in near and all(steps[setting] <= 1.02 * steps[best] + 1 for setting in near)


def test_with_a_cost_the_best_is_the_least_ratio() -> None:
    result = sweep(read_answers(PUBLISHED / "01-baseline-c1"), read_cost(PUBLISHED))
    figures = {each.setting: each.overall for each in result.settings}
    for load in result.loads:
        best, near = ranked(figures, load, 0.02)
        least = min(ratio_of(each, load) for each in figures.values())
        assert ratio_of(figures[best], load) == least
        assert {setting for setting in figures if ratio_of(figures[setting], load) <= 1.02 * least} == set(near)
        assert figures[near[0]].draft_tokens == min(figures[setting].draft_tokens for setting in near)


def ratio_of(figures: Figures, load: str) -> float:
    assert figures.e2el_ratio is not msgspec.UNSET
    return figures.e2el_ratio[load].ratio


def test_a_family_is_the_geometric_mean_of_its_cases() -> None:
    one = forecast(some_answers(), cost=given_cost(1.6)).settings[0]
    cases = [ratio_of(one.cases[name], "any") for name in ("copy-1", "copy-2")]
    assert ratio_of(one.families["copy"], "any") == pytest.approx(math.sqrt(cases[0] * cases[1]))


# ---- words


def with_cost(ratios: dict[str, tuple[float, float | None, float | None]], load: str = "4") -> Forecast:
    """A forecast whose families have these ratios and limits."""
    record = LoadRecord([DeploymentRecord("b", 1, 1, 1)], [DeploymentRecord("n", 1, 2, 2)], 0.03)
    cost = CostRecord("experiment", "m", 5, {load: record})
    answers = [Answer(name, name, [1, 2, 3], [4, 5, 6]) for name in ratios]
    plain = forecast(Answers("made up", answers))
    one = plain.settings[0]
    for name, (ratio, low, high) in ratios.items():
        one.families[name].e2el_ratio = {load: Estimate(ratio, low, high, 1.7)}
    one.overall.e2el_ratio = {load: Estimate(1.0, None, None, 1.7)}
    return msgspec.structs.replace(plain, cost=cost)


@pytest.mark.parametrize(
    ("ratios", "sentence"),
    [
        (
            {"copy": (0.70, 0.6, 0.8), "explain": (1.56, 1.4, 1.7)},
            "At 4 users ngram would pay for copy (0.70), not for explain (1.56); it needs more than 1.7 tokens a step.",
        ),
        (
            {"explain": (1.56, 1.4, 1.7), "short": (1.2, 1.1, 1.3)},
            "At 4 users ngram would not pay for explain (1.56) or short (1.20); it needs more than 1.7 tokens a step.",
        ),
        (
            {"copy": (0.70, 0.6, 0.8), "edit": (0.5, 0.4, 0.6), "short": (0.95, 0.8, 1.1)},
            "At 4 users ngram would pay for copy (0.70) and edit (0.50); it could go either way for short (0.95); "
            "it needs more than 1.7 tokens a step.",
        ),
        (
            {"copy": (0.70, None, None)},
            "At 4 users ngram would pay for these answers (0.70); it needs more than 1.7 tokens a step.",
        ),
        (
            {"copy": (1.03, None, None)},
            "At 4 users ngram could go either way for these answers (1.03); it needs more than 1.7 tokens a step.",
        ),
    ],
)  # fmt: skip
def test_the_sentence(ratios: dict[str, tuple[float, float | None, float | None]], sentence: str) -> None:
    assert would_pay(with_cost(ratios).settings[0], "4") == sentence


def test_the_table_says_the_figures() -> None:
    shown = text(forecast(read_answers(PUBLISHED / "01-baseline-c1"), cost=read_cost(PUBLISHED)))
    assert re.search(r"copy +30 +1,860 +630 +2\.95 +46% +0\.12 +3\.05", shown)
    assert re.search(r"copy +0\.5\d \(0\.\d\d–0\.\d\d\)", shown)
    assert "At 8 users ngram would pay for copy" in shown
    assert "docs/forecast.md" in shown


@pytest.mark.parametrize(
    ("model", "said"),
    [("other", "the answers are those of other."), (None, "of a model that their source does not name."), ("m", None)],
)
def test_a_cost_of_another_model_is_named(model: str | None, said: str | None) -> None:
    shown = text(msgspec.structs.replace(with_cost({"copy": (0.7, None, None)}), model=model))
    assert ("The cost is that of m" in shown) is (said is not None)
    assert said is None or said in shown


def test_the_sweep_marks_the_article_and_says_how_flat_the_best_is() -> None:
    result = sweep(read_answers(PUBLISHED / "01-baseline-c1"))
    shown = text(result)
    assert re.search(r"2–4 .*1\.44\*", shown)
    assert re.search(r"\d+ of 56 settings are within 2% of it", shown)
    assert "tokens per step do not show that" in shown


def test_many_families_are_left_to_the_json() -> None:
    answers = [Answer(str(number), f"f{number}", [1, 2], [3, 4]) for number in range(21)]
    shown = text(forecast(Answers("", answers), cost=given_cost(1.6)))
    assert "because there are 21 families" in shown and "f20 " not in shown.partition("ngram gains")[0]


def test_markdown_has_the_same_cells() -> None:
    written = markdown(forecast(some_answers(), cost=given_cost(1.6)))
    assert "| copy | 3 |" in written and "| --- | --: |" in written


def test_a_family_cannot_break_a_markdown_table() -> None:
    answers = [Answer("a", "x|y*", [1, 2], [3, 4]), Answer("b", "z", [1, 2], [3, 4])]
    assert "| x\\|y\\* |" in markdown(forecast(Answers("", answers)))


# ---- settings


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (Setting(0, 2, 4), "between 1 and 128"),
        (Setting(129, 2, 4), "between 1 and 128"),
        (Setting(5, 0, 4), "below 1"),
        (Setting(5, 5, 4), "above --prompt-lookup-max 4"),
    ],
)
def test_settings_that_vllm_refuses(setting: Setting, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check_setting(setting)


def test_the_articles_setting_is_accepted_and_named() -> None:
    assert check_setting(ARTICLE) == (5, 2, 4)
    assert str(ARTICLE) == "k = 5, lookup 2–4"
