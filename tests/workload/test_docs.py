"""docs/workloads.md: its tour is what the commands print."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import HANG_S, ROOT

PAGE = (ROOT / "docs" / "workloads.md").read_text()


def block(name: str) -> str:
    found = re.search(rf"<!-- tour: {name} -->\n\n```\n(.*?)```", PAGE, re.S)
    assert found
    return found[1]


@pytest.mark.skipif(not shutil.which("jq") and not os.environ.get("CI"), reason="jq is not installed")
def test_the_tours_log_check_redaction_and_sample_are_as_printed(tmp_path: Path) -> None:
    for name in ("results", "workload.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def shell(script: str) -> str:
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=HANG_S, cwd=tmp_path,
                              env=environment, check=False)
        return done.stdout

    shell(block("log"))
    for name in ("check", "redact, sample"):
        commands = re.split(r"^\$ ", block(name), flags=re.M)[1:]
        for command, _, printed in (part.partition("\n") for part in commands):
            assert shell(command) == printed
