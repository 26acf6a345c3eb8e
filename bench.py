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
from collections.abc import Callable, Sequence
from pathlib import Path

from specbench import Parser, UserError
from specbench.client.load import run_event_loop
from specbench.client.run import Run, RunSettings, say
from specbench.client.target import find_target
from specbench.record.directory import ResultDirectory
from specbench.record.format import MODES
from specbench.redaction import command_line
from specbench.workload.inventory import read_inventory
from specbench.workload.judging import check_commands

LONGEST_S = 1e6


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse_args(argv)
    run = None
    try:
        inventory = read_inventory(args.prompts)
        for note in inventory.notes:
            say(note)
        if args.allow_commands:
            check_commands(case.expect for case in inventory.cases)
        target = find_target(
            url=args.url, service_run=args.service_run, project=args.project, insecure_http=args.insecure_http
        )
        directory = ResultDirectory(args.out)
        try:
            run = Run(run_settings(args, argv), inventory, target, directory)
            return run_event_loop(run.run)
        finally:
            if run is not None and run.measuring:
                directory.close()
            else:
                directory.discard()
    except UserError as error:
        say(f"bench.py: {error}")
        return 2
    except OSError as error:  # a full disk, most likely
        measured = run is not None and run.measuring
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
    parser.add_argument("--mode", choices=MODES, help="refuse a server of the other mode")
    parser.add_argument(
        "--prompts", type=Path, default=Path(__file__).with_name("prompts.jsonl"),
        help="file of cases, in any format of docs/workloads.md (default prompts.jsonl)",
    )  # fmt: skip
    parser.add_argument("--model", help="needed only when the server offers several")
    parser.add_argument("--max-tokens", type=_whole(1), default=128, help="for cases without their own (default 128)")
    parser.add_argument("--seed", type=_whole(0), default=0, help="of the schedule and the requests (default 0)")
    parser.add_argument("--timeout", type=_seconds, default=600.0, help="for one request, seconds (default 600)")
    parser.add_argument(
        "--inactivity-timeout", type=_seconds, default=60.0, help="without a byte, seconds (default 60)"
    )
    parser.add_argument("--ready-timeout", type=_seconds, default=900.0, help="for GET /health, seconds (default 900)")
    parser.add_argument("--client-location", help="label of where this client runs, for the manifest")
    parser.add_argument(
        "--allow-commands", action="store_true", help="run the commands with which the prompts file judges answers"
    )
    parser.add_argument("--insecure-http", action="store_true", help="allow the token over http:// to another machine")
    return parser.parse_args(argv)


def run_settings(args: argparse.Namespace, argv: Sequence[str]) -> RunSettings:
    """The arguments that shape a run."""
    return RunSettings(
        concurrency=args.concurrency,
        repeats=args.repeats,
        service_run=args.service_run,
        mode=args.mode,
        model=args.model,
        max_tokens=args.max_tokens,
        seed=args.seed,
        timeout_s=args.timeout,
        inactivity_timeout_s=args.inactivity_timeout,
        ready_timeout_s=args.ready_timeout,
        client_location=args.client_location,
        command=command_line(["bench.py", *argv]),
        allow_commands=args.allow_commands,
    )


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


if __name__ == "__main__":
    raise SystemExit(main())
