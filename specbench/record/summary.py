"""The summary of a run: what its requests amount to, computed as anyone could with jq."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specbench.files import sha256_of
from specbench.record.directory import read_requests
from specbench.record.format import (
    FORMAT,
    REQUESTS,
    Checked,
    ClientHealth,
    Distribution,
    Expected,
    Manifest,
    Metrics,
    Request,
    RequestCounts,
    ServerDeltas,
    Summary,
    Throughput,
    TokensPerChunk,
)
from specbench.record.judged import Judged, judge_answers, measured_answers
from specbench.record.notices import Notices
from specbench.words import count

# Fewest samples that hold one observation beyond the percentile.
PERCENTILES = {50: 1, 90: 10, 95: 20, 99: 100}
_METRICS = ("ttft_s", "e2el_s", "tpot_s", "decode_s", "completion_tokens")


@dataclass
class _Samples:
    """What the summary needs of the ok requests of one family."""

    values: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _METRICS})
    chunks: int = 0
    tokens: int = 0
    answers: int = 0
    unknown_tpot: dict[str, int] = field(default_factory=dict)

    def add(self, request: Request) -> None:
        for name, values in self.values.items():
            value = getattr(request, name)
            if value is not None:
                values.append(value)
        self.answers += 1
        if problem := request.tpot_problem:
            self.unknown_tpot[problem] = self.unknown_tpot.get(problem, 0) + 1
        self.chunks += request.chunks
        self.tokens += request.completion_tokens or 0


def summarize(
    directory: Path,
    manifest: Manifest,
    *,
    server: ServerDeltas,
    client: ClientHealth,
    warnings: Sequence[str],
    judged: Judged | None = None,
) -> Summary:
    """The summary of a run, computed from its requests.jsonl as anyone could with jq.

    Args:
        directory: the result directory, with every request written.
        manifest: its manifest, for the status, the schedule and what is expected of the answers.
        server: deltas between the two scrapes (metrics.deltas).
        client: the client's own health (load.LoadResult).
        warnings: sentences; those about the answers are added.
        judged: which answers are right; None judges them here, without running a command.
    """
    if judged is None:
        answers = measured_answers(read_requests(directory))
        judged = judge_answers(answers, manifest.inventory.cases, allow_commands=False)
    outcomes: dict[str, int] = {}
    examples: dict[str, str] = {}
    notices = Notices()
    families: dict[str, _Samples] = {}
    overall = _Samples()
    expect: dict[str, Checked] = {}
    window = _Window()
    warmup = measured = 0
    for request in read_requests(directory):
        if request.phase == "warmup":
            warmup += 1
            continue
        measured += 1
        outcomes[request.outcome] = outcomes.get(request.outcome, 0) + 1
        window.add(request)
        if request.outcome != "ok":
            examples.setdefault(request.outcome, f"{request.case}: {request.error}")
            continue
        notices.add(request)
        overall.add(request)
        families.setdefault(request.family, _Samples()).add(request)
        if (passed := judged.passed(request.case, request.text)) is not None:
            counts = expect.setdefault(request.case, Checked(0, 0))
            counts.checked += 1
            counts.passed += passed
    ordered = dict(sorted(families.items()))
    return Summary(
        format=FORMAT,
        status=manifest.status,
        requests=RequestCounts(
            scheduled=manifest.schedule.requests,
            measured=measured,
            ok=outcomes.get("ok", 0),
            outcomes=dict(sorted(outcomes.items())),
            warmup=warmup,
            examples=dict(sorted(examples.items())),
        ),
        metrics=Metrics(_metrics(overall), {name: _metrics(family) for name, family in ordered.items()}),
        throughput=window.result(),
        tokens_per_chunk=TokensPerChunk(
            _ratio(overall.tokens, overall.chunks),
            {name: _ratio(family.tokens, family.chunks) for name, family in ordered.items()},
        ),
        expect=Expected(
            sum(counts.checked for counts in expect.values()),
            sum(counts.passed for counts in expect.values()),
            dict(sorted(expect.items())),
        ),
        server=server,
        client=client,
        warnings=[*warnings, *notices.sentences()],
        requests_sha256=sha256_of(directory / REQUESTS),
    )


def summary_table(directory: Path, manifest: Manifest, summary: Summary) -> str:
    """The summary for a person: a line per family and the sentences below it."""
    requests = summary.requests
    lines = [f"{'family':<16}{'n':>6}{'TTFT p50':>12}{'E2EL p50':>12}{'TPOT p50':>12}{'tok/chunk':>11}   (ms)"]
    for name, metrics in [*summary.metrics.families.items(), ("overall", summary.metrics.overall)]:
        row = "".join(f"{_milliseconds(metrics[metric].p50):>12}" for metric in ("ttft_s", "e2el_s", "tpot_s"))
        chunk = summary.tokens_per_chunk.families.get(name, summary.tokens_per_chunk.overall)
        per_chunk = "–" if chunk is None else f"{chunk:.2f}"
        lines.append(f"{name[:15]:<16}{metrics['e2el_s'].n:>6}{row}{per_chunk:>11}")
    rate, accepted = summary.throughput.tokens_per_s, summary.server.acceptance_rate
    queries, hits = summary.server.prefix_cache_queries, summary.server.prefix_cache_hits
    lines.append(
        f"{directory}: {summary.status}, {requests.ok} of {requests.scheduled} ok, mode {manifest.mode}"
        + (f", {rate:.0f} tokens/s" if rate is not None else "")
        + (f", {accepted:.0%} of drafted tokens accepted" if accepted is not None else "")
        + (f", {hits / queries:.0%} of prompt tokens from the prefix cache" if queries and hits is not None else "")
    )
    if missing := summary.metrics.overall["tpot_s"].reasons.get("missing"):
        lines.append(f"TPOT: {missing}")
    if manifest.stopped:
        lines.append(f"stopped early: {manifest.stopped}")
    outcomes = {name: number for name, number in requests.outcomes.items() if name != "ok"}
    lines += [
        f"{count(number, 'request')} ended as {name}, for example {requests.examples.get(name, '–')}"
        for name, number in outcomes.items()
    ]
    return "\n".join([*lines, *(f"warning: {sentence}" for sentence in summary.warnings)])


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.1f}"


def distribution(values: Sequence[float]) -> Distribution:
    """n, mean and percentiles (linear interpolation, numpy's default); None, with the reason, where n is too short."""
    import numpy as np  # not at the top: 13 MB that a measuring client does not need

    percentiles: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for percentile, needed in PERCENTILES.items():
        name = f"p{percentile}"
        percentiles[name] = float(np.percentile(values, percentile)) if len(values) >= needed else None
        if percentiles[name] is None:
            reasons[name] = f"needs {needed} samples, has {len(values)}"
    mean = float(np.mean(values)) if values else None
    return Distribution(n=len(values), mean=mean, **percentiles, reasons=reasons)


class _Window:
    """tokens/s while every user is busy: from the measured start until the first user finds the schedule empty.

    After that moment users fall idle one by one, and tokens/s would tell how the schedule ended. Requests in flight
    then count with the share of their decode interval that lies inside the window. A request that failed has no known
    end and counts as its start: where a user's last request failed, the window ends no later than that start.
    """

    def __init__(self) -> None:
        self._start = math.inf
        self._user_end: dict[int, float] = {}
        self._spans: list[tuple[float, float, int]] = []  # first content (s), end (s), tokens

    def add(self, request: Request) -> None:
        """Take one measured request, in any order."""
        self._start = min(self._start, request.start_s)
        end = request.start_s + (request.e2el_s or 0.0)
        self._user_end[request.user] = max(self._user_end.get(request.user, 0.0), end)
        if request.outcome == "ok" and request.completion_tokens:
            first = end if request.ttft_s is None else request.start_s + request.ttft_s
            self._spans.append((first, end, request.completion_tokens))

    def result(self) -> Throughput:
        """tokens, window_s and tokens_per_s; None where nothing was measured."""
        if not self._spans:
            return Throughput()
        end = min(self._user_end.values())
        import numpy as np

        first, last, tokens = np.array(self._spans, dtype=float).T
        decode = np.where(last > first, last - first, 1.0)
        share = np.where(last <= end, 1.0, np.clip((end - first) / decode, 0.0, 1.0))  # all of what came at once
        inside = float((tokens * share).sum())
        window = end - self._start
        return Throughput(inside / window if window > 0 else None, inside, window)


def _metrics(samples: _Samples) -> dict[str, Distribution]:
    distributions = {name: distribution(values) for name, values in samples.values.items()}
    if samples.unknown_tpot:
        number = sum(samples.unknown_tpot.values())
        why = " and ".join(samples.unknown_tpot)
        distributions["tpot_s"].reasons["missing"] = f"unknown for {number} of {samples.answers} answers: {why}"
    return distributions


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None
