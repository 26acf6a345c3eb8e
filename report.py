"""An experiment as one HTML page: should n-gram be turned on, for what, at which load, and how sure is that?

    python report.py results/trial
    python report.py baseline-c1 ngram-c1 baseline2-c1 ngram2-c1 --out page.html --no-text

DIR is an experiment (experiment.py --out), or several result directories of both modes (bench.py --out). The page is
one file that needs no network and runs no script. Every number on it is from compare.py's JSON or the result
directories. Model output is untrusted: escaped, control characters made visible, cut at CLAMP characters.
"""

import argparse
import hashlib
import re
import shlex
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

try:
    import jinja2
    from markupsafe import Markup, escape

    from specbench.page import charts
    from specbench.page.charts import Effect, Floats, Span
except ModuleNotFoundError as error:
    print(f"report.py: the page needs {error.name}: pip install -r requirements-demo.txt", file=sys.stderr)
    sys.exit(2)

from specbench import Parser, UserError
from specbench.comparison.assessment import FORMAT as COMPARISON_FORMAT
from specbench.comparison.assessment import Options, compare
from specbench.comparison.equality import IDENTICAL, WITHIN
from specbench.comparison.estimates import IN_THIS_PAIR
from specbench.comparison.verdict import NOT_COMPARABLE
from specbench.files import check_writable, write_atomically
from specbench.record.directory import check_unedited, read_manifest, read_requests, read_summary
from specbench.record.provenance import now, tool
from specbench.record.summary import distribution
from specbench.words import printable

Json = dict[str, Any]

STATE = "experiment.json"
STATE_FORMAT = 1
METRICS = {"e2el": "E2EL", "ttft": "TTFT", "tpot": "TPOT"}
OPTIONS = Options(accept_floor=True)  # as experiment.py: outputs may vary as much as the baseline's own
CLAMP = 1_200  # characters of an output that are shown
CASES_SHOWN = 30  # cases whose outputs are shown, per load
OUTPUTS_SHOWN = 6  # distinct outputs that are shown, per case
FAMILIES_DRAWN = 8
# How a verdict begins: kind (for colour), sign (for those who do not see colour), and the answer to the question.
VERDICTS = {
    "faster": ("good", "✓", "Yes"),
    "slower": ("bad", "✗", "No"),
    "no clear difference": ("same", "≈", "No clear difference"),
    "cannot say": ("unknown", "?", "Cannot say"),
    NOT_COMPARABLE: ("stop", "≠", "Not comparable"),
    "suspect": ("stop", "!", "Suspect"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Read, draw, write one file; print its path."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.out is not None:
            check_writable(arguments.out, "--out")
        try:
            evidence = gather(arguments.directories)
            content = page(evidence, text=not arguments.no_text).encode(errors="backslashreplace")
        except (KeyError, jinja2.UndefinedError) as error:
            named = ", ".join(map(str, arguments.directories))
            raise UserError(f"a file of {named} lacks a key ({error}); it was edited: make it again") from None
        out = arguments.out or evidence.folder / "report.html"
        try:
            write_atomically(out, content)
        except OSError as error:
            raise UserError(f"cannot write {out}: {error.strerror}; name another file with --out") from None
    except UserError as error:
        print(f"report.py: {printable(str(error))}", file=sys.stderr)
        return 2
    print(out)
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="report.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "directories", nargs="+", type=Path, metavar="DIR", help="an experiment, or result directories of both modes"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.html", help="default: report.html in DIR, or here")
    parser.add_argument("--no-text", action="store_true", help="leave the model's outputs out of the page")
    return parser


# ---- what the page is made of


# What the page reads of experiment.json, and of which type: other keys may stand beside these.


class _Settings(msgspec.Struct):
    target: str
    order: str
    concurrency: Annotated[list[int], msgspec.Meta(min_length=1)]
    repeats: int
    max_tokens: int | None = None
    project: str | None = None
    owner: str | None = None
    queue: str | None = None
    launcher_options: list[str] = []


class _Step(msgspec.Struct):
    directory: str
    status: str
    seconds: float | None = None


class _Proof(msgspec.Struct):
    proven: list[str] = []
    not_proven: list[str] = []


class _Deployment(msgspec.Struct):
    name: str
    status: str
    started: str
    ready_s: float | None = None
    compile_cache: str | None = None
    loads: dict[str, _Step] = {}
    proof: _Proof | None = None


class _Comparison(msgspec.Struct):
    json: str
    pairs: Annotated[list[tuple[str, str]], msgspec.Meta(min_length=1)]


class _Experiment(msgspec.Struct):
    settings: _Settings
    status: str
    deployments: list[_Deployment]
    comparisons: dict[str, _Comparison]


@dataclass
class Output:
    """One distinct output of a case: its beginning, its whole length, and how often each side gave it."""

    text: str
    length: int
    counts: Counter[str] = field(default_factory=Counter)


@dataclass
class Run:
    """One result directory: the measured ok requests' times in s, per metric and family."""

    name: str
    side: str
    mode: str
    manifest: Json
    summary: Json
    times: dict[str, dict[str, Floats]]

    def overall(self, metric: str) -> Floats:
        return np.concatenate([*self.times[metric].values(), np.empty(0)])


@dataclass
class Load:
    """One concurrency: compare.py's JSON, the runs behind it in order of time, and outputs of cases that differ."""

    users: int
    result: Json
    runs: list[Run]
    outputs: dict[str, list[Output]]

    @property
    def label(self) -> str:
        return f"{self.users} user{'s' * (self.users != 1)}"


@dataclass
class Evidence:
    """Everything read: `experiment` is experiment.json, None for loose directories; `missing`: loads without result."""

    folder: Path
    experiment: Json | None
    loads: list[Load]
    missing: list[str]


def gather(directories: Sequence[Path]) -> Evidence:
    """Read an experiment or loose result directories. Raises UserError when there is nothing to show."""
    if len(directories) == 1 and not (directories[0] / "manifest.json").exists():
        return _gather_experiment(directories[0])
    sides: dict[int, dict[str, list[tuple[str, Path]]]] = {}
    for directory in directories:
        manifest = msgspec.to_builtins(read_manifest(directory))
        modes = sides.setdefault(manifest["concurrency"], {"baseline": [], "ngram": []})
        if manifest["mode"] not in modes:
            raise UserError(f"{directory} does not say its mode; run bench.py with --mode baseline or --mode ngram")
        modes[manifest["mode"]].append((manifest["started"], directory))
    loads = []
    for users, modes in sorted(sides.items()):
        base, candidate = ([path for _, path in sorted(modes[mode])] for mode in ("baseline", "ngram"))
        if not base or len(base) != len(candidate):
            raise UserError(
                f"at {users} users there are {len(base)} directories of baseline and {len(candidate)} of ngram; "
                "name as many of each"
            )
        loads.append(_read_load(users, compare(base, candidate, OPTIONS), Path()))
    _check_alike(loads)
    return Evidence(Path(), None, loads, [])


def _check_alike(loads: Sequence[Load]) -> None:
    """Loads on one page answered the same prompts as often with one model. Raises UserError."""
    first = loads[0].runs[0]
    for run in (load.runs[0] for load in loads[1:]):
        for what, path in (
            ("model", "server.model.id"), ("inventory", "inventory.sha256"), ("number of repeats", "schedule.repeats"),
        ):  # fmt: skip
            if _value_at(first, path) != _value_at(run, path):
                raise UserError(f"{first.name} and {run.name} differ in {what}; give each its own page")


def _gather_experiment(folder: Path) -> Evidence:
    if not (folder / STATE).exists():
        raise UserError(f"{folder} holds neither {STATE} nor manifest.json; name an experiment or result directories")
    experiment = _read_experiment(folder / STATE)
    loads, missing = [], []
    for users in sorted(experiment["settings"]["concurrency"]):
        step = experiment["comparisons"].get(str(users))
        if step is None:
            missing.append(f"{users} user{'s' * (users != 1)}")
        else:
            loads.append(_read_load(users, _comparison(folder, step), folder))
    if loads and not any(deployment["loads"] for deployment in experiment["deployments"]):
        raise UserError(f"{folder / STATE} lists no deployment that was measured; it was edited: make it again")
    if not loads:
        raise UserError(
            f"{folder} has no comparison yet, its experiment is {experiment['status']}; "
            f"go on with: experiment.py --out {folder} --resume"
        )
    return Evidence(folder, experiment, loads, missing)


def _read_experiment(path: Path) -> Json:
    """experiment.json, as far as the page reads it; what is absent and may be is None or empty."""
    document = _read_json(path)
    if document.get("format") != STATE_FORMAT:
        raise UserError(f"{path} has format {document.get('format')!r}, this version reads {STATE_FORMAT}")
    try:
        known = msgspec.convert(document, _Experiment)
        for deployment in known.deployments:
            _moment(deployment.started)
    except ValueError as error:  # msgspec's too
        raise UserError(f"{path} is not what experiment.py writes: {error}; it was edited: make it again") from None
    return dict(msgspec.to_builtins(known))


def _comparison(folder: Path, step: Json) -> Json:
    """compare.py's document, made again where only the result directories were kept."""
    path = folder / step["json"]
    if not path.exists():
        base, candidate = zip(*step["pairs"], strict=True)
        result = compare([folder / name for name in base], [folder / name for name in candidate], OPTIONS)
        for deployment in result["deployments"]:
            deployment["directory"] = Path(deployment["directory"]).name
        return result
    result = _read_json(path)
    if result.get("format") != COMPARISON_FORMAT:
        raise UserError(f"{path} has format {result.get('format')!r}; run compare.py again")
    return result


def _read_json(path: Path) -> Json:
    try:
        return dict(msgspec.json.decode(path.read_bytes()))
    except (OSError, msgspec.DecodeError, TypeError, ValueError) as error:
        raise UserError(f"cannot read {path} ({error}); make it again with experiment.py --resume") from None


def _read_load(users: int, result: Json, folder: Path) -> Load:
    """Stream every directory of one comparison, once."""
    cases = result["equality"]["cases"]
    wanted = differing_cases(result)[:CASES_SHOWN]
    outputs: dict[str, dict[bytes, Output]] = {case: {} for case in wanted}
    runs = [
        _read_run(folder / deployment["directory"], deployment, outputs, cases) for deployment in result["deployments"]
    ]
    ordered = {
        case: sorted(of.values(), key=lambda output: (-output.counts["base"], -output.counts["candidate"]))
        for case, of in outputs.items()
    }
    return Load(users, result, runs, ordered)


def differing_cases(result: Json) -> list[str]:
    """Cases whose outputs differ, those first that differ most between the sides beyond what the base does itself."""
    cases = result["equality"]["cases"]
    differing = [case for case, of in cases.items() if of["verdict"] != IDENTICAL]
    return sorted(differing, key=lambda case: (cases[case]["within_base"] or 0.0) - cases[case]["between"])


def _read_run(path: Path, deployment: Json, outputs: dict[str, dict[bytes, Output]], cases: Json) -> Run:
    times: dict[str, dict[str, array[float]]] = {metric: {} for metric in METRICS}
    for request in read_requests(path):
        if request.phase != "measured" or request.outcome != "ok":
            continue
        for metric, of in times.items():
            value = getattr(request, f"{metric}_s")
            # 0: the whole answer came in one read, which says nothing of one token (as in compare.py).
            of.setdefault(request.family, array("d")).extend([value] if value else [])
        if request.case in outputs:
            whole = request.text.encode(errors="surrogatepass")
            if cases[request.case]["compared"] == "token ids":
                whole += b"\0" + array("q", request.token_ids or []).tobytes()
            known = outputs[request.case]
            output = known.setdefault(hashlib.sha256(whole).digest(), Output(request.text[:CLAMP], len(request.text)))
            output.counts[deployment["side"]] += 1
    arrays = {metric: {family: np.array(values) for family, values in of.items()} for metric, of in times.items()}
    side, mode = deployment["side"], deployment["mode"] or deployment["side"]
    typed, typed_summary = read_manifest(path), read_summary(path)
    check_unedited(path, typed, typed_summary)
    manifest, summary = msgspec.to_builtins(typed), msgspec.to_builtins(typed_summary)
    return Run(deployment["directory"], side, mode, manifest, summary, arrays)


# ---- the answer


def primary_line(result: Json) -> Json:
    """The line of E2EL that was named beforehand."""
    metric = result["metrics"]["e2el"]
    return next(line for line in [metric["overall"], *metric["families"].values()] if line["primary"])


def verdict_look(verdict: str) -> tuple[str, str, str]:
    """Kind, sign and the answer's first words for one of compare.py's verdicts."""
    kind, sign, lead = next(look for start, look in VERDICTS.items() if verdict.startswith(start))
    if verdict.endswith(IN_THIS_PAIR) and kind in ("good", "bad"):  # one deployment per mode concludes nothing
        return "unknown", "?", f"Not concluded: {verdict}"
    return kind, sign, lead


def change(ratio: float) -> str:
    """A ratio of times in words: 21% less, 3.4% more."""
    percent = abs(ratio - 1) * 100
    shown = f"{percent:.0f}%" if percent >= 9.5 else f"{percent:.1f}%"
    return f"{shown} {'less' if ratio < 1 else 'more'}"


def time_said(line: Json) -> str:
    """The effect of one line with its interval, or why there is none."""
    interval = line["interval"]
    if interval["ratio"] is None:
        return f"nothing to say of time: {interval['reason']}"
    said = f"{change(interval['ratio'])} time per request"
    if interval["low"] is None:
        return f"{said}, with no interval: {interval['reason']}"
    low, high = change(interval["low"]), change(interval["high"])
    if low[-4:] != high[-4:]:
        return f"between {low} and {high} time per request (95% interval)"
    first, last = (high, low) if low.endswith("less") else (low, high)
    return f"{said} (95% interval: {first[:-5]} to {last})"


def families_said(result: Json) -> str:
    """The families by what their times say, for example: faster for copy (0.714); slower for short (1.083)."""
    groups: dict[str, list[str]] = {}
    for line in result["metrics"]["e2el"]["families"].values():
        if line["timing"] and line["interval"]["ratio"] is not None and not line["primary"]:
            timing = line["timing"].removesuffix(IN_THIS_PAIR).removesuffix(" from this pair")
            groups.setdefault(timing, []).append(f"{line['name']} ({number(line['interval']['ratio'])})")
    if sum(map(len, groups.values())) < 2:
        return ""
    named = [
        f"{timing} for {', '.join(names) if len(names) <= 4 else f'{len(names)} families'}"
        for timing, names in groups.items()
    ]
    return "; ".join(named)


def answer(result: Json) -> Json:
    """One load's answer: kind, sign, lead and the sentences after it, from compare.py's verdict and nothing else."""
    verdict, line = result["verdict"], primary_line(result)
    kind, sign, lead = verdict_look(verdict["verdict"])
    candidate, base = result["candidate"]["mode"], result["base"]["mode"]
    time = f"{candidate} takes {time_said(line)}" if line["interval"]["ratio"] is not None else time_said(line)
    equality = result["equality"]
    by_time = f"By time alone ({verdict['timing']}), {time}"
    if verdict["verdict"] == NOT_COMPARABLE:
        failing = _of_cases(sum(not of["passes"] for of in equality["cases"].values()), result)
        floor = f", all together no more than {base} differs from itself" if equality["verdict"] == WITHIN else ""
        time = f"{candidate} and {base} do not give the same outputs in {failing}{floor}. {by_time}"
    elif kind == "stop":
        fired = ", ".join(gate["name"] for gate in result["gates"] if gate["state"] == "fired")
        time = f"Something else differed or went wrong ({fired}). {by_time}"
    elif varying := result["cases"] - equality["counts"].get(IDENTICAL, 0):
        time += f". Outputs vary in {_of_cases(varying, result)}, no more than {base} differs from itself"
    families = "" if kind == "stop" else families_said(result)
    return {"kind": kind, "sign": sign, "lead": lead, "time": time, "families": families}


def fired_gates(loads: Sequence[Load]) -> list[Json]:
    """Gates that fired at any load, each once: name, what was seen per load, and what to do about it."""
    fired: dict[str, Json] = {}
    for load in loads:
        for gate in load.result["gates"]:
            if gate["state"] == "fired":
                of = fired.setdefault(gate["name"], {"name": gate["name"], "seen": [], "action": gate["action"]})
                of["seen"].append((load.label, gate["sentence"]))
    return list(fired.values())


def _of_cases(number: int, result: Json) -> str:
    return f"{number:,} of {result['cases']:,} case{'s' * (result['cases'] != 1)}"


# ---- the charts


def load_charts(load: Load) -> Json:
    """The panels of one load."""
    return {
        "acceptance": _acceptance_panel(load),
        "drift": _drift_panel(load),
        "equality": _equality_panel(load),
    }


def ecdf_panels(loads: Sequence[Load], metric: str) -> Iterator[tuple[str, Markup]]:
    """A family's panels, one per load, share one time axis."""
    for family in _families(loads[0])[:FAMILIES_DRAWN]:
        series = [[(run.side, run.times[metric].get(family, np.empty(0))) for run in load.runs] for load in loads]
        if not any(len(values) for runs in series for _, values in runs):
            continue
        domain = charts.time_domain(values for runs in series for _, values in runs)
        for load, runs in zip(loads, series, strict=True):
            line = load.result["metrics"][metric]["families"][family]
            medians = ", ".join(
                f"{load.result[side]['mode']} median {seconds(line[f'{side}_median_s'])}"
                for side in ("base", "candidate")
            )
            text = f"Share of requests answered within a time, {METRICS[metric]} of {family} at {load.label}: {medians}"
            yield f"{family}, {load.label}", charts.ecdf(runs, domain, text)


def _families(load: Load) -> list[str]:
    return list(load.result["metrics"]["e2el"]["families"])


def _acceptance_panel(load: Load) -> Markup | None:
    rates = [run.summary["server"].get("acceptance_per_position") or [] for run in load.runs if run.mode == "ngram"]
    if not any(rates):
        return None
    means = [np.mean([rate[at] for rate in rates if len(rate) > at]) for at in range(max(map(len, rates)))]
    shares = ", ".join(f"{mean:.0%}" for mean in means)
    return charts.acceptance(rates, f"Share of drafts accepted up to each position at {load.label}: {shares}")


def _drift_panel(load: Load) -> Markup:
    deployments = load.result["deployments"]
    rows = [(of["side"], of["e2el_s"]) for of in deployments]
    said = ", ".join(f"{of['mode'] or of['side']} {seconds(of['e2el_s'])}" for of in deployments)
    return charts.drift(rows, f"Mean E2EL of each deployment at {load.label}, in order of time: {said}")


def _equality_panel(load: Load) -> Markup | None:
    cases = load.result["equality"]["cases"]
    rows = [(case, cases[case]["within_base"], cases[case]["between"]) for case in load.outputs]
    if not rows:
        return None
    said = "; ".join(f"{case} {percent(within)} and {percent(between)}" for case, within, between in rows[:9])
    text = f"Pairs of outputs that differ, within the base and between the sides, at {load.label}: {said}"
    return charts.disagreement(rows, text)


def forest_panels(loads: Sequence[Load]) -> dict[str, Markup]:
    """Per metric: every family and overall, each at every load."""

    def lines(metric: str, load: Load) -> list[Json]:
        of = load.result["metrics"][metric]
        return [*of["families"].values(), of["overall"]]

    every = [line["interval"] for load in loads for metric in METRICS for line in lines(metric, load)]
    domain = charts.ratio_domain(interval[key] for interval in every for key in ("ratio", "low", "high"))
    panels = {}
    for metric, title in METRICS.items():
        groups: dict[str, list[Effect]] = {}
        for load in loads:
            for line in lines(metric, load):
                of, spread = line["interval"], line["redeploy_spread"]
                heading, label = (line["name"], load.label) if len(loads) > 1 else ("", line["name"])
                effect = Effect(label, of["ratio"], of["low"], of["high"], spread, line["primary"])
                groups.setdefault(heading, []).append(effect)
        if not any(effect.ratio for effects in groups.values() for effect in effects):
            continue
        text = f"{title}: ratio of candidate to base with 95% interval and redeploy spread; the numbers stand below"
        panels[metric] = charts.forest(groups, domain, text)
    return panels


def load_panels(loads: Sequence[Load]) -> list[tuple[str, Markup]]:
    """Throughput and latency against concurrency; none where there is one concurrency only."""
    if len(loads) == 1:
        return []

    def percentile(metric: str, name: str) -> Callable[[Run], float | None]:
        def of(run: Run) -> float | None:
            value = getattr(distribution(run.overall(metric).tolist()), name)
            return None if value is None else float(value)

        return of

    numbers: dict[str, tuple[Callable[[Run], float | None], bool]] = {
        "Throughput, tokens/s": (lambda run: run.summary["throughput"].get("tokens_per_s"), False),
        "E2EL, median": (percentile("e2el", "p50"), True),
        "E2EL, 95th percentile": (percentile("e2el", "p95"), True),
        "TTFT, median": (percentile("ttft", "p50"), True),
        "TPOT, median": (percentile("tpot", "p50"), True),
    }
    panels = []
    for title, (number, is_time) in numbers.items():
        every = [(run, load.users, number(run)) for load in loads for run in load.runs]
        points = [(run.side, users, value) for run, users, value in every if value is not None]
        show = seconds if is_time else "{:,.0f}".format
        said = ", ".join(f"{side} at {users}: {show(value)}" for side, users, value in points[:24])
        if points:
            panels.append((title, charts.by_load(points, f"{title} against users. {said}", seconds=is_time)))
    return panels


def timeline_panels(evidence: Evidence) -> list[Markup]:
    """Deployments and their runs in order of time, drawn for a phone and for a wide window."""
    spans: list[tuple[str, str | None, datetime, datetime, str]] = []
    side_of = {run.name: run.side for load in evidence.loads for run in load.runs}
    if evidence.experiment:
        for deployment in evidence.experiment["deployments"]:
            began = _moment(deployment["started"])
            runs = [_manifest_of(evidence, entry["directory"]) for entry in deployment["loads"].values()]
            known = [manifest for manifest in runs if manifest]
            if known:
                spans.append((deployment["name"], None, began, _moment(known[0]["started"]), ""))
            for manifest in known:
                side = "candidate" if manifest["mode"] == "ngram" else "base"
                spans.append((deployment["name"], side, *_times(manifest), f"c{manifest['concurrency']}"))
    else:
        runs_in_order = sorted(
            (run for load in evidence.loads for run in load.runs), key=lambda run: str(run.manifest["started"])
        )
        for run in runs_in_order:
            spans.append((run.name, side_of[run.name], *_times(run.manifest), f"c{run.manifest['concurrency']}"))
    zero = min((start for _, _, start, _, _ in spans))
    drawn = [
        Span(row, side, (start - zero).total_seconds(), (end - zero).total_seconds(), text)
        for row, side, start, end, text in spans
    ]
    names = ", ".join(dict.fromkeys(span.row for span in drawn))
    text = f"Deployments in order of their start: {names}; the table below has the times"
    return [charts.timeline(drawn, text, width) for width in (charts.WIDTH, 3 * charts.WIDTH)]


def _manifest_of(evidence: Evidence, directory: str) -> Json | None:
    path = evidence.folder / directory
    return msgspec.to_builtins(read_manifest(path)) if (path / "manifest.json").exists() else None


def _times(manifest: Json) -> tuple[datetime, datetime]:
    start = _moment(manifest["started"])
    return start, _moment(manifest["ended"]) if manifest.get("ended") else start


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


# ---- provenance and limits

# What is said of every run: a label, and where its manifest holds it.
_SETTINGS = (
    ("Engine", "server.engine"),
    ("Server version", "server.version"),
    ("Model", "server.model.id"),
    ("Model revision", "server.record.revision"),
    ("GPU", "server.record.gpus"),
    ("Driver", "server.record.driver"),
    ("CUDA", "server.record.cuda"),
    ("KV blocks", "server.cache_config.num_gpu_blocks"),
    ("Speculative config", "server.record.speculative_config"),
    ("Prefix caching", "server.record.prefix_caching"),
    ("Compile cache", "server.record.compile_cache"),
    ("Environment", "server.record.environment"),
    ("How the mode was verified", "mode_verified.how"),
    ("Requests", "request"),
    ("Inventory", "inventory.name"),
    ("Inventory sha256", "inventory.sha256"),
    ("Schedule sha256", "schedule.sha256"),
    ("Repeats", "schedule.repeats"),
    ("Client", "client.os"),
    ("Client Python", "client.python"),
    ("Client packages", "client.packages"),
    ("Client cores", "client.cores"),
    ("Client location", "client.location"),
    ("Proxies", "network.proxies"),
    ("Tool version", "tool.version"),
)


def settings(runs: Sequence[Run]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Per setting its values, each with who has it: "all runs", a mode, or the runs by name."""

    def value_at(path: str) -> Callable[[Run], str]:
        return lambda run: _said(_value_at(run, path))

    return [(label, _who_has(runs, value_at(path))) for label, path in _SETTINGS]


def _value_at(run: Run, path: str) -> Any:
    value: Any = run.manifest
    for key in path.split("."):
        value = value.get(key, "not said") if isinstance(value, dict) else "not said"
    return value


def _who_has(runs: Sequence[Run], value_of: Callable[[Run], str]) -> list[tuple[str, str]]:
    holders: dict[str, list[Run]] = {}
    for run in runs:
        holders.setdefault(value_of(run), []).append(run)
    return [(_names(holding, runs), value) for value, holding in holders.items()]


def _names(holding: Sequence[Run], runs: Sequence[Run]) -> str:
    if len(holding) == len(runs):
        return "all runs"
    modes = {run.mode for run in holding}
    if len(holding) == sum(run.mode in modes for run in runs):
        return " and ".join(sorted(modes))
    return ", ".join(run.name for run in holding)


def _said(value: Any) -> str:
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, list) and value and all(isinstance(item, dict) and "name" in item for item in value):
        return ", ".join(f"{item['name']} ({item.get('memory_mib', 0):,} MiB)" for item in value)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def flags(runs: Sequence[Run]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Server flags: per flag its values and who has them, those that differ first."""
    argv = {run.name: _flags_of(run) for run in runs}

    def value_of(flag: str) -> Callable[[Run], str]:
        return lambda run: argv[run.name].get(flag, "absent")

    every = dict.fromkeys(flag for of in argv.values() for flag in of)
    return sorted(((flag, _who_has(runs, value_of(flag))) for flag in every), key=lambda row: len(row[1]) == 1)


def _flags_of(run: Run) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for argument in (run.manifest["server"].get("record") or {}).get("argv", []):
        if argument.startswith("--"):
            name, _, value = argument.partition("=")
            found[name] = value or "on"
        elif name:
            found[name] = argument if found[name] == "on" else f"{found[name]} {argument}"
    return found


def commands(evidence: Evidence) -> list[str]:
    """How to make these results again, and how they were compared."""
    if evidence.experiment is None:
        runs = [run for load in evidence.loads for run in load.runs]
        return [shlex.join(["python", *run.manifest["command"]]) for run in runs]
    given = evidence.experiment["settings"]
    folder = evidence.folder.resolve().name
    words = ["python", "experiment.py", "--target", given["target"], "--out", f"{folder}-again"]
    words += ["--order", given["order"], "--concurrency", ",".join(map(str, given["concurrency"]))]
    words += ["--repeats", str(given["repeats"]), "--prompts", f"{folder}/prompts.jsonl"]
    for option, name in (("--max-tokens", "max_tokens"), ("-p", "project"), ("--owner", "owner"), ("--queue", "queue")):
        if given[name] is not None:
            words += [option, str(given[name])]
    options = ["--", *given["launcher_options"]] if given["launcher_options"] else []
    return [shlex.join([*words, *options])]


def limits(evidence: Evidence) -> list[str]:
    """What this does not show: always true sentences, then those that these results call for."""
    first = evidence.loads[0].result
    runs = [run for load in evidence.loads for run in load.runs]
    engines = {run.manifest["server"].get("engine") for run in runs}
    loads = _listed(str(load.users) for load in evidence.loads)
    request = runs[0].manifest["request"]
    found = []
    if "vllm" not in engines:
        engine = ", ".join(sorted(str(engine or "an unknown engine") for engine in engines))
        found.append(f"How vLLM on a GPU behaves: the engine here is {engine}; this shows the method at work.")
    found += [
        f"Your traffic: these are {first['cases']} prompts in {len(_families(evidence.loads[0]))} families.",
        f"Other loads: measured were {loads} users in a closed loop, each sending its next request when its last one "
        f"is answered, never more than {evidence.loads[-1].users} at once.",
        f"Other requests: these have temperature {request.get('temperature')} and at most {request.get('max_tokens')} "
        "tokens an answer.",
        "The quality of answers: outputs are compared with each other, not judged.",
        "Tokens one by one: a chunk of a stream may hold several, so gaps between chunks are not reported.",
    ]
    prompts = {primary_line(load.result)["prompts"]["reason"] for load in evidence.loads} - {None}
    found += [f"Prompts like these in general: {reason}." for reason in sorted(prompts)]
    if any(len(load.result["base"]["directories"]) == 1 for load in evidence.loads):
        found.append("What another deployment would give: there is one of each mode, and a redeploy alone moves times.")
    if len(first["metrics"]["e2el"]["families"]) > 1:
        found.append("All families at once: each verdict beside the primary one errs 5% of the time on its own.")
    unproven = {
        sentence
        for deployment in (evidence.experiment or {}).get("deployments", [])
        for sentence in (deployment.get("proof") or {}).get("not_proven", [])
    }
    free = "Whether the device was free between deployments; not proven"
    found += [f"{free}: {sentence}." for sentence in sorted(unproven)]
    gates = [gate for load in evidence.loads for gate in load.result["gates"]]
    unchecked = {gate["name"] for gate in gates if gate["state"] == "not checked"}
    if unchecked:
        found.append(f"Whether these mattered, as nothing says them: {', '.join(sorted(unchecked))}.")
    found += [f"Anything at {load}: not compared (the experiment is {_status(evidence)})." for load in evidence.missing]
    return found


def _status(evidence: Evidence) -> str:
    return str((evidence.experiment or {}).get("status", "incomplete"))


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


# ---- the page


def seconds(value: float | None) -> str:
    """12.3 ms, 4.56 s; a dash for what does not exist."""
    if value is None:
        return "–"
    return f"{value * 1000:#.3g} ms".replace(". ", " ") if value < 0.9995 else f"{value:#.3g} s".replace(". ", " ")


def number(value: float | None, digits: int = 3) -> str:
    """A ratio or a rate with `digits` decimals; thousands separated; a dash for what does not exist."""
    return "–" if value is None else f"{value:,.{digits}f}"


def chance(value: float | None) -> str:
    """A p value; a dash where nothing was tested."""
    return "–" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def percent(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:.{digits}%}"


def shown(text: object, limit: int = CLAMP) -> str:
    """Text from elsewhere, cut at `limit` characters, with control and bidi characters made visible."""
    whole = str(text)
    return printable(whole[:limit]) + ("…" if len(whole) > limit else "")


def prose(text: str) -> Markup:
    """A sentence of ours or compare.py's with its command-line flags set as code, which are then not broken up."""
    return Markup(re.sub(r"(--[a-z][a-z-]*)", r"<code>\1</code>", str(escape(printable(text)))))


def _harmless(value: object) -> object:
    """What the template prints passes here, then is escaped; drawings, which are `Markup`, stay as they are."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def page(evidence: Evidence, *, text: bool) -> str:
    """The whole page. `text`: show outputs."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "specbench" / "page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
    )
    for function in (seconds, number, percent, chance, shown, prose, zip):
        environment.filters[function.__name__] = function
    first = evidence.loads[0]
    runs = [run for load in evidence.loads for run in load.runs]
    return environment.get_template("report.html.j2").render(
        evidence=evidence,
        loads=evidence.loads,
        runs=runs,
        base=first.result["base"]["mode"] or "base",
        candidate=first.result["candidate"]["mode"] or "candidate",
        lines=[*_families(first), first.result["metrics"]["e2el"]["overall"]["name"]],
        answers=[answer(load.result) for load in evidence.loads],
        fired=fired_gates(evidence.loads),
        look=verdict_look,
        metrics=METRICS,
        forest=forest_panels(evidence.loads),
        by_load=load_panels(evidence.loads),
        panels=[load_charts(load) for load in evidence.loads],
        timeline=timeline_panels(evidence),
        ecdf={metric: list(ecdf_panels(evidence.loads, metric)) for metric in METRICS},
        settings=settings(runs),
        flags=flags(runs),
        commands=commands(evidence),
        limits=limits(evidence),
        text=text,
        outputs_shown=OUTPUTS_SHOWN,
        cases_shown=CASES_SHOWN,
        families_drawn=FAMILIES_DRAWN,
        made=now(),
        tool=tool(),
    )


if __name__ == "__main__":
    sys.exit(main())
