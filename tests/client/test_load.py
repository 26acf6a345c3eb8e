"""The closed loop: who sends what when, when it stops, and what is on disk whatever happens."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import HANG_S, ROOT
from support.scripted_server import DONE, END, GOOD, STREAM_HEAD, Do, Scripted, Step, chunk, event, plain, stream

from specbench.client import load, transport
from specbench.client.load import ClosedLoop, LoadResult, Progress
from specbench.client.request import RequestSettings
from specbench.client.transport import StreamTransport
from specbench.record.format import ClientHealth, Request
from specbench.workload.case import Case
from specbench.workload.schedule import Item

DEAD = plain("500 Internal Server Error", b'{"error": {"message": "engine died"}}')


def schedule(count: int) -> list[Item]:
    return [
        Item(Case(f"c{number % 3}", "f", [{"role": "user", "content": f"{number}"}], None, None), number // 3, number)
        for number in range(count)
    ]


def run(
    answer: Callable[[int], Sequence[Step]],
    count: int,
    users: int,
    *,
    sink: Callable[[Request], object] | None = None,
    server_changed: Callable[[], Awaitable[str | None]] | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> tuple[LoadResult, list[Request], Scripted]:
    rows: list[Request] = []

    async def test() -> tuple[LoadResult, list[Request], Scripted]:
        client = StreamTransport()
        async with Scripted(answer) as server:
            loop = ClosedLoop(
                schedule(count),
                phase="measured",
                concurrency=users,
                transport=client,
                settings=RequestSettings(url=server.url, model="m", inactivity_timeout_s=HANG_S),
                zero_ns=time.perf_counter_ns(),
                sink=sink or rows.append,
                server_changed=server_changed,
                progress=progress,
            )
            result = await loop.run()
            await client.aclose()
            return result, rows, server

    return asyncio.run(test())


def test_every_item_is_sent_once_and_becomes_one_row() -> None:
    result, rows, server = run(lambda _: stream(*GOOD), 20, 4)
    assert (result.stopped, result.done, result.failures, len(server.requests)) == (None, 20, 0, 20)
    assert sorted(row.position for row in rows if row.position is not None) == list(range(20))
    assert {row.user for row in rows} == {0, 1, 2, 3}
    sent = sorted(
        json.loads(request.partition(b"\r\n\r\n")[2])["messages"][0]["content"] for request in server.requests
    )
    assert sent == sorted(map(str, range(20)))
    row = rows[-1]
    item = schedule(20)[row.position or 0]
    assert (row.case, row.family, row.repeat, row.phase) == (item.case.id, "f", item.repeat, "measured")
    assert row.prompt_sha256 == item.case.sha256
    assert row.ttft_s is not None and row.e2el_s is not None and row.decode_s is not None
    assert row.start_s > 0 and 0 < row.ttft_s <= row.e2el_s and row.decode_s == pytest.approx(row.e2el_s - row.ttft_s)
    assert (row.text, row.outcome, row.http_status, row.response_id) == ("sea", "ok", 200, "r1")


def test_there_are_never_more_requests_at_once_than_users() -> None:
    running, most = 0, 0

    class Counting(Scripted):
        async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            try:
                await super()._serve(reader, writer)
            finally:
                running -= 1

    async def test() -> None:
        steps = [STREAM_HEAD, 0.02, *(chunk(part) for part in GOOD), END, Do.CLOSE]
        client = StreamTransport()
        async with Counting(lambda _: steps) as server:
            loop = ClosedLoop(
                schedule(12), phase="measured", concurrency=3, transport=client, zero_ns=0, sink=lambda _: None,
                settings=RequestSettings(url=server.url, model="m"),
            )  # fmt: skip
            await loop.run()

    asyncio.run(test())
    assert most == 3


def test_there_are_no_more_users_than_items() -> None:
    _, rows, server = run(lambda _: stream(*GOOD), 2, 64)
    assert {row.user for row in rows} == {0, 1}
    assert server.connections == 2


def test_the_run_goes_on_after_a_failure_and_retries_nothing() -> None:
    bad: dict[int, Sequence[Step]] = {
        1: DEAD,
        3: [STREAM_HEAD, chunk(event("a")), Do.CLOSE],
        5: stream(b'data: {"error": {"message": "no"}}\n\n', DONE),
    }
    result, rows, server = run(lambda number: bad.get(number, stream(*GOOD)), 10, 1)
    assert (result.stopped, result.done, result.failures, len(server.requests)) == (None, 10, 3, 10)
    assert [row.outcome for row in rows if row.outcome != "ok"] == ["http_error", "disconnected", "stream_error"]


# ---- stopping


@pytest.mark.parametrize(("users", "failures"), [(1, 5), (8, 8)])
@pytest.mark.parametrize("steps", [DEAD, [Do.CLOSE]], ids=["500", "closed"])
def test_a_dead_server_stops_the_run(users: int, failures: int, steps: Sequence[Step]) -> None:
    result, rows, server = run(lambda number: stream(*GOOD) if number < 3 else steps, 200, users)
    assert result.stopped is not None and f"{failures} requests in a row failed, the last with" in result.stopped
    assert failures <= result.failures < failures + users
    assert len(rows) == result.done < 40
    assert len(server.requests) < 40


def test_a_server_that_is_gone_stops_the_run(free_port: int) -> None:
    rows: list[Request] = []
    settings = RequestSettings(url=f"http://127.0.0.1:{free_port}", model="m")

    async def test() -> LoadResult:
        loop = ClosedLoop(
            schedule(50), phase="measured", concurrency=2, transport=StreamTransport(), settings=settings, zero_ns=0,
            sink=rows.append,
        )  # fmt: skip
        return await loop.run()

    result = asyncio.run(test())
    assert result.stopped is not None and "connect_error" in result.stopped and str(free_port) in result.stopped
    assert {row.outcome for row in rows} == {"connect_error"}


def test_refusals_and_scattered_failures_do_not_stop_it() -> None:
    refused = plain("400 Bad Request", b"too long")
    result, _, _ = run(lambda number: refused if number % 2 else DEAD, 30, 1)
    assert (result.stopped, result.failures) == (None, 30)


def test_a_server_that_restarted_stops_the_run() -> None:
    asked = 0

    async def changed() -> str | None:
        nonlocal asked
        asked += 1
        return "the server restarted"

    result, _, _ = run(lambda number: DEAD if number == 2 else [0.01, *stream(*GOOD)], 200, 1, server_changed=changed)
    assert (result.stopped, asked) == ("the server restarted", 1)
    assert result.done < 200


def test_the_server_is_not_asked_after_a_success_or_a_refusal() -> None:
    async def changed() -> str | None:
        raise AssertionError("asked")

    run(lambda number: plain("404 Not Found", b"") if number % 2 else stream(*GOOD), 6, 1, server_changed=changed)


def test_a_stop_loses_no_request_that_had_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """All answers end in one turn of the loop; the first of them stops the run before the turns of the others."""
    client = StreamTransport()
    rows: list[Request] = []
    sent: list[int] = []

    async def test() -> LoadResult:
        waiting: list[Callable[[], object]] = []

        def hold_until_all_have_ended(release: Callable[[], object]) -> None:
            waiting.append(release)
            if len(waiting) == 5:
                asyncio.get_running_loop().call_soon(waiting[0])
            elif len(waiting) > 5:  # a request that should not have been sent
                asyncio.get_running_loop().call_soon(release)

        monkeypatch.setattr(client._turns, "add", hold_until_all_have_ended)

        def stop_at_once(self: Any, exchange: load.Exchange) -> None:
            sent.append(exchange.arrival.status)
            self._stop("enough")

        monkeypatch.setattr(load.ClosedLoop, "_count_failures", stop_at_once)
        async with Scripted(lambda _: stream(*GOOD)) as server:
            five = ClosedLoop(
                schedule(50), phase="measured", concurrency=5, transport=client, zero_ns=0, sink=rows.append,
                settings=RequestSettings(url=server.url, model="m", timeout_s=HANG_S),
            )  # fmt: skip
            result = await five.run()
            assert len(server.requests) == 5  # and not one more by the user that stopped the run
        return result

    result = asyncio.run(test())
    assert (result.stopped, result.done, sent) == ("enough", 5, [200] * 5)
    assert [row.outcome for row in rows] == ["ok"] * 5


def test_a_cancellation_loses_no_request_that_had_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    client = StreamTransport()
    rows: list[Request] = []

    async def test() -> None:
        ended: list[object] = []

        def cancel_when_all_have_ended(release: Callable[[], object]) -> None:
            ended.append(release)
            if len(ended) == 4:
                run.cancel()
            elif len(ended) > 4:  # a request that should not have been sent
                asyncio.get_running_loop().call_soon(release)

        monkeypatch.setattr(client._turns, "add", cancel_when_all_have_ended)
        async with Scripted(lambda _: stream(*GOOD)) as server:
            four = ClosedLoop(
                schedule(50), phase="measured", concurrency=4, transport=client, zero_ns=0, sink=rows.append,
                settings=RequestSettings(url=server.url, model="m", timeout_s=HANG_S),
            )  # fmt: skip
            run = asyncio.create_task(four.run())
            with pytest.raises(asyncio.CancelledError):
                await run
            assert len(server.requests) == 4

    asyncio.run(test())
    assert [row.outcome for row in rows] == ["ok"] * 4


# ---- rows and disks


def test_rows_are_written_off_the_loop_in_the_order_of_completion() -> None:
    threads, positions = set(), []

    def sink(row: Request) -> None:
        threads.add(threading.current_thread())
        positions.append(row.position)

    run(lambda _: stream(*GOOD), 10, 1, sink=sink)
    assert positions == list(range(10))
    assert threading.main_thread() not in threads and len(threads) == 1


def test_a_disk_that_blocks_holds_up_no_request() -> None:
    """All requests end while the first row is still being written."""
    released = threading.Event()
    rows: list[Request] = []

    def sink(row: Request) -> None:
        assert released.wait(HANG_S)
        rows.append(row)

    def answer(number: int) -> Sequence[Step]:
        if number == 11:
            released.set()
        return stream(*GOOD)

    run(answer, 12, 2, sink=sink)
    assert len(rows) == 12


def test_a_full_disk_stops_the_run_and_says_so() -> None:
    rows: list[Request] = []

    def sink(row: Request) -> None:
        if len(rows) == 3:
            raise OSError(28, "No space left on device")
        rows.append(row)

    result, _, server = run(lambda number: stream(*GOOD) if number < 10 else [Do.HANG], 100, 2, sink=sink)
    assert result.stopped == "the results could not be written: No space left on device"
    assert len(rows) == 3
    assert len(server.requests) <= 12  # without the stop the run would hang here


CANCELLED = """
    import asyncio, sys
    sys.path[:0] = {path!r}
    from pathlib import Path
    from support.scripted_server import *
    from specbench.client.load import ClosedLoop, run_event_loop
    from specbench.client.request import RequestSettings
    from specbench.client.transport import StreamTransport
    from specbench.record.directory import ResultDirectory
    from specbench.workload.case import Case
    from specbench.workload.schedule import Item

    case = Case("c", "f", [{{"role": "user", "content": "x"}}], None, None)
    items = [Item(case, 0, position) for position in range(60)]

    async def main():
        out = ResultDirectory(Path({out!r}))
        good = [STREAM_HEAD, 0.01, *map(chunk, GOOD), END]
        async with Scripted(lambda number: [Do.HANG] if number >= 20 else good) as server:
            print("ready", flush=True)
            settings = RequestSettings(url=server.url, model="m")
            try:
                await ClosedLoop(
                    items, phase="measured", concurrency=2, transport=StreamTransport(), zero_ns=0, settings=settings,
                    sink=out.append
                ).run()
            except asyncio.CancelledError:
                out.close()
                print("cancelled", flush=True)

    run_event_loop(main)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_every_finished_request_on_disk(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out"
    code = textwrap.dedent(CANCELLED).format(path=[str(ROOT / "tests"), str(ROOT)], out=str(out))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        lines: list[bytes] = []
        deadline = time.monotonic() + HANG_S
        while len(lines) < 20 and time.monotonic() < deadline:
            time.sleep(0.05)
            if (out / "requests.jsonl").exists():
                lines = (out / "requests.jsonl").read_bytes().splitlines()
        os.kill(process.pid, number)
        printed, _ = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    content = (out / "requests.jsonl").read_bytes()
    assert content.endswith(b"\n")
    rows: list[dict[str, Any]] = [json.loads(line) for line in content.splitlines()]
    assert sorted(row["position"] for row in rows) == list(range(20))
    assert {row["outcome"] for row in rows} == {"ok"}
    assert ("cancelled" in printed) is (number != signal.SIGKILL)
    assert process.returncode == (0 if number != signal.SIGKILL else -signal.SIGKILL)


# ---- health and progress


def test_the_clients_health_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PROBATION_NS", 0)
    result, _, _ = run(lambda _: [STREAM_HEAD, 0.05, *(chunk(part) for part in GOOD), END], 8, 2)
    assert all(value is not None and value >= 0 for value in msgspec.structs.astuple(result.client))
    assert result.client.connections_opened == 2


def test_a_loop_that_is_held_shows_as_lag_with_advice() -> None:
    def answer(_: int) -> Sequence[Step]:
        time.sleep(0.05)  # the server shares the loop
        return [STREAM_HEAD, 0.1, *(chunk(part) for part in GOOD), END]

    result, _, _ = run(answer, 6, 1)
    lag = result.client.loop_lag_p99_ms
    assert lag is not None and lag > 20
    assert any("event loop" in warning and "fewer users" in warning for warning in result.warnings())


def test_a_busy_client_is_a_warning() -> None:
    client = ClientHealth(cpu_share=0.83, loop_lag_p99_ms=0.1)
    assert LoadResult(None, 1, 0, client).warnings() == [
        "the client was busy 83% of the time (limit 50%): use fewer users, give bench.py a core of its own, "
        "or run it on a machine closer to the service"
    ]
    client = ClientHealth(cpu_share=0.1, loop_lag_p99_ms=None)
    assert LoadResult(None, 1, 0, client).warnings() == []


def test_a_late_loop_is_held_against_what_is_measured() -> None:
    client = ClientHealth(cpu_share=0.1, loop_lag_p99_ms=4.3)
    assert LoadResult(None, 1, 0, client, e2el_mean_s=4.8).warnings() == []
    (sentence,) = LoadResult(None, 1, 0, client, e2el_mean_s=0.42).warnings()
    assert sentence.startswith("the client's event loop was 4.3 ms late at p99 (limit 4.2 ms): ")  # 1% of 0.42 s


def test_progress_ends_with_everything() -> None:
    seen: list[Progress] = []
    run(lambda _: stream(*GOOD), 5, 2, progress=seen.append)
    last = seen[-1]
    assert (last.done, last.total, last.failures, last.tokens) == (5, 5, 0, 10)
    assert last.elapsed_s > 0


def test_memory_does_not_grow_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a request brought is let go: at no time are there more answers than users and rows in the queue."""
    import gc

    alive: list[int] = []

    def sink(row: Request) -> None:
        alive.append(sum(isinstance(thing, load.Exchange) for thing in gc.get_objects()))

    run(lambda _: stream(*GOOD), 60, 2, sink=sink)
    assert max(alive[20:]) <= 8
