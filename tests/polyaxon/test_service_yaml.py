"""service.yaml: what Polyaxon 2.18 accepts, and the Kubernetes object it makes of it. And what `-u` uploads.

`polyaxon check` alone is not enough: it passes an undefined {{ name }}, which then renders to nothing.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import ROOT

import launch_vllm
from specbench.redaction import SECRET_NAME

SERVICE = ROOT / "service.yaml"
RUN = "a" * 32
STORE = "/plx-context/artifacts"

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # Polyaxon's own


def component() -> dict[str, Any]:
    loaded = yaml.safe_load(SERVICE.read_text())
    assert isinstance(loaded, dict)
    return loaded


def rendered(path: Path = SERVICE, **parameters: str) -> dict[str, Any]:
    """The Kubernetes object, as the operator would get it from Polyaxon's own converter."""
    from kubernetes.client import ApiClient
    from polyaxon import settings
    from polyaxon._connections import V1ClaimConnection, V1Connection
    from polyaxon._k8s.executor.executor import Executor
    from polyaxon._polyaxonfile import check_polyaxonfile
    from polyaxon._schemas.agent import AgentConfig

    store = V1Connection(
        name="store", kind="volume_claim", schema_=V1ClaimConnection(volume_claim="claim", mount_path="/tmp/store")
    )
    settings.set_agent_config(AgentConfig(namespace="polyaxon", artifacts_store=store))
    operation = check_polyaxonfile(polyaxonfile=str(path), params=parameters, is_cli=False)
    resource = Executor.make_and_convert(
        owner_name="me",
        project_name="demo",
        run_uuid=RUN,
        run_name="run",
        content=operation.to_json(),
        default_auth=False,
    )
    result = ApiClient().sanitize_for_serialization(resource)
    assert isinstance(result, dict)
    return result


@cache
def pod(**parameters: str) -> dict[str, Any]:
    spec = rendered(**parameters)["serviceSpec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def main_container(spec: dict[str, Any]) -> dict[str, Any]:
    (container,) = [each for each in spec["containers"] if each["name"] == "polyaxon-main"]
    assert isinstance(container, dict)
    return container


def check(*options: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("polyaxon")
    environment = {**os.environ, "COLUMNS": "400"}
    command = [str(program), "check", "-f", str(SERVICE), *options]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=environment)


def test_polyaxon_check_accepts_a_mode() -> None:
    answer = check("-P", "mode=ngram")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "valid" in answer.stdout


def test_polyaxon_check_refuses_an_unknown_mode() -> None:
    answer = check("-P", "mode=eagle")
    assert answer.returncode == 1
    assert "['baseline', 'ngram']" in answer.stdout + answer.stderr


def test_polyaxon_check_refuses_no_mode() -> None:
    assert check().returncode == 1


@pytest.mark.parametrize(
    "parameters",
    [
        {"prefix_caching": "maybe"},
        {"prefix_caching": "true"},
        {"cudagraph_mode": "piecewise"},
        {"num_speculative_tokens": "0"},
        {"num_speculative_tokens": "129"},
        {"num_speculative_tokens": "five"},
        {"prompt_lookup_min": "0"},
        {"prompt_lookup_max": "0"},
        {"mod": "ngram"},
    ],
    ids=str,
)
def test_other_values_are_refused(parameters: dict[str, str]) -> None:
    from polyaxon._polyaxonfile import check_polyaxonfile
    from polyaxon.exceptions import PolyaxonfileError

    with pytest.raises(PolyaxonfileError) as refusal:
        check_polyaxonfile(
            polyaxonfile=str(SERVICE), params={"mode": "ngram", **parameters}, is_cli=False, strict_params=True
        )
    assert f"`{next(iter(parameters))}`" in str(refusal.value.__cause__)


@pytest.mark.parametrize(
    "parameters",
    [
        {"mode": "baseline"},
        {"mode": "ngram"},
        {"mode": "baseline", "prefix_caching": "on"},
        {"mode": "baseline", "cudagraph_mode": "vllm-default"},
        {"mode": "ngram", "cudagraph_mode": "vllm-default"},
        {"mode": "ngram", "prefix_caching": "on"},
        {"mode": "ngram", "num_speculative_tokens": "3", "prompt_lookup_min": "1", "prompt_lookup_max": "1"},
    ],
    ids=str,
)
def test_the_container_runs_the_command_that_is_meant(parameters: dict[str, str]) -> None:
    """The rendered arguments go through the launcher, and give what the same options give by hand."""
    container = main_container(pod(**parameters))
    assert container["command"] == ["python3", "launch_vllm.py"]
    assert all(isinstance(argument, str) for argument in container["args"])
    door = launch_vllm.parser()
    launch = launch_vllm.checked(door.parse_args(container["args"]))
    by_hand = ["--host", "0.0.0.0"]
    for name, value in parameters.items():
        by_hand += [f"--{name.replace('_', '-')}", value]
    assert launch == launch_vllm.checked(door.parse_args(by_hand))
    assert launch.port == 8000


def test_defaults_and_digest_are_the_launchers() -> None:
    defaults = {each["name"]: each.get("value") for each in component()["inputs"]}
    assert defaults == {
        "mode": None,
        "prefix_caching": "off",
        "cudagraph_mode": "full",
        "num_speculative_tokens": launch_vllm.NUM_SPECULATIVE_TOKENS,
        "prompt_lookup_min": launch_vllm.PROMPT_LOOKUP_MIN,
        "prompt_lookup_max": launch_vllm.PROMPT_LOOKUP_MAX,
    }
    validation = {each["name"]: each["validation"] for each in component()["inputs"]}
    assert tuple(validation["mode"]["options"]) == launch_vllm.MODES
    assert tuple(validation["cudagraph_mode"]["options"]) == launch_vllm.CUDAGRAPH_MODES
    assert validation["num_speculative_tokens"]["le"] == launch_vllm.MAX_SPECULATIVE_TOKENS
    assert re.search(rf"{launch_vllm.IMAGE}  # v{re.escape(launch_vllm.VLLM_VERSION)}$", SERVICE.read_text(), re.M)


@pytest.mark.parametrize("mode", launch_vllm.MODES)
def test_the_pod(mode: str) -> None:
    spec = pod(mode=mode)
    container = main_container(spec)
    assert container["image"] == launch_vllm.IMAGE
    assert re.search(r"@sha256:[0-9a-f]{64}$", container["image"])
    assert container["workingDir"] == f"{STORE}/{RUN}/uploads"
    assert container["ports"] == [{"containerPort": 8000}]
    for kind in ("requests", "limits"):
        assert container["resources"][kind]["nvidia.com/gpu"] == "1"
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": 8000}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 1200  # 8 GB to download, then 96 s to compile
    assert "livenessProbe" not in container  # a server that is slow under load must not be killed for it
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in spec["volumes"]


def test_the_service() -> None:
    resource = rendered(mode="ngram")
    assert resource["kind"] == "Service"
    assert resource["serviceSpec"]["ports"] == [8000]
    assert "isExternal" not in resource["serviceSpec"]
    assert resource["termination"] == {"activeDeadlineSeconds": 14400}  # and no retries: a restart must be seen
    run = component()["run"]
    assert run["rewritePath"] is True and not run.get("isExternal")


@pytest.mark.parametrize("mode", launch_vllm.MODES)
def test_no_plain_secret(mode: str) -> None:
    environment = {each["name"]: each for each in main_container(pod(mode=mode))["env"]}
    assert "HF_TOKEN" not in environment  # the default needs no Secret
    plain = [name for name, each in environment.items() if "value" in each and SECRET_NAME.search(name)]
    assert plain == []
    assert environment["POLYAXON_RUN_INSTANCE"]["value"] == f"me.demo.runs.{RUN}"
    assert launch_vllm.polyaxon_run({"POLYAXON_RUN_INSTANCE": f"me.demo.runs.{RUN}"}) == RUN


def test_every_variable_is_defined() -> None:
    text = "\n".join(line for line in SERVICE.read_text().splitlines() if not line.lstrip().startswith("#"))
    used = set(re.findall(r"{{\s*([\w.]+)\s*}}", text))
    inputs = {each["name"] for each in component()["inputs"]}
    assert inputs <= used, "an input that nothing uses"
    assert used - inputs == {"globals.run_artifacts_path"}
    assert "{{" not in json.dumps(pod(mode="ngram"))


def test_the_options_in_comments_work(tmp_path: Path) -> None:
    """Uncommented, they give the token by reference and both caches on the claim."""
    text, count = re.subn(
        r"^( *)#(env:|volumeMounts:|volumes:|  - \{)", r"\1\2", SERVICE.read_text(), flags=re.MULTILINE
    )
    assert count == 8
    service = tmp_path / "service.yaml"
    service.write_text(text)
    spec = rendered(service, mode="baseline")["serviceSpec"]["template"]["spec"]
    container = main_container(spec)
    environment = {each.pop("name"): each for each in container["env"]}
    assert environment["HF_TOKEN"] == {"valueFrom": {"secretKeyRef": {"name": "huggingface", "key": "token"}}}
    mounted = next(each["mountPath"] for each in container["volumeMounts"] if each["name"] == "cache")
    for name in ("HF_HOME", "VLLM_CACHE_ROOT"):
        assert environment[name]["value"].startswith(mounted + "/")
    assert {"name": "cache", "persistentVolumeClaim": {"claimName": "vllm-cache"}} in spec["volumes"]


def uploaded(folder: Path, start: str = ".") -> dict[str, int]:
    """Files that `polyaxon run -u` would send from this folder, with their sizes."""
    from polyaxon._managers.ignore import IgnoreConfigManager

    before = Path.cwd()
    os.chdir(folder)
    try:
        patterns = IgnoreConfigManager.get_push_patterns()
        files = IgnoreConfigManager.get_unignored_filepaths(path=start, addtional_patterns=patterns)
        return {os.path.relpath(each, start if start != "." else folder): os.path.getsize(each) for each in files}
    finally:
        os.chdir(before)


NEVER_UPLOADED = [
    ".env",
    ".env.local",
    ".git/config",
    ".venv/lib/big.py",
    ".venv-haupt/lib/big.py",
    ".mypy_cache/a.json",
    ".pytest_cache/a",
    "__pycache__/launch_vllm.cpython-312.pyc",
    "results/demo/baseline-c1/requests.jsonl",
    "baseline-c1/requests.jsonl",
    "ngram-c8/summary.json",
    "ngram2-c16/notes.txt",
    "anything/requests.jsonl",
    "anything/manifest.json",
    "anything/summary.json",
    "anything/metrics-before.txt",
    "anything/metrics-after.txt",
    "experiments/monday/experiment.json",
    "experiments/monday/report.html",
    "production-prompts.jsonl",
    "tests/test_bench.py",
    "docs/operations.md",
]


@pytest.mark.parametrize("start", [".", "absolute"])
def test_upload_of_a_used_folder(start: str, tmp_path: Path) -> None:
    """Also when the folder is given by path, as the Python client may."""
    for name in [".polyaxonignore", "launch_vllm.py", "bench.py", "prompts.jsonl", "service.yaml"]:
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "specbench" / "client").mkdir(parents=True)
    (tmp_path / "specbench" / "client" / "load.py").write_text("")
    for name in NEVER_UPLOADED:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    sent = uploaded(tmp_path, "." if start == "." else str(tmp_path))
    assert {"launch_vllm.py", "prompts.jsonl", "specbench/client/load.py"} <= set(sent)
    assert set(sent) & set(NEVER_UPLOADED) == set()


def test_upload_of_this_folder(tmp_path: Path) -> None:
    """Small, and enough to run what the cluster runs."""
    sent = uploaded(ROOT)
    assert sum(sent.values()) < 1_000_000, sorted(sent.items(), key=lambda item: -item[1])[:5]
    assert not any(name.startswith((".git/", ".venv", "results/", "tests/", "docs/")) for name in sent)
    for name in sent:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for program in ("launch_vllm.py", "bench.py"):
        command = [sys.executable, str(tmp_path / program), "--help"]
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert answer.returncode == 0, answer.stderr
