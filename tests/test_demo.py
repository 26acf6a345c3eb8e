"""What `make` installs: the lock is complete and portable, and the scripts need no more than requirements.txt says."""

import re
import subprocess
import sys
import textwrap
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support import HANG_S, ROOT

FILES = ("requirements.txt", "requirements-demo.txt", "requirements-forecast.txt", "requirements-test.txt")


def requirements(name: str) -> list[Requirement]:
    lines = [line.partition(" #")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    return [Requirement(line) for line in lines if line and not line.startswith(("#", "-r", "-c"))]


def locked() -> dict[str, list[Requirement]]:
    result: dict[str, list[Requirement]] = {}
    for requirement in requirements("requirements.lock"):
        result.setdefault(requirement.name, []).append(requirement)
    return result


def test_the_lock_names_no_index_and_no_path() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"https?:|file:|--(extra-)?index|--find-links|/", re.sub(r"#.*", "", text))


def test_the_demo_installs_all_that_the_scripts_import_but_polyaxon() -> None:
    scripts = {requirement.name for requirement in requirements("requirements.txt")}
    demo = {requirement.name for requirement in requirements("requirements-demo.txt")}
    assert scripts - demo == {"polyaxon"}


@pytest.mark.parametrize("name", FILES)
def test_every_requirement_is_locked_to_a_version_that_satisfies_it(name: str) -> None:
    lock = locked()
    for wanted in requirements(name):
        for pinned in lock[wanted.name]:
            (pin,) = pinned.specifier
            assert pin.operator == "==" and wanted.specifier.contains(pin.version), wanted


def test_the_lock_covers_every_python_and_system() -> None:
    systems = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")]
    for name, pins in locked().items():
        for python in ("3.10", "3.11", "3.12", "3.13", "3.14"):
            for system, machine in systems:
                environment = {
                    "python_version": python, "python_full_version": f"{python}.0", "sys_platform": system,
                    "platform_machine": machine, "platform_python_implementation": "CPython",
                }  # fmt: skip
                fitting = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(environment)]
                assert len(fitting) <= 1, f"{name} has two versions on {environment}"


def test_this_environment_is_the_locked_one() -> None:
    if not Path(sys.prefix).is_relative_to(ROOT):
        pytest.skip("not the environment that make makes")
    for pins in locked().values():
        for pin in pins:
            if pin.marker is None or pin.marker.evaluate():
                assert pin.specifier.contains(version(pin.name)), pin


@pytest.mark.parametrize("script", ["bench.py", "compare.py", "experiment.py", "forecast.py"])
def test_the_scripts_start_where_only_the_small_packages_are(tmp_path: Path, script: str) -> None:
    """On a GPU host: no polyaxon and nothing that it brings, no uvloop, no page, no engine."""
    (tmp_path / "sitecustomize.py").write_text(
        textwrap.dedent(
            """
            import sys
            class Absent:
                def find_spec(self, name, path=None, target=None):
                    if name.partition(".")[0] in {
                        "polyaxon", "clipped", "vents", "aiohttp", "orjson", "rich", "pydantic", "kubernetes",
                        "uvloop", "jinja2", "vl_convert", "xllamacpp", "requests",
                    }:
                        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            sys.meta_path.insert(0, Absent())
            """
        )
    )
    command = [sys.executable, str(ROOT / script), "--help"]
    environment = {"PYTHONPATH": str(tmp_path), "PATH": ""}
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=HANG_S, check=False)
    assert answer.returncode == 0, answer.stderr
