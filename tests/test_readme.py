"""The README says what the programs say: its figures, its printed output, its commands and its links."""

import re
import shlex
import subprocess
import sys

import pytest
from support import ROOT

README = (ROOT / "README.md").read_text()
DOORS = ("bench.py", "compare.py", "experiment.py", "report.py", "forecast.py", "workload.py", "launch_local.py")


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 200


def test_the_forecast_is_what_forecast_py_prints() -> None:
    block = re.search(r"```\n\$ (python forecast\.py .*?)```", README, re.DOTALL)
    assert block is not None
    command, *shown = block[1].rstrip().split("\n")
    answer = subprocess.run(
        [sys.executable, *shlex.split(command)[1:]], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert all(line in answer.split("\n") for line in shown)


def test_every_link_leads_to_a_file() -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("door", DOORS)
def test_every_option_in_a_command_exists(door: str) -> None:
    answer = subprocess.run([sys.executable, door, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    commands = re.findall(rf"python {re.escape(door)}([^\n`#]*)", README)
    options = {word for command in commands for word in re.findall(r"(?<!\S)--?[a-z][a-z-]*", command.split(" -- ")[0])}
    assert commands and all(re.search(rf"(?<![\w-]){option}\b", answer.stdout) for option in options)
