"""One run of bench.py: wait, identify, warm up, verify, measure, sum up; each step is written down before the next."""

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from specbench import UserError
from specbench.client import metrics, prompts, service
from specbench.client.answer import Sample
from specbench.client.control import Answer, ControlClient
from specbench.client.load import ClosedLoop, LoadResult, Phase, event_loop_name, run_event_loop
from specbench.client.metrics import Metrics
from specbench.client.prompts import TokenIds
from specbench.client.proxy import transport_for
from specbench.client.readiness import refuse_unauthorized, wait_until_ready
from specbench.client.reporting import ProgressLine, next_step
from specbench.client.request import RequestSettings
from specbench.client.target import Target, find_target, run_in_url, tokens_in_environment
from specbench.client.transport import Transport, make_room_for_connections
from specbench.client.withholding import WithholdingDirectory
from specbench.proxies import password_for
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
    PromptTokenSource,
    Request,
    ScheduleRecord,
    ServerIdentity,
    Status,
)
from specbench.record.judged import Judged, count_commands, judge_answers, measured_answers, write_judged
from specbench.record.prompts import write_prompt_tokens
from specbench.record.provenance import STARTED_AS, client_record, now, tool
from specbench.record.summary import summarize, summary_table
from specbench.redaction import Secrets, public_url
from specbench.terminal import INTERRUPTED, say
from specbench.words import count, printable
from specbench.workload.case import Case
from specbench.workload.inventory import Inventory, read_inventory
from specbench.workload.judging import check_commands
from specbench.workload.schedule import Item, schedule, schedule_manifest, warmup


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What bench.py was asked for.

    Attributes:
        prompts: the prompts file.
        out: result directory to make.
        url: server to measure; None where Polyaxon's run says it.
        project: Polyaxon's PROJECT or OWNER/PROJECT, or None.
        insecure_http: whether the token may travel in the clear.
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
        no_text: whether lengths and digests are kept in place of prompts and answers.
        allow_commands: whether the commands in `expect` of the cases may run.
        command: the command line as the manifest stores it.
    """

    prompts: Path
    out: Path
    url: str | None
    project: str | None
    insecure_http: bool
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
    allow_commands: bool
    no_text: bool


def measure(settings: RunSettings) -> int:
    """Measure, and say how it went; the exit code of bench.py, as its docstring has them."""
    run = None
    secrets = Secrets(*tokens_in_environment())
    try:
        inventory = read_inventory(settings.prompts)
        for note in inventory.notes:
            say(note)
        if settings.allow_commands:
            check_commands(case.expect for case in inventory.cases)
        target = find_target(
            url=settings.url,
            service_run=settings.service_run,
            project=settings.project,
            insecure_http=settings.insecure_http,
        )
        secrets = Secrets(*tokens_in_environment(), target.token, password_for(target.url))
        directory = (
            WithholdingDirectory(settings.out, inventory.cases) if settings.no_text else ResultDirectory(settings.out)
        )
        try:
            run = Run(settings, inventory, target, directory, secrets)
            return run_event_loop(run.run)
        finally:
            if run is not None and run.measuring:
                directory.close()
            else:
                directory.discard()
    except UserError as error:
        say(secrets.hide(f"bench.py: {error}"))
        return 2
    except OSError as error:  # a full disk, or a folder that somebody took away
        measured = run is not None and run.measuring
        kept = "what was measured so far is kept" if measured else "nothing was measured"
        say(f"bench.py: cannot write the results to {settings.out}: {error.strerror or error}; {kept}")
        return 1 if measured else 2
    except (asyncio.CancelledError, KeyboardInterrupt):
        say("bench.py: interrupted before anything was measured")
        return INTERRUPTED


@dataclass(frozen=True, slots=True)
class Session:
    """An open server: `client` asks it about itself, `transport` carries the requests of `requests`."""

    client: ControlClient
    transport: Transport
    server: ServerIdentity
    requests: RequestSettings


class Run:
    """A run into one result directory.

    Attributes:
        measuring: whether anything was measured, so that the directory must be kept.
    """

    def __init__(
        self, settings: RunSettings, inventory: Inventory, target: Target, out: ResultDirectory, secrets: Secrets
    ) -> None:
        self.settings, self.inventory, self.target, self.out, self._secrets = settings, inventory, target, out, secrets
        self.measuring = False
        self._items = schedule(inventory, settings.repeats, settings.seed)
        self._users = min(settings.concurrency, len(self._items))
        self._warnings = list(target.warnings)
        if self._users < settings.concurrency:
            requests = count(len(self._items), "request")
            self._warnings.append(
                f"{requests} occupy {self._users} of {settings.concurrency} users: that is the load that was measured"
            )
        self._prompt_tokens: TokenIds = {}
        self._zero_ns = time.perf_counter_ns()
        self._started = now()

    async def run(self) -> int:
        """Measure; returns bench.py's exit code. Raises UserError before anything was measured."""
        settings, target = self.settings, self.target
        transport, warning = transport_for(target.url)
        self._warnings += [warning] if warning else []
        make_room_for_connections(self._users)
        async with ControlClient(target.url, target.token, self._secrets) as client:
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
                secrets=self._secrets,
            )
            async with aclosing(transport):
                session = Session(client, transport, server, requests)
                manifest, before = await self._prepare(session)
                result = await self._measure(session, manifest, before)
                after = await self._scrape_after(session, before, result)
                in_turn = await self._answer_in_turn(session, Metrics(before), Metrics(after))
        return self._finish(manifest, result, Metrics(before), Metrics(after), in_turn)

    async def _wait_until_ready(self, client: ControlClient) -> None:
        """Wait for the server; when it does not come, what Polyaxon has on its run stands beside the error."""
        try:
            await wait_until_ready(client, self.settings.ready_timeout_s, say)
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
        self._prompt_tokens = prompt_tokens or {}
        if settings.no_text:
            source = PromptTokenSource(None, "the run was measured with --no-text")
        elif prompt_tokens is not None:
            write_prompt_tokens(self.out.path, prompt_tokens)
        before = await metrics.scrape_when_settled(session.client, cold, len(rows))
        drafts = Metrics(before).drafts_since(Metrics(cold))
        mode, verified = service.verified_mode(server, settings.mode or target.mode, drafts)
        if target.run and server.record is None:
            verified = {"how": "polyaxon run", "detail": f"inputs of {target.run}; {verified['detail']}"}
        if mode is None:
            raise UserError(
                "nothing tells whether this server drafts: it has neither /server-record nor counters that are known; "
                "give --mode, without which compare.py could not use the measurement"
            )
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
            inventory=self._inventory_record(),
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
            users=self._users,
            no_text=settings.no_text,
        ), before

    def _inventory_record(self) -> InventoryRecord:
        record = msgspec.convert(self.inventory.manifest(), InventoryRecord)
        if self.settings.no_text:
            for case in record.cases:
                case.expect = None  # it is text; judged.json holds what it said of the answers
        return record

    async def _warm_up(self, session: Session) -> tuple[list[Request], TokenIds]:
        """Send the warm-up requests and store them; also the prompts' token ids, where the server sends them.

        A server that fails one is not fit to be measured.
        """
        items = warmup(self.inventory)
        say(f"warming up with {count(len(items), 'request')}")
        rows: list[Request] = []
        prompt_tokens: TokenIds = {}

        def take_prompt(case: Case, sample: Sample) -> None:
            if sample.prompt_token_ids:
                prompt_tokens[case.id] = sample.prompt_token_ids

        await self._loop(session, items, "warmup", sink=rows.append, samples=take_prompt).run()
        for row in rows:
            self.out.append(row)
            if row.outcome != "ok":
                refuse_unauthorized(session.client, Answer(row.http_status or 0, {}, "", None), is_healthy=True)
                raise UserError(
                    f"warm-up request {row.case} was not answered, mend that first: {row.outcome}: {row.error}"
                )
        return rows, prompt_tokens

    async def _measure(self, session: Session, manifest: Manifest, before: str) -> LoadResult | None:
        """Send the measured requests; None when interrupted."""

        async def server_changed() -> str | None:
            known = session.server.process_start_time
            with suppress(UserError):
                start = Metrics(await metrics.scrape(session.client)).start_time
                if start is not None and known not in (None, start):
                    if await metrics.answer_in_turn(session.client, [known, start]):
                        return "several servers answer at this address in turn"
                    return "the server restarted during the run: its process start time changed"
            return None

        self.out.write_text(METRICS_BEFORE, before)
        self.out.write_json(MANIFEST, manifest)
        self.measuring = True
        say(f"measuring {count(len(self._items), 'request')}, {self._users} at a time, mode {manifest.mode}")
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

    async def _answer_in_turn(self, session: Session, before: Metrics, after: Metrics) -> bool:
        """Whether what looks like a restart is another server behind the same address."""
        if None in (before.start_time, after.start_time) or before.start_time == after.start_time:
            return False
        with suppress(UserError, asyncio.CancelledError):
            return await metrics.answer_in_turn(session.client, [before.start_time, after.start_time])
        return False

    def _finish(
        self, manifest: Manifest, result: LoadResult | None, before: Metrics, after: Metrics, in_turn: bool
    ) -> int:
        """Write manifest and summary, say how it went, return the exit code."""
        manifest.stopped = result.stopped if result else None
        if self.settings.no_text and manifest.stopped:  # the server's words may quote a prompt
            manifest.stopped = manifest.stopped.partition(", the last with ")[0]
        manifest.status = _status(result)
        manifest.ended = now()
        self.out.write_json(MANIFEST, manifest)
        # The server may have finished what was in flight when the run was stopped.
        own = result.done + (self._users if result.stopped else 0) if result else 0
        server = metrics.deltas(before, after, own, in_turn=in_turn)
        load_warnings = result.warnings() if result else []
        if isinstance(self.out, WithholdingDirectory):
            limit = manifest.server.model.max_model_len
            self._warnings += self.out.write_steps(
                self._prompt_tokens, manifest.launched, max_tokens=self.settings.max_tokens, max_model_len=limit
            )
        judged, judging_warnings = self._judge()
        summary = summarize(
            self.out.path,
            manifest,
            server=server,
            client=result.client if result else ClientHealth(),
            warnings=[
                *self._warnings,
                *load_warnings,
                *metrics.warnings(server),
                *metrics.unreadable_lines(before, after),
                *judging_warnings,
            ],
            judged=judged,
        )
        self.out.write_json(SUMMARY, summary)
        print(printable(summary_table(self.out.path, manifest, summary)))
        if STARTED_AS not in os.environ:  # experiment.py knows what comes next
            print(printable(f"next: {next_step(self.out.path, manifest)}"))
        if result is None:
            return INTERRUPTED
        return 0 if result.stopped is None and summary.requests.ok == len(self._items) else 1

    def _judge(self) -> tuple[Judged, list[str]]:
        """Which answers are right, and what could not be judged. Commands run now, when all is measured."""
        cases, allowed = self.inventory.cases, self.settings.allow_commands

        def judge(allow_commands: bool) -> Judged:
            if isinstance(self.out, WithholdingDirectory):
                return judge_answers(self.out.answers(), cases, allow_commands=allow_commands)
            return judge_answers(measured_answers(read_requests(self.out.path)), cases, allow_commands=allow_commands)

        try:
            judged, problems = judge(allowed), []
        except UserError as error:
            judged, problems = judge(False), [str(error)]
        if skipped := count_commands(cases) * (not allowed):
            problems.append(f"{count(skipped, 'case')} not judged: their expect is a command; give --allow-commands")
        if (allowed and count_commands(cases)) or (self.settings.no_text and judged.cases):
            write_judged(self.out.path, judged)
        return judged, problems


def _status(result: LoadResult | None) -> Status:
    if result is None:
        return "interrupted"
    return "aborted" if result.stopped else "complete"
