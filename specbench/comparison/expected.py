"""Right answers: how often each mode gives them, and whether one gives them less often.

A case says what is right (workload/judging.py). Texts, expressions and JSON values are judged here. What a command
said, and what was right in a run with --no-text, bench.py has written down (record/judged.py): nothing is run here.
"""

from pathlib import Path

from specbench.comparison.format import CasePasses, Expect, FamilyPasses
from specbench.comparison.pairing import Pair
from specbench.comparison.permutation import pass_rates
from specbench.comparison.sides import Run
from specbench.record.judged import read_judged
from specbench.workload.judging import judge_for


def expected(pair: Pair) -> Expect | None:
    """Pass rates by case, by family and overall; the k-th deployments of both sides are paired.

    A case counts where every answer to it could be judged; None where there is no such case.
    """
    known = _known_answers(pair)
    if not known:
        return None
    checked = [(case, place) for case in known for place in pair.places[case].tolist()]

    def passed(side: list[Run]) -> list[bool]:
        return [known[case][int(run.output[place])] for run in side for case, place in checked]

    base, candidate = passed(pair.bases), passed(pair.candidates)
    result = pass_rates(base, candidate)
    families: dict[str, tuple[list[bool], list[bool]]] = {}
    for (number, _), one, two in zip(checked * len(pair.bases), base, candidate, strict=True):
        case = pair.cases[number]
        counts = result.cases.setdefault(case.id, CasePasses(0, 0, 0))
        counts.checked += 1
        counts.base_passed += one
        counts.candidate_passed += two
        ones, twos = families.setdefault(case.family, ([], []))
        ones.append(one)
        twos.append(two)
    for name, (ones, twos) in families.items():
        rates = pass_rates(ones, twos)
        result.families[name] = FamilyPasses(
            rates.pairs, rates.base_passed, rates.candidate_passed, rates.p, rates.reason
        )
    return result


def _known_answers(pair: Pair) -> dict[int, dict[int, bool]]:
    """By case and output, whether it is right, for each case whose every output could be judged."""
    runs = [*pair.bases, *pair.candidates]
    judged = [found for run in runs if (found := read_judged(Path(run.name))) is not None]
    known: dict[int, dict[int, bool]] = {}
    for number, case in enumerate(pair.cases):
        judge = judge_for(case.expect)
        if judge is None and not any(case.id in found.cases for found in judged):
            continue
        outputs = {int(output) for run in runs for output in run.output[pair.places[number]].tolist()}
        answers: dict[int, bool] = {}
        for output in outputs:
            text = pair.outputs.text(output)
            said = judge(text) if judge else next(
                (passed for found in judged if (passed := found.passed(case.id, text)) is not None), None
            )
            if said is not None:
                answers[output] = said
        if len(answers) == len(outputs):
            known[number] = answers
    return known
