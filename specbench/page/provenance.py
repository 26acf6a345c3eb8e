"""Where a page's numbers come from: settings, flags, the commands to do it again, and what they do not show."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from specbench.deploy.next_steps import experiment_command
from specbench.page.evidence import Evidence, Run
from specbench.record.format import Manifest
from specbench.redaction import REDACTED, SECRET_NAME, redacted
from specbench.words import count, listed

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
        return lambda run: _shown(_setting(run.manifest, path))

    return [(label, _who_has(runs, value_at(path))) for label, path in _SETTINGS]


def _setting(manifest: Manifest, path: str) -> Any:
    """What stands at a dotted path; "not reported" where a part of the path is missing."""
    value: Any = manifest
    for key in path.split("."):
        missing = value is None or (isinstance(value, Mapping) and key not in value)
        value = "not reported" if missing else value[key] if isinstance(value, Mapping) else getattr(value, key)
        if missing:
            break
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


def _shown(value: Any) -> str:
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, dict):
        value = {name: REDACTED if SECRET_NAME.search(str(name)) else item for name, item in value.items()}
    if isinstance(value, list) and value and all(isinstance(item, dict) and "name" in item for item in value):
        return ", ".join(_gpu(item) for item in value)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _gpu(gpu: Mapping[str, Any]) -> str:
    memory = gpu.get("memory_mib")
    return f"{gpu['name']} ({memory:,} MiB)" if isinstance(memory, int) else str(gpu["name"])


def flags(runs: Sequence[Run]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Server flags: per flag its values and who has them, those that differ first."""
    argv = {run.name: _flags_of(run) for run in runs}

    def value_of(flag: str) -> Callable[[Run], str]:
        return lambda run: argv[run.name].get(flag, "absent")

    every = dict.fromkeys(flag for flags in argv.values() for flag in flags)
    return sorted(((flag, _who_has(runs, value_of(flag))) for flag in every), key=lambda row: len(row[1]) == 1)


def _flags_of(run: Run) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for argument in redacted(run.manifest.launched.argv or []):
        if argument.startswith("--"):
            name, _, value = argument.partition("=")
            found[name] = value or "on"
        elif name:
            found[name] = argument if found[name] == "on" else f"{found[name]} {argument}"
    return found


def commands(evidence: Evidence) -> list[str]:
    """How to make these results again, in the README's folder."""
    if evidence.experiment is None:
        return [shlex.join(["python", *redacted(run.manifest.command)]) for run in evidence.runs]
    return [experiment_command(evidence.experiment.settings, evidence.folder, "again")]


def limits(evidence: Evidence) -> list[str]:
    """What this does not show: always true sentences, then those that these results call for."""
    first = evidence.loads[0].result
    runs = evidence.runs
    engines = {run.manifest.server.engine for run in runs}
    loads = listed([str(load.users) for load in evidence.loads])
    families = len(evidence.loads[0].families)
    in_families = "of one family" if families == 1 else f"in {families} families"
    request = runs[0].manifest.request
    found = []
    if "vllm" not in engines:
        engine = ", ".join(sorted(str(engine or "an unknown engine") for engine in engines))
        found.append(f"How vLLM on a GPU behaves: the engine here is {engine}; this shows the method at work.")
    found += [
        f"Your traffic: {'this is' if first.cases == 1 else 'these are'} {count(first.cases, 'prompt')} {in_families}.",
        f"Other loads: these are {loads} users in a closed loop, where each sends its next request when its last one "
        "is answered.",
        f"Other requests: these have temperature {request.get('temperature')} and at most {request.get('max_tokens')} "
        "tokens an answer.",
        "The quality of answers: outputs are compared with each other"
        + (f", and {first.expect.pairs:,} are held against what was expected." if first.expect else ", not judged."),
        "Tokens one by one: a chunk of a stream may hold several, so gaps between chunks are not reported.",
    ]
    prompts = {load.result.primary.prompts.reason for load in evidence.loads} - {None}
    found += [f"Other prompts like these: {reason}." for reason in sorted(map(str, prompts))]
    if families > 1:
        found.append(
            "All families at once: each row of the table that is not the primary one is wrong in 5% of comparisons "
            "without any effect, so among many rows one often is."
        )
    deployments = evidence.experiment.deployments if evidence.experiment else []
    unproven = {sentence for one in deployments if one.proof for sentence in one.proof.not_proven}
    free = "Whether the device was free between deployments, which is not proven"
    found += [f"{free}: {sentence}." for sentence in sorted(unproven)]
    gates = [gate for load in evidence.loads for gate in load.result.gates]
    if unchecked := sorted({gate.name for gate in gates if gate.state == "not checked"}):
        found.append(f"Whether these mattered, because the server does not report them: {', '.join(unchecked)}.")
    found += [f"Anything at {load}: not compared (the experiment is {_status(evidence)})." for load in evidence.missing]
    return found


def _status(evidence: Evidence) -> str:
    return evidence.experiment.status if evidence.experiment else "incomplete"
