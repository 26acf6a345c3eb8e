"""Measure one server at one concurrency: a closed loop of streaming requests, written to one result directory.

    export SERVICE_URL=… POLYAXON_TOKEN=…
    python bench.py --concurrency 1 --repeats 10 --service-run UUID --out baseline-c1

Exit 0: every request was measured and is ok. 1: not every request is ok, or the run was stopped early. 2: unusable
input, nothing was measured and --out is as it was. 130: interrupted; what was measured is kept.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec

from specbench import Parser, UserError
from specbench.client import service
from specbench.client.load import Load, LoadResult, Phase, Progress, event_loop_name, run_event_loop
from specbench.client.service import Metrics, Server
from specbench.client.stream import RequestSettings
from specbench.client.transport import ProxyTransport, StreamTransport, transport_for
from specbench.polyaxon import polyaxon_run
from specbench.record.directory import ResultDirectory
from specbench.record.format import (
    FORMAT,
    MANIFEST,
    METRICS_AFTER,
    METRICS_BEFORE,
    SUMMARY,
    ClientHealth,
    Manifest,
    Request,
    ServerDeltas,
)
from specbench.record.provenance import client_record, now, tool
from specbench.record.summary import summarize, summary_table
from specbench.redaction import command_line, public_url
from specbench.tls import tls_context
from specbench.words import printable
from specbench.workload.inventory import Inventory, read_inventory
from specbench.workload.schedule import Item, schedule, schedule_manifest, warmup

LONGEST_S = 1e6


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse_args(argv)
    bench = None
    try:
        inventory = read_inventory(args.prompts)
        target = find_target(args)
        directory = ResultDirectory(args.out)
        try:
            bench = Bench(args, argv, inventory, target, directory)
            return run_event_loop(bench.run)
        finally:
            if bench is not None and bench.measuring:
                directory.close()
            else:
                directory.discard()
    except UserError as error:
        say(f"bench.py: {error}")
        return 2
    except OSError as error:  # a full disk, most likely
        measured = bench is not None and bench.measuring
        kept = "what was measured so far is kept" if measured else "nothing was measured"
        say(f"bench.py: cannot write the results to {args.out}: {error.strerror or error}; {kept}")
        return 1 if measured else 2
    except (asyncio.CancelledError, KeyboardInterrupt):
        say("bench.py: interrupted before anything was measured")
        return 130


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; a mistake in it is one sentence and exit code 2."""
    parser = Parser(prog="bench.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=_whole(1), required=True, help="number of closed-loop users")
    parser.add_argument("--repeats", type=_whole(1, 100_000), default=10, help="times each case is sent (default 10)")
    parser.add_argument("--out", type=Path, required=True, help="result directory; must be new or empty")
    parser.add_argument("--service-run", metavar="UUID", help="Polyaxon run of the service")
    parser.add_argument("-p", "--project", help="its project, PROJECT or OWNER/PROJECT: then no SERVICE_URL is needed")
    parser.add_argument("--url", default=os.environ.get("SERVICE_URL"), help="server to measure (default SERVICE_URL)")
    parser.add_argument("--mode", choices=service.MODES, help="refuse a server of the other mode")
    parser.add_argument(
        "--prompts", type=Path, default=Path(__file__).with_name("prompts.jsonl"), help="JSON Lines file"
    )
    parser.add_argument("--model", help="needed only when the server offers several")
    parser.add_argument("--max-tokens", type=_whole(1), default=128, help="for cases without their own (default 128)")
    parser.add_argument("--seed", type=_whole(0), default=0, help="of the schedule and the requests (default 0)")
    parser.add_argument("--timeout", type=_seconds, default=600.0, help="for one request, seconds (default 600)")
    parser.add_argument(
        "--inactivity-timeout", type=_seconds, default=60.0, help="without a byte, seconds (default 60)"
    )
    parser.add_argument("--ready-timeout", type=_seconds, default=900.0, help="for GET /health, seconds (default 900)")
    parser.add_argument("--client-location", help="label of where this client runs, for the manifest")
    parser.add_argument("--insecure-http", action="store_true", help="allow the token over http:// to another machine")
    return parser.parse_args(argv)


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        if most is not None and value > most:
            raise argparse.ArgumentTypeError(f"{value} is more than {most}")
        return value

    parse.__name__ = "whole number"
    return parse


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:  # nan neither
        raise argparse.ArgumentTypeError(f"{text!r} is not a time above 0 s")
    if value > LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text} is more than {LONGEST_S:.0f} s")
    return value


# ---- where to measure


@dataclass(frozen=True, slots=True)
class Target:
    """The server to measure and what Polyaxon says of it."""

    url: str
    token: str | None = field(repr=False)
    run: polyaxon_run.ServiceRun | None
    warnings: list[str]


def find_target(args: argparse.Namespace) -> Target:
    """The URL and token of the server: given, or looked up from --service-run."""
    token = os.environ.get("POLYAXON_TOKEN") or os.environ.get("POLYAXON_AUTH_TOKEN")
    run, warnings = None, []
    if args.url:
        service.check_url(args.url, service_run=args.service_run, token=token, insecure_http=args.insecure_http)
    on_polyaxon = args.project or (args.url and polyaxon_run.address_in(args.url)) or not args.url
    if args.service_run and on_polyaxon:
        try:
            run = polyaxon_run.find_service(
                args.service_run, args.project, url=args.url, insecure_http=args.insecure_http
            )
            if not args.url or args.url.startswith(run.url.rstrip("/")):
                token = token or run.token  # the CLI's own token goes to no other address than the run's
        except polyaxon_run.NoAccess as error:
            if not args.url:
                raise
            warnings.append(f"the run's inputs are not verified: {error}")
    url = args.url or (run.url if run else None)
    url = service.check_url(url, service_run=args.service_run, token=token, insecure_http=args.insecure_http)
    return Target(url, token, run, warnings)


# ---- measuring


@dataclass(frozen=True, slots=True)
class Session:
    """An open server: `client` asks it about itself, `transport` carries the requests of `settings`."""

    client: httpx.AsyncClient
    transport: StreamTransport | ProxyTransport
    server: Server
    settings: RequestSettings


class Bench:
    """One run: wait, identify, warm up, verify, measure; each step is written down before the next."""

    def __init__(
        self, args: argparse.Namespace, argv: Sequence[str], inventory: Inventory, target: Target, out: ResultDirectory
    ) -> None:
        self.args, self.inventory, self.target, self.out = args, inventory, target, out
        self.items = schedule(inventory, args.repeats, args.seed)
        self.warnings = list(target.warnings)
        self.measuring = False
        self.zero_ns = time.perf_counter_ns()
        self.manifest: dict[str, Any] = {
            "format": FORMAT,
            "tool": tool(),
            "command": command_line(["bench.py", *argv]),
            "service_run": args.service_run or service.run_in_url(target.url),
            "url": public_url(target.url),
            "inventory": inventory.manifest(),
            "schedule": schedule_manifest(self.items, args.repeats, args.seed),
            "concurrency": args.concurrency,
            "timeout_s": args.timeout,
            "inactivity_timeout_s": args.inactivity_timeout,
            "client": client_record(event_loop_name(), args.client_location),
            "started": now(),
        }

    async def run(self) -> int:
        """Measure; returns the exit code. Raises UserError before anything was measured."""
        args, target = self.args, self.target
        transport, warning = transport_for(target.url)
        self.warnings += [warning] if warning else []
        token = {"Authorization": f"Token {target.token}"} if target.token else {}
        proxied = bool(transport.proxies)  # else proxy variables meant for others could break the client
        async with httpx.AsyncClient(
            base_url=target.url, headers=token, timeout=30.0, verify=tls_context(), trust_env=proxied
        ) as client:
            say(f"waiting for {self.manifest['url']}")
            await self.wait_until_ready(client)
            server = await service.identify(client, args.model)
            settings = RequestSettings(
                url=target.url,
                model=server.model["id"],
                authorization=token.get("Authorization"),
                max_tokens=args.max_tokens,
                seed=args.seed,
                timeout_s=args.timeout,
                inactivity_timeout_s=args.inactivity_timeout,
            )
            async with transport:
                session = Session(client, transport, server, settings)
                before = await self.prepare(session)
                load = await self.measure(session, before)
                after = await self.scrape_after(session, before, load)
        return self.finish(load, Metrics(before), Metrics(after))

    async def wait_until_ready(self, client: httpx.AsyncClient) -> None:
        """Wait for the server; when it does not come, what Polyaxon has on its run stands beside the error."""
        try:
            await service.wait_until_ready(client, self.args.ready_timeout)
        except UserError as error:
            if self.target.run is None:
                raise
            raise UserError(f"{error}; its run said last:\n{polyaxon_run.last_word(self.target.run)}") from None

    async def prepare(self, session: Session) -> str:
        """Refuse a server that is not the one meant, warm it up, verify its mode; returns the scrape to count from."""
        run, server, cases = self.target.run, session.server, self.inventory.cases
        service.check_record(server, self.args.mode, self.args.service_run)
        if run and (problem := polyaxon_run.contradiction(run, self.args.mode, server.record)):
            raise UserError(problem)
        tokens = await service.count_prompt_tokens(session.client, cases, session.settings.body())
        service.check_room(server, cases, tokens or {}, self.args.max_tokens)
        cold = await service.scrape(session.client)
        rows = await self.warm_up(session)
        warm = {row.case: row.prompt_tokens for row in rows if row.prompt_tokens is not None}
        service.check_room(server, cases, tokens or warm, self.args.max_tokens)
        before = await service.scrape_when_settled(session.client, cold, len(rows))
        drafts = Metrics(before).drafts_since(Metrics(cold))
        mode, verified = service.verified_mode(server, self.args.mode or (run.mode if run else None), drafts)
        if run and server.record is None:
            verified = {"how": "polyaxon run", "detail": f"inputs of {run}; {verified['detail']}"}
        if server.record is None:
            self.warnings.append(f"the server has no record of its own (GET /server-record); mode by {verified['how']}")
        self.manifest |= {
            "mode": mode,
            "mode_verified": verified,
            "server": server.manifest(),
            "request": session.settings.body(),
            "network": {"health_rtt_ms": server.health_rtt_ms, "proxies": session.transport.proxies},
        }
        return before

    async def warm_up(self, session: Session) -> list[Request]:
        """Send the warm-up requests and store them. A server that fails one is not fit to be measured."""
        items = warmup(self.inventory)
        say(f"warming up with {len(items)} requests")
        rows: list[Request] = []
        await self.load(session, items, "warmup", sink=rows.append).run()
        for row in rows:
            self.out.append(row)
            if row.outcome != "ok":
                service.refuse_unauthorized(row.http_status or 0)
                raise UserError(
                    f"warm-up request {row.case} was not answered, mend that first: {row.outcome}: {row.error}"
                )
        return rows

    async def measure(self, session: Session, before: str) -> LoadResult | None:
        """The measured requests; None when interrupted."""

        async def server_changed() -> str | None:
            with suppress(UserError):
                start = Metrics(await service.scrape(session.client)).total("process_start_time_seconds")
                if start is not None and session.server.process_start_time not in (None, start):
                    return "the server restarted during the run: its process start time changed"
            return None

        self.out.write_text(METRICS_BEFORE, before)
        self.write_manifest("running")
        self.measuring = True
        say(f"measuring {len(self.items)} requests, {self.args.concurrency} at a time, mode {self.manifest['mode']}")
        try:
            hooks = {"sink": self.out.append, "server_changed": server_changed, "progress": ProgressLine()}
            return await self.load(session, self.items, "measured", **hooks).run()
        except asyncio.CancelledError:
            return None

    def load(self, session: Session, items: Sequence[Item], phase: Phase, **hooks: Any) -> Load:
        """One phase, at the run's own concurrency. `hooks`: Load's sink, server_changed and progress."""
        return Load(
            items,
            phase=phase,
            concurrency=self.args.concurrency,
            transport=session.transport,
            settings=session.settings,
            zero_ns=self.zero_ns,
            **hooks,
        )

    async def scrape_after(self, session: Session, before: str, load: LoadResult | None) -> str:
        """The scrape after the run. Empty when the server is gone or the run interrupted: what was measured stays."""
        text = ""
        if load is not None:
            with suppress(UserError, asyncio.CancelledError):  # everything is measured: a signal ends the wait alone
                text = await service.scrape_when_settled(session.client, before, load.done - load.failures)
        self.out.write_text(METRICS_AFTER, text)
        return text

    def finish(self, load: LoadResult | None, before: Metrics, after: Metrics) -> int:
        """Write manifest and summary, say how it went, return the exit code."""
        stopped = load.stopped if load else None
        self.write_manifest("interrupted" if load is None else "aborted" if stopped else "complete", stopped)
        # The server may have finished what was in flight when the run was stopped.
        own = load.done + (self.args.concurrency if stopped else 0) if load else 0
        server = service.deltas(before, after, own)
        warnings = [*self.warnings, *(load.warnings() if load else []), *service.warnings(server)]
        client = load.client if load else {}
        manifest = msgspec.convert(msgspec.to_builtins(self.manifest), Manifest)
        summary = summarize(
            self.out.path,
            manifest,
            server=msgspec.convert(server, ServerDeltas),
            client=msgspec.convert(client, ClientHealth),
            warnings=warnings,
        )
        self.out.write_json(SUMMARY, summary)
        print(printable(summary_table(self.out.path, manifest, summary)))
        if load is None:
            return 130
        return 0 if stopped is None and summary.requests.ok == len(self.items) else 1

    def write_manifest(self, status: str, stopped: str | None = None) -> None:
        """The manifest, with how far the run is."""
        ended = None if status == "running" else now()
        self.manifest |= {"ended": ended, "status": status, "stopped": stopped}
        self.out.write_json(MANIFEST, self.manifest)


# ---- the terminal


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


if __name__ == "__main__":
    raise SystemExit(main())
