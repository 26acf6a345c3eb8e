"""launch_vllm.py: the command line of each mode, what is refused, and how it becomes vLLM."""

import ast
import contextlib
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT

import launch_vllm
from launch_vllm import ServerRecord, WorkerRecord
from specbench.deploy.polyaxon_target import SERVED_FILES
from specbench.redaction import REDACTED, redacted

LAUNCHER = ROOT / "launch_vllm.py"


def launch(*options: str) -> subprocess.CompletedProcess[str]:
    """Run the launcher's command line in this process; only for options with which it does not become vLLM."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            launch_vllm.main(options)
        except SystemExit as end:
            code = int(end.code or 0)
    return subprocess.CompletedProcess(options, code, out.getvalue(), err.getvalue())


def printed(*options: str) -> list[str]:
    answer = launch(*options, "--print")
    assert (answer.returncode, answer.stderr) == (0, "")
    (line,) = answer.stdout.splitlines()
    command = json.loads(line)
    assert isinstance(command, list)
    return command


def parsed(*options: str) -> launch_vllm.Launch:
    return launch_vllm.checked(launch_vllm.parser().parse_args(options))


def value(command: list[str], flag: str) -> str:
    assert command.count(flag) == 1, flag
    return command[command.index(flag) + 1]


def test_the_pinned_command() -> None:
    assert printed("--mode", "ngram") == [
        *("vllm", "serve", "Qwen/Qwen3-4B"),
        *("--revision", "1cfa9a7208912126459214e8b04321603b3df60c"),
        *("--tokenizer-revision", "1cfa9a7208912126459214e8b04321603b3df60c"),
        *("--served-model-name", "Qwen/Qwen3-4B"),
        *("--host", "127.0.0.1", "--port", "8000"),
        *("--max-model-len", "2048", "--max-num-seqs", "8", "--max-num-batched-tokens", "8192"),
        *("--gpu-memory-utilization", "0.85", "--no-enable-prefix-caching"),
        *("--generation-config", "vllm", "--seed", "0"),
        *("--compilation-config", '{"cudagraph_mode": "FULL"}', "--max-cudagraph-capture-size", "48"),
        *("--middleware", "launch_vllm.ServerRecord", "--worker-extension-cls", "launch_vllm.WorkerRecord"),
        "--speculative-config",
        '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4}',
    ]


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--prefix-caching on",
        "--num-speculative-tokens 3 --prompt-lookup-min 1 --prompt-lookup-max 8",
        "--num-speculative-tokens 128",
        "--cudagraph-capture-size vllm-default",
        "--cudagraph-capture-size 512",
        "--cudagraph-mode vllm-default",
        "--model ./weights --host 0.0.0.0 --port 9000 --max-model-len 1024",
    ],
)
def test_the_modes_differ_in_the_speculative_config_alone(options: str) -> None:
    baseline = printed("--mode", "baseline", *options.split())
    ngram = printed("--mode", "ngram", *options.split())
    assert ngram[:-2] == baseline
    assert ngram[-2] == "--speculative-config"


@pytest.mark.parametrize(
    ("drafts", "size"),
    [(1, 16), (3, 32), (4, 40), (5, 48), (6, 56), (7, 64), (30, 248), (31, 256), (32, 528), (127, 1024), (128, 2064)],
)
def test_capture_size(drafts: int, size: int) -> None:
    assert launch_vllm.capture_size(drafts) == size
    baseline = launch_vllm.arguments(parsed("--mode", "baseline", "--num-speculative-tokens", str(drafts)))
    assert value(baseline, "--max-cudagraph-capture-size") == str(size)
    assert int(value(baseline, "--max-num-batched-tokens")) >= size


def test_capture_size_is_the_smallest_that_fits_both_modes() -> None:
    for sequences in (1, 8, 64, 256):
        for drafts in range(1, 129):
            candidates = range(sequences * (drafts + 1), 100_000)
            fitting = (n for n in candidates if n % (drafts + 1) == 0 and launch_vllm.is_capture_size(n) and n >= 8)
            assert launch_vllm.capture_size(drafts, sequences) == next(fitting), (sequences, drafts)


def test_capture_size_of_the_users_choice() -> None:
    assert "--max-cudagraph-capture-size" not in printed("--mode", "ngram", "--cudagraph-capture-size", "vllm-default")
    large = printed("--mode", "baseline", "--cudagraph-capture-size", "16384")
    assert value(large, "--max-cudagraph-capture-size") == value(large, "--max-num-batched-tokens") == "16384"


def test_cudagraph_mode() -> None:
    """Full is the default of both modes; vllm-default leaves the choice, and nothing else, to vLLM."""
    for mode in launch_vllm.MODES:
        full = printed("--mode", mode)
        assert full == printed("--mode", mode, "--cudagraph-mode", "full")
        assert json.loads(value(full, "--compilation-config")) == {"cudagraph_mode": "FULL"}
        at = full.index("--compilation-config")
        assert printed("--mode", mode, "--cudagraph-mode", "vllm-default") == full[:at] + full[at + 2 :]


def test_another_model_drops_the_pinned_revision() -> None:
    other = printed("--mode", "ngram", "--model", "/weights/smol")
    assert "--revision" not in other and "--tokenizer-revision" not in other
    assert value(other, "--served-model-name") == "/weights/smol"
    assert parsed("--mode", "ngram", "--model", "/weights/smol").revision is None

    pinned = printed("--mode", "ngram", "--model", "org/other", "--revision", "abc", "--served-model-name", "m")
    assert value(pinned, "--revision") == value(pinned, "--tokenizer-revision") == "abc"
    assert value(pinned, "--served-model-name") == "m"


def test_prefix_caching() -> None:
    on = printed("--mode", "baseline", "--prefix-caching", "on")
    assert "--enable-prefix-caching" in on and "--no-enable-prefix-caching" not in on


def test_a_command_of_several_words_runs_vllm() -> None:
    command = printed("--mode", "baseline", "--vllm", "bash '/a stack/serve.sh' '/a stack'")
    assert command[:4] == ["bash", "/a stack/serve.sh", "/a stack", "serve"]


REFUSED = [
    ("", "--mode"),
    ("--mode eagle", "eagle"),
    ("--mode", "--mode"),
    ("--mode ngram --prompt-lookup-min 5 --prompt-lookup-max 4", "--prompt-lookup-min 5 must not exceed"),
    ("--mode baseline --prompt-lookup-min 5", "--prompt-lookup-min 5 must not exceed --prompt-lookup-max 4"),
    ("--mode ngram --prompt-lookup-min 0", "--prompt-lookup-min 0"),
    ("--mode ngram --num-speculative-tokens 0", "from 1 to 128"),
    ("--mode baseline --num-speculative-tokens 129", "from 1 to 128"),
    ("--mode ngram --num-speculative-tokens five", "five"),
    ("--mode ngram --max-model-len 133", "no room for a prompt beside 128 answer tokens and 5 drafts"),
    ("--mode ngram --prefix-caching true", "true"),
    ("--mode ngram --cudagraph-mode piecewise", "piecewise"),
    ("--mode ngram --cudagraph-mode ''", "--cudagraph-mode"),
    ("--mode ngram --cudagraph-capture-size 50", "--cudagraph-capture-size 50"),
    ("--mode ngram --cudagraph-capture-size 264", "--cudagraph-capture-size 264"),
    ("--mode ngram --cudagraph-capture-size 0", "--cudagraph-capture-size 0"),
    ("--mode ngram --cudagraph-capture-size -8", "--cudagraph-capture-size"),
    ("--mode ngram --cudagraph-capture-size big", "vllm-default"),
    ("--mode ngram --port 0", "--port 0"),
    ("--mode ngram --port 65536", "--port 65536"),
    ("--mode ngram --host ''", "--host"),
    ("--mode ngram --model ''", "--model"),
    ("--mode ngram --model=--api-key", "--model"),
    ("--mode ngram --vllm ''", "--vllm is empty"),
    ('--mode ngram --vllm "bash \'open"', "--vllm cannot be split"),
    ("--mode ngram --vllm /nowhere/vllm", "cannot start /nowhere/vllm"),
    ("--mode ngram --num-spec 5", "--num-spec"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=[options or "nothing" for options, _ in REFUSED])
def test_refused_in_one_sentence(options: str, words: str) -> None:
    answer = launch(*shlex.split(options))
    assert answer.returncode == 2
    assert answer.stderr.startswith("launch_vllm.py: ") and answer.stderr.count("\n") == 1
    assert words in answer.stderr
    assert answer.stdout == "" or "cannot start" in words  # no command is printed as if it ran


FAKE_VLLM = """
import json, os, signal, sys, time
def stop(number, frame):
    print("stopped by", number, flush=True)
    raise SystemExit(7)
signal.signal(signal.SIGTERM, stop)
names = ("PYTHONPATH", "SPECBENCH_SERVER_RECORD", "KEPT")
seen = {"pid": os.getpid(), "argv": sys.argv[1:], **{name: os.environ.get(name) for name in names}}
print(json.dumps(seen), flush=True)
while True:
    time.sleep(1)
"""


def test_it_becomes_vllm(tmp_path: Path) -> None:
    """Same process (so signals reach vLLM), its arguments, its environment, and the record beside it."""
    fake = tmp_path / "fake_vllm.py"
    fake.write_text(FAKE_VLLM)
    run = uuid.uuid4().hex
    environment = {
        **os.environ,
        "PYTHONPATH": "/somewhere/else",
        "KEPT": "yes",
        "POLYAXON_RUN_INSTANCE": f"owner.project.runs.{run}",
        "PATH": str(tmp_path),  # no nvidia-smi here
    }
    command = [sys.executable, str(LAUNCHER), "--mode", "ngram", "--vllm", shlex.join([sys.executable, str(fake)])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as process:
        try:
            assert process.stdout is not None
            announced = json.loads(process.stdout.readline())
            seen = json.loads(process.stdout.readline())
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == f"stopped by {signal.SIGTERM.value}\n"
            assert process.wait(timeout=30) == 7
        finally:
            process.kill()

    assert seen["pid"] == process.pid
    assert announced == [sys.executable, str(fake), *seen["argv"]]
    assert seen["PYTHONPATH"] == f"{ROOT}{os.pathsep}/somewhere/else"
    assert seen["KEPT"] == "yes"
    record = json.loads(seen["SPECBENCH_SERVER_RECORD"])
    assert record["argv"] == announced
    assert record["service_run"] == run
    assert (record["gpus"], record["driver"]) == ([], None)


def test_record_of_both_modes() -> None:
    ngram = launch_vllm.server_record(parsed("--mode", "ngram"), ["vllm"], {})
    baseline = launch_vllm.server_record(parsed("--mode", "baseline"), ["vllm"], {})
    assert {key for key in ngram if ngram[key] != baseline[key]} == {"mode", "speculative_config", "boot_id", "started"}
    assert baseline["speculative_config"] is None
    assert ngram["speculative_config"]["num_speculative_tokens"] == 5
    assert ngram["num_speculative_tokens"] == baseline["num_speculative_tokens"] == 5
    assert ngram["cudagraph_capture_size"] == 48 and ngram["prefix_caching"] is False
    assert ngram["cudagraph_mode"] == "full"
    chosen = replace(parsed("--mode", "ngram"), cudagraph_mode="vllm-default")
    assert launch_vllm.server_record(chosen, ["vllm"], {})["cudagraph_mode"] == "vllm-default"
    assert ngram["revision"] == launch_vllm.REVISION and ngram["service_run"] is None
    other = launch_vllm.server_record(parsed("--mode", "ngram", "--model", "x"), ["vllm"], {})
    assert other["revision"] == "unpinned"
    default = parsed("--mode", "ngram", "--cudagraph-capture-size", "vllm-default")
    assert launch_vllm.server_record(default, ["vllm"], {})["cudagraph_capture_size"] is None


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("vllm --api-key s3 --seed 0", f"vllm --api-key {REDACTED} --seed 0"),
        ("vllm --api-key s3 s4== --seed 0", f"vllm --api-key {REDACTED} {REDACTED} --seed 0"),
        ("vllm --api_key=s3 --seed 0", f"vllm --api_key={REDACTED} --seed 0"),
        ("vllm --hf-token s3", f"vllm --hf-token {REDACTED}"),
        ("env HF_TOKEN=s3 OMP_NUM_THREADS=2 vllm", f"env HF_TOKEN={REDACTED} OMP_NUM_THREADS=2 vllm"),
        ("vllm serve https://me:s3@host/m", f"vllm serve https://{REDACTED}@host/m"),
        ("vllm serve https://me:s@3@host/m", f"vllm serve https://{REDACTED}@host/m"),
        ("vllm --max-num-batched-tokens 8192", "vllm --max-num-batched-tokens 8192"),
        ("vllm --num-speculative-tokens=5 x@y", "vllm --num-speculative-tokens=5 x@y"),
    ],
)
def test_redacted(words: str, kept: str) -> None:
    assert redacted(words.split()) == kept.split()


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("vllm --api-key s3 --seed 0", f"vllm --api-key {REDACTED} --seed 0"),
        ("vllm --api-key=s3 --seed 0", f"vllm --api-key={REDACTED}"),
        ("env OMP_NUM_THREADS=2 HF_TOKEN=s3 vllm", f"env OMP_NUM_THREADS=2 HF_TOKEN={REDACTED} vllm"),
        ("--env=HF_TOKEN=s3", f"--env=HF_TOKEN={REDACTED}"),
        ("--env HF_TOKEN=s3", f"--env HF_TOKEN={REDACTED}"),
        ("cd /x && A=1 HF_TOKEN=s3 vllm", f"cd /x && A=1 HF_TOKEN={REDACTED} vllm"),
        ("A=1;HF_TOKEN=s3;vllm", f"A=1;HF_TOKEN={REDACTED};vllm"),
        ("env A=1 HF_TOKEN='s3 s3' vllm", f"env A=1 HF_TOKEN={REDACTED} vllm"),
        ('env A=1 HF_TOKEN="s3 \\"s3" vllm', f"env A=1 HF_TOKEN={REDACTED} vllm"),
        ("env A=1 HF_TOKEN=a's3 s3'b vllm", f"env A=1 HF_TOKEN={REDACTED} vllm"),
        ("bash -c 'A=1 HF_TOKEN=s3 vllm'", f"bash -c 'A=1 HF_TOKEN={REDACTED} vllm'"),
        ('--x={"api_key": "s3"}', f'--x={{"api_key": {REDACTED}'),
        ("vllm --max-num-batched-tokens 8192 --tokenizer x", "vllm --max-num-batched-tokens 8192 --tokenizer x"),
        ("vllm --api-key --seed 0", "vllm --api-key --seed 0"),
    ],
)
def test_redacted_inside_a_word(word: str, kept: str) -> None:
    """As in `--vllm "vllm --api-key s3"`, which experiment.py stores unsplit."""
    assert redacted(["--vllm", word]) == ["--vllm", kept]


def test_the_log_line_is_redacted() -> None:
    command = printed("--mode", "baseline", "--vllm", "env VLLM_API_KEY=s3cret vllm", "--model", "s3://a:s3cret@b/c")
    assert "s3cret" not in json.dumps(command)
    assert value(command, "--seed") == "0"


@pytest.mark.parametrize(
    ("script", "cards"),
    [
        ("echo 'NVIDIA H200, 143771, 580.159.04'", ([{"name": "NVIDIA H200", "memory_mib": 143771}], "580.159.04")),
        ("echo 'A, 1, 5'; echo 'B, 2, 5'", ([{"name": "A", "memory_mib": 1}, {"name": "B", "memory_mib": 2}], "5")),
        ("echo 'NVIDIA-SMI has failed'; exit 9", ([], None)),
        ("echo '[N/A], [N/A], 5'", ([], None)),
        ("exit 0", ([], None)),
        (None, ([], None)),
    ],
)
def test_graphics_cards(script: str | None, cards: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    assert launch_vllm.graphics_cards({}) == cards


def test_only_visible_cards_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\nfor last in "$@"; do :; done\necho "$last, 1, 5"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    cards, _ = launch_vllm.graphics_cards({"CUDA_VISIBLE_DEVICES": "2"})
    assert cards == [{"name": "--id=2", "memory_mib": 1}]


@pytest.mark.parametrize(
    ("instance", "run"),
    [("me.demo.runs.0123abcd", "0123abcd"), ("me.demo", None), ("", None), ("me.demo.runs.", None)],
)
def test_polyaxon_run(instance: str, run: str | None) -> None:
    assert launch_vllm.polyaxon_run({"POLYAXON_RUN_INSTANCE": instance}) == run


def test_compile_cache_of_the_other_mode_is_no_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Baseline fills the cache, ngram compiles into a folder of its own, and both are warm afterwards."""
    environment = {"VLLM_CACHE_ROOT": str(tmp_path)}

    def compiled(key: str, at: float) -> None:
        index = tmp_path / "torch_compile_cache" / key / "rank_0_0" / "backbone" / "vllm_compile_cache.py"
        index.parent.mkdir(parents=True, exist_ok=True)
        index.write_text("{}")
        os.utime(index, (at, at))

    assert launch_vllm.compile_cache(1000, environment) == "unknown"
    compiled("baseline", at=1060)
    assert launch_vllm.compile_cache(1000, environment) == "cold"  # baseline's first start
    compiled("ngram", at=2060)
    assert launch_vllm.compile_cache(2000, environment) == "cold"  # ngram's first start, the cache not empty
    assert launch_vllm.compile_cache(3000, environment) == "warm"  # either again
    assert launch_vllm.compile_cache(3000, {"XDG_CACHE_HOME": str(tmp_path)}) == "unknown"
    assert launch_vllm.compile_cache(3000, {**environment, "VLLM_DISABLE_COMPILE_CACHE": "1"}) == "cold"
    assert launch_vllm.compile_cache(3000, {**environment, "VLLM_DISABLE_COMPILE_CACHE": "0"}) == "warm"
    monkeypatch.setattr(Path, "glob", lambda *_: iter([tmp_path / "gone-in-between"]))
    assert launch_vllm.compile_cache(3000, environment) == "unknown"


def imports(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_standard_library_only() -> None:
    """The container holds no package of ours: what the launcher needs is the standard library and SERVED_FILES."""
    files = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in SERVED_FILES}
    assert "launch_vllm" in files
    for name in SERVED_FILES:
        for imported in imports(ROOT / name):
            assert imported in files or imported.partition(".")[0] in sys.stdlib_module_names, (name, imported)


def test_the_served_files_are_enough(tmp_path: Path) -> None:
    for name in SERVED_FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    # -S: no site-packages, as in the container, where ours are not installed
    command = [sys.executable, "-S", str(tmp_path / "launch_vllm.py"), "--mode", "ngram", "--print"]
    answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert json.loads(answer.stdout) == printed("--mode", "ngram")


@pytest.mark.parametrize(
    ("path", "loaded"), [(launch_vllm.MIDDLEWARE, ServerRecord), (launch_vllm.WORKER_EXTENSION, WorkerRecord)]
)
def test_what_vllm_loads_by_name(path: str, loaded: type) -> None:
    module, _, name = path.rpartition(".")
    assert (module, getattr(launch_vllm, name)) == (LAUNCHER.stem, loaded)


@pytest.mark.parametrize("mode", launch_vllm.MODES)
def test_the_docs_show_the_command(mode: str) -> None:
    """The exact line of --print, so that docs/operations.md cannot drift."""
    page = (ROOT / "docs" / "operations.md").read_text()
    assert f"launch_vllm.py --mode {mode} --print" in page
    assert json.dumps(printed("--mode", mode)) in page
