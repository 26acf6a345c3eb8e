"""Measure one server at one concurrency: a closed loop of streaming requests, written to one result directory.

    export SERVICE_URL=… POLYAXON_TOKEN=…
    python bench.py --concurrency 1 --repeats 10 --service-run UUID --out baseline-c1

Exit 0: every request was measured and is ok. 1: not every request is ok, or the run was stopped early. 2: unusable
input, nothing was measured and --out is as it was. 130: interrupted; what was measured is kept.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from specbench import Parser, path_argument, terminal
from specbench.words import printable

LONGEST_S = 1e6
MOST_USERS = 10_000
LARGEST_SEED = 2**63 - 1  # vLLM's


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = parse_args(argv)
    # Not at the top: this takes up to a second, in which terminal.run makes one sentence of Ctrl-C.
    from specbench.client.run import RunSettings, measure
    from specbench.polyaxon.tracking import track_directory
    from specbench.redaction import command_line

    given = vars(arguments)
    track = given.pop("track")
    code = measure(RunSettings(**given, command=command_line(["bench.py", *argv])))
    if code in (0, 1):
        track_directory(arguments.out, track, project=arguments.project, insecure_http=arguments.insecure_http)
    return code


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """The command line, as the fields of RunSettings; a mistake in it is one sentence and exit code 2."""
    parser = Parser(prog="bench.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--concurrency", type=_whole(1, MOST_USERS), required=True, help="number of closed-loop users")
    add("--repeats", type=_whole(1, 100_000), default=10, help="times each case is sent (default 10)")
    add("--out", type=path_argument, required=True, help="result directory; must be new or empty")
    add("--service-run", type=printable, metavar="UUID", help="Polyaxon run of the service")
    add("-p", "--project", help="its project, PROJECT or OWNER/PROJECT: then no SERVICE_URL is needed")
    add("--url", default=os.environ.get("SERVICE_URL"), help="server to measure (default SERVICE_URL)")
    add("--mode", choices=("baseline", "ngram"), help="refuse a server of the other mode")
    help_on_prompts = "file of cases, in any format of docs/workloads.md (default prompts.jsonl)"
    add("--prompts", type=path_argument, default=Path(__file__).with_name("prompts.jsonl"), help=help_on_prompts)
    add("--model", help="needed only when the server offers several")
    add("--max-tokens", type=_whole(1, 10_000_000), default=128, help="for cases without their own (default 128)")
    add("--seed", type=_whole(0, LARGEST_SEED), default=0, help="of the schedule and the requests (default 0)")
    seconds = partial(add, type=_seconds, metavar="SECONDS")
    seconds("--timeout", dest="timeout_s", default=600.0, help="for one request (default 600)")
    seconds("--inactivity-timeout", dest="inactivity_timeout_s", default=60.0, help="without a byte (default 60)")
    seconds("--ready-timeout", dest="ready_timeout_s", default=900.0, help="for GET /health (default 900)")
    add("--client-location", type=printable, help="label of where this client runs, for the manifest")
    add("--allow-commands", action="store_true", help="run the commands with which the prompts file judges answers")
    add("--no-text", action="store_true", help="keep lengths and digests in place of prompts and answers")
    track = "send the figures to Polyaxon (default: only inside a Polyaxon run, whose outputs they become)"
    add("--track", action=argparse.BooleanOptionalAction, help=track)
    add("--insecure-http", action="store_true", help="allow the token over http:// to another machine")
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


if __name__ == "__main__":
    raise SystemExit(terminal.run("bench.py", main))
