"""The experiment: deploy, measure each load, stop, prove the device free, the next one; then compare.

Every step is on disk before the next begins, so that after a crash, a signal or a reboot a later call ends what was
left running, keeps every finished result directory and goes on; at most the directory in progress is lost.
"""

import contextlib
import signal
import sys
import time
from pathlib import Path

from specbench import UserError
from specbench.deploy.next_steps import line_options
from specbench.deploy.processes import end_process, machine_boot, start_process, wait_until
from specbench.deploy.state import (
    MODES,
    PROMPTS,
    Comparison,
    Deployment,
    Device,
    Measurement,
    Memory,
    State,
    write_state,
)
from specbench.deploy.targets import ROOT, Target
from specbench.record.directory import check_unedited, read_manifest, read_summary
from specbench.record.format import REQUESTS
from specbench.record.provenance import now
from specbench.words import count, roughly

BENCH_GRACE_S = 20.0  # bench.py writes its files after SIGTERM
DEATH_PATIENCE_S = 20.0  # vLLM's server outlives its dead engine by some seconds


class Experiment:
    """The state on disk and the steps that change it.

    Args:
      folder: OUT, which holds the prompts unless the experiment keeps no text.
      prompts: the prompts, relative to it or absolute.
    """

    def __init__(self, folder: Path, state: State, target: Target, prompts: Path = Path(PROMPTS)) -> None:
        self.folder = folder
        self.prompts = prompts
        self.state = state
        self.target = target
        self.settings = state.settings

    def save(self) -> None:
        write_state(self.folder, self.state)

    def run(self) -> None:
        """Everything that is not done yet. Raises UserError with the sentence that says why it cannot go on."""
        state = self.state
        try:
            state.status, state.stopped, state.ended = "running", None, None
            self.save()
            self.note_device()
            self.end_leftovers()
            for index in range(1, len(self.settings.order) + 1):
                self.fill(index)
            for load in self.settings.concurrency:
                self.compare(load)
            state.status = "complete"
        except UserError as error:
            state.status, state.stopped = "stopped", str(error)
            raise
        except KeyboardInterrupt:
            state.status, state.stopped = "interrupted", "interrupted by a signal"
            self.end_all()  # the signal may have cut short the ending of a deployment; later ones are ignored
            raise
        finally:
            state.ended = now()
            self.save()

    def note_device(self) -> None:
        """What proofs are held against: GPU memory before the first deployment since this machine booted."""
        if self.state.device.boot != machine_boot():
            self.state.device = Device(machine_boot(), self.target.memory())

    def end_leftovers(self) -> None:
        """End what an earlier call may have left running, prove it gone, look at what it measured."""
        self.end_all()
        self.target.end_strays()
        self.look_again()
        for deployment in self.state.deployments:
            if deployment.proof is None:
                if deployment.status in ("starting", "ready"):
                    deployment.status = "interrupted"
                self.prove(deployment)

    def look_again(self) -> None:
        """A result directory that is gone, or is no longer what bench.py left, is measured again."""
        for deployment in self.state.deployments:
            for measurement in deployment.loads.values():
                if measurement.status == "done" and (fault := fault_of(self.folder / measurement.directory)):
                    measurement.status = "unfinished"
                    self.say(deployment, f"{measurement.directory} does not count and is measured again: {fault}")

    def end_all(self) -> None:
        """End whatever may still run of comparisons and of deployments not proven gone; twice does no harm."""
        for comparison in self.state.comparisons.values():
            end_process(comparison.process, grace_s=0)
        for deployment in self.state.deployments:
            if deployment.proof is None:
                self.end(deployment)
        self.save()

    # ---- one place in the order

    def missing(self, index: int) -> list[int]:
        """The loads that have no result directory yet at one place in the order."""
        return [load for load in self.settings.concurrency if self.state.directory(index, load) is None]

    def fill(self, index: int) -> None:
        """Deploy until every load of one place in the order has its directory."""
        for attempt in (1, 2):
            missing = self.missing(index)
            if not missing:
                return
            death = self.deploy(index, missing)
            if death and attempt == 2:
                raise UserError(f"the server of deployment {index} died twice under load; the last time {death}")
            if death:
                print(f"the server died: {death}\nonce more under a new name; the first one's files stay", flush=True)

    def deploy(self, index: int, loads: list[int]) -> str | None:
        """One server from start to proof. Returns how it died under load, None when it did not."""
        deployment = self.new_deployment(index)
        death = None
        try:
            began = time.monotonic()
            self.target.start(deployment, self.save)
            self.say(deployment, "starting" + (f", log {self.folder / deployment.log}" if deployment.log else ""))
            deployment.url = self.target.wait_ready(deployment)
            deployment.status, deployment.ready_s = "ready", round(time.monotonic() - began, 1)
            deployment.gpu_memory_mib.ready = self.target.memory()
            self.save()
            self.say(deployment, f"healthy after {deployment.ready_s:g} s")
            for load in loads:
                death = self.bench(deployment, load)
                if death:
                    break
            deployment.status = "died" if death else "done"
        except KeyboardInterrupt:
            deployment.status = "interrupted"
            raise
        except (UserError, OSError):
            deployment.status = "failed"
            raise
        finally:
            self.end(deployment)
            self.save()
        self.prove(deployment)
        return death

    def new_deployment(self, index: int) -> Deployment:
        """A deployment for one place in the order, in the state under a name of its own."""
        mode = MODES[self.settings.order[index - 1]]
        attempts = sum(deployment.index == index for deployment in self.state.deployments)
        name = f"{index:02d}-{mode}" + (f"-{attempts + 1}" if attempts else "")
        memory = Memory(free=self.state.device.gpu_memory_mib or None, before=self.target.memory())
        deployment = Deployment(
            index=index, name=name, mode=mode, status="starting", started=now(), gpu_memory_mib=memory
        )
        self.state.deployments.append(deployment)
        return deployment

    def bench(self, deployment: Deployment, load: int) -> str | None:
        """One result directory. Returns how the server died, None when it did not."""
        measurement = Measurement(directory=f"{deployment.name}-c{load}", status="running")
        deployment.loads[load] = measurement
        self.say(deployment, f"{count(load, 'user')}, {self.time_left()}")
        began = time.monotonic()
        command = self.bench_command(deployment, load)
        measurement.exit_code = start_process(command, measurement, self.save, cwd=self.folder).wait()
        measurement.seconds = round(time.monotonic() - began, 1)
        settle(measurement, self.folder)
        if measurement.status == "done" and deployment.compile_cache is None:
            deployment.compile_cache = _compile_cache(self.folder / measurement.directory)
        self.save()
        return self.death(deployment, measurement)

    def bench_command(self, deployment: Deployment, load: int) -> list[str]:
        command = [sys.executable, str(ROOT / "bench.py"), "--url", str(deployment.url), "--mode", deployment.mode]
        command += ["--concurrency", str(load), "--repeats", str(self.settings.repeats_at(load))]
        command += ["--seed", str(self.settings.seed_of(deployment.index)), "--prompts", str(self.prompts)]
        command += ["--max-tokens", str(self.settings.max_tokens), "--no-track"]
        command += ["--no-text"] * (not self.settings.keeps_text)
        return [*command, "--out", deployment.loads[load].directory, *self.target.bench_options(deployment)]

    def death(self, deployment: Deployment, measurement: Measurement) -> str | None:
        """How the server died under a measurement that ended, None when it serves; UserError when bench.py failed."""
        died: list[str | None] = [None]

        def has_died() -> bool:
            died[0] = self.target.died(deployment)
            return died[0] is not None

        # A dead engine's API server still answers for some seconds.
        wait_until(has_died, 0 if measurement.status == "done" else DEATH_PATIENCE_S)
        if died[0] is not None:
            return died[0]
        name = measurement.directory
        if _was_aborted(self.folder / name):
            return f"while bench.py wrote {name}, whose manifest.json says why"
        if measurement.status != "done":
            raise UserError(f"bench.py {_ending(measurement.exit_code)} on {name}; --resume measures it again")
        return None

    def end(self, deployment: Deployment) -> None:
        """End a deployment's processes, the client before the server, so that no stream is open."""
        for measurement in deployment.loads.values():
            if measurement.status == "running":
                end_process(measurement.process, BENCH_GRACE_S)
                settle(measurement, self.folder)
        self.target.stop(deployment)

    def prove(self, deployment: Deployment) -> None:
        """Prove the device free and keep what was proven; the next deployment starts only after this."""
        deployment.proof = self.target.prove_free(deployment)
        deployment.gpu_memory_mib.after = self.target.memory()
        self.save()
        unproven = [f"not proven: {sentence}" for sentence in deployment.proof.not_proven]
        self.say(deployment, "; ".join(["stopped", *deployment.proof.proven, *unproven]))

    # ---- comparing

    def compare(self, load: int) -> None:
        """compare.py over every deployment at one load. That it finds differences is a result, not a failure."""
        stem = f"compare-c{load}"
        json, markdown, text = f"{stem}.json", f"{stem}.md", f"{stem}.txt"
        for name in (json, markdown, text):
            (self.folder / name).unlink(missing_ok=True)
        comparison = Comparison(json=json, markdown=markdown, text=text, pairs=self.pairs(load))
        self.state.comparisons[load] = comparison
        first, *others = comparison.pairs
        command = [sys.executable, str(ROOT / "compare.py"), *first]
        for pair in others:
            command += ["--and", *pair]
        # Under load a baseline differs from itself; outputs that differ no more than that do not end the comparison.
        command += line_options(self.settings)
        command += ["--accept-floor", "--json", json, "--markdown", markdown]
        log = self.folder / text
        try:
            comparison.exit_code = start_process(command, comparison, self.save, log=log, cwd=self.folder).wait()
        finally:
            end_process(comparison.process, grace_s=0)
        self.save()
        if comparison.exit_code not in (0, 1) or not (self.folder / json).exists():
            raise UserError(
                f"compare.py ended with exit code {comparison.exit_code} at {count(load, 'user')}; "
                f"it said: {log.read_text()}"
            )

    def pairs(self, load: int) -> list[tuple[str, str]]:
        """(baseline, ngram) directories of every pair, in order of time."""
        order = self.settings.order
        pairs = []
        for first in range(1, len(order), 2):
            base, candidate = (first, first + 1) if order[first - 1] == "B" else (first + 1, first)
            pairs.append((str(self.state.directory(base, load)), str(self.state.directory(candidate, load))))
        return pairs

    # ---- saying

    def say(self, deployment: Deployment, text: str) -> None:
        print(f"[{deployment.index} of {len(self.settings.order)}] {deployment.name}: {text}", flush=True)

    def time_left(self) -> str:
        """What the rest will take, from what was measured so far."""
        seconds: dict[int, list[float]] = {}
        for deployment in self.state.deployments:
            for load, measurement in deployment.loads.items():
                if measurement.status == "done" and measurement.seconds:
                    seconds.setdefault(load, []).append(measurement.seconds)
        if not seconds:
            return "time left not known yet"
        means = {load: sum(times) / len(times) for load, times in seconds.items()}
        typical = sum(means.values()) / len(means)
        starts = [deployment.ready_s for deployment in self.state.deployments if deployment.ready_s]
        left = 0.0
        for index in range(1, len(self.settings.order) + 1):
            missing = self.missing(index)
            left += sum(means.get(load, typical) for load in missing)
            if missing and all(deployment.index != index for deployment in self.state.deployments):
                left += sum(starts) / len(starts)
        return f"about {roughly(left)} left"


def settle(measurement: Measurement, folder: Path) -> None:
    """A load whose bench.py is gone is done when its directory holds every request, whatever became of this script."""
    measurement.status = "unfinished" if fault_of(folder / measurement.directory) else "done"


def fault_of(directory: Path) -> str | None:
    """Why a result directory is not a whole run as bench.py left it, None when it is."""
    try:
        manifest, summary = read_manifest(directory), read_summary(directory)
        check_unedited(directory, manifest, summary)
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"{directory / REQUESTS} cannot be read ({error.strerror})"
    if manifest.status != "complete" or summary.requests.ok != summary.requests.scheduled:
        return f"its run is {manifest.status}, {summary.requests.ok} of {summary.requests.scheduled} requests are ok"
    return None


def _was_aborted(directory: Path) -> bool:
    """Whether bench.py gave up on a server that failed request after request or restarted."""
    with contextlib.suppress(UserError):
        return read_manifest(directory).status == "aborted"
    return False


def _ending(code: int | None) -> str:
    """How bench.py ended that left no whole directory. It says why when it ends by itself."""
    if code is not None and code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}" + (": it says why above" if code in (1, 2) else "")


def _compile_cache(directory: Path) -> str:
    """cold or warm, in the server's own word; unknown without one."""
    record = read_manifest(directory).server.record
    return str((record and record.get("compile_cache")) or "unknown")
