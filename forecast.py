"""Forecast n-gram drafting from answers that were given without it: how many steps, which settings, what it may cost.

    python forecast.py baseline-c1
    python forecast.py baseline-c1 --cost results/my-experiment
    python forecast.py baseline-c1 --cost-ratio 1.6 --sweep
    python forecast.py --logs answers.jsonl --tokenizer Qwen/Qwen3-4B
    python forecast.py --logs answers.jsonl --url http://127.0.0.1:8000

Nothing is measured and nothing is deployed. Exit 0: forecast made. 2: unusable input.
docs/forecast.md describes the method, its error and the JSON.
"""

import argparse
from collections.abc import Sequence

from specbench import Parser, UserError, path_argument
from specbench.client.proxy import transport_for
from specbench.client.target import find_target
from specbench.files import check_writable, json_bytes, write_output
from specbench.lookup.answers import Answers, read_answers
from specbench.lookup.cost import given_cost, read_cost
from specbench.lookup.figures import CostRecord, Forecast
from specbench.lookup.forecast import SWEEP_DRAFTED, SWEEP_MAX, SWEEP_MIN, forecast
from specbench.lookup.logs import read_log
from specbench.lookup.setting import ARTICLE, Setting, check_setting, grid
from specbench.lookup.table import markdown, text
from specbench.terminal import run, say
from specbench.words import printable
from specbench.workload.tokenizing import FolderTokenizer, ServerTokenizer, Tokenizer


def main(argv: Sequence[str] | None = None) -> int:
    """Forecast, print the tables, write what was asked for; the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        for option in ("json", "markdown"):
            if (path := getattr(arguments, option)) is not None:
                check_writable(path, f"--{option}")
        settings = _settings(arguments)
        result = forecast(_answers(arguments), settings, _cost(arguments))
        for option, content in (("json", json_bytes), ("markdown", _markdown_bytes)):
            if (path := getattr(arguments, option)) is not None:
                write_output(path, content(result), f"--{option}")
    except UserError as error:
        say(f"forecast.py: {error}")
        return 2
    print(printable(text(result)))
    return 0


def _parser() -> Parser:
    parser = Parser(prog="forecast.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "directory", type=path_argument, nargs="?", metavar="DIRECTORY",
        help="result directory of greedy answers, as a rule a baseline's",
    )  # fmt: skip
    for option, default, meaning in (
        ("--num-speculative-tokens", ARTICLE[0], "tokens drafted at most a step (k)"),
        ("--prompt-lookup-min", ARTICLE[1], "shortest match, in tokens"),
        ("--prompt-lookup-max", ARTICLE[2], "longest match, in tokens"),
    ):
        parser.add_argument(
            option, type=_numbers, metavar="N[,N…]", help=f"{meaning}; several give a table (default: {default})"
        )
    parser.add_argument("--sweep", action="store_true", help="try many settings and show the best")
    parser.add_argument(
        "--cost", type=path_argument, metavar="EXPERIMENT",
        help="folder of experiment.py, which tells what a step costs by load",
    )  # fmt: skip
    parser.add_argument("--cost-ratio", type=float, metavar="X", help="a step costs X times as much as the baseline's")
    parser.add_argument("--logs", type=path_argument, metavar="FILE", help="a log of conversations and answers instead")
    parser.add_argument("--tokenizer", metavar="NAME|FOLDER", help="tokenizer of the model that gave the log's answers")
    parser.add_argument("--url", help="or a server of that model (vLLM or llama.cpp), which then only tokenizes")
    parser.add_argument("--json", type=path_argument, metavar="FILE", help="write everything (docs/forecast.md)")
    parser.add_argument("--markdown", type=path_argument, metavar="FILE", help="write the tables as Markdown")
    return parser


def _numbers(text: str) -> list[int]:
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number or several, as in 3,5,8") from None


def _settings(arguments: argparse.Namespace) -> list[Setting]:
    asked = [arguments.num_speculative_tokens, arguments.prompt_lookup_min, arguments.prompt_lookup_max]
    usual = (SWEEP_DRAFTED, SWEEP_MIN, SWEEP_MAX) if arguments.sweep else tuple((number,) for number in ARTICLE)
    drafted, lows, highs = (given or default for given, default in zip(asked, usual, strict=True))
    single = len(drafted) == len(lows) == len(highs) == 1
    if single:
        return [check_setting(Setting(drafted[0], lows[0], highs[0]))]
    settings = [check_setting(setting) for setting in grid(drafted, lows, highs)]
    if not settings:
        raise UserError("every --prompt-lookup-min is above every --prompt-lookup-max, which vLLM refuses")
    return settings


def _answers(arguments: argparse.Namespace) -> Answers:
    if (arguments.directory is None) == (arguments.logs is None):
        raise UserError("name one result directory, or a log with --logs")
    if arguments.directory is not None:
        if arguments.url or arguments.tokenizer:
            raise UserError("--url and --tokenizer are for --logs: a result directory has its token ids")
        return read_answers(arguments.directory)
    if (arguments.tokenizer is None) == (arguments.url is None):
        raise UserError("--logs needs the token ids of its texts: give --tokenizer or --url, one of them")
    return read_log(arguments.logs, _tokenizer(arguments))


def _tokenizer(arguments: argparse.Namespace) -> Tokenizer:
    if arguments.tokenizer is not None:
        return FolderTokenizer(arguments.tokenizer)
    target = find_target(url=arguments.url, service_run=None, project=None, insecure_http=False)
    headers = {"Authorization": f"Token {target.token}"} if target.token else {}
    _, through_a_proxy = transport_for(target.url)
    return ServerTokenizer(target.url, headers=headers, use_proxies=bool(through_a_proxy))


def _cost(arguments: argparse.Namespace) -> CostRecord | None:
    if arguments.cost is not None and arguments.cost_ratio is not None:
        raise UserError("--cost and --cost-ratio are two answers to one question: give one of them")
    if arguments.cost_ratio is not None:
        if not 0 < arguments.cost_ratio < 1000:
            raise UserError(f"--cost-ratio {arguments.cost_ratio:g} is no cost: give a number such as 1.6")
        return given_cost(arguments.cost_ratio)
    return read_cost(arguments.cost) if arguments.cost is not None else None


def _markdown_bytes(result: Forecast) -> bytes:
    return printable(markdown(result)).encode()


if __name__ == "__main__":
    raise SystemExit(run("forecast.py", main))
