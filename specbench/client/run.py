"""One run of bench.py: wait, identify, warm up, verify, measure, sum up; each step is written down before the next."""

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from specbench import UserError
from specbench.client import metrics, prompts, service
from specbench.client.answer import Sample
from specbench.client.control import control_client
from specbench.client.load import ClosedLoop, LoadResult, Phase, Progress, event_loop_name
from specbench.client.metrics import Metrics
from specbench.client.prompts import TokenIds
from specbench.client.proxy import transport_for
from specbench.client.request import RequestSettings
from specbench.client.target import Target, run_in_url
from specbench.client.transport import Transport
from specbench.record.directory import ResultDirectory, read_requests
from specbench.record.format import (
    FORMAT,
    MANIFEST,
    METRICS_AFTER,
    METRICS_BEFORE,
    SUMMARY,
    ClientHealth,
    InventoryRecord,
    Manifest,
    Mode,
    Network,
    Request,
    ScheduleRecord,
    ServerIdentity,
    Status,
)
from specbench.record.judged import Judged, count_commands, judge_answers, write_judged
from specbench.record.prompts import write_prompt_tokens
from specbench.record.provenance import client_record, now, tool
from specbench.record.summary import summarize, summary_table
from specbench.redaction import public_url
from specbench.words import count, printable
from specbench.workload.case import Case
from specbench.workload.inventory import Inventory
from specbench.workload.schedule import Item, schedule, schedule_manifest, warmup


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What bench.py was asked for.

    Attributes:
        concurrency: number of closed-loop users.
        repeats: how often each case is sent.
        service_run: Polyaxon run of the service, or None.
        mode: the mode that the server must have, or None.
        model: needed only when the server offers several.
        max_tokens: for cases that do not bring their own.
        seed: of the schedule and of the requests.
        timeout_s, inactivity_timeout_s: limits of a request.
        ready_timeout_s: limit for GET /health.
        client_location: label of where this client runs.
        allow_commands: whether the commands in `expect` of the cases may run.
        command: the command line as the manifest stores it.
    """

    concurrency: int
    repeats: int
    service_run: str | None
    mode: Mode | None
    model: str | None
    max_tokens: int
    seed: int
    timeout_s: float
    inactivity_timeout_s: float
    ready_timeout_s: float
    client_location: str | None
    command: list[str]
    allow_commands: bool = False


@dataclass(frozen=True, slots=True)
class Session:
    """An open server: `client` asks it about itself, `transport` carries the requests of `requests`."""

    client: httpx.AsyncClient
    transport: Transport
    server: ServerIdentity
    requests: RequestSettings


class Run:
    """A run into one result directory.

    Attributes:
        measuring: whether anything was measured, so that the directory must be kept.
    """

    def __init__(self, settings: RunSettings, inventory: Inventory, target: Target, out: ResultDirectory) -> None:
        self.settings, self.inventory, self.target, self.out = settings, inventory, target, out
        self.measuring = False
        self._items = schedule(inventory, settings.repeats, settings.seed)
        self._warnings = list(target.warnings)
        self._zero_ns = time.perf_counter_ns()
        self._started = now()

    async def run(self) -> int:
        """Measure; returns bench.py's exit code. Raises UserError before anything was measured."""
        settings, target = self.settings, self.target
        transport, warning = transport_for(target.url)
        self._warnings += [warning] if warning else []
        async with control_client(target.url, target.token, use_proxies=bool(transport.proxies)) as client:
            say(f"waiting for {public_url(target.url)}")
            await self._wait_until_ready(client)
            server = await service.identify(client, settings.model)
            requests = RequestSettings(
                url=target.url,
                model=server.model.id,
                authorization=f"Token {target.token}" if target.token else None,
                max_tokens=settings.max_tokens,
                seed=settings.seed,
                timeout_s=settings.timeout_s,
                inactivity_timeout_s=settings.inactivity_timeout_s,
            )
            async with aclosing(transport):
                session = Session(client, transport, server, requests)
                manifest, before = await self._prepare(session)
                result = await self._measure(session, manifest, before)
                after = await self._scrape_after(session, before, result)
        return self._finish(manifest, result, Metrics(before), Metrics(after))

    async def _wait_until_ready(self, client: httpx.AsyncClient) -> None:
        """Wait for the server; when it does not come, what Polyaxon has on its run stands beside the error."""
        try:
            await service.wait_until_ready(client, self.settings.ready_timeout_s)
        except UserError as error:
            last_word = self.target.last_word()
            if last_word is None:
                raise
            raise UserError(f"{error}; its run said last:\n{last_word}") from None

    async def _prepare(self, session: Session) -> tuple[Manifest, str]:
        """Refuse a server that is not the one meant, warm it up, verify its mode.

        Returns the manifest and the scrape to count from.
        """
        settings, target, server, cases = self.settings, self.target, session.server, self.inventory.cases
        service.check_record(server, settings.mode, settings.service_run)
        target.check_inputs(settings.mode, server.record)
        round_trips = await service.round_trips(session.client)
        tokenized = await prompts.tokenized(session.client, cases, session.requests.body())
        lengths = {name: len(token_ids) for name, token_ids in (tokenized or {}).items()}
        service.check_room(server, cases, lengths, settings.max_tokens)
        cold = await metrics.scrape(session.client)
        rows, streamed = await self._warm_up(session)
        counts = {row.case: row.prompt_tokens for row in rows if row.prompt_tokens is not None}
        service.check_room(server, cases, lengths | counts, settings.max_tokens)
        prompt_tokens, source = prompts.choose(cases, streamed, tokenized, counts)
        if prompt_tokens is not None:
            write_prompt_tokens(self.out.path, prompt_tokens)
        before = await metrics.scrape_when_settled(session.client, cold, len(rows))
        drafts = Metrics(before).drafts_since(Metrics(cold))
        mode, verified = service.verified_mode(server, settings.mode or target.mode, drafts)
        if target.run and server.record is None:
            verified = {"how": "polyaxon run", "detail": f"inputs of {target.run}; {verified['detail']}"}
        if server.record is None:
            self._warnings.append(
                f"the server has no record of its own (GET /server-record); mode by {verified['how']}"
            )
        return Manifest(
            format=FORMAT,
            tool=tool(),
            command=settings.command,
            service_run=settings.service_run or run_in_url(target.url),
            url=public_url(target.url),
            inventory=msgspec.convert(self.inventory.manifest(), InventoryRecord),
            schedule=msgspec.convert(schedule_manifest(self._items, settings.repeats, settings.seed), ScheduleRecord),
            concurrency=settings.concurrency,
            timeout_s=settings.timeout_s,
            inactivity_timeout_s=settings.inactivity_timeout_s,
            client=client_record(event_loop_name(), settings.client_location),
            started=self._started,
            mode=mode,
            mode_verified=verified,
            server=server,
            request=session.requests.body(),
            network=Network(round_trips, session.transport.proxies),
            prompt_tokens=source,
        ), before

    async def _warm_up(self, session: Session) -> tuple[list[Request], TokenIds]:
        """Send the warm-up requests and store them; also the prompts' token ids, where the server sends them.

        A server that fails one is not fit to be measured.
        """
        items = warmup(self.inventory)
        say(f"warming up with {len(items)} requests")
        rows: list[Request] = []
        prompt_tokens: TokenIds = {}

        def take_prompt(case: Case, sample: Sample) -> None:
            if sample.prompt_token_ids:
                prompt_tokens[case.id] = sample.prompt_token_ids

        await self._loop(session, items, "warmup", sink=rows.append, samples=take_prompt).run()
        for row in rows:
            self.out.append(row)
            if row.outcome != "ok":
                service.refuse_unauthorized(row.http_status or 0)
                raise UserError(
                    f"warm-up request {row.case} was not answered, mend that first: {row.outcome}: {row.error}"
                )
        return rows, prompt_tokens

    async def _measure(self, session: Session, manifest: Manifest, before: str) -> LoadResult | None:
        """Send the measured requests; None when interrupted."""

        async def server_changed() -> str | None:
            with suppress(UserError):
                start = Metrics(await metrics.scrape(session.client)).total("process_start_time_seconds")
                if start is not None and session.server.process_start_time not in (None, start):
                    return "the server restarted during the run: its process start time changed"
            return None

        self.out.write_text(METRICS_BEFORE, before)
        self.out.write_json(MANIFEST, manifest)
        self.measuring = True
        say(f"measuring {len(self._items)} requests, {self.settings.concurrency} at a time, mode {manifest.mode}")
        hooks = {"sink": self.out.append, "server_changed": server_changed, "progress": ProgressLine()}
        try:
            return await self._loop(session, self._items, "measured", **hooks).run()
        except asyncio.CancelledError:
            return None

    def _loop(self, session: Session, items: Sequence[Item], phase: Phase, **hooks: Any) -> ClosedLoop:
        """One phase, at the run's own concurrency. `hooks`: ClosedLoop's sink, server_changed, progress and samples."""
        return ClosedLoop(
            items,
            phase=phase,
            concurrency=self.settings.concurrency,
            transport=session.transport,
            settings=session.requests,
            zero_ns=self._zero_ns,
            **hooks,
        )

    async def _scrape_after(self, session: Session, before: str, result: LoadResult | None) -> str:
        """The scrape after the run. Empty when the server is gone or the run interrupted: what was measured stays."""
        text = ""
        if result is not None:
            with suppress(UserError, asyncio.CancelledError):  # everything is measured: a signal ends the wait alone
                text = await metrics.scrape_when_settled(session.client, before, result.done - result.failures)
        self.out.write_text(METRICS_AFTER, text)
        return text

    def _finish(self, manifest: Manifest, result: LoadResult | None, before: Metrics, after: Metrics) -> int:
        """Write manifest and summary, say how it went, return the exit code."""
        manifest.stopped = result.stopped if result else None
        manifest.status = _status(result)
        manifest.ended = now()
        self.out.write_json(MANIFEST, manifest)
        # The server may have finished what was in flight when the run was stopped.
        own = result.done + (self.settings.concurrency if result.stopped else 0) if result else 0
        server = metrics.deltas(before, after, own)
        load_warnings = result.warnings() if result else []
        judged, judging_warnings = self._judge(manifest)
        summary = summarize(
            self.out.path,
            manifest,
            server=server,
            client=result.client if result else ClientHealth(),
            warnings=[*self._warnings, *load_warnings, *metrics.warnings(server), *judging_warnings],
            judged=judged,
        )
        self.out.write_json(SUMMARY, summary)
        print(printable(summary_table(self.out.path, manifest, summary)))
        if result is None:
            return 130
        return 0 if result.stopped is None and summary.requests.ok == len(self._items) else 1

    def _judge(self, manifest: Manifest) -> tuple[Judged, list[str]]:
        """Which answers are right, and what could not be judged. Commands run now, when all is measured."""
        cases, allowed = manifest.inventory.cases, self.settings.allow_commands
        try:
            judged, problems = judge_answers(read_requests(self.out.path), cases, allow_commands=allowed), []
        except UserError as error:
            judged, problems = judge_answers(read_requests(self.out.path), cases, allow_commands=False), [str(error)]
        if skipped := count_commands(cases) * (not allowed):
            problems.append(f"{count(skipped, 'case')} not judged: their expect is a command; give --allow-commands")
        if allowed and count_commands(cases):
            write_judged(self.out.path, judged)
        return judged, problems


def _status(result: LoadResult | None) -> Status:
    if result is None:
        return "interrupted"
    return "aborted" if result.stopped else "complete"


class ProgressLine:
    """Done, tokens/s, failures and time left: one line rewritten on a terminal, a line each tenth when piped."""

    def __init__(self) -> None:
        self.tenths = 0

    def __call__(self, progress: Progress) -> None:
        share, tenths = progress.done / progress.total, 10 * progress.done // progress.total
        rate = progress.tokens / max(progress.elapsed_s, 1e-9)
        left = f"{progress.elapsed_s / share * (1 - share):.0f} s left" if share else "…"
        line = f"{progress.done}/{progress.total}  {rate:.0f} tok/s  {progress.failures} failed  {left}"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}", end="\n" if share == 1 else "", file=sys.stderr, flush=True)
        elif tenths > self.tenths:
            say(line)
        self.tenths = tenths


def say(text: str) -> None:
    """One line of progress, away from the results on stdout."""
    print(printable(text), file=sys.stderr, flush=True)
