"""bench.py as a person meets it: terminals that are gone, signals, hostile servers, folders that vanish."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import HANG_S, ROOT
from support.bench_commands import bench, command, environment, wait_for_rows
from support.vllm_standin import StandIn, record

from specbench.record.directory import read_manifest, read_requests, read_summary

TOKEN = "t0ps3cretvalue"


def shell(line: str, out: Path, url: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """`line` in bash, where $BENCH is a whole measurement into `out`."""
    argv = " ".join(command(out, "--url", url))
    env = environment(BENCH=argv, **variables)
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=HANG_S, env=env, check=False)


@pytest.mark.parametrize(
    ("line", "variables"),
    [
        ("$BENCH 2>&1 | head -1; exit ${PIPESTATUS[0]}", {}),
        ("$BENCH >&-", {}),
        ("$BENCH >&- 2>&-", {}),
        ("$BENCH >/dev/full", {}),
        ("$BENCH >/dev/full 2>&1", {}),
        ("$BENCH", {"PYTHONIOENCODING": "ascii"}),
        ("$BENCH", {"PYTHONIOENCODING": "latin-1"}),
    ],
)
def test_a_dead_terminal_loses_nothing(tmp_path: Path, line: str, variables: dict[str, str]) -> None:
    with StandIn(record=record("baseline")) as server:
        done = shell(line, tmp_path / "baseline-c1", server.url, **variables)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    summary = read_summary(tmp_path / "baseline-c1")
    assert (summary.status, summary.requests.ok) == ("complete", 9)


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGHUP])
def test_every_way_to_end_a_run_keeps_what_was_measured(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out"
    with StandIn(record=record("baseline"), fault=lambda n: "hang" if n == 12 + 4 else None) as server:
        process = subprocess.Popen(command(out, "--url", server.url), env=environment(), stderr=subprocess.PIPE)
        wait_for_rows(out, 12 + 4)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=HANG_S)
    assert process.returncode == 130 and b"Traceback" not in stderr
    assert (read_manifest(out).status, read_summary(out).requests.ok) == ("interrupted", 4)


def test_under_nohup_a_closed_terminal_changes_nothing(tmp_path: Path) -> None:
    out, go_on = tmp_path / "out", tmp_path / "go on"

    def fault(number: int) -> None:
        while number == 12 + 4 and not go_on.exists():
            time.sleep(0.01)

    with StandIn(record=record("baseline"), fault=fault) as server:
        process = subprocess.Popen(["nohup", *command(out, "--url", server.url)], env=environment(), cwd=tmp_path,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        wait_for_rows(out, 12 + 4)
        process.send_signal(signal.SIGHUP)
        go_on.touch()
        process.communicate(timeout=HANG_S)
    assert process.returncode == 0 and read_summary(out).requests.ok == 9


@pytest.mark.parametrize("module", ["httpx", "msgspec", "prometheus_client", "specbench.client.run"])
def test_ctrl_c_while_it_starts_is_one_sentence(tmp_path: Path, module: str) -> None:
    """The signal comes as soon as the interpreter says that it has imported `module`."""
    out = tmp_path / "out"
    argv = [sys.executable, "-X", "importtime", *command(out, "--url", "http://127.0.0.1:1")[1:]]
    process = subprocess.Popen(argv, env=environment(), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.rstrip().endswith(f"| {module}") or line.rstrip().endswith(f" {module}"):
            break
    process.send_signal(signal.SIGINT)
    rest = [line for line in process.stderr if not line.startswith("import time:")]
    assert process.wait(HANG_S) == 130
    assert len(rest) == 1 and rest[0].startswith("bench.py: interrupted"), rest
    assert not out.exists()


def test_no_output_shows_the_token_of_a_server_that_echoes_it(tmp_path: Path) -> None:
    """A server that puts the Authorization header into whatever it sends: nothing that bench.py leaves shows it."""
    out = tmp_path / "out"
    echo = f"Authorization: Token {TOKEN}"
    echoing = record("baseline", environment={"ECHO": echo}, note=[{echo: echo}])
    with StandIn(record=echoing) as server:
        server.token = TOKEN
        server.models = [{"id": "m", "root": echo}]
        server.metrics_tail = f'vllm:echo{{header="{echo}"}} 1.0\n'
        server._stream = [part.replace(b'"The"', json.dumps(echo).encode()) for part in server._stream]
        server.error_text = f"the engine died after {echo}"
        server.fault = lambda number: "error event" if number == 15 else None
        done = bench(out, POLYAXON_TOKEN=TOKEN, SERVICE_URL=server.url)
    assert done.returncode == 1, done.stderr
    written = {path.name: path.read_text() for path in out.iterdir()}
    assert TOKEN not in "".join([done.stdout, done.stderr, *written.values()])
    assert all("REDACTED" in written[name] for name in ("requests.jsonl", "manifest.json", "metrics-after.txt"))
    assert "stream_error, for example" in done.stdout and "REDACTED" in done.stdout
    assert len(list(read_requests(out))) == 12 + 9


@pytest.mark.parametrize("what", ["deleted", "read-only"])
def test_a_folder_that_is_gone_is_one_sentence(tmp_path: Path, what: str) -> None:
    out = tmp_path / "out"

    def fault(number: int) -> None:
        if number == 12 + 8:
            shutil.rmtree(out)
            if what == "read-only":
                out.write_text("a file in its place")

    with StandIn(record=record("baseline"), fault=fault) as server:
        done = bench(out, "--url", server.url)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"bench.py: cannot write the results to {out}: ")


def test_the_next_command_is_named(tmp_path: Path) -> None:
    base, candidate = tmp_path / "baseline-c1", tmp_path / "ngram-c1"
    with StandIn(record=record("baseline")) as server:
        done = bench(base, "--url", server.url)
    compare = f"python compare.py {base} {candidate}"
    assert done.stdout.splitlines()[-1] == (
        f"next: deploy the ngram mode, measure it in the same way, and then {compare}"
    )
    with StandIn("ngram", record=record("ngram")) as server:
        done = bench(candidate, "--url", server.url)
    assert done.stdout.splitlines()[-1] == f"next: {compare}"
    assert subprocess.run(compare.replace("python", sys.executable, 1).split(), cwd=ROOT, capture_output=True,
                          check=False).returncode in (0, 1)  # fmt: skip


def test_users_without_a_request_are_no_load(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with StandIn(record=record("baseline")) as server:
        done = bench(out, "--url", server.url, "--concurrency", "64")
    manifest = read_manifest(out)
    assert (manifest.concurrency, manifest.users) == (64, 9)
    assert "9 requests occupy 9 of 64 users: that is the load that was measured" in done.stdout
    assert "measuring 9 requests, 9 at a time" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--concurrency", "1000000"], "is more than 10000"),
        (["--seed", str(2**63)], "is more than"),
        (["--max-tokens", "99999999999"], "is more than"),
        (["--url", "http://h:8000/v1"], "the URL ends in /v1, which bench.py adds by itself: give http://h:8000"),
        (["--url", "http://h/v1/"], "give http://h"),
        (["--url", "http://h/v1/chat/completions"], "ends in /v1/chat/completions, which bench.py adds"),
        (["--url", "http://h/gateway/health"], "give http://h/gateway"),
        (["--out", ""], "argument --out: the name is empty"),
        (["--prompts", " "], "argument --prompts: the name is empty"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = bench(tmp_path / "out", *arguments)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


def test_more_users_than_open_files_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text(
        json.dumps({"id": "a", "family": "f", "messages": [{"role": "user", "content": "x"}]})
    )
    argv = command(tmp_path / "out", "--url", "http://127.0.0.1:1", "--concurrency", "500", "--repeats", "500",
                   "--prompts", str(tmp_path / "prompts.jsonl"))  # fmt: skip
    line = f"ulimit -n 100; {' '.join(argv)}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 2 and "500 users need 564 open files and this shell allows 100" in done.stderr


def test_names_that_are_no_utf_8_are_stored_by_their_bytes(tmp_path: Path) -> None:
    with StandIn(record=record("baseline")) as server:
        argv = [*command(tmp_path / "out", "--url", server.url, "--client-location"), b"caf\xe9"]
        done = subprocess.run(argv, capture_output=True, timeout=HANG_S, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    manifest = read_manifest(tmp_path / "out")
    assert (manifest.client.location, manifest.command[-1]) == (r"caf\udce9", r"caf\udce9")


# ---- a server that is several, or whose mode nobody tells


def test_several_servers_behind_one_address_are_no_restart(tmp_path: Path) -> None:
    with StandIn(record=record("baseline")) as server:
        server.start_times = [1.0, 2.0]
        done = bench(tmp_path / "out", "--url", server.url)
    assert done.returncode == 2 and "several servers answer at" in done.stderr and "restarted" not in done.stderr


def test_a_mode_that_nobody_tells_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with StandIn() as server:
        server.has_metrics = False
        done = bench(tmp_path / "out", "--url", server.url)
        assert done.returncode == 2 and "give --mode, without which compare.py could not use" in done.stderr
        assert server.chats == 12 and not (tmp_path / "out").exists()
        assert bench(tmp_path / "out", "--url", server.url, "--mode", "baseline").returncode == 0
    assert read_manifest(tmp_path / "out").mode_verified["how"] == "not verified"


def test_one_bad_line_of_metrics_loses_itself_alone_and_is_said(tmp_path: Path) -> None:
    with StandIn(record=record("baseline")) as server:
        server.metrics_tail = 'vllm:damaged{a="b} 3\n'
        done = bench(tmp_path / "out", "--url", server.url)
    assert read_summary(tmp_path / "out").server.generation_tokens == 9 * 67
    assert 'of GET /metrics could not be read, while all others count; the first: vllm:damaged{a="b} 3' in done.stdout
