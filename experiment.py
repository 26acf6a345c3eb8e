#!/usr/bin/env python3
"""The whole experiment in one command: deploy, bench at each load, stop, prove the device free, next; then compare.

    python experiment.py --target local --out results/trial --repeats 2
    python experiment.py --target vllm --out results/gpu --order BNNBBN -- --vllm "/opt/vllm/bin/vllm"
    python experiment.py --target polyaxon -p PROJECT --out results/cluster -- -P prefix_caching=on
    python experiment.py --out results/gpu --resume

After a crash, Ctrl-C, SIGKILL or a reboot, --resume ends what was left running, keeps every finished result
directory, and goes on; at most the directory in progress is lost. The state is OUT/experiment.json
(specbench/deploy/state.py says what stands in it).

Exit 0: complete, whatever the comparison found. 2: it cannot go on. 130: interrupted. --resume goes on after 2 and 130.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from specbench import Parser, UserError, path_argument, terminal
from specbench.deploy.given import Given, TargetName

ROOT = Path(__file__).resolve().parent


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    given = parse(argv)
    for number in terminal.ending_signals():
        signal.signal(number, interrupt)
    started = False
    try:
        # Imported here, so that Ctrl-C meanwhile is one sentence.
        from specbench.deploy.closing import closing
        from specbench.deploy.experiment import Experiment
        from specbench.deploy.figures import track_experiment
        from specbench.deploy.opening import held, new_experiment, old_experiment, prompts_file, target_of
        from specbench.deploy.processes import HOST

        for name in ("NO_PROXY", "no_proxy"):  # no proxy leads to this machine's own servers
            os.environ[name] = ",".join(filter(None, [os.environ.get(name), HOST]))
        state = old_experiment(given) if given.resume else new_experiment(given)
        with held(given.out):
            target = target_of(state.settings, given, state.id)
            if given.resume:
                target.check()
            started = True
            Experiment(given.out, state, target, prompts_file(given, state.settings)).run()
        print(closing(given.out, state), flush=True)
        make_page(given.out)
        track_experiment(given, state)
    except UserError as error:
        say(str(error))
        return 2
    except OSError as error:
        kept = "all that it started is ended, what was measured is kept; mend that and give --resume"
        say(f"cannot go on, {error.filename or given.out}: {error.strerror or error}: {kept}")
        return 2
    except KeyboardInterrupt:
        again = shlex.join([sys.executable, sys.argv[0], "--out", str(given.out), "--resume"])
        sentence = f"interrupted, and all that it started is ended; go on with: {again}"
        say(sentence if started else "interrupted before anything was started: give the same command again")
        return terminal.INTERRUPTED
    return 0


def parse(argv: Sequence[str] | None) -> Given:
    """The command line; a mistake in it is one sentence and exit code 2."""
    parser = Parser(
        prog="experiment.py",
        description="Baseline against ngram: deploy, bench at each load, stop, prove the device free; then compare.",
        epilog="Exit codes: 0 complete, whatever the comparison found; 2 it cannot go on; 130 interrupted. "
        "After 2 and 130, --resume goes on.",
    )
    add = parser.add_argument
    targets = "embedded engine, launch_vllm.py on this machine's GPU, or service.yaml on a cluster"
    add("--target", choices=get_args(TargetName), help=targets)
    add("--out", type=path_argument, required=True, metavar="DIR", help="a new folder; with --resume, the experiment's")
    add("--order", help="deployments: B baseline, N ngram, pairs that alternate (default: BNNB)")
    add("--concurrency", metavar="N,N,…", help="users at a time, one result directory each (default: 1,4,8)")
    repeats = "of the inventory in each directory (default: 10 for each user, so that each load lasts about as long)"
    add("--repeats", type=int, help=repeats)
    add("--max-tokens", type=int, metavar="N", help="for cases without their own (default: 128)")
    add("--prompts", type=Path, metavar="FILE", help="inventory (default: prompts.jsonl)")
    add("--no-text", action="store_true", help="keep lengths and digests in place of prompts and answers")
    add("--mix", metavar="FAMILY=WEIGHT,…", help="weigh families by the intended traffic; sums to 1")
    primary = "the one line to conclude from, named before looking (default: overall, or --mix)"
    add("--primary", metavar="overall|FAMILY", help=primary)
    resume = (
        "go on with the experiment in --out, with its settings; not stored, so give them again: --approve, "
        "--insecure-http, --port, --startup-timeout, options after -- that hold a secret, and with --no-text --prompts"
    )
    add("--resume", action="store_true", help=resume)
    add("--port", type=int, help="where servers listen on 127.0.0.1 (default: a free one)")
    add("--startup-timeout", type=float, default=1800, metavar="S", help="from start to healthy (default: %(default)g)")
    add("-p", "--project", help="polyaxon: where the runs are made, PROJECT or OWNER/PROJECT")
    add("--owner", help="polyaxon: of the project (default: the CLI's)")
    add("--queue", help="polyaxon: QUEUE or AGENT/QUEUE (default: the project's)")
    add("--approve", action="store_true", help="polyaxon: approve runs that wait for a person")
    add("--insecure-http", action="store_true", help="polyaxon: allow the token over http:// to another machine")
    track = "send figures, verdicts and the page to Polyaxon (default: only inside a Polyaxon run)"
    add("--track", action=argparse.BooleanOptionalAction, help=track)
    passed_on = "passed on to launch_vllm.py, such as --vllm CMD; to service.yaml on Polyaxon, such as -P NAME=VALUE"
    add("launcher_options", nargs="*", metavar="-- OPTION", help=passed_on)
    given = Given(**vars(parser.parse_args(argv)))
    given.out = given.out.absolute()
    return given


def make_page(folder: Path) -> None:
    """report.py's page, where that script and its packages are; its absence takes nothing from the results."""
    if (ROOT / "report.py").exists():
        subprocess.run([sys.executable, str(ROOT / "report.py"), str(folder)], check=False)


def say(sentence: str) -> None:
    terminal.say(f"experiment.py: {sentence}")


def interrupt(number: int, frame: object) -> None:
    """Turn the first signal into KeyboardInterrupt; later ones would cut the cleaning up short, which has deadlines."""
    for known in terminal.ending_signals():
        signal.signal(known, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(terminal.run("experiment.py", main))
