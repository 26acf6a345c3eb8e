"""How long a large workload takes: 100,000 prompts read and checked, and a schedule of a million requests made.

    python benchmarks/workload_scale.py [--prompts 100000]

Writes prompts of about 100 words to a temporary folder, 1% of them near-duplicates of others, and runs each step in a
process of its own. Limits: 3 s and 300 MB for the prompts, 5 s for the schedule, in CPU time, which a busy machine
changes little. Exits 1 beyond them.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECK_S, CHECK_MB, SCHEDULE_S = 3.0, 300.0, 5.0
REQUESTS = 1_000_000
# Linux hands a parent's peak on to its children in ru_maxrss, hence VmHWM there.
MEASURED = """
import json, resource, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
start = time.perf_counter()
{step}
seconds = time.perf_counter() - start
if sys.platform == "linux":
    peak = next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps({{"s": seconds, "cpu_s": time.process_time(), "mb": peak}}), file=sys.stderr)
"""
READ = "from specbench.workload.inventory import read_inventory; read_inventory(Path(sys.argv[2]))"
CHECK = "import workload; workload.main(['check', sys.argv[2]])"
SCHEDULE = """
from specbench.workload.inventory import read_inventory
from specbench.workload.schedule import schedule, schedule_manifest
inventory = read_inventory(Path(sys.argv[2]))
repeats = int(sys.argv[3]) // len(inventory.cases)
schedule_manifest(schedule(inventory, repeats, 0), repeats, 0)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=100_000, help="default: %(default)s")
    prompts = parser.parse_args().prompts
    slow = False
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prompts.jsonl"
        write_prompts(path, prompts)
        print(f"{prompts:,} prompts, {path.stat().st_size / 1e6:.0f} MB")
        print(f"{'step':<40}{'seconds':>9}{'CPU s':>8}{'peak MB':>9}")
        for name, step, seconds, megabytes in (
            ("read and check each line (bench.py)", READ, CHECK_S, CHECK_MB),
            ("workload.py check, near-duplicates too", CHECK, CHECK_S, CHECK_MB),
            (f"read, and schedule {REQUESTS:,} requests", SCHEDULE, SCHEDULE_S, None),
        ):
            took = measure(step, path)
            slow |= took["cpu_s"] > seconds or (megabytes is not None and took["mb"] > megabytes)
            print(f"{name:<40}{took['s']:>9.1f}{took['cpu_s']:>8.1f}{took['mb']:>9.0f}", flush=True)
    return int(slow)


def write_prompts(path: Path, prompts: int) -> None:
    """Prompts of 100 words from a vocabulary of 3,000, in five families; every hundredth repeats one but for a word."""
    generator = random.Random(0)
    vocabulary = ["".join(generator.choices("etaoinshrdlu", k=generator.randint(2, 9))) for _ in range(3000)]
    text = ""
    with path.open("w") as file:
        for number in range(prompts):
            if number % 100 == 99:
                text = text.replace(" ", " once ", 1)
            else:
                text = " ".join(generator.choices(vocabulary, k=100))
            case = {"id": f"case-{number}", "family": f"family-{number % 5}"}
            file.write(json.dumps({**case, "messages": [{"role": "user", "content": text}]}) + "\n")


def measure(step: str, path: Path) -> dict[str, float]:
    """Seconds, CPU seconds and peak memory of a step, as its own process says them."""
    command = [sys.executable, "-c", MEASURED.format(step=step), str(ROOT), str(path), str(REQUESTS)]
    answer = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    took: dict[str, float] = json.loads(answer.stderr.splitlines()[-1])
    return took


if __name__ == "__main__":
    sys.exit(main())
