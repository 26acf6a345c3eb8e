"""Experiment folders with known truth, as experiment.py leaves them, and what a page of one holds."""

import html.parser
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.simulated_runs import EPOCH, write_run
from specbench.comparison.assessment import Options, compare
from specbench.files import json_bytes

MODES = ("baseline", "ngram")
EFFECTS = {
    1: {"copy": -0.4, "explain": -0.05},
    4: {"copy": -0.25, "explain": 0.03, "short": 0.06},
    8: {"copy": -0.1, "explain": 0.12, "short": 0.15},
}
HOSTILE = (
    "</pre><script>document.title='owned'</script><img src=https://127.0.0.1:9/x onerror=\"document.title='owned'\">"
    "\x1b[31m\u202eevil\u2066\u200b\U000e0041{{ 7 * 7 }}<svg onload=\"document.title='owned'\">"
)
SECRET = "not-for-any-eyes"


def write_experiment(
    folder: Path,
    loads: tuple[int, ...] = (1, 4, 8),
    order: str = "BNNB",
    first: int = 0,
    effect: float | Mapping[str, float] | None = None,
    outputs: Callable[[str, int, str, int], str] = lambda case, repeat, mode, load: f"The answer to {case}.",
    **options: Any,
) -> Path:
    """An experiment folder as experiment.py leaves it: simulated result directories, compare.py's own JSON.

    `first`: how many deployments of other experiments came before. `effect`: on ln(E2EL), else EFFECTS at each load.
    """
    deployments: list[dict[str, Any]] = []
    for index, letter in enumerate(order):
        mode = "baseline" if letter == "B" else "ngram"
        name, place = f"{index + 1:02d}-{mode}", first + index
        started = EPOCH + timedelta(minutes=20 * index)
        for load in loads:
            shift = effect if effect is not None else EFFECTS[load]
            write_run(
                folder / f"{name}-c{load}", mode=mode, order=place, concurrency=load, repeats=6,
                seed=10 * place + load, effect=shift if mode == "ngram" else 0.0,
                deployment=0.004 * (-1) ** (place // 2), outputs=partial(_answer, outputs, mode, load), **options,
            )  # fmt: skip
        deployments.append(
            {
                "index": index + 1, "name": name, "mode": mode, "status": "done", "compile_cache": "warm",
                "started": started.strftime("%Y-%m-%dT%H:%M:%SZ"), "ready_s": 61.5,
                "loads": {
                    str(load): {"directory": f"{name}-c{load}", "status": "done", "seconds": 180.0} for load in loads
                },
                "proof": {"proven": ["port 8000 is closed"], "not_proven": ["GPU memory (nvidia-smi was not there)"]},
            }
        )  # fmt: skip
    settings = {"target": "vllm", "order": order, "concurrency": list(loads), "repeats": 6, "launcher_options": []}
    comparisons = {}
    for load in loads:
        sides = [[f"{d['name']}-c{load}" for d in deployments if d["mode"] == mode] for mode in MODES]
        base, candidate = ([folder / name for name in side] for side in sides)
        result = compare(base, candidate, Options(accept_floor=True))
        # experiment.py compares inside the folder: names without it.
        (folder / f"compare-c{load}.json").write_text(json_bytes(result).decode().replace(f"{folder}/", ""))
        pairs = list(zip(*sides, strict=True))
        comparisons[str(load)] = {"json": f"compare-c{load}.json", "pairs": pairs}
    document = {
        "format": 1, "settings": settings, "status": "complete", "deployments": deployments, "comparisons": comparisons,
    }  # fmt: skip
    (folder / "experiment.json").write_bytes(json_bytes(document))
    return folder


def _answer(outputs: Callable[[str, int, str, int], str], mode: str, load: int, case: str, repeat: int) -> str:
    return outputs(case, repeat, mode, load)


def outputs_of_the_experiment(case: str, repeat: int, mode: str, load: int) -> str:
    """One load identical, one within the floor, one with hostile and endless outputs of ngram alone."""
    if load == 4 and case == "explain-1":
        return f"variant {repeat % 2}"
    if load == 8 and case == "copy-1" and mode == "ngram":
        return HOSTILE + "w" * 100_000 * (repeat == 0)
    return f"The answer to {case}."


def hostile_server(manifest: dict[str, Any], summary: dict[str, Any], _: Any) -> None:
    """A server that puts markup and what it was told in secret into everything that it says of itself."""
    said = HOSTILE.replace("evil", "server")
    manifest["server"]["version"] += said
    record = manifest["server"]["record"]
    record["driver"] = record["cuda"] = said
    record["gpus"] = [{"name": said, "memory_mib": 1}]
    record["argv"] += ["--api-key", SECRET, "--note", said]
    record["environment"] = {"HF_TOKEN": SECRET, "NOTE": said}
    manifest["mode_verified"]["detail"] = said
    manifest["command"] += [f"--api-key={SECRET}"]
    summary["warnings"] = [said]


class Tables(html.parser.HTMLParser):
    """Every table as rows of cell texts, by the label of the region around it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self._label = ""
        self._cell: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if dict(attrs).get("role") == "region":
            self._label = str(dict(attrs)["aria-label"])
        if tag == "tr":
            self.tables.setdefault(self._label, []).append([])
        if tag in ("td", "th"):
            self._cell = []

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._cell is not None:
            self.tables[self._label][-1].append(" ".join("".join(self._cell).split()))
            self._cell = None
