"""Look at a log or data set, draw a sample of it, take personal data out, and freeze it as a prompts file.

    python workload.py check requests.log --url http://127.0.0.1:8000
    python workload.py redact requests.log --out redacted.jsonl
    python workload.py sample redacted.jsonl -n 60 --by family --seed 1 --out mine.jsonl
    python workload.py freeze questions.json --out mine.jsonl

Formats are recognised by their content (docs/workloads.md). Exit 0: done, and with check every line is a case that
fits. 1: check found lines that are no cases, or cases that do not fit. 2: unusable input, nothing was written.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from specbench import Parser, UserError, path_argument, terminal
from specbench.files import check_writable, json_bytes, write_output
from specbench.terminal import say
from specbench.words import count, printable
from specbench.workload import frozen
from specbench.workload.case import Entry
from specbench.workload.inventory import LeftOut, Workload, read_workload
from specbench.workload.lengths import Room
from specbench.workload.redaction import Redactor, texts
from specbench.workload.sampling import sample
from specbench.workload.survey import as_json, left_out_lines, survey, table

if TYPE_CHECKING:
    from specbench.workload.tokenizing import Tokenizer


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except UserError as error:
        say(f"workload.py: {error}")
        return 2


def check(arguments: argparse.Namespace) -> int:
    """Say what a file holds; 1 where a line is no case or a case does not fit."""
    if arguments.json is not None:
        check_writable(arguments.json, "--json")
    workload = read_workload(arguments.file)
    tokenizer, limit = _tokenizer(arguments)
    if limit is not None and tokenizer is None:
        raise UserError("--max-model-len counts tokens: give --url or --tokenizer as well")
    room = None if limit is None else Room(limit, arguments.max_tokens, arguments.num_speculative_tokens)
    found = survey(workload, tokenizer, room)
    print(printable(table(found)))
    if arguments.json is not None:
        write_output(arguments.json, json_bytes(as_json(found)), "--json")
    return 0 if found.clean else 1


def draw(arguments: argparse.Namespace) -> int:
    """Write a sample."""
    frozen.check_new(arguments.out)
    workload = read_workload(arguments.file)
    drawn = sample(workload.entries, arguments.n, arguments.seed, by_family=arguments.by == "family")
    return _written(arguments, workload, drawn, {"n": arguments.n, "by": arguments.by, "seed": arguments.seed})


def redact(arguments: argparse.Namespace) -> int:
    """Write the cases with personal data and secrets replaced, and say how much was found."""
    frozen.check_new(arguments.out)
    workload = read_workload(arguments.file)
    redactor = Redactor(texts(workload.entries))
    entries = [redactor.entry(entry) for entry in workload.entries]
    workload.left_out[:] = [LeftOut(left.line, redactor.text(left.reason)) for left in workload.left_out]
    distinct = redactor.distinct()
    replaced = {name: [number, distinct[name]] for name, number in sorted(redactor.counts.items())}
    code = _written(arguments, workload, entries, {"replaced": replaced})
    for name, (number, different) in replaced.items():
        print(f"  {name:<6} {number:>7,} replaced, {different:,} different")
    print("Names, addresses and secrets of no known form stay as they are: read the file before it leaves the house.")
    return code


def freeze(arguments: argparse.Namespace) -> int:
    """Write every case as it stands."""
    frozen.check_new(arguments.out)
    workload = read_workload(arguments.file)
    return _written(arguments, workload, workload.entries, {})


def _written(
    arguments: argparse.Namespace, workload: Workload, entries: Sequence[Entry], options: dict[str, object]
) -> int:
    for line in [*workload.notes, *left_out_lines(workload.left_out)]:
        say(line)
    origin = frozen.write(
        arguments.out, entries, source=arguments.file, workload=workload, step=arguments.command, options=options
    )
    families = ", ".join(f"{name} {number:,}" for name, number in list(origin.families.items())[:8])
    print(printable(f"{arguments.out}: {count(origin.cases, 'case')} ({families}), sha256 {origin.sha256}"))
    return 0


def _tokenizer(arguments: argparse.Namespace) -> "tuple[Tokenizer | None, int | None]":
    """What counts tokens, and the model's limit; None where nothing was named."""
    limit: int | None = arguments.max_model_len
    if arguments.tokenizer is None and arguments.url is None:
        return None, limit
    # Not at the top: with their HTTP client these take longer to import than all the rest.
    from specbench.client.proxy import transport_for
    from specbench.client.target import find_target
    from specbench.workload.tokenizing import FolderTokenizer, ServerTokenizer

    if arguments.tokenizer is not None:
        return FolderTokenizer(arguments.tokenizer), limit
    target = find_target(url=arguments.url, service_run=None, project=None, insecure_http=False)
    headers = {"Authorization": f"Token {target.token}"} if target.token else {}
    _, through_a_proxy = transport_for(target.url)
    server = ServerTokenizer(target.url, headers=headers, use_proxies=bool(through_a_proxy))
    return server, limit or server.max_model_len()


def _parser() -> Parser:
    parser = Parser(prog="workload.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], summary: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=summary, description=summary)
        added.add_argument("file", type=path_argument, metavar="FILE", help="a log, a data set or a prompts file")
        added.set_defaults(run=run)
        if name != "check":
            added.add_argument("--out", type=path_argument, required=True, help="file to write; must be new")
        return added

    checked = command("check", check, "say what a file holds, how long it is, what repeats and what does not fit")
    source = checked.add_mutually_exclusive_group()
    source.add_argument("--url", help="server of the model, which counts the tokens")
    source.add_argument("--tokenizer", metavar="NAME", help="folder of the model's tokenizer, or its name on the hub")
    checked.add_argument("--max-model-len", type=_whole, metavar="N", help="the model's limit (default: the server's)")
    checked.add_argument("--max-tokens", type=_whole, default=128, metavar="N", help="as with bench.py (default 128)")
    checked.add_argument("--num-speculative-tokens", type=_whole, default=5, metavar="K", help="default 5")
    checked.add_argument("--json", type=path_argument, metavar="FILE", help="write everything that was found")
    drawn = command("sample", draw, "draw cases, each family by its share, the same ones for the same seed")
    drawn.add_argument("-n", type=_whole, required=True, metavar="N", help="how many")
    drawn.add_argument("--by", choices=("family", "none"), default="family", help="strata (default family)")
    drawn.add_argument("--seed", type=int, default=0, help="another seed draws other cases (default 0)")
    command("redact", redact, "replace e-mail, phone, key, IP, UUID and card numbers by placeholders")
    command("freeze", freeze, "write every case as a native line, with a digest and where it came from")
    return parser


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


_whole.__name__ = "whole number"


if __name__ == "__main__":
    raise SystemExit(terminal.run("workload.py", main))
