"""How long compare.py takes, and how much memory, for 100,000 requests a side with 20 MB of text each.

    python benchmarks/compare_scale.py [--requests 100000]

Writes two sides per shape (cases × repeats) to a temporary folder and runs compare.py on them in a process of its own,
with --json. In the last shape every output of the candidate is another than the base's. Limits: 15 s and 500 MB. Exits
1 beyond them.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.simulated_runs import write_run  # noqa: E402

LIMIT_S, LIMIT_MB = 15.0, 500.0
CHARACTERS = 200
# Of one case's outputs a third is new with every repeat: far more variety than a real run has.
SHAPES = ((1, False), (10, False), (100, False), (1, True))  # repeats, and whether all outputs differ between the sides
# Runs compare.py and says what it took. Linux hands a parent's peak on to its children in ru_maxrss, hence VmHWM there.
MEASURED = """
import json, resource, sys, time
sys.path.insert(0, sys.argv[1])
start = time.perf_counter()
import compare
code = compare.main(sys.argv[2:])
seconds = time.perf_counter() - start
if sys.platform == "linux":
    peak = next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps({"exit": code, "s": seconds, "cpu_s": time.process_time(), "mb": peak}), file=sys.stderr)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000, help="a side (default: %(default)s)")
    requests = parser.parse_args().requests
    print(f"{requests:,} requests a side, {requests * CHARACTERS / 1e6:.0f} MB of text each, and token ids")
    print(f"{'cases × repeats':>20}  {'JSONL MB a side':>15}  {'seconds':>7}  {'CPU s':>5}  {'peak MB':>7}")
    slow = False
    for repeats, differ in SHAPES:
        took = measure(requests // repeats, repeats, differ)
        slow |= took["s"] > LIMIT_S or took["mb"] > LIMIT_MB
        shape = f"{requests // repeats:,} × {repeats}{' differ' * differ}"
        print(
            f"{shape:>20}  {took['jsonl_mb']:>15.0f}  {took['s']:>7.1f}  {took['cpu_s']:>5.1f}  {took['mb']:>7.0f}",
            flush=True,
        )
    return int(slow)


def measure(cases: int, repeats: int, differ: bool) -> dict[str, float]:
    """Seconds and peak megabytes of one comparison."""
    named = [(f"case-{number}", f"family-{number % 3}") for number in range(cases)]
    words = ["".join(random.Random(n).choices("abcdefghij ", k=CHARACTERS - 20)) for n in range(97)]

    def output(case: str, repeat: int, end: str = "") -> str:
        variant = f"{repeat if repeat % 3 == 2 else 0}{end}"
        return f"{case} {variant} {words[(len(case) + hash_of(case)) % 97]}".ljust(CHARACTERS)

    with tempfile.TemporaryDirectory() as folder:
        base, candidate = Path(folder) / "baseline", Path(folder) / "ngram"
        write_run(base, cases=named, repeats=repeats, outputs=output, seed=1)
        write_run(
            candidate, cases=named, repeats=repeats, seed=2, mode="ngram", effect=-0.1, order=1,
            outputs=lambda case, repeat: output(case, repeat, " n" * differ),
        )  # fmt: skip
        size = (base / "requests.jsonl").stat().st_size / 1e6
        command = [sys.executable, "-c", MEASURED, str(ROOT), str(base), str(candidate), "--json", f"{folder}/out.json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        took: dict[str, float] = json.loads(done.stderr.splitlines()[-1])
        if took["exit"] == 2:
            raise SystemExit(done.stderr)
    return {**took, "jsonl_mb": size}


def hash_of(text: str) -> int:
    """Stable between processes, unlike hash()."""
    return sum(text.encode())


if __name__ == "__main__":
    start = time.perf_counter()
    code = main()
    print(f"{time.perf_counter() - start:.0f} s in all")
    raise SystemExit(code)
