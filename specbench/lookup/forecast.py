"""The forecast: answers that were given without drafting, replayed under each setting, and what that would take."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from specbench.lookup.answers import Answer, Answers
from specbench.lookup.cost import Ints, Steps, predict
from specbench.lookup.figures import CostRecord, Estimate, Figures, Forecast, SettingForecast
from specbench.lookup.replay import PromptIndex, Replay, replay_settings
from specbench.lookup.setting import ARTICLE, Setting, grid

# What --sweep tries where no numbers were given: the article's setting, and both directions from it.
SWEEP_DRAFTED, SWEEP_MIN, SWEEP_MAX = (1, 2, 3, 4, 5, 6, 8), (1, 2, 3), (2, 4, 6)


def forecast(answers: Answers, settings: Sequence[Setting] = (ARTICLE,), cost: CostRecord | None = None) -> Forecast:
    """Replay `answers` under each of `settings`; with a cost, predict the E2EL ratio at its loads."""
    groups = _Groups.of_answers(answers.answers)
    counted = [_Counted(setting, len(groups.cases), len(answers.answers)) for setting in settings]
    for case, positions in enumerate(groups.cases.values()):
        _replay_case([answers.answers[each] for each in positions], positions, case, counted, answers.max_model_len)
    tokens = np.array([len(answer.output_ids) for answer in answers.answers])
    return Forecast(
        source=answers.source,
        model=answers.model,
        notes=answers.notes,
        cost=cost,
        settings=[_setting_forecast(each, groups, tokens, cost) for each in counted],
    )


def sweep(answers: Answers, cost: CostRecord | None = None) -> Forecast:
    """The forecast of every setting of the usual grid, the article's among them."""
    return forecast(answers, grid(SWEEP_DRAFTED, SWEEP_MIN, SWEEP_MAX), cost)


@dataclass
class _Groups:
    """Which answers belong to which case, and which cases to which family; by position in their lists."""

    cases: dict[str, Ints]
    families: dict[str, Ints]

    @classmethod
    def of_answers(cls, answers: Sequence[Answer]) -> "_Groups":
        cases: dict[str, list[int]] = {}
        family_of: dict[str, str] = {}
        for position, answer in enumerate(answers):
            cases.setdefault(answer.case, []).append(position)
            family_of[answer.case] = answer.family
        families: dict[str, list[int]] = {}
        for number, case in enumerate(cases):
            families.setdefault(family_of[case], []).append(number)
        return cls(
            {case: np.array(positions) for case, positions in cases.items()},
            {family: np.array(numbers) for family, numbers in sorted(families.items())},
        )


@dataclass
class _Counted:
    """What the replays under one setting add up to: by answer, and accepted by case and position."""

    setting: Setting
    case_count: int
    answer_count: int
    steps: Ints = field(init=False)
    drafts: Ints = field(init=False)
    draft_tokens: Ints = field(init=False)
    accepted: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.steps, self.drafts, self.draft_tokens = np.zeros((3, self.answer_count), dtype=np.int64)
        self.accepted = np.zeros((self.case_count, self.setting.num_speculative_tokens), dtype=np.int64)

    def add(self, position: int, case: int, replay: Replay) -> None:
        self.steps[position], self.drafts[position] = replay.steps, replay.drafts
        self.draft_tokens[position] = replay.draft_tokens
        per_position = np.array(replay.accepted_per_position, dtype=np.int64)
        self.accepted[case, : len(per_position)] += per_position


def _replay_case(
    answers: Sequence[Answer], positions: Ints, case: int, counted: Sequence[_Counted], max_model_len: int | None
) -> None:
    """Replay the answers of one case, each distinct one once."""
    settings = [each.setting for each in counted]
    shortest, longest = min(each[1] for each in settings), max(each[2] for each in settings)
    prompt_ids = answers[0].prompt_ids
    index = PromptIndex(prompt_ids, shortest, longest)
    known: dict[tuple[int | None, tuple[int, ...]], list[Replay]] = {}
    for answer, position in zip(answers, positions, strict=True):
        if answer.prompt_ids != prompt_ids:
            prompt_ids = answer.prompt_ids
            index, known = PromptIndex(prompt_ids, shortest, longest), {}
        key = answer.max_tokens, tuple(answer.output_ids)
        if key not in known:
            known[key] = replay_settings(index, answer.output_ids, settings, answer.max_tokens, max_model_len)
        for total, replay in zip(counted, known[key], strict=True):
            total.add(int(position), case, replay)


def _setting_forecast(
    counted: _Counted, groups: _Groups, tokens: Ints, cost: CostRecord | None
) -> SettingForecast:
    cases = list(groups.cases.values())
    every = np.arange(len(cases))
    rows = [every, *groups.families.values(), *(np.array([case]) for case in every)]
    ratios = _ratios(counted, [[cases[number] for number in row] for row in rows], tokens, cost)
    figures = [_figures(counted, row, cases, tokens, ratio) for row, ratio in zip(rows, ratios, strict=True)]
    split = 1 + len(groups.families)
    drafted, low, high = counted.setting
    return SettingForecast(
        num_speculative_tokens=drafted,
        prompt_lookup_min=low,
        prompt_lookup_max=high,
        overall=figures[0],
        families=dict(zip(groups.families, figures[1:split], strict=True)),
        cases=dict(zip(groups.cases, figures[split:], strict=True)),
    )


def _ratios(
    counted: _Counted, rows: Sequence[Sequence[Ints]], tokens: Ints, cost: CostRecord | None
) -> Iterable[dict[str, Estimate] | msgspec.UnsetType]:
    if cost is None:
        return [msgspec.UNSET] * len(rows)
    baseline = Steps.baseline(tokens)
    ngram = Steps((counted.steps - 1 - counted.drafts).astype(float), counted.drafts.astype(float))
    by_load = {load: predict(record, baseline, ngram, rows) for load, record in cost.loads.items()}
    return [{load: estimates[row] for load, estimates in by_load.items()} for row in range(len(rows))]


def _figures(
    counted: _Counted,
    row: Ints,
    cases: Sequence[Ints],
    tokens: Ints,
    ratio: dict[str, Estimate] | msgspec.UnsetType,
) -> Figures:
    answers = np.concatenate([cases[number] for number in row])
    steps, emitted = int(counted.steps[answers].sum()), int(tokens[answers].sum())
    per_position = counted.accepted[row].sum(axis=0).tolist()
    return Figures(
        answers=len(answers),
        tokens=emitted,
        steps=steps,
        drafts=int(counted.drafts[answers].sum()),
        draft_tokens=int(counted.draft_tokens[answers].sum()),
        accepted_tokens=sum(per_position),
        accepted_per_position=per_position,
        tokens_per_step=emitted / steps,
        break_even=(emitted - len(answers)) / (steps - len(answers)) if steps > len(answers) else None,
        e2el_ratio=ratio,
    )
