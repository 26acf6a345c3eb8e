"""What is left of a run in its cluster after a stop, as kubectl shows it."""

import shutil
import subprocess

from specbench.words import printable


def pods_command(uuid: str, namespace: str | None) -> str:
    """The kubectl line that shows a run's pods, in every namespace where its own is not known."""
    where = f"-n {namespace}" if namespace else "-A"
    return f"kubectl get pods {where} -l app.kubernetes.io/instance={uuid} -o name"


def pods(uuid: str, namespace: str | None) -> list[str] | str:
    """Names of the run's pods, or the reason why kubectl cannot tell."""
    if shutil.which("kubectl") is None:
        return "kubectl is not installed here"
    try:
        done = subprocess.run(
            [*pods_command(uuid, namespace).split(), "--request-timeout=10s"],
            check=False, capture_output=True, text=True, timeout=30,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "kubectl did not answer within 30 s"
    if done.returncode:
        return f"kubectl: {printable((done.stderr.strip().splitlines() or ['no message'])[-1])}"
    return done.stdout.split()
