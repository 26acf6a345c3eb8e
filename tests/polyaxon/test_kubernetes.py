"""The objects that Polyaxon makes of our three files, held strictly against Kubernetes' own schemas."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from kubernetes_validate.utils import all_versions
from support import ROOT
from test_service_yaml import main_container, rendered

NEWEST = list(dict.fromkeys(map(str, all_versions())))[-3:]

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # Polyaxon's own


def with_options(folder: Path) -> Path:
    """service.yaml with the lines that it holds in comments: a token by reference, caches on a claim."""
    text = (ROOT / "service.yaml").read_text()
    service = folder / "service.yaml"
    service.write_text(re.sub(r"^( *)#(env:|volumeMounts:|volumes:|  - \{)", r"\1\2", text, flags=re.MULTILINE))
    return service


def objects(operation: dict[str, Any]) -> list[dict[str, Any]]:
    """What the operator makes of Polyaxon's own resource: a Job, or a Deployment and its Service."""
    metadata = operation["metadata"]
    if "batchJobSpec" in operation:
        termination = operation.get("termination", {})
        spec = {**operation["batchJobSpec"], **termination}
        return [{"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}]
    template, ports = operation["serviceSpec"]["template"], operation["serviceSpec"]["ports"]
    selector = {"app.kubernetes.io/instance": metadata["labels"]["app.kubernetes.io/instance"]}
    deployment = {"replicas": 1, "selector": {"matchLabels": selector}, "template": template}
    service = {"selector": selector, "ports": [{"name": str(port), "port": port} for port in ports]}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": deployment},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service},
    ]


FILES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "service.yaml, baseline": lambda _: rendered(mode="baseline"),
    "service.yaml, ngram": lambda _: rendered(mode="ngram", prefix_caching="on", num_speculative_tokens="3"),
    "service.yaml with its options": lambda folder: rendered(with_options(folder), mode="ngram"),
    "bench.yaml": lambda _: rendered(ROOT / "bench.yaml", service_run="c" * 32, mode="ngram"),
    "experiment.yaml": lambda _: rendered(ROOT / "experiment.yaml", queue="gpus/h200"),
}


def test_they_are_the_three_newest_versions_that_the_validator_has() -> None:
    minors = [int(version.split(".")[1]) for version in NEWEST]
    assert NEWEST[-1] == str(kubernetes_validate.latest_version())
    assert minors == [minors[-1] - 2, minors[-1] - 1, minors[-1]]


@pytest.mark.parametrize("version", NEWEST)
@pytest.mark.parametrize("name", FILES)
def test_every_object_is_valid(name: str, version: str, tmp_path: Path) -> None:
    for made in objects(FILES[name](tmp_path)):
        kubernetes_validate.validate(made, version, strict=True)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda container: container.update(livenesProbe={}),
        lambda container: container["resources"].update(requests={"cpu": ["4"]}),
        lambda container: container.update(ports=[{"containerPort": "http"}]),
        lambda container: container["env"].append({"value": "no name"}),
    ],
)
def test_an_object_that_kubernetes_would_refuse_is_found(spoil: Callable[[dict[str, Any]], object]) -> None:
    made = copy.deepcopy(objects(rendered(mode="ngram"))[0])
    spoil(main_container(made["spec"]["template"]["spec"]))
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(made, NEWEST[-1], strict=True)


def test_what_docs_operations_says_of_the_objects(tmp_path: Path) -> None:
    """Label of the pods, probes, limits, secrets by reference, the claim, shared memory."""
    deployment, service = objects(rendered(with_options(tmp_path), mode="ngram"))
    template = deployment["spec"]["template"]
    assert template["metadata"]["labels"]["app.kubernetes.io/instance"] == "a" * 32
    assert service["spec"]["ports"][0]["port"] == 8000
    spec, container = template["spec"], main_container(template["spec"])
    startup = container["startupProbe"]
    assert startup["httpGet"]["path"] == "/health"
    assert startup["periodSeconds"] * startup["failureThreshold"] == 30 * 60  # "waits 30 minutes"
    assert container["readinessProbe"]["httpGet"]["path"] == "/health" and "livenessProbe" not in container
    assert container["resources"]["limits"]["nvidia.com/gpu"] == container["resources"]["requests"]["nvidia.com/gpu"]
    references = {each["name"]: each["valueFrom"] for each in container["env"] if "valueFrom" in each}
    assert references["HF_TOKEN"] == {"secretKeyRef": {"name": "huggingface", "key": "token"}}
    volumes = {each["name"]: each for each in spec["volumes"]}
    assert volumes["cache"]["persistentVolumeClaim"] == {"claimName": "vllm-cache"}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory"}


def test_the_node_can_be_named_as_docs_operations_says(tmp_path: Path) -> None:
    line = re.search(r"`(environment: \{nodeSelector: .*\})`", (ROOT / "docs" / "operations.md").read_text())
    assert line
    service = tmp_path / "service.yaml"
    service.write_text((ROOT / "service.yaml").read_text().replace("\nrun:\n", f"\nrun:\n  {line[1]}\n"))
    (deployment, _) = objects(rendered(service, mode="ngram"))
    kubernetes_validate.validate(deployment, NEWEST[-1], strict=True)
    assert deployment["spec"]["template"]["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "NODE"}
