"""GPU memory as nvidia-smi shows it: what shows that a GPU is free, or is not."""

import os
import subprocess

TOLERANCE_MIB = 200


def gpu_memory() -> dict[str, int] | None:
    """MiB used per visible GPU ("0 NVIDIA H200"), None without nvidia-smi or GPU."""
    command = ["nvidia-smi", "--query-gpu=index,name,memory.used", "--format=csv,noheader,nounits"]
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        command.append(f"--id={os.environ['CUDA_VISIBLE_DEVICES']}")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        rows = [[field.strip() for field in line.split(",")] for line in answer.strip().splitlines()]
        return {f"{index} {name}": int(used) for index, name, used in rows} or None
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def memory_held(free: dict[str, int], used: dict[str, int] | None) -> list[str]:
    """The GPUs that hold more than when they were free, in words."""
    if used is None:
        return ["nvidia-smi does not answer"]
    return [
        f"{gpu} holds {used[gpu]} MiB, held {before} before" if gpu in used else f"{gpu} is no longer there"
        for gpu, before in free.items()
        if used.get(gpu, before + TOLERANCE_MIB + 1) > before + TOLERANCE_MIB
    ]
