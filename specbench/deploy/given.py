"""What the command line of experiment.py gives. Imports nothing large: the script starts with it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

TargetName = Literal["local", "vllm", "polyaxon"]


@dataclass
class Given:
    """The command line of experiment.py; None is what it does not name."""

    out: Path
    resume: bool = False
    target: TargetName | None = None
    order: str | None = None
    concurrency: str | None = None
    repeats: int | None = None
    max_tokens: int | None = None
    prompts: Path | None = None
    no_text: bool = False
    port: int | None = None
    startup_timeout: float = 1800.0
    project: str | None = None
    owner: str | None = None
    queue: str | None = None
    approve: bool = False
    insecure_http: bool = False
    track: bool | None = None
    mix: str | None = None
    primary: str | None = None
    launcher_options: list[str] = field(default_factory=list)
