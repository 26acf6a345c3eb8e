"""The closed loop: N users, each sending the next item of one schedule when its last request has ended.

    loop = ClosedLoop(
        items, phase="measured", concurrency=8, transport=transport, settings=settings, zero_ns=perf_counter_ns(),
        sink=directory.append, server_changed=check, progress=show,
    )
    result = await loop.run()

What a user waits for between two requests is only what the next request needs. Decoding the finished answer comes
after, when no request has ended for a moment, one answer a turn of the event loop. Answers that end together, as a
batch's do, would otherwise hold back the next requests, and more so where chunks are more: at 64 users that invented
3% more tokens/s for a server with four tokens in a chunk. `sink` runs in a thread of its own, in order: a write that
waits for the disk (a network file system, a full page cache) costs no stamp.

Nothing is kept of a finished request but three numbers, so memory does not grow with the run's texts.
"""

import asyncio
import contextlib
import gc
import queue
import statistics
import threading
import time
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, Literal, TypeVar

from specbench.client.answer import Sample, read
from specbench.client.connection import Turns
from specbench.client.request import Exchange, RequestSettings, send
from specbench.client.transport import Transport
from specbench.record.format import ClientHealth, Request
from specbench.terminal import ending_signals
from specbench.workload.case import Case
from specbench.workload.schedule import Item

LEAST_FAILURES_TO_STOP = 5
LAG_INTERVAL_S = 0.02
PROGRESS_INTERVAL_S = 0.25
QUIET_S = 0.002
# Warn above these, as the comparison's gates do (specbench/comparison/pairing.py).
BUSY_SHARE, LATE_MS, LATE_SHARE = 0.5, 2.0, 0.01

Phase = Literal["warmup", "measured"]
T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    done: int
    total: int
    failures: int
    tokens: int
    elapsed_s: float


@dataclass(frozen=True)
class LoadResult:
    """What the closed loop did.

    Attributes:
        stopped: why the run ended before its schedule did (a sentence), else None.
        done: requests that ended, whatever their outcome.
        failures: those of them that were not ok.
        client: the client's own health, as summary.json holds it.
        e2el_mean_s: of the requests that were ok; what a late event loop is held against.
    """

    stopped: str | None
    done: int
    failures: int
    client: ClientHealth
    e2el_mean_s: float = 0.0

    def warnings(self) -> list[str]:
        """Sentences for the cases where the client itself may have shaped the figures."""
        share, lag = self.client.cpu_share, self.client.loop_lag_p99_ms
        advice = "use fewer users, give bench.py a core of its own, or run it on a machine closer to the service"
        sentences = []
        if share is not None and share > BUSY_SHARE:
            sentences.append(f"the client was busy {share:.0%} of the time (limit {BUSY_SHARE:.0%}): {advice}")
        limit = max(LATE_MS, LATE_SHARE * self.e2el_mean_s * 1e3)
        if lag is not None and lag > limit:
            sentences.append(f"the client's event loop was {lag:.1f} ms late at p99 (limit {limit:.1f} ms): {advice}")
        return sentences


def event_loop_name() -> str:
    """uvloop where it is installed (docs/fidelity.md has what it is worth), else asyncio."""
    return "asyncio" if _uvloop() is None else "uvloop"


def run_event_loop(run: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run to the end. A signal that ends scripts cancels `run`, which may still tidy up and return."""

    async def with_signals() -> T:
        task = asyncio.create_task(run())
        for number in ending_signals():
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await task

    uvloop = _uvloop()
    result: T = asyncio.run(with_signals()) if uvloop is None else uvloop.run(with_signals())
    return result


def _uvloop() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop


@dataclass(kw_only=True, eq=False, repr=False)
class ClosedLoop:
    """One pass over a schedule: every item is sent once.

    Attributes:
        items: the schedule; never more users than items.
        phase: stored with each row.
        concurrency: number of users.
        transport: from transport_for(settings.url).
        settings: what the requests share.
        zero_ns: perf_counter_ns of the run's zero, which rows' start_s count from.
        sink: takes each row, in order of completion, in a thread of its own. An exception from it stops the run.
        server_changed: asked after a failed request; a sentence stops the run.
        progress: called on the loop, at most every PROGRESS_INTERVAL_S and once at the end.
        samples: takes each decoded answer on the loop, for what a row does not hold.
    """

    items: Sequence[Item] = field(kw_only=False)
    phase: Phase
    concurrency: int
    transport: Transport
    settings: RequestSettings
    zero_ns: int
    sink: Callable[[Request], object]
    server_changed: Callable[[], Awaitable[str | None]] | None = None
    progress: Callable[[Progress], object] | None = None
    samples: Callable[[Case, Sample], object] | None = None

    def __post_init__(self) -> None:
        self._schedule = iter(self.items)
        cases = {item.case.id: item.case for item in self.items}
        self._digests = {name: case.sha256 for name, case in cases.items()}
        self._users = min(self.concurrency, len(self.items))
        self._failures_to_stop = max(self.concurrency, LEAST_FAILURES_TO_STOP)
        self._writer = _Writer(self.sink, self._write_failed)
        self._starting, self._decoding = Turns(), _WhenQuiet(self._users)
        self._tasks: set[asyncio.Task[None]] = set()
        self._check: asyncio.Task[None] | None = None
        self._stopped: str | None = None
        self._over = False
        self._failures_in_a_row = 0
        self._done = self._failures = self._tokens = self._ok_ns = 0
        self._started_ns = 0

    async def run(self) -> LoadResult:
        """Run to the end, once. Cancelled, it still hands every finished request to `sink` before CancelledError."""
        self._loop = asyncio.get_running_loop()
        opened, replaced = self.transport.opened, self.transport.replaced
        await self.transport.open_ahead(self.settings.endpoint, self._users)
        with self._writer, _frozen_heap():
            self._health = _Health(self.transport, opened, replaced)
            self._started_ns = perf_counter_ns()
            self._tasks = {asyncio.create_task(self._user(number)) for number in range(self._users)}
            ticker = asyncio.create_task(self._tick())
            try:
                await self._wait_for_users()
            finally:
                self._over = True
                client = self._health.result()
                for task in (ticker, *self._tasks):
                    task.cancel()
                await asyncio.gather(ticker, *self._tasks, return_exceptions=True)
                self._decoding.drain()
        if self._check is not None:
            await self._check
        self._show_progress()
        e2el_mean_s = self._ok_ns / 1e9 / max(1, self._done - self._failures)
        stopped = self._stopped or self._writer.problem()
        return LoadResult(stopped, self._done, self._failures, client, e2el_mean_s)

    async def _wait_for_users(self) -> None:
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            if not task.cancelled():
                task.result()

    async def _user(self, number: int) -> None:
        await self._turn()
        for item in self._schedule:
            picked_ns = perf_counter_ns()
            exchange = await send(self.transport, self.settings, item.case)
            if exchange.arrival.sent_ns:
                self._health.wire_delays_ns.append(exchange.arrival.sent_ns - picked_ns)
            self._count_failures(exchange)
            self._decoding.add(lambda item=item, exchange=exchange: self._emit(number, item, exchange))  # type: ignore[misc]
            if self._over:  # a request that had ended outlives the cancellation (Connection.exchange)
                return

    async def _turn(self) -> None:
        """Wait for a turn of the loop of one's own: users that start in one turn would hold each other up."""
        turn = asyncio.Event()
        self._starting.add(turn.set)
        await turn.wait()

    def _count_failures(self, exchange: Exchange) -> None:
        """Stop when the server looks dead. Needs no decoding, so it comes before the next request."""
        self._failures_in_a_row = self._failures_in_a_row + 1 if exchange.is_server_failure else 0
        if self._failures_in_a_row >= self._failures_to_stop:
            last = read(exchange, self.settings.secrets)
            self._stop(
                f"{self._failures_in_a_row} requests in a row failed, the last with {last.outcome}: {last.error}"
            )

    def _emit(self, user: int, item: Item, exchange: Exchange) -> None:
        sample = read(exchange, self.settings.secrets)
        self._done += 1
        self._tokens += sample.completion_tokens or 0
        if self.samples is not None:
            self.samples(item.case, sample)
        if sample.outcome != "ok":
            self._failures += 1
            self._ask_server(exchange)
        else:
            self._ok_ns += sample.e2el_ns or 0
        start_ns = exchange.start_ns - self.zero_ns
        self._writer.put(_row(user, item, self.phase, start_ns, self._digests[item.case.id], sample))

    def _ask_server(self, exchange: Exchange) -> None:
        """Ask whether the server is still the same, unless it answered this request by refusing it."""
        refused = 300 <= exchange.arrival.status < 500
        if self.server_changed is not None and not refused and (self._check is None or self._check.done()):
            self._check = asyncio.create_task(self._stop_if_changed(self.server_changed))

    async def _stop_if_changed(self, server_changed: Callable[[], Awaitable[str | None]]) -> None:
        sentence = await server_changed()
        if sentence:
            self._stop(sentence)

    def _write_failed(self) -> None:
        self._loop.call_soon_threadsafe(self._stop, "the results could not be written")

    def _stop(self, sentence: str) -> None:
        if self._stopped is None:
            self._stopped, self._over = self._writer.problem() or sentence, True
            for task in self._tasks:
                task.cancel()

    async def _tick(self) -> None:
        """Show progress, and sample how late the loop is (which includes showing it)."""
        shown_ns = 0
        while True:
            now = perf_counter_ns()
            due_ns = now + round(LAG_INTERVAL_S * 1e9)
            if now - shown_ns >= PROGRESS_INTERVAL_S * 1e9:
                shown_ns = now
                self._show_progress()
            await asyncio.sleep(LAG_INTERVAL_S)
            self._health.lags_ns.append(max(0, perf_counter_ns() - due_ns))

    def _show_progress(self) -> None:
        if self.progress is not None:
            elapsed_s = (perf_counter_ns() - self._started_ns) / 1e9
            self.progress(Progress(self._done, len(self.items), self._failures, self._tokens, elapsed_s))


def _row(user: int, item: Item, phase: Phase, start_ns: int, prompt_sha256: str, sample: Sample) -> Request:
    return Request(
        case=item.case.id,
        family=item.case.family,
        repeat=item.repeat,
        position=item.position,
        user=user,
        phase=phase,
        start_s=start_ns / 1e9,
        ttft_s=_seconds(sample.ttft_ns),
        e2el_s=_seconds(sample.e2el_ns),
        decode_s=_seconds(sample.decode_ns),
        prompt_tokens=sample.prompt_tokens,
        completion_tokens=sample.completion_tokens,
        first_tokens=sample.first_tokens,
        chunks=sample.chunks,
        finish_reason=sample.finish_reason,
        stop_reason=sample.stop_reason,
        text=sample.text,
        token_ids=sample.token_ids,
        outcome=sample.outcome,
        error=sample.error,
        http_status=sample.http_status,
        response_id=sample.response_id,
        prompt_sha256=prompt_sha256,
        draft_tokens=sample.draft_tokens,
        accepted_tokens=sample.accepted_tokens,
    )


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


class _WhenQuiet:
    """Runs callbacks in order, one a loop turn, once none was added for QUIET_S; at once where `limit` of them wait.

    Answers that end together are thus decoded after the last of their users has sent its next request, and no more
    than `limit` answers are ever held undecoded, however busy the loop is.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Callable[[], object]] = deque()
        self._last_ns = 0
        self._is_scheduled = False

    def add(self, callback: Callable[[], object]) -> None:
        self._waiting.append(callback)
        self._last_ns = perf_counter_ns()
        if len(self._waiting) >= self._limit:
            asyncio.get_running_loop().call_soon(self._run_one)
        elif not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_later(QUIET_S, self._run_when_quiet)

    def drain(self) -> None:
        """Run everything that waits, now."""
        while self._waiting:
            self._run_one()

    def _run_one(self) -> None:
        if self._waiting:
            self._waiting.popleft()()

    def _run_when_quiet(self) -> None:
        loop = asyncio.get_running_loop()
        wait_s = QUIET_S - (perf_counter_ns() - self._last_ns) / 1e9
        if wait_s > 0:
            loop.call_later(wait_s, self._run_when_quiet)
            return
        self._run_one()
        self._is_scheduled = bool(self._waiting)
        if self._waiting:
            loop.call_soon(self._run_when_quiet)


class _Writer:
    """Calls `sink` for each row in a thread of its own; after its first exception calls `failed` and drops the rest."""

    def __init__(self, sink: Callable[[Request], object], failed: Callable[[], object]) -> None:
        self._sink, self._failed = sink, failed
        self._rows: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def __enter__(self) -> "_Writer":
        self._thread.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._rows.put(None)
        self._thread.join()

    def put(self, row: Request) -> None:
        self._rows.put(row)

    def problem(self) -> str | None:
        """Why rows were lost, as a sentence, else None."""
        if self._error is None:
            return None
        reason = self._error.strerror if isinstance(self._error, OSError) else None
        return f"the results could not be written: {reason or repr(self._error)}"

    def _run(self) -> None:
        while (row := self._rows.get()) is not None:
            if self._error is None:
                try:
                    self._sink(row)
                except Exception as error:
                    self._error = error
                    self._failed()


class _Health:
    """The client's own share in what was measured."""

    def __init__(self, transport: Transport, opened: int, replaced: int) -> None:
        self._transport = transport
        self._before = (opened, replaced, time.process_time_ns(), perf_counter_ns())
        self.lags_ns = array("q")
        self.wire_delays_ns = array("q")

    def result(self) -> ClientHealth:
        """summary.json's `client`: CPU time of this process over the wall clock, percentiles in ms, connections."""
        opened, replaced, cpu_ns, started_ns = self._before
        return ClientHealth(
            cpu_share=(time.process_time_ns() - cpu_ns) / max(1, perf_counter_ns() - started_ns),
            loop_lag_p50_ms=_percentile_ms(self.lags_ns, 50),
            loop_lag_p99_ms=_percentile_ms(self.lags_ns, 99),
            connections_opened=self._transport.opened - opened,
            connections_replaced=self._transport.replaced - replaced,
            schedule_to_wire_p50_ms=_percentile_ms(self.wire_delays_ns, 50),
            schedule_to_wire_p99_ms=_percentile_ms(self.wire_delays_ns, 99),
        )


def _percentile_ms(values_ns: "array[int]", percent: int) -> float | None:
    """Linear interpolation, as everywhere else; the standard library's, which costs no memory to import."""
    if len(values_ns) < 2:
        return values_ns[0] / 1e6 if values_ns else None
    return statistics.quantiles(values_ns, n=100, method="inclusive")[percent - 1] / 1e6


@contextlib.contextmanager
def _frozen_heap() -> Iterator[None]:
    """Keep the garbage collector off what was imported before: a full collection over Polyaxon's models is a pause."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
