#!/usr/bin/env python3
"""Add prompt-tokens.jsonl to result directories that were measured before bench.py kept it.

    python launch_local.py --mode baseline --port 8000 &
    python benchmarks/prompt_tokens.py --url http://127.0.0.1:8000 --prompts prompts.jsonl DIRECTORY...

The server only tokenizes: it must have the model's tokenizer and chat template, not its weights. Every prompt's length
is held against the prompt_tokens that the measured server counted, and nothing is written where one differs.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from specbench import Parser, UserError
from specbench.record.directory import read_manifest, read_requests
from specbench.record.prompts import write_prompt_tokens
from specbench.words import count
from specbench.workload.inventory import read_inventory
from specbench.workload.tokenizing import ServerTokenizer


def main() -> int:
    parser = Parser(prog="prompt_tokens.py", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("directories", type=Path, nargs="+", metavar="DIRECTORY")
    parser.add_argument("--url", required=True, help="a server with the model's tokenizer")
    parser.add_argument("--prompts", type=Path, required=True, help="the prompts file that was measured")
    arguments = parser.parse_args()
    try:
        inventory = read_inventory(arguments.prompts)
        tokenizer = ServerTokenizer(arguments.url)
        prompts = {case.id: tokenizer.prompt_ids(case.messages) for case in inventory.cases}
        for directory in arguments.directories:
            if read_manifest(directory).inventory.sha256 != inventory.sha256:
                raise UserError(f"{directory} was not measured with {arguments.prompts}")
            check_lengths(directory, prompts)
            write_prompt_tokens(directory, prompts)
            print(f"{directory}: {count(len(prompts), 'prompt')}")
    except UserError as error:
        print(f"prompt_tokens.py: {error}", file=sys.stderr)
        return 2
    return 0


def check_lengths(directory: Path, prompts: dict[str, list[int]]) -> None:
    """Raise UserError where a prompt has another length than the measured server counted."""
    for request in read_requests(directory):
        if request.case in prompts and request.prompt_tokens not in (None, len(prompts[request.case])):
            raise UserError(
                f"{directory}: {request.case} has {len(prompts[request.case])} tokens here and had "
                f"{request.prompt_tokens} when it was measured: --url has another tokenizer or chat template"
            )


if __name__ == "__main__":
    raise SystemExit(main())
