"""What to do next at one load: the step that would sharpen its answer most, and the commands for it.

The commands are given in the README's folder, as every command there.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path, PurePath

from msgspec import UNSET

from specbench.comparison.format import Comparison, Likeness, Line, Timing, Word
from specbench.deploy.state import PROMPTS, Settings
from specbench.words import count, percent, some

_ROOT = Path(__file__).resolve().parents[2]
_YOURS = "YOUR-PROMPTS.jsonl"  # stands for a file that only the reader has
_MOST_MORE = 12  # deployments of each mode that come to those there are: beyond it the machine is to be steadied
_MORE_REPEATS = 4  # times as many, where nothing tells how many are needed


@dataclass(frozen=True, slots=True)
class NextStep:
    """One sentence for these numbers of users, and the commands that do what it says, in their order."""

    loads: tuple[int, ...]
    sentence: str
    commands: tuple[str, ...]


def next_steps(
    results: Sequence[Comparison], folder: Path, settings: Settings | None, *, has_token_ids: bool = False
) -> list[NextStep]:
    """For every load the step that would sharpen its answer most; loads with one and the same step stand together.

    Args:
        results: one per load.
        folder: of the experiment; of loose result directories any.
        settings: of the experiment; None for loose directories, which name themselves.
        has_token_ids: whether forecast.py can replay the answers.
    """
    groups: dict[_Plan, list[Comparison]] = {}
    for result in results:
        groups.setdefault(_plan(result, settings, has_token_ids), []).append(result)
    name = _from_readme(folder)
    return [
        NextStep(
            tuple(result.concurrency for result in group),
            plan.sentence,
            tuple(_Commands(group, name, settings).of_plan(plan)),
        )
        for plan, group in groups.items()
    ]


def experiment_command(
    settings: Settings,
    folder: Path,
    out: str,
    order: str | None = None,
    loads: Sequence[int] | None = None,
    repeats: int | None = None,
) -> str:
    """The experiment in `folder` once more, into `folder`-`out`, with what is given changed."""
    name = _from_readme(folder)
    words = ["python", "experiment.py", "--target", settings.target, "--out", f"{name}-{out}"]
    words += ["--order", order or settings.order]
    words += ["--concurrency", ",".join(map(str, loads or settings.concurrency))]
    repeats = repeats or _one_number(settings, loads or settings.concurrency)
    words += ["--repeats", str(repeats)] if repeats else []  # else they grow with the load, which is the default
    words += ["--prompts", f"{name}/{PROMPTS}"] if settings.keeps_text else ["--prompts", _YOURS, "--no-text"]
    words += ["--max-tokens", str(settings.max_tokens)]
    for option, value in (("-p", settings.project), ("--owner", settings.owner), ("--queue", settings.queue)):
        if value is not UNSET:
            words += [option, str(value)]
    words += line_options(settings)
    options = ["--", *settings.launcher_options] if settings.launcher_options else []
    return shlex.join([*words, *options])


def line_options(settings: Settings) -> list[str]:
    """--mix and --primary, where the experiment was given them."""
    words = []
    if settings.mix is not UNSET:
        words += ["--mix", ",".join(f"{family}={weight:g}" for family, weight in settings.mix.items())]
    if settings.primary is not UNSET:
        words += ["--primary", settings.primary]
    return words


def _one_number(settings: Settings, loads: Sequence[int]) -> int | None:
    """The repeats at these loads, where they are the same at all."""
    numbers = {settings.repeats_at(load) for load in loads}
    return numbers.pop() if len(numbers) == 1 else None


def resume_command(folder: Path) -> str:
    """The experiment in `folder` goes on; what was measured is kept."""
    return shlex.join(["python", "experiment.py", "--out", _from_readme(folder), "--resume"])


def _from_readme(folder: Path) -> str:
    """`folder` as it is called in the README's folder."""
    whole = folder.resolve()
    if whole.is_relative_to(_ROOT):
        return str(whole.relative_to(_ROOT))
    return str(folder) if folder.name else whole.name


# ---- what to do


class _Do(Enum):
    """Which commands a plan needs."""

    NOTHING = auto()
    SHOW = auto()  # one case's outputs
    AGAIN = auto()  # the experiment once more
    MORE = auto()  # more deployments, judged together with these
    WEIGH = auto()  # the page once more, with a mix
    FORECAST = auto()


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to do, with what is to be changed: a case to show, deployments of each mode to add, repeats, or an order."""

    sentence: str
    do: _Do
    case: str | None = None
    more: int = 0
    repeats: int | None = None
    order: str | None = None
    prompts: str | None = None


def _plan(result: Comparison, settings: Settings | None, has_token_ids: bool) -> _Plan:
    """By what stands in the way of an answer, the heaviest first."""
    word = result.verdict.verdict
    if word is Word.NOT_COMPARABLE:
        return _about_outputs(result)
    if word is Word.SUSPECT:
        actions = dict.fromkeys(gate.action for gate in result.gates if gate.state == "fired" and gate.action)
        return _Plan(f"Mend what the gates found, then measure again: {'; '.join(actions)}", _Do.AGAIN)
    if word is None and len(result.order) > 2:
        return _Plan("Deploy again, in alternating order", _Do.AGAIN, order=_alternating(2))
    if word is None:
        sentence = "Deploy both modes once more, in the reverse order: one deployment of each mode concludes nothing"
        return _Plan(sentence, _Do.MORE, more=1)
    lines = [result.primary, *result.metrics["e2el"].families.values()]
    undecided = next((line for line in lines if line.timing is Timing.NO_DIFFERENCE and line.advice), None)
    if undecided is not None:
        return _sharpen(result, undecided)
    if word is Word.DEPENDS:
        sentence = "Weigh the families as your traffic does; overall is then its answer"
        return _Plan(sentence, _Do.WEIGH)
    if word is Word.NO_DIFFERENCE:
        return _Plan("Nothing is left to measure here: a difference of 10% would have been found", _Do.NOTHING)
    if has_token_ids and settings is not None:
        sentence = "Settled for these prompts and this setting; a forecast tells which other settings to try"
        return _Plan(sentence, _Do.FORECAST)
    return _Plan("Settled for these prompts; ask the same of your own", _Do.AGAIN, prompts=_YOURS)


def _about_outputs(result: Comparison) -> _Plan:
    cases = {name: case for name, case in result.equality.cases.items() if not case.passes}
    changed = [name for name, case in cases.items() if case.verdict is Likeness.CHANGED]
    if changed:
        return _Plan(f"Read how the outputs of {some(changed)} changed, before the times", _Do.SHOW, case=changed[0])
    if all(case.verdict is Likeness.WITHIN for case in cases.values()):
        return _Plan("Pass outputs that vary no more than the baseline's own", _Do.SHOW, case=next(iter(cases)))
    repeats = result.repeats * _MORE_REPEATS
    sentence = f"Give every case more answers, so that its outputs can be judged: {repeats} repeats instead of "
    return _Plan(f"{sentence}{result.repeats}", _Do.AGAIN, repeats=repeats)


def _sharpen(result: Comparison, line: Line) -> _Plan:
    advice = line.advice
    assert advice is not None
    what = "" if line.primary else f" for {line.name}"
    if advice.cheaper == "repeats" and advice.repeats is not None:
        sentence = f"{advice.repeats} repeats instead of {result.repeats} would find a difference of 10%{what}"
        minutes = _minutes(advice.repeats_minutes)
        return _Plan(f"{sentence} (about {minutes})", _Do.AGAIN, repeats=advice.repeats)
    more = max(1, advice.deployments - len(result.order) // 2)
    if more > _MOST_MORE:
        spread = f"Deployments of one mode differ by {percent(line.spread)} here, so it would take {more} more of each"
        mend = "see that nothing else uses this machine, then measure again"
        return _Plan(f"{spread} to find a difference of 10%{what}: {mend}", _Do.AGAIN)
    sentence = f"{count(more, 'more deployment')} of each mode would find a difference of 10%{what}"
    return _Plan(f"{sentence} (about {_minutes(advice.deployments_minutes)})", _Do.MORE, more=more)


def _alternating(pairs: int, after: int = 0) -> str:
    """BN, BNNB, BNNBBN; after an odd number of pairs it begins with N."""
    return "".join("BN" if (after + number) % 2 == 0 else "NB" for number in range(pairs))


def _minutes(minutes: float | None) -> str:
    return count(max(1, round(minutes or 0)), "minute")


# ---- commands


@dataclass(frozen=True, slots=True)
class _Commands:
    """The commands for loads that have one plan: their results, and where these lie."""

    results: Sequence[Comparison]
    folder: str
    settings: Settings | None

    def of_plan(self, plan: _Plan) -> Iterator[str]:
        """None, one or two."""
        if plan.do is _Do.SHOW and plan.case is not None:
            for result in self.results:
                yield f"python compare.py {self._pairs(result)} --accept-floor --show {shlex.quote(plan.case)}"
        elif plan.do is _Do.WEIGH:
            yield self._weigh()
        elif plan.do is _Do.FORECAST:
            base = shlex.quote(f"{self.folder}/{self.results[0].base.directories[0]}")
            yield f"python forecast.py {base} --cost {shlex.quote(self.folder)} --sweep"
        elif plan.do is _Do.MORE and self.settings is None:
            for result in self.results:
                yield self._with_fresh_directories(result, plan.more)
        elif plan.do is _Do.MORE:
            yield self._again("more", order=_alternating(plan.more, after=len(self.results[0].order) // 2))
            yield self._together()
        elif plan.do is _Do.AGAIN and self.settings is not None:
            yield self._again("again", order=plan.order, repeats=plan.repeats, prompts=plan.prompts)

    def _again(
        self, out: str, *, order: str | None = None, repeats: int | None = None, prompts: str | None = None
    ) -> str:
        assert self.settings is not None
        loads = [result.concurrency for result in self.results]
        command = experiment_command(self.settings, Path(self.folder), out, order, loads, repeats)
        return command.replace(shlex.quote(f"{self.folder}/{PROMPTS}"), prompts) if prompts else command

    def _weigh(self) -> str:
        families = list(self.results[0].metrics["e2el"].families)
        share = f"{1 / len(families):.3g}"
        last = f"{1 - float(share) * (len(families) - 1):.4g}"
        mix = ",".join(f"{family}={weight}" for family, weight in zip(families, self._shares(share, last), strict=True))
        if self.settings is not None:
            where = f"{shlex.quote(self.folder)} --out {shlex.quote(f'{self.folder}/mix.html')}"
        else:
            names = [self._path(name) for result in self.results for name in _names(result)]
            where = f"{shlex.join(names)} --out mix.html"
        return f"python report.py {where} --mix {shlex.quote(mix)}"

    def _shares(self, share: str, last: str) -> list[str]:
        return [share] * (len(self.results[0].metrics["e2el"].families) - 1) + [last]

    def _together(self) -> str:
        """The page of these deployments and of those that come to them."""
        more = f"{self.folder}-more"
        places = [
            f"{shlex.quote(folder)}/*-c{result.concurrency}"
            for result in self.results
            for folder in (self.folder, more)
        ]
        return f"python report.py {' '.join(places)} --out {shlex.quote(f'{more}/all.html')}"

    def _with_fresh_directories(self, result: Comparison, more: int) -> str:
        pairs = len(result.order) // 2
        fresh = " ".join(f"--and BASELINE{number} NGRAM{number}" for number in range(pairs + 1, pairs + more + 1))
        return f"python compare.py {self._pairs(result)} {fresh} --accept-floor"

    def _pairs(self, result: Comparison) -> str:
        """BASE CANDIDATE --and BASE CANDIDATE, as compare.py takes them."""
        names = zip(result.base.directories, result.candidate.directories, strict=True)
        return " --and ".join(shlex.join([self._path(base), self._path(candidate)]) for base, candidate in names)

    def _path(self, directory: str) -> str:
        return _from_readme(Path(directory)) if self.settings is None else str(PurePath(self.folder) / directory)


def _names(result: Comparison) -> list[str]:
    return [*result.base.directories, *result.candidate.directories]
