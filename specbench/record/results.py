"""A result directory: what one run of bench.py leaves behind, in plain JSON that jq reads.

    requests.jsonl      a line per request, appended as it completes
    metrics-before.txt  /metrics after the warm-up        metrics-after.txt  /metrics after the last request
    manifest.json       what was asked of whom, and how the answer was verified
    summary.json        written last, atomically, with requests.jsonl's SHA-256: no summary means the run did not end

Killed at any moment the directory is still readable: every line is written whole, in one call.
"""

import errno
import hashlib
import importlib.metadata
import math
import os
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import msgspec

from specbench import UserError, __version__

FORMAT = 1
REQUESTS, SUMMARY, MANIFEST = "requests.jsonl", "summary.json", "manifest.json"
METRICS_BEFORE, METRICS_AFTER = "metrics-before.txt", "metrics-after.txt"
_PARTIAL = ".part"
# Fewest samples that hold one observation beyond the percentile.
PERCENTILES = {50: 1, 90: 10, 95: 20, 99: 100}
_PACKAGES = ("httpx", "httptools", "msgspec", "numpy", "uvloop", "polyaxon")


class Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One request as requests.jsonl holds it. Times in seconds; what does not exist is None, never 0."""

    case: str
    family: str
    repeat: int | None
    position: int | None
    user: int
    phase: Literal["warmup", "measured"]
    start_s: float
    ttft_s: float | None
    e2el_s: float | None
    decode_s: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    first_tokens: int | None
    chunks: int
    finish_reason: str | None
    stop_reason: str | int | None
    text: str
    token_ids: list[int] | None
    outcome: str
    error: str | None
    http_status: int | None
    response_id: str | None
    prompt_sha256: str

    @property
    def tpot_s(self) -> float | None:
        """Time per output token (s): the decode interval over the tokens that came after the first content event."""
        if self.decode_s is None or self.completion_tokens is None:
            return None
        divisor = self.completion_tokens - (self.first_tokens or 1)
        return self.decode_s / divisor if divisor >= 1 else None


class ResultDirectory:
    """The write side of a result directory. Refuses a directory that holds anything."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._created = [folder for folder in (path, *path.parents) if not folder.exists()]
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise UserError(f"{path} is not empty; name a fresh directory with --out")
            self._requests = open(path / REQUESTS, "ab", buffering=0)  # noqa: SIM115 - open for the whole run
        except OSError as error:
            raise UserError(f"cannot write to {path}: {error.strerror}; name another directory with --out") from None

    def append(self, request: Request) -> None:
        """Add one line, in one write, so that a kill leaves whole lines only; so does a disk that is full.

        Raises OSError when the line could not be written whole.
        """
        line = msgspec.json.encode(request) + b"\n"
        size = self._requests.tell()
        written = self._requests.write(line)
        if written != len(line):
            self._requests.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write_text(self, name: str, text: str) -> None:
        """Write one whole file, for example a raw scrape."""
        write_atomically(self.path / name, text.encode())

    def write_json(self, name: str, value: Any) -> None:
        """Write MANIFEST or SUMMARY: indented JSON, whole or not at all."""
        write_atomically(self.path / name, json_bytes(value))

    def discard(self) -> None:
        """Leave the place as it was found: nothing in it was measured."""
        self._requests.close()
        for name in (REQUESTS, METRICS_BEFORE, METRICS_AFTER, MANIFEST, SUMMARY):
            for file in (self.path / name, self.path / (name + _PARTIAL)):
                file.unlink(missing_ok=True)
        with suppress(OSError):  # somebody else has put something there
            for folder in self._created:
                folder.rmdir()

    def close(self) -> None:
        """Put everything appended on disk."""
        if not self._requests.closed:
            os.fsync(self._requests.fileno())
            self._requests.close()


def json_bytes(value: Any) -> bytes:
    """Indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` so that a reader, or a crash, meets the old file or the new one, never a part."""
    partial = path.with_name(path.name + _PARTIAL)
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


# ---- reading


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a result directory; UserError when it is none, or of a format this version does not read."""
    if not directory.is_dir():
        raise UserError(f"{directory} is not a directory; name a result directory of bench.py")
    return _read_document(directory / MANIFEST)


def read_summary(directory: Path) -> dict[str, Any]:
    """The summary of a complete run; UserError says how far an incomplete one came."""
    if not (directory / SUMMARY).exists():
        scheduled = read_manifest(directory)["schedule"]["requests"]
        raise UserError(
            f"{directory} has no {SUMMARY}: its run was killed or still goes on, after {_measured_lines(directory)} of "
            f"{scheduled} requests; run bench.py again with a fresh --out"
        )
    return _read_document(directory / SUMMARY)


def read_requests(directory: Path) -> Iterator[Request]:
    """Every request in file order, one at a time (memory does not grow with the file).

    Raises UserError naming the line that was cut off, edited, or holds an impossible value.
    """
    path = directory / REQUESTS
    decoder = msgspec.json.Decoder(Request)
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    raise UserError(f"{path} line {number} is cut off: the file was truncated; run bench.py again")
                try:
                    request = decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise UserError(f"{path} line {number} is not what bench.py writes: {error}") from None
                _check_values(request, f"{path} line {number}")
                yield request
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _read_document(path: Path) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; name a result directory of bench.py") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not JSON ({error}); it was edited or cut off: run bench.py again") from None
    version = value.get("format") if isinstance(value, dict) else None
    if version != FORMAT:
        raise UserError(
            f"{path} has format {version!r}, this version reads format {FORMAT}; use the version that wrote it"
        )
    return dict(value)


def _measured_lines(directory: Path) -> int:
    try:
        with open(directory / REQUESTS, "rb") as file:
            return sum(line.endswith(b"\n") and b'"phase":"measured"' in line for line in file)
    except OSError:
        return 0


def _check_values(request: Request, where: str) -> None:
    for name in ("start_s", "ttft_s", "e2el_s", "decode_s"):
        value = getattr(request, name)
        if value is not None and not 0 <= value < math.inf:
            raise UserError(f"{where}: {name} is {value}, which no run can have measured")
    if request.outcome == "ok" and request.e2el_s is None:
        raise UserError(f"{where}: an ok request needs an e2el_s")
    for name in ("prompt_tokens", "completion_tokens", "first_tokens", "chunks"):
        count = getattr(request, name)
        if count is not None and count < 0:
            raise UserError(f"{where}: {name} is {count}, which no run can have counted")


# ---- the summary

_METRICS = ("ttft_s", "e2el_s", "tpot_s", "decode_s", "completion_tokens")


@dataclass
class _Samples:
    """What the summary needs of the ok requests of one family."""

    values: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _METRICS})
    chunks: int = 0
    tokens: int = 0

    def add(self, request: Request) -> None:
        for name, values in self.values.items():
            value = getattr(request, name)
            if value is not None:
                values.append(value)
        self.chunks += request.chunks
        self.tokens += request.completion_tokens or 0


def summarize(
    directory: Path,
    manifest: dict[str, Any],
    *,
    server: dict[str, Any],
    client: dict[str, Any],
    warnings: Sequence[str],
) -> dict[str, Any]:
    """The summary of a run, computed from its requests.jsonl as anyone could with jq.

    Args:
        directory: the result directory, with every request written.
        manifest: its manifest, for the status, the schedule and the `expect` patterns.
        server: deltas between the two scrapes (service.deltas).
        client: the client's own health (load.LoadResult).
        warnings: sentences.
    """
    outcomes: dict[str, int] = {}
    families: dict[str, _Samples] = {}
    overall = _Samples()
    patterns = {case["id"]: re.compile(case["expect"]) for case in manifest["inventory"]["cases"] if case["expect"]}
    expect: dict[str, dict[str, int]] = {}
    throughput = Throughput()
    warmup = measured = 0
    for request in read_requests(directory):
        if request.phase == "warmup":
            warmup += 1
            continue
        measured += 1
        outcomes[request.outcome] = outcomes.get(request.outcome, 0) + 1
        throughput.add(request)
        if request.outcome != "ok":
            continue
        overall.add(request)
        families.setdefault(request.family, _Samples()).add(request)
        if pattern := patterns.get(request.case):
            counts = expect.setdefault(request.case, {"checked": 0, "passed": 0})
            counts["checked"] += 1
            counts["passed"] += pattern.search(request.text) is not None
    ordered = dict(sorted(families.items()))
    return {
        "format": FORMAT,
        "status": manifest["status"],
        "requests": {
            "scheduled": manifest["schedule"]["requests"],
            "measured": measured,
            "ok": outcomes.get("ok", 0),
            "outcomes": dict(sorted(outcomes.items())),
            "warmup": warmup,
        },
        "metrics": {
            "overall": _metrics(overall),
            "families": {name: _metrics(of) for name, of in ordered.items()},
        },
        "throughput": throughput.result(),
        "tokens_per_chunk": {
            "overall": _ratio(overall.tokens, overall.chunks),
            "families": {name: _ratio(of.tokens, of.chunks) for name, of in ordered.items()},
        },
        "expect": {
            "checked": sum(counts["checked"] for counts in expect.values()),
            "passed": sum(counts["passed"] for counts in expect.values()),
            "cases": dict(sorted(expect.items())),
        },
        "server": server,
        "client": client,
        "warnings": list(warnings),
        "requests_sha256": _digest(directory / REQUESTS),
    }


def check_unedited(directory: Path, manifest: dict[str, Any], summary: dict[str, Any]) -> None:
    """Raise UserError where the files of a result directory are no longer the ones that bench.py left.

    A summary without a digest, as the first version wrote it, is held against the manifest alone.
    """
    again = "it was edited or replaced: run bench.py again with a fresh --out"
    said = summary.get("requests_sha256")
    if said is not None and said != _digest(directory / REQUESTS):
        raise UserError(f"{directory / REQUESTS} is not the file that {SUMMARY} beside it was made of; {again}")
    if manifest.get("status") != summary.get("status"):
        raise UserError(
            f"{directory / MANIFEST} says {manifest.get('status')} and {SUMMARY} {summary.get('status')}; {again}"
        )


def check_writable(path: Path, option: str) -> None:
    """Raise UserError where writing `path`, given to `option`, would be beside or over what was measured."""
    if (path.parent / REQUESTS).exists() or path.name in (REQUESTS, MANIFEST, SUMMARY, "experiment.json"):
        raise UserError(f"{option} {path} is where measurements are kept: name a file outside of result directories")


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def summary_table(directory: Path, manifest: dict[str, Any], summary: dict[str, Any]) -> str:
    """The summary for a person: a line per family and the sentences below it."""
    requests, server = summary["requests"], summary["server"]
    lines = [f"{'family':<16}{'n':>6}{'TTFT p50':>12}{'E2EL p50':>12}{'TPOT p50':>12}{'tok/chunk':>11}   (ms)"]
    for name, metrics in [*summary["metrics"]["families"].items(), ("overall", summary["metrics"]["overall"])]:
        row = "".join(f"{_milliseconds(metrics[of]['p50']):>12}" for of in ("ttft_s", "e2el_s", "tpot_s"))
        chunk = summary["tokens_per_chunk"]["families"].get(name, summary["tokens_per_chunk"]["overall"])
        per_chunk = "-" if chunk is None else f"{chunk:.2f}"
        lines.append(f"{name[:15]:<16}{metrics['e2el_s']['n']:>6}{row}{per_chunk:>11}")
    rate, accepted = summary["throughput"]["tokens_per_s"], server["acceptance_rate"]
    lines.append(
        f"{directory}: {summary['status']}, {requests['ok']} of {requests['scheduled']} ok, mode {manifest['mode']}"
        + (f", {rate:.0f} tokens/s" if rate is not None else "")
        + (f", {accepted:.0%} of drafted tokens accepted" if accepted is not None else "")
    )
    if manifest["stopped"]:
        lines.append(f"stopped early: {manifest['stopped']}")
    outcomes = {name: count for name, count in requests["outcomes"].items() if name != "ok"}
    lines += [f"{count} requests ended as {name}" for name, count in outcomes.items()]
    return "\n".join([*lines, *(f"warning: {sentence}" for sentence in summary["warnings"])])


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def distribution(values: Sequence[float]) -> dict[str, Any]:
    """n, mean and percentiles (linear interpolation, numpy's default); None, with the reason, where n is too short."""
    import numpy as np  # not at the top: 13 MB that a measuring client does not need

    result: dict[str, Any] = {"n": len(values), "mean": float(np.mean(values)) if values else None}
    reasons: dict[str, str] = {}
    for percentile, needed in PERCENTILES.items():
        name = f"p{percentile}"
        result[name] = float(np.percentile(values, percentile)) if len(values) >= needed else None
        if result[name] is None:
            reasons[name] = f"needs {needed} samples, has {len(values)}"
    return {**result, "reasons": reasons}


class Throughput:
    """tokens/s while every user is busy: from the measured start until the first user finds the schedule empty.

    After that moment users fall idle one by one, and tokens/s would tell how the schedule ended. Requests in flight
    then count with the share of their decode interval that lies inside the window. A request that failed has no known
    end and counts as its start: where a user's last request failed, the window ends no later than that start.
    """

    def __init__(self) -> None:
        self._start = math.inf
        self._user_end: dict[int, float] = {}
        self._spans: list[tuple[float, float, int]] = []  # first content (s), end (s), tokens

    def add(self, request: Request) -> None:
        """Take one measured request, in any order."""
        self._start = min(self._start, request.start_s)
        end = request.start_s + (request.e2el_s or 0.0)
        self._user_end[request.user] = max(self._user_end.get(request.user, 0.0), end)
        if request.outcome == "ok" and request.completion_tokens and request.ttft_s is not None:
            self._spans.append((request.start_s + request.ttft_s, end, request.completion_tokens))

    def result(self) -> dict[str, float | None]:
        """tokens, window_s and tokens_per_s; None where nothing was measured."""
        if not self._spans:
            return {"tokens_per_s": None, "tokens": None, "window_s": None}
        end = min(self._user_end.values())
        import numpy as np

        first, last, tokens = np.array(self._spans, dtype=float).T
        decode = np.maximum(last - first, 1e-9)
        inside = float((tokens * np.clip((end - first) / decode, 0.0, 1.0)).sum())
        window = end - self._start
        return {"tokens_per_s": inside / window if window > 0 else None, "tokens": inside, "window_s": window}


def _metrics(samples: _Samples) -> dict[str, Any]:
    return {name: distribution(values) for name, values in samples.values.items()}


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


# ---- provenance


def now() -> str:
    """UTC time as the manifest holds it."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def tool() -> dict[str, str]:
    """Who wrote the directory."""
    return {"name": "specbench", "version": __version__}


def command_line(argv: Sequence[str]) -> list[str]:
    """`argv` as it may be stored: URLs without userinfo and query, where credentials travel."""
    return [_without_credentials(argument) for argument in argv]


def public_url(url: str) -> str:
    """`url` without userinfo, query and fragment."""
    scheme, separator, rest = re.split("[?#]", url, maxsplit=1)[0].partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"


def client_record(event_loop: str, location: str | None) -> dict[str, Any]:
    """The machine that measured. No host name, user or path."""
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": packages,
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "event_loop": event_loop,
        "location": location,
    }


def _without_credentials(argument: str) -> str:
    option, separator, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    return f"{option}{separator}{public_url(value)}" if "://" in value else argument
