"""What a server counts: scrapes of GET /metrics and what happened between two of them."""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from prometheus_client.parser import text_string_to_metric_families

from specbench.client.control import ControlClient
from specbench.record.format import ServerDeltas
from specbench.words import count

SETTLE_S = 2.0
PROBES, MOST_PROBES = 4, 12
_PREFIXES = {"vllm": "vllm:", "llama.cpp": "llamacpp:"}
_GENERATED = {"vllm": "vllm:generation_tokens_total", "llama.cpp": "llamacpp:tokens_predicted_total"}


@dataclass(slots=True)
class Metrics:
    """One scrape of /metrics.

    Attributes:
        unreadable: lines that are not Prometheus text; the others count.
    """

    text: str
    unreadable: list[str] = field(init=False, default_factory=list)
    _samples: dict[str, list[tuple[dict[str, str], float]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not self._add(self.text):
            self._samples.clear()
            lines = [line for line in self.text.splitlines() if line.strip() and not line.startswith("#")]
            self.unreadable = [line for line in lines if not self._add(line + "\n")]

    def _add(self, text: str) -> bool:
        """Add what `text` holds; False where a line of it is none."""
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if math.isfinite(sample.value):
                        self._samples.setdefault(sample.name, []).append((sample.labels, float(sample.value)))
        except Exception:  # the parser has no exception of its own: a damaged line ends as any of several
            return False
        return True

    @property
    def start_time(self) -> float | None:
        """When the process that answered started (s since 1970)."""
        return self.total("process_start_time_seconds")

    @property
    def engine(self) -> str | None:
        """Which engine names its counters so."""
        for engine, prefix in _PREFIXES.items():
            if any(name.startswith(prefix) for name in self._samples):
                return engine
        return None

    def total(self, name: str) -> float | None:
        """Sum of a counter over its labels; None where the server has none of that name."""
        samples = self._samples.get(name)
        return sum(value for _, value in samples) if samples else None

    def labels(self, name: str) -> dict[str, str] | None:
        """Labels of an info metric."""
        samples = self._samples.get(name)
        return dict(samples[0][0]) if samples else None

    def by_position(self) -> dict[int, float]:
        """Accepted tokens by position in the draft."""
        name = f"{_PREFIXES.get(self.engine or '', '')}spec_decode_num_accepted_tokens_per_pos_total"
        positions: dict[int, float] = {}
        for labels, value in self._samples.get(name, []):
            text = labels.get("position", "")
            if text.isascii() and text.isdigit():
                position = int(text)
                positions[position] = positions.get(position, 0.0) + value
        return positions

    def since(self, before: "Metrics", name: str) -> float | None:
        """How much a counter rose; one that appears only with its first event rose from 0."""
        value = self.total(name)
        return None if value is None else value - (before.total(name) or 0.0)

    def drafts_since(self, before: "Metrics") -> float | None:
        """How often the server drafted; None where no engine is known."""
        prefix = _PREFIXES.get(self.engine or "")
        return None if prefix is None else self.since(before, f"{prefix}spec_decode_num_drafts_total") or 0.0


async def scrape(client: ControlClient) -> str:
    """The raw text of /metrics; empty where the server has none."""
    answer = await client.get("metrics")
    return answer.text if answer.status == 200 else ""


async def scrape_when_settled(client: ControlClient, before: str, finished: int) -> str:
    """The scrape after the run: a server may count the last request a moment after the client saw its end."""
    end = time.monotonic() + SETTLE_S
    while True:
        text = await scrape(client)
        counted = Metrics(text).since(Metrics(before), "vllm:request_success_total")
        if counted is None or counted >= finished or time.monotonic() >= end:
            return text
        await asyncio.sleep(0.05)


async def answer_in_turn(client: ControlClient, start_times: Sequence[float | None]) -> bool:
    """Whether several servers answer at this address, and not one that restarted: a start time comes back.

    Args:
        client: asks on a new connection each time, so that whatever shares them out can choose another server.
        start_times: of the scrapes so far, in their order.
    """
    seen = [start_time for start_time in start_times if start_time is not None]
    if not seen:
        return False
    for probe in range(MOST_PROBES):
        if probe >= PROBES and len(set(seen)) == 1:
            return False
        answer = await client.get("metrics", fresh=True)
        start_time = Metrics(answer.text).start_time
        if start_time is None:
            return False
        seen.append(start_time)
        in_a_row = [start_time for start_time, _ in groupby(seen)]
        if len(in_a_row) != len(set(in_a_row)):
            return True
    return False


def deltas(before: Metrics, after: Metrics, own_requests: int, *, in_turn: bool = False) -> ServerDeltas:
    """What the server did between two scrapes; None where it does not say.

    acceptance rate        = accepted / drafted tokens
    mean acceptance length = 1 + accepted / drafts: tokens of a step that had a draft, so it flatters speculation
    tokens per step        = generated / (generated - accepted), over all steps of all requests
    draft coverage         = drafts / (generated - accepted): the share of steps that had a draft
    (names and formulas of vLLM's own spec_decode metrics; the last two count steps as generated - accepted tokens)

    Args:
        before, after: the scrapes.
        own_requests: the most requests of this client that the server can have finished between them.
        in_turn: whether several servers answer (answer_in_turn): nothing can be counted then.
    """
    restarted = None if in_turn else _restarted(before, after)
    empty = Metrics("")
    source = empty if restarted or in_turn else after
    prefix = _PREFIXES.get(source.engine or "", "")

    def rise(name: str) -> float | None:
        return source.since(before, f"{prefix}{name}")

    drafts, draft_tokens = rise("spec_decode_num_drafts_total"), rise("spec_decode_num_draft_tokens_total")
    accepted = rise("spec_decode_num_accepted_tokens_total")
    generated = source.since(before, _GENERATED.get(source.engine or "", ""))
    earlier = before.by_position()
    positions = [value - earlier.get(position, 0.0) for position, value in sorted(source.by_position().items())]
    steps = None if generated is None else generated - (accepted or 0.0)
    succeeded = rise("request_success_total")
    waited, waits = rise("request_queue_time_seconds_sum"), rise("request_queue_time_seconds_count")
    return ServerDeltas(
        drafts=drafts,
        draft_tokens=draft_tokens,
        accepted_tokens=accepted,
        accepted_per_position=positions,
        generation_tokens=generated,
        acceptance_rate=_ratio(accepted, draft_tokens),
        mean_acceptance_length=None if not drafts or accepted is None else 1 + accepted / drafts,
        tokens_per_step=_ratio(generated, steps),
        draft_coverage=_ratio(drafts, steps),
        acceptance_per_position=[value / drafts for value in positions] if drafts else [],
        prefix_cache_queries=rise("prefix_cache_queries_total"),
        prefix_cache_hits=rise("prefix_cache_hits_total"),
        preemptions=rise("num_preemptions_total"),
        queue_time_mean_s=_ratio(waited, waits),
        requests_succeeded=succeeded,
        foreign_requests=None if succeeded is None else max(0.0, succeeded - own_requests),
        restarted=restarted,
        several_servers=in_turn or None,
    )


def warnings(server: ServerDeltas) -> list[str]:
    """Sentences for what must not happen between two scrapes; compare.py turns the same numbers into gates."""
    sentences = {
        "restarted": "the server restarted during the run",
        "several_servers": "several servers answered at this address in turn: nothing of theirs can be counted",
        "foreign_requests": "someone else sent {:g} requests to this server during the run: use a server of your own",
        "preemptions": "the server preempted {:g} times: its KV cache is too small for this load",
    }
    values = {name: getattr(server, name) for name in sentences}
    return [sentence.format(values[name]) for name, sentence in sentences.items() if values[name]]


def unreadable_lines(*scrapes: Metrics) -> list[str]:
    """A sentence for the lines of /metrics that could not be read, where others could."""
    lines = [line for scrape in scrapes if scrape.engine is not None for line in scrape.unreadable]
    if not lines:
        return []
    number = count(len(lines), "line")
    return [f"{number} of GET /metrics could not be read, while all others count; the first: {lines[0][:100]}"]


def _restarted(before: Metrics, after: Metrics) -> bool | None:
    """Whether another process answers: by its start time, else by a counter that fell. None where neither is told."""
    start, later = before.start_time, after.start_time
    if start is not None and later is not None:
        return start != later
    name = _GENERATED.get(after.engine or "", "")
    first, last = before.total(name), after.total(name)
    return None if first is None or last is None else last < first


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator
