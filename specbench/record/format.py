"""The files of a result directory as types: one schema that both writes and reads.

    requests.jsonl   a `Request` per line        manifest.json   `Manifest`        summary.json   `Summary`

Times are seconds. What does not exist is None, never 0. Fields that a reader does not know are ignored, so a later
version may add some; fields without a default must be there.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

import msgspec

FORMAT = 1
REQUESTS, SUMMARY, MANIFEST = "requests.jsonl", "summary.json", "manifest.json"
AT_ONCE_S = 2e-4  # a token; the fastest decoding of one answer takes several times as long
METRICS_BEFORE, METRICS_AFTER = "metrics-before.txt", "metrics-after.txt"

Mode = Literal["baseline", "ngram"]
MODES: tuple[Mode, ...] = get_args(Mode)
Status = Literal["running", "complete", "interrupted", "aborted"]
LONGEST_S, MOST_TOKENS = 1e7, 10**9  # beyond these no request was measured: months, and more than any context holds
LARGEST = 2**53  # the largest whole number that every reader of JSON can hold
Positive = Annotated[int, msgspec.Meta(gt=0, le=LARGEST)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]


class Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One request, as a line of requests.jsonl holds it.

    `draft_tokens` and `accepted_tokens` are what the server says it drafted for this answer. llama.cpp's `timings` say
    it of an answer with a draft; vLLM never does.
    """

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
    draft_tokens: int | None = None
    accepted_tokens: int | None = None

    @property
    def came_at_once(self) -> bool:
        """Whether all tokens came with the first, because something on the way holds streams back.

        That is so where one read brought them, or several reads faster than any model decodes (AT_ONCE_S a token) after
        a wait a hundred times as long.
        """
        if self.decode_s is None or self.ttft_s is None or (self.completion_tokens or 0) <= (self.first_tokens or 1):
            return False
        at_once = self.decode_s < AT_ONCE_S * (self.completion_tokens or 0) and self.decode_s < self.ttft_s / 100
        return at_once or self.decode_s == 0

    @property
    def tpot_s(self) -> float | None:
        """Time per output token (s): the decode interval over the tokens that came after the first content event.

        How many came with it is known from token ids, else only where each token had an event of its own. None where it
        is unknown, where no token came later, and where all came at once.
        """
        first = 1 if self.first_tokens is None and self.chunks == self.completion_tokens else self.first_tokens
        if self.decode_s is None or self.completion_tokens is None or first is None or self.came_at_once:
            return None
        later = self.completion_tokens - first
        return self.decode_s / later if later >= 1 else None

    @property
    def tpot_problem(self) -> str | None:
        """Why an answer with several tokens has no TPOT."""
        if self.tpot_s is not None or (self.completion_tokens or 0) < 2:
            return None
        if self.ttft_s is None:
            return "no text came"
        if self.came_at_once:
            return "all tokens came at once"
        return None if self.first_tokens is not None else "how many tokens came first is unknown without token ids"


# ---- manifest.json


class Tool(msgspec.Struct):
    """Who wrote the directory."""

    name: str
    version: str


class CaseRecord(msgspec.Struct):
    """A case without its messages, which stand here as a digest."""

    id: str
    family: str
    max_tokens: int | None
    expect: str | dict[str, Any] | None  # workload/judging.py says what each form means
    prompt_sha256: str


class InventoryRecord(msgspec.Struct):
    """The prompts file: its name, the digest of everything in it, its cases in file order."""

    name: str
    sha256: str
    cases: Annotated[list[CaseRecord], msgspec.Meta(min_length=1)]


class ScheduleRecord(msgspec.Struct):
    """The order in which requests were sent; the digest covers which case was sent at which position."""

    sha256: str
    requests: Natural
    repeats: Natural
    seed: int


class ClientRecord(msgspec.Struct):
    """The machine that measured. No host name, user or path."""

    os: str
    python: str
    packages: dict[str, str]
    cores: int | None
    event_loop: str | None = None
    location: str | None = None


class Speculation(msgspec.Struct):
    """vLLM's --speculative-config."""

    method: str | None = None
    num_speculative_tokens: int | None = None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None


class LaunchRecord(msgspec.Struct):
    """What is known of a server's own record (GET /server-record); launch_vllm.py says what each field is.

    `cudagraph_mode` is what was asked for (full or vllm-default), `cudagraph_mode_ran` the CUDAGraphMode of vLLM that
    the engine settled on (FULL, FULL_AND_PIECEWISE, ...): an attention backend that cannot do FULL falls back.
    """

    version: str | None = None
    service_run: str | None = None
    served_model_name: str | None = None
    max_model_len: Positive | None = None
    num_speculative_tokens: Natural | None = None
    mode: str | None = None
    argv: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    model: str | None = None
    revision: str | None = None
    environment: dict[str, str] | None = None
    settings: dict[str, Any] | None = None
    speculative_config: Speculation | None = None
    prefix_caching: bool | None = None
    cudagraph_mode: str | None = None
    cudagraph_mode_ran: str | None = None
    cudagraph_capture_size: int | None = None
    max_num_seqs: int | None = None
    gpus: list[Any] | None = None
    driver: str | None = None
    cuda: str | None = None
    compile_cache: str | None = None
    boot_id: str | None = None


class Model(msgspec.Struct):
    """One entry of GET /v1/models."""

    id: str
    root: str | None = None
    max_model_len: Positive | None = None


class ServerIdentity(msgspec.Struct):
    """What the server says it is. `record` is kept whole, as the server gave it; `launched` is its known part."""

    engine: str | None
    version: str | None
    record: dict[str, Any] | None
    model: Model
    cache_config: dict[str, str] | None
    process_start_time: float | None = None

    def __post_init__(self) -> None:
        self.launched  # noqa: B018 - refuses a record whose known fields have another type

    @property
    def launched(self) -> LaunchRecord:
        """The known part of the record; every field is None where the server gave no record."""
        return msgspec.convert(self.record or {}, LaunchRecord)


class RoundTrips(msgspec.Struct):
    """Round trips of GET /health before the run (ms)."""

    n: int
    min: float
    p50: float
    max: float


class Network(msgspec.Struct):
    """The path from the client to the server."""

    health_rtt_ms: RoundTrips
    proxies: list[str]


class PromptTokenSource(msgspec.Struct):
    """Where the ids of prompt-tokens.jsonl come from; where there are none, why."""

    source: Literal["stream", "tokenize"] | None
    missing: str | None


class Manifest(msgspec.Struct, kw_only=True):
    """What was asked of whom, how the mode was verified, and how the run ended.

    `users` is how many requests were in flight at once: `concurrency`, or fewer where there are fewer requests.
    `no_text`: rows hold lengths and digests in place of answers (client/withholding.py), and no `expect` stands here.
    """

    format: int
    tool: Tool
    command: list[str]
    service_run: str | None
    url: str
    inventory: InventoryRecord
    schedule: ScheduleRecord
    concurrency: Positive
    timeout_s: float
    inactivity_timeout_s: float
    client: ClientRecord
    started: str
    mode: Mode | None
    mode_verified: dict[str, str]
    server: ServerIdentity
    request: dict[str, Any]
    network: Network
    ended: str | None = None
    status: Status = "running"
    stopped: str | None = None
    prompt_tokens: PromptTokenSource | None = None
    users: Positive | None = None
    no_text: bool = False

    def __post_init__(self) -> None:
        check_moments(started=self.started, ended=self.ended)

    @property
    def launched(self) -> LaunchRecord:
        """The known part of the server's own record."""
        return self.server.launched


def moment(text: str) -> datetime:
    """A time as manifest.json and experiment.json hold it. ValueError where it is none."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def check_moments(**times: str | None) -> None:
    """Raise ValueError for the field whose text is no time, or one without a time zone."""
    for name, text in times.items():
        if text is not None and moment(text).tzinfo is None:
            raise ValueError(f"`{name}` has no time zone")


# ---- summary.json


class Distribution(msgspec.Struct, kw_only=True):
    """n values, their mean and percentiles; where n is too small a percentile is None and `reasons` says why.

    `reasons["missing"]` says of how many answers a value is unknown, and why.
    """

    n: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    reasons: dict[str, str]


class RequestCounts(msgspec.Struct):
    """How many requests the schedule has, were measured, ended ok, ended how, and warmed up.

    `examples` holds one error of each outcome, with its case.
    """

    scheduled: int
    measured: int
    ok: int
    outcomes: dict[str, int]
    warmup: int
    examples: dict[str, str] = {}


class Metrics(msgspec.Struct):
    """Distributions of ttft_s, e2el_s, tpot_s, decode_s and completion_tokens, overall and by family."""

    overall: dict[str, Distribution]
    families: dict[str, dict[str, Distribution]]


class Throughput(msgspec.Struct):
    """tokens/s while every user was busy: `tokens` within the first `window_s` seconds."""

    tokens_per_s: float | None = None
    tokens: float | None = None
    window_s: float | None = None


class TokensPerChunk(msgspec.Struct):
    """Tokens per event with content: the nearest thing to acceptance that a stream shows."""

    overall: float | None
    families: dict[str, float | None]


class Checked(msgspec.Struct):
    """How many answers were held against what was expected of them, and how many passed."""

    checked: int
    passed: int


class Expected(msgspec.Struct):
    """The same, of all cases and of each."""

    checked: int
    passed: int
    cases: dict[str, Checked]


class ServerDeltas(msgspec.Struct, kw_only=True):
    """What the server counted between the two scrapes (specbench/client/metrics.py has the formulas)."""

    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    accepted_per_position: list[float] = []
    generation_tokens: float | None = None
    acceptance_rate: float | None = None
    mean_acceptance_length: float | None = None
    tokens_per_step: float | None = None
    draft_coverage: float | None = None
    acceptance_per_position: list[float] = []
    prefix_cache_queries: float | None = None
    prefix_cache_hits: float | None = None
    preemptions: float | None = None
    queue_time_mean_s: float | None = None
    requests_succeeded: float | None = None
    foreign_requests: float | None = None
    restarted: bool | None = None
    several_servers: bool | None = None


class ClientHealth(msgspec.Struct, kw_only=True):
    """Whether the client itself was in the way. All None for a run that was interrupted."""

    cpu_share: float | None = None
    loop_lag_p50_ms: float | None = None
    loop_lag_p99_ms: float | None = None
    connections_opened: int | None = None
    connections_replaced: int | None = None
    schedule_to_wire_p50_ms: float | None = None
    schedule_to_wire_p99_ms: float | None = None


class Summary(msgspec.Struct, kw_only=True):
    """What the requests of one run amount to."""

    format: int
    status: Status
    requests: RequestCounts
    metrics: Metrics
    throughput: Throughput
    tokens_per_chunk: TokensPerChunk
    expect: Expected
    server: ServerDeltas
    client: ClientHealth
    warnings: list[str] = []
    requests_sha256: str | None = None


def value_at(document: Mapping[str, Any] | msgspec.Struct | None, path: str) -> Any:
    """What stands at a dotted path such as `server.record.gpus`; None where a part of the path is missing."""
    value: Any = document
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
    return value
