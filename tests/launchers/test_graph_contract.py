"""What this project assumes of vLLM's CUDA graphs, held against the source of the version it pins.

Both traps of docs/confounds.md are here: the capture size, and the graph mode. Sizes, the choice of the mode and the
choice of a step's graph are computed by vLLM's own code, taken out of the source and run on stand-ins.
"""

import ast
import enum
import itertools
import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from support.vllm_source import Source

import launch_vllm

K = launch_vllm.NUM_SPECULATIVE_TOKENS
RUNNER = "v1/worker/gpu_model_runner"

# --- the capture size ---


def adjustment(vllm: Source) -> Callable[..., None]:
    """vLLM's rounding of the sizes to multiples of k+1, which it applies where full graphs are apart."""
    return vllm.function(
        "config/compilation",
        "CompilationConfig.adjust_cudagraph_sizes_for_spec_decode",
        round_up=vllm.function("utils/math_utils", "round_up"),
        logger=SimpleNamespace(warning=lambda *_: None),
    )


def capture_sizes(vllm: Source, cap: int | None, drafts: int, max_num_seqs: int, max_tokens: int) -> list[int]:
    """The sizes that vLLM's own code captures; drafts = 0 is the baseline."""
    names = {"CUDAGraphMode": SimpleNamespace(NONE=0), "logger": SimpleNamespace(warning=lambda *_: None)}
    choose = vllm.function("config/vllm", "VllmConfig._set_cudagraph_sizes", **names)
    compilation = SimpleNamespace(
        cudagraph_mode=1,
        max_cudagraph_capture_size=cap,
        cudagraph_capture_sizes=None,
        pass_config=SimpleNamespace(enable_sequence_parallelism=False),
        post_init_cudagraph_sizes=lambda: None,
        compute_bs_to_padded_graph_size=lambda: None,
    )
    config = SimpleNamespace(
        model_config=SimpleNamespace(enforce_eager=False),
        scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_tokens),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        compilation_config=compilation,
    )
    choose(config)
    adjustment(vllm)(compilation, drafts + 1, 1)
    sizes = compilation.cudagraph_capture_sizes
    assert isinstance(sizes, list)
    return sizes


def test_the_trap(vllm: Source) -> None:
    """vLLM's default leaves ngram without graphs from the third full sequence on; ours covers all eight."""
    assert capture_sizes(vllm, None, 0, 8, 8192)[-1] == 16
    assert capture_sizes(vllm, None, 5, 8, 8192) == [6, 12]
    assert capture_sizes(vllm, 48, 5, 8, 8192) == [6, 12, 18, 24, 36, 42, 48]
    assert capture_sizes(vllm, 48, 0, 8, 8192) == [1, 2, 4, 8, 16, 24, 32, 40, 48]


@pytest.mark.parametrize("max_num_seqs", [1, launch_vllm.MAX_NUM_SEQS, 64])
def test_our_capture_size_survives_in_both_modes(max_num_seqs: int, vllm: Source) -> None:
    """For each k: the largest captured size is the one asked for, in both modes, and holds the largest step."""
    for drafts in range(1, launch_vllm.MAX_SPECULATIVE_TOKENS + 1):
        size = launch_vllm.capture_size(drafts, max_num_seqs)
        assert size >= max_num_seqs * (drafts + 1)
        for mode_drafts in (0, drafts):
            assert capture_sizes(vllm, size, mode_drafts, max_num_seqs, 2 * size)[-1] == size, drafts


def test_a_capture_size_over_the_token_budget_is_cut(vllm: Source) -> None:
    """Why max_num_batched_tokens follows the capture size."""
    assert capture_sizes(vllm, 48, 0, 8, 40)[-1] == 40


def test_which_capture_sizes_vllm_takes_as_they_are(vllm: Source) -> None:
    for size in range(1, 600):
        assert launch_vllm.is_capture_size(size) == (capture_sizes(vllm, size, 0, 8, 8192)[-1] == size), size


# --- the graph mode ---


@pytest.fixture(scope="module")
def graphs(vllm: Source) -> SimpleNamespace:
    """vLLM's CUDAGraphMode, AttentionCGSupport, BatchDescriptor and CudagraphDispatcher."""
    known = vllm.define("config/compilation", "CUDAGraphMode", enum=enum)
    known |= vllm.define("v1/attention/backends/utils", "AttentionCGSupport", enum=enum)
    known |= vllm.define("forward_context", "BatchDescriptor", NamedTuple=NamedTuple)
    known |= vllm.define("v1/cudagraph_dispatcher", "CudagraphDispatcher", product=itertools.product, **known)
    return SimpleNamespace(**known)


def settled(
    vllm: Source, graphs: SimpleNamespace, asked: str, support: str, drafts: int
) -> tuple[str, SimpleNamespace, list[str]]:
    """What vLLM's runner makes of a graph mode: the name of the mode that runs, the runner, what it warned of."""
    compilation = SimpleNamespace(
        mode="VLLM_COMPILE",
        cudagraph_mode=graphs.CUDAGraphMode[asked],
        cudagraph_capture_sizes=capture_sizes(vllm, 48, 0, 8, 8192),
        max_cudagraph_capture_size=48,
        pass_config=SimpleNamespace(enable_sequence_parallelism=False),
        splitting_ops_contain_attention=lambda: True,
        is_attention_compiled_piecewise=lambda: True,
        use_inductor_graph_partition=False,
        post_init_cudagraph_sizes=lambda: None,
        compute_bs_to_padded_graph_size=lambda: None,
    )
    compilation.adjust_cudagraph_sizes_for_spec_decode = partial(adjustment(vllm), compilation)
    scheduler = SimpleNamespace(max_num_seqs=launch_vllm.MAX_NUM_SEQS)
    config = SimpleNamespace(compilation_config=compilation, scheduler_config=scheduler, lora_config=None)
    runner = SimpleNamespace(
        vllm_config=config,
        compilation_config=compilation,
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        uniform_decode_query_len=1 + drafts,
        cudagraph_dispatcher=graphs.CudagraphDispatcher(config),
    )
    builder = SimpleNamespace(get_cudagraph_support=lambda *_: graphs.AttentionCGSupport[support])
    backend = type("SomeBackend", (), {"get_builder_cls": staticmethod(lambda: builder)})
    warnings: list[str] = []
    check = vllm.function(
        RUNNER,
        "GPUModelRunner._check_and_update_cudagraph_mode",
        CUDAGraphMode=graphs.CUDAGraphMode,
        AttentionCGSupport=graphs.AttentionCGSupport,
        CompilationMode=SimpleNamespace(VLLM_COMPILE="VLLM_COMPILE"),
        logger=SimpleNamespace(warning=warnings.append),
    )
    check(runner, [{backend}], [SimpleNamespace(kv_cache_spec=None)])
    return compilation.cudagraph_mode.name, runner, warnings


def graph_of_step(vllm: Source, graphs: SimpleNamespace, asked: str, scheduled: list[int], drafts: int) -> str:
    """The graph that a step replays whose sequences bring `scheduled` tokens, under FlashAttention 3."""
    _, runner, _ = settled(vllm, graphs, asked, "ALWAYS", drafts)
    padded = next(size for size in runner.compilation_config.cudagraph_capture_sizes if size >= sum(scheduled))
    uniform = set(scheduled) == {1 + drafts}
    runtime, _ = runner.cudagraph_dispatcher.dispatch(graphs.BatchDescriptor(padded, uniform_decode=uniform))
    return str(runtime.name)


STEPS = {
    "baseline, 1 sequence": ([1], 0),
    "baseline, 8 sequences": ([1] * 8, 0),
    "everything drafted, 1 sequence": ([1 + K], K),
    "everything drafted, 8 sequences": ([1 + K] * 8, K),
    "nothing drafted, 1 sequence": ([1], K),
    "nothing drafted, 8 sequences": ([1] * 8, K),
    "one of two sequences drafted": ([1 + K, 1], K),
    "a draft cut short": ([3], K),
}


@pytest.mark.parametrize(("scheduled", "drafts"), STEPS.values(), ids=STEPS)
def test_full_has_a_graph_for_every_decode_step(
    scheduled: list[int], drafts: int, vllm: Source, graphs: SimpleNamespace
) -> None:
    assert graph_of_step(vllm, graphs, "FULL", scheduled, drafts) == "FULL"


@pytest.mark.parametrize(("scheduled", "drafts"), STEPS.values(), ids=STEPS)
def test_the_graph_mode_trap(scheduled: list[int], drafts: int, vllm: Source, graphs: SimpleNamespace) -> None:
    """vLLM's default: every baseline step has a full graph, an ngram step only when every sequence is fully drafted."""
    uniform = set(scheduled) == {1 + drafts}
    expected = "FULL" if uniform else "PIECEWISE"
    assert graph_of_step(vllm, graphs, "FULL_AND_PIECEWISE", scheduled, drafts) == expected


def test_when_a_step_is_uniform(vllm: Source) -> None:
    assert (
        "uniform_decode = ( max_num_scheduled_tokens == self.uniform_decode_query_len ) "
        "and (num_scheduled_tokens == num_reqs * max_num_scheduled_tokens)"
    ) in vllm.code(RUNNER, "GPUModelRunner.execute_model")
    assert "self.uniform_decode_query_len = 1 + self.num_spec_tokens" in vllm.code(RUNNER, "GPUModelRunner.__init__")


def test_the_default_mode_is_full_and_piecewise(vllm: Source) -> None:
    field = vllm.fields("config/compilation", "CompilationConfig")["cudagraph_mode"]
    assert ast.unparse(field) == "cudagraph_mode: CUDAGraphMode | None = None"
    code = vllm.code("config/vllm", "VllmConfig.__post_init__")
    chosen = code.partition("if self.compilation_config.cudagraph_mode is None:")[2].partition("else:")[0]
    assert "if self.compilation_config.mode == CompilationMode.VLLM_COMPILE:" in chosen
    assert "self.compilation_config.cudagraph_mode = ( CUDAGraphMode.FULL_AND_PIECEWISE )" in chosen


def test_our_flag_gives_full(vllm: Source) -> None:
    code = vllm.code("config/compilation", "CompilationConfig.validate_cudagraph_mode_before")
    assert "if isinstance(value, str): return CUDAGraphMode[value.upper()]" in code
    assert launch_vllm.COMPILATION_CONFIG == {"cudagraph_mode": "FULL"}
    code = vllm.code("engine/arg_utils", "EngineArgs.create_engine_config")
    assert "if compilation_config.max_cudagraph_capture_size is not None: raise ValueError(" in code  # given once only
    assert "max_cudagraph_capture_size" not in " ".join(launch_vllm.COMPILATION_CONFIG)


@pytest.mark.parametrize("drafts", [0, K])
def test_which_backends_run_full(drafts: int, vllm: Source, graphs: SimpleNamespace) -> None:
    """ALWAYS runs it, the others fall back with a warning, and where no graph can be full vLLM raises."""
    assert settled(vllm, graphs, "FULL", "ALWAYS", drafts)[::2] == ("FULL", [])
    mode, _, (warning,) = settled(vllm, graphs, "FULL", "UNIFORM_BATCH", drafts)
    assert mode == "FULL_AND_PIECEWISE"
    assert "CUDAGraphMode.FULL is not supported with SomeBackend backend" in warning
    mode, _, warnings = settled(vllm, graphs, "FULL", "UNIFORM_SINGLE_TOKEN_DECODE", drafts)
    assert (mode, len(warnings)) == (("PIECEWISE", 2) if drafts else ("FULL_AND_PIECEWISE", 1))
    with pytest.raises(ValueError, match=r"CUDAGraphMode.FULL is not supported with SomeBackend backend"):
        settled(vllm, graphs, "FULL", "NEVER", drafts)


def test_a_fallback_leaves_the_modes_different_capture_sizes(vllm: Source, graphs: SimpleNamespace) -> None:
    """Only where full graphs are apart are the sizes rounded to k+1: why the pinned size suits both ways."""
    sizes = [
        settled(vllm, graphs, "FULL", support, K)[1].compilation_config.cudagraph_capture_sizes
        for support in ("ALWAYS", "UNIFORM_BATCH")
    ]
    assert sizes == [[1, 2, 4, 8, 16, 24, 32, 40, 48], [6, 12, 18, 24, 36, 42, 48]]


def test_flash_attention_3_runs_full_and_hopper_alone_has_it(vllm: Source) -> None:
    builder = vllm.code("v1/attention/backends/flash_attn", "FlashAttentionMetadataBuilder")
    rule = "AttentionCGSupport.ALWAYS if get_flash_attn_version() == 3 else AttentionCGSupport.UNIFORM_BATCH"
    assert f"_cudagraph_support = ( {rule} )" in builder
    code = vllm.code("attention/utils/fa_utils", "get_flash_attn_version")
    assert "3 if (device_capability.major == 9 and is_fa_version_supported(3)) else 2" in code


def test_what_full_gives_up(vllm: Source) -> None:
    """Cascade attention has piecewise graphs only; it wants eight sequences with 256 tokens in common."""
    assert "if not use_cascade_attn:" in vllm.code("v1/cudagraph_dispatcher", "CudagraphDispatcher.dispatch")
    code = vllm.code("v1/attention/backends/flash_attn", "use_cascade_attention")
    assert "if common_prefix_len < 256: return False" in code and "if num_reqs < 8: return False" in code


# --- how the mode that runs is learnt ---


def test_the_worker_alone_knows_the_mode_that_runs(vllm: Source) -> None:
    """Why WorkerRecord exists: no configuration comes back from the engine's process when it is ready."""
    handshake = vllm.code("v1/engine/core", "EngineCoreProc._perform_handshake")
    message = handshake.partition("ready_msg = {")[2].partition("handshake_socket.send(")[0]
    sent = {"status", "local", "headless", "num_gpu_blocks", "dp_stats_address", "parallel_config_hash"}
    assert set(re.findall(r'"(\w+)"(?::|\] =)', message)) == sent


def test_the_worker_can_be_asked(vllm: Source) -> None:
    wrapper = vllm.code("v1/worker/worker_base", "WorkerWrapperBase.init_worker")
    assert "worker_class.__bases__ = worker_class.__bases__ + ( worker_extension_cls, )" in wrapper
    (name,) = [name for name in vars(launch_vllm.WorkerRecord) if not name.startswith("_")]
    for module in ("v1/worker/worker_base", "v1/worker/gpu_worker"):
        assert name not in vllm.text(module)  # an extension must not hide a method of the worker
    client = vllm.code("v1/engine/async_llm", "AsyncLLM.collective_rpc")
    assert client.startswith("async def collective_rpc( self, method: str, timeout: float | None = None,")
    init = vllm.code("entrypoints/openai/api_server", "init_app_state")
    assert "state.engine_client = engine_client" in init
    serve = vllm.code("entrypoints/openai/api_server", "run_server_worker")
    assert serve.index("build_app(args)") < serve.index("init_app_state(") < serve.index("serve_http(")


def test_the_worker_has_the_configuration_that_its_runner_changes(vllm: Source) -> None:
    assert "self.vllm_config = vllm_config" in vllm.code("v1/worker/worker_base", "WorkerBase.__init__")
    assert "GPUModelRunner( self.vllm_config, self.device )" in vllm.code("v1/worker/gpu_worker", "Worker.init_device")
    runner = vllm.code(RUNNER, "GPUModelRunner.__init__")
    assert "self.compilation_config = vllm_config.compilation_config" in runner
    code = vllm.code(RUNNER, "GPUModelRunner._check_and_update_cudagraph_mode")
    assert code.count("cudagraph_mode = self.compilation_config.cudagraph_mode = (") == 6
