"""The result of a comparison as types: one schema that compare.py writes with --json and that the page reads.

docs/comparison.md describes it key by key. Times are seconds, ratios are candidate / base, spreads are in logs (0.03 is
about 3%), shares lie between 0 and 1. What does not exist is None.
"""

from enum import Enum
from typing import Literal

import msgspec

from specbench.record.format import Tool

FORMAT = 2

Side = Literal["base", "candidate"]
GateState = Literal["ok", "fired", "not checked"]


class Timing(Enum):
    """What the times of a line say, outputs and gates aside; there is none where nothing can be concluded."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no clear difference"


class Word(Enum):
    """The verdict: that of the times, unless families differ, a gate fired, or the outputs are not comparable."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no clear difference"
    DEPENDS = "depends"
    SUSPECT = "suspect"
    NOT_COMPARABLE = "not comparable"


class Likeness(Enum):
    """What can be said of the outputs of a case, or of all cases."""

    IDENTICAL = "identical"
    WITHIN = "within the baseline's variation"
    CHANGED = "changed"
    CANNOT_TELL = "cannot tell"


class Interval(msgspec.Struct):
    """A ratio and its 95% interval, or the `reason` why there is none; `assumption` is what it means and rests on.

    `ratio` is None only when nothing was measured. `base`, `candidate`: geometric means (s). `median_ratio` describes.
    """

    ratio: float | None
    low: float | None
    high: float | None
    reason: str | None
    assumption: str
    base: float | None
    candidate: float | None
    median_ratio: float | None
    warnings: list[str] = []


class Advice(msgspec.Struct):
    """What would sharpen a result that concludes nothing, and what it costs on this server.

    `deployments`: of each mode in all, at the spread seen; `most_deployments`: at its 80% upper limit. `repeats`: None
    where no number of them suffices. Minutes are those of the server. `cheaper` is the one to choose.
    """

    cheaper: Literal["deployments", "repeats"]
    deployments: int
    most_deployments: int
    deployments_minutes: float
    repeats: int | None
    repeats_minutes: float | None
    sentence: str


class Line(msgspec.Struct):
    """One line of the table: `overall` (`mix` with --mix) or one family.

    `interval`: the ratio over any deployments, which the verdict rests on. `prompts`: the same for other prompts.
    `spread`: standard deviation of a deployment's mean log within its mode (None with one pair); `noise_share`: the
    share of its square that noise within the runs gives (None where no case was repeated). `primary`: named beforehand.
    `verdict` and `timing` are None where nothing is concluded, and on every metric but E2EL; `why` says what they rest
    on.
    """

    name: str
    primary: bool
    verdict: Word | None
    timing: Timing | None
    why: str
    interval: Interval
    prompts: Interval
    spread: float | None
    noise_share: float | None
    advice: Advice | None
    base_median_s: float | None = None
    candidate_median_s: float | None = None


class CaseTimes(msgspec.Struct):
    """One case on these deployments: it describes, and has no interval."""

    ratio: float | None
    base_median_s: float | None
    candidate_median_s: float | None


class Metric(msgspec.Struct):
    """One metric: `requests` of a run have a value on every side."""

    overall: Line
    families: dict[str, Line]
    cases: dict[str, CaseTimes]
    requests: int
    warnings: list[str]

    @property
    def lines(self) -> list[Line]:
        """Families, then overall; overall alone where a single family says the same."""
        families = list(self.families.values())
        return [self.overall] if len(families) == 1 and not families[0].primary else [*families, self.overall]


class Factors(msgspec.Struct):
    """Ratios whose product is that of decode times: `steps` after the prefill, and the `cost` of one. `spread`: of the
    cost between deployments."""

    steps: float | None
    cost: Interval
    decode: float | None
    spread: float | None


class StepCost(msgspec.Struct):
    """What a step without a draft, and one with, takes on one deployment (ms); None where they are not told apart."""

    directory: str
    undrafted_ms: float | None
    drafted_ms: float | None


class Why(msgspec.Struct):
    """Steps and their cost. `source`: how ngram's steps are known: `replayed` over token ids, or `reported` by the
    engine. `sentence` speaks of the primary line."""

    source: Literal["counted", "replayed", "reported"]
    overall: Factors
    families: dict[str, Factors]
    cases: dict[str, Factors]
    deployments: list[StepCost]
    sentence: str


class SideRecord(msgspec.Struct):
    """Which directories stand on a side."""

    mode: str | None
    directories: list[str]


class Deployment(msgspec.Struct, kw_only=True):
    """One deployment's run. `e2el_s`: the geometric mean of the primary line, which the verdict rests on.
    `prefix_cache_hit_share`: of the prompt tokens that were looked up, where prefix caching is on."""

    directory: str
    side: Side
    mode: str | None
    mode_verified: dict[str, str]
    service_run: str | None
    started: str
    ended: str | None
    e2el_s: float
    tokens_per_s: float | None
    prefix_cache_hit_share: float | None = None
    warnings: list[str]


class Throughput(msgspec.Struct):
    """Mean tokens/s of a side's deployments; one number a deployment is too few for an interval."""

    base_tokens_per_s: float | None
    candidate_tokens_per_s: float | None
    ratio: float | None


class Verdict(msgspec.Struct):
    """What is concluded of the primary line.

    `verdict`: None where nothing is. `timing`: without outputs and gates. `families`: what each family's times say.
    `gates`: those that fired. `sentence` says it for people, `why` what it rests on.
    """

    line: str
    mix: dict[str, float] | None
    verdict: Word | None
    timing: Timing | None
    families: dict[str, Timing | None]
    gates: list[str]
    sentence: str
    why: str


class Gate(msgspec.Struct, frozen=True):
    """What was checked: `number` is held against `threshold`; `action` is what to do when it fired, or to have it
    checked."""

    name: str
    state: GateState
    number: float | None
    threshold: float | None
    sentence: str
    action: str | None


class Divergence(msgspec.Struct):
    """Where the base's commonest output and the candidate's commonest other one part."""

    token: int | None
    character: int | None
    before: str | None
    base: str | None
    candidate: str | None


class CaseOutputs(msgspec.Struct):
    """The outputs of one case. `p` is corrected for the number of cases (None: no test could reject)."""

    family: str
    verdict: Likeness
    passes: bool
    p: float | None
    reason: str
    compared: Literal["token ids", "text"]
    distinct_base: int
    distinct_candidate: int
    shared: int
    within_base: float | None
    between: float
    tokens_base: float
    tokens_candidate: float
    finish_base: dict[str, int]
    finish_candidate: dict[str, int]
    divergence: Divergence | None


class Equality(msgspec.Struct):
    """The outputs of all cases. `new`: the share of the candidate's requests with an output that the base never gave.
    `least_change`: the share of a case's requests that must change to be found with 80% power, where the base always
    answers alike (None: no share is found)."""

    equal: bool
    accept_floor: bool
    verdict: Likeness
    sentence: str
    assumption: str
    combined_p: float | None
    base_p: float | None
    floor: float | None
    between: float
    new: float
    least_change: float | None
    counts: dict[str, int]
    cases: dict[str, CaseOutputs]


class CasePasses(msgspec.Struct):
    """How often one case answered as expected."""

    checked: int
    base_passed: int
    candidate_passed: int


class FamilyPasses(msgspec.Struct):
    """How often the cases of one family answered as expected, with the test of `Expect`."""

    checked: int
    base_passed: int
    candidate_passed: int
    p: float | None
    reason: str | None


class Expect(msgspec.Struct):
    """Answers that are as expected, paired by (case, repeat). `p`: exact McNemar; None for the `reason` given."""

    pairs: int
    base_passed: int
    candidate_passed: int
    only_base: int
    only_candidate: int
    p: float | None
    reason: str | None
    cases: dict[str, CasePasses] = {}
    families: dict[str, FamilyPasses] = {}


class Comparison(msgspec.Struct, kw_only=True):
    """Everything that compare.py says."""

    format: int
    tool: Tool
    base: SideRecord
    candidate: SideRecord
    concurrency: int
    repeats: int
    cases: int
    requests: int
    exit_code: int
    verdict: Verdict
    order: list[Side]
    deployments: list[Deployment]
    metrics: dict[str, Metric]
    throughput: Throughput
    why: Why | None = None
    why_missing: str | None = None
    equality: Equality
    expect: Expect | None
    gates: list[Gate]
    spread_from: list[str]
    warnings: list[str]

    @property
    def primary(self) -> Line:
        """The line of E2EL that was named beforehand."""
        metric = self.metrics["e2el"]
        return next(line for line in [metric.overall, *metric.families.values()] if line.primary)
