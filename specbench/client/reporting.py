"""What a run says to the person who started it: how far it is, and what to do next."""

import shlex
import sys
from pathlib import Path

from specbench.client.load import Progress
from specbench.record.format import SUMMARY, Manifest
from specbench.terminal import say


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
def next_step(out: Path, manifest: Manifest) -> str:
    """What to do with a result directory: compare it with one of the other mode, or measure that first."""
    if manifest.status != "complete":
        return "measure again with a fresh --out, once what stopped this run is mended"
    mode = manifest.mode
    other = "ngram" if mode == "baseline" else "baseline"
    sibling = out.with_name(out.name.replace(mode, other)) if mode and mode in out.name else Path(f"THE-{other}-RUN")
    sides = (out, sibling) if mode == "baseline" else (sibling, out)
    compare = shlex.join(["python", "compare.py", *map(str, sides)])
    if (sibling / SUMMARY).exists():
        return compare
    return f"deploy the {other} mode, measure it in the same way, and then {compare}"
