"""What clients do on purpose: drawn by seed, and what the server sees of it."""

import asyncio
import gc
import socket
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from loadgen.behaviours import (
    PLAIN,
    Behaviours,
    Patience,
    Pause,
    SlowReader,
    parse_cancel,
    parse_patience,
    parse_pause,
    parse_slow_reader,
)
from loadgen.clients import connect
from loadgen.clients.connect import target
from loadgen.clients.dial import Dialer
from loadgen.clients.sse import SseClient
from loadgen.clock import RunClock
from loadgen.content import Contents
from loadgen.errors import UsageError
from loadgen.openloop import OpenLoop
from loadgen.prefixes import Prefixes, TokenRange
from loadgen.record import Record
from loadgen.workload import Arrivals, Job, Workload
from tests.unit.loadgen.fake_llm_server import DONE, DROP, FakeServer, Script, delta, done, serve, text, usage

PROTOCOLS = ["sse", "ws"]
NO_ARRIVALS = Arrivals("trace", "burst", 0, 0, 0, 0.0, None, None)


def answer(protocol: str, count: int, gap_s: float = 0.0) -> Script:
    """`count` tokens with a gap before each."""
    if protocol == "sse":
        pieces = [text("x", "length" if i + 1 == count else None) for i in range(count)]
        return [step for piece in pieces for step in (gap_s, piece)] + [usage(1, count), DONE]
    return [step for _ in range(count) for step in (gap_s, delta("x"))] + [done(1, count)]


async def play(url: str, protocol: str, jobs: list[Job], behaviours: Behaviours) -> list[Record]:
    """The records of a run of `jobs`, in order of the index."""
    clock = RunClock()
    async with connect(target(url, protocol, "fake", 1), clock) as (client, _):
        contents = Contents(None, Prefixes(0, TokenRange()))
        run = OpenLoop(Workload(jobs, 0, 0, NO_ARRIVALS), client, contents, clock, 10, behaviours, 5)
        await run.run()
    return sorted(run.records, key=lambda record: record.index)


def against(script: Callable[[dict[str, Any]], Script], use: Callable[[FakeServer], Awaitable[None]]) -> None:
    async def body() -> None:
        async with serve(script) as server:
            await use(server)

    asyncio.run(body())


def job(index: int = 0, num_output: int = 20, due_s: float = 0.0) -> Job:
    return Job(index, due_s, None, num_output, "hello")


EVERYTHING = Behaviours(Patience(2, 0.5), 0.3, SlowReader(0.5, 1000), Pause(0.25, 3), reconnect=True)


def test_draws_depend_on_seed_and_index_alone_and_not_on_one_another() -> None:
    drawn = [EVERYTHING.of(i, 100, 1) for i in range(50)]
    assert drawn == [EVERYTHING.of(i, 100, 1) for i in range(50)]
    assert drawn != [EVERYTHING.of(i, 100, 2) for i in range(50)]
    cancels = [Behaviours(cancel=0.3).of(i, 100, 1).cancel_after for i in range(50)]
    assert cancels == [conduct.cancel_after for conduct in drawn]
    assert Behaviours().of(3, 100, 1) is PLAIN


def test_shares_and_laws_of_the_draws() -> None:
    drawn = [EVERYTHING.of(i, 101, 1) for i in range(4000)]
    cancels = [conduct.cancel_after for conduct in drawn if conduct.cancel_after is not None]
    assert len(cancels) / 4000 == pytest.approx(0.3, abs=0.03)
    assert min(cancels) <= 3 and 98 <= max(cancels) <= 100
    assert statistics.fmean(cancels) == pytest.approx(50.5, abs=3)
    waits = [conduct.patience_s for conduct in drawn if conduct.patience_s is not None]
    assert statistics.median(waits) == pytest.approx(2, rel=0.05)
    quantiles = statistics.quantiles(waits, n=100)
    assert quantiles[83] / quantiles[15] == pytest.approx(2.718, rel=0.1)  # +- 1 sigma of the logarithm
    assert sum(conduct.bytes_per_s is not None for conduct in drawn) / 4000 == pytest.approx(0.5, abs=0.03)
    assert sum(conduct.pause_after is not None for conduct in drawn) / 4000 == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_patience_ends_before_the_first_token_and_the_server_sees_it(protocol: str) -> None:
    async def use(server: FakeServer) -> None:
        records = await play(server.url, protocol, [job()], Behaviours(Patience(0.1, 0)))
        assert records[0].abandoned and records[0].ended_by == "client" and records[0].failure is None
        assert records[0].closed_s == pytest.approx(0.1, abs=0.05)
        await asyncio.sleep(0.05)
        assert len(server.cancelled) + len(server.gone) == 1

    against(lambda _: [1.0, *answer(protocol, 20)], use)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_answer_that_has_begun_is_read_to_its_end(protocol: str) -> None:
    async def use(server: FakeServer) -> None:
        records = await play(server.url, protocol, [job()], Behaviours(Patience(0.05, 0)))
        assert records[0].is_finished and records[0].num_output == 20
        assert records[0].closed_s is not None and records[0].closed_s > 0.1

    against(lambda _: answer(protocol, 20, 0.01), use)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_cancel_comes_at_its_token_and_the_server_sees_it(protocol: str) -> None:
    async def use(server: FakeServer) -> None:
        records = await play(server.url, protocol, [job(i) for i in range(4)], Behaviours(cancel=1))
        wanted = [Behaviours(cancel=1).of(i, 20, 5).cancel_after for i in range(4)]
        assert [record.num_tokens_seen for record in records] == pytest.approx(wanted, abs=1)
        for record in records:
            assert record.ended_by == "client" and not record.abandoned and record.failure is None
        await asyncio.sleep(0.05)
        assert len(server.cancelled) + len(server.gone) == 4
        assert (len(server.cancelled) == 4) is (protocol == "ws")

    against(lambda _: answer(protocol, 20, 0.02), use)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_slow_reader_takes_its_time_and_its_neighbour_does_not(protocol: str) -> None:
    async def use(server: FakeServer) -> None:
        seeds = [i for i in range(50) if behaviours.of(i, 300, 5).bytes_per_s]
        slow, quick = seeds[0], next(i for i in range(50) if i not in seeds)
        jobs = [Job(i, 0.0, None, 300, "hello") for i in range(max(slow, quick) + 1)]
        records = await play(server.url, protocol, jobs, behaviours)
        assert all(record.is_finished for record in records)
        took = [record.closed_s or 0.0 for record in records]
        assert took[slow] > 0.5 > took[quick]  # 15 kB or more at 20 kB/s

    behaviours = Behaviours(slow_reader=SlowReader(0.3, 20_000))
    against(lambda _: answer(protocol, 300), use)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pause_is_a_hole_in_the_middle_of_the_answer(protocol: str) -> None:
    async def use(server: FakeServer) -> None:
        record = (await play(server.url, protocol, [job()], Behaviours(pause=Pause(1, 0.3))))[0]
        after = Behaviours(pause=Pause(1, 0.3)).of(0, 20, 5).pause_after
        assert record.is_finished and after is not None
        holes = [i for i, gap in enumerate(record.itl_s) if gap > 0.2]
        assert holes == [pytest.approx(after - 1, abs=1)]
        assert record.itl_s[holes[0]] == pytest.approx(0.3, abs=0.06)

    against(lambda _: answer(protocol, 20, 0.01), use)


def test_the_server_feels_a_slow_reader() -> None:
    """It could write without end, and gets rid of what the client read and what small buffers hold."""
    written = [0]

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        writer.transport.set_write_buffer_limits(high=4096)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        try:
            while True:
                writer.write(text("x" * 900))
                written[0] += 1000
                await writer.drain()
        except ConnectionError:
            writer.close()

    async def body() -> None:
        server = await asyncio.start_server(flood, "127.0.0.1", 0)
        clock = RunClock()
        client = SseClient(Dialer(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), "m", clock)
        conduct = Behaviours(slow_reader=SlowReader(1, 20_000)).of(0, 9, 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await client.generate("p", 9, Record(0, 0.0, 1, 9), conduct)
        server.close()
        await asyncio.sleep(0.05)

    asyncio.run(body())
    assert 15_000 < written[0] < 100_000


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_lost_connection_is_tried_once_more(protocol: str) -> None:
    async def use(server: FakeServer) -> None:
        def script(_: dict[str, Any]) -> Script:
            return [DROP] if len(server.requests) == 1 else answer(protocol, 20)

        server.script = script
        record = (await play(server.url, protocol, [job()], Behaviours(reconnect=True)))[0]
        assert record.is_finished and record.num_output == 20
        assert record.first_failure is not None and record.first_failure.reason == "disconnected"
        assert record.lateness_s is not None and record.lateness_s < 0.05

    against(lambda _: [], use)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_more_try_is_all_and_none_after_a_token(protocol: str) -> None:
    begun = answer(protocol, 20)[:2]

    async def use(server: FakeServer) -> None:
        record = (await play(server.url, protocol, [job()], Behaviours(reconnect=True)))[0]
        assert record.failure is not None and record.first_failure is not None
        assert len(server.requests) == 2
        server.script = lambda _: [*begun, 0.02, DROP]
        record = (await play(server.url, protocol, [job()], Behaviours(reconnect=True)))[0]
        assert record.failure is not None and record.first_failure is None
        assert len(server.requests) == 3

    against(lambda _: [DROP], use)


def test_a_refusal_is_tried_again_after_the_time_it_names() -> None:
    async def use(server: FakeServer) -> None:
        server.status, server.headers = (429, "full"), {"Retry-After": "1"}
        asyncio.get_running_loop().call_later(0.5, setattr, server, "status", None)
        record = (await play(server.url, "sse", [job()], Behaviours(reconnect=True)))[0]
        assert record.is_finished and record.first_failure is not None
        assert record.first_failure.reason == "http_429" and record.retry_after_s == 1
        assert record.ttft_s == pytest.approx(1, abs=0.1)  # from the intended time, the wait included

    against(lambda _: answer("sse", 20), use)


@pytest.mark.parametrize(
    ("parse", "good", "bad"),
    [
        (parse_patience, "5,0.2", ["", "0", "-1", "5,-1", "5,1,1", "x", "inf", "nan"]),
        (parse_cancel, "0.25", ["", "1.1", "-0.1", "0.1,0.2", "nan"]),
        (parse_slow_reader, "0.5,1000", ["", "0.5", "2,1000", "0.5,0", "0.5,inf", "nan,5"]),
        (parse_pause, "0.5,3", ["0.5", "0.5,3,3", "-1,3", "0.5,-3"]),
    ],
)
def test_wrong_values_are_refused_by_name(parse: Callable[[str], Any], good: str, bad: list[str]) -> None:
    parse(good)
    for value in bad:
        with pytest.raises(UsageError, match=f"--[a-z-]+ {value}: expected"):
            parse(value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_requests_leave_no_work_for_the_garbage_collector(protocol: str) -> None:
    """It is off during a run (loadgen.steady): what it would have to free would pile up.

    Each connection and the run itself may leave a few objects, each request none.
    """
    behaviours = Behaviours(
        Patience(0.02, 1), 0.3, SlowReader(0.1, 100_000), Pause(0.1, 0.01), reconnect=True
    )

    async def leftovers(url: str, count: int) -> int:
        gc.collect()
        gc.disable()
        try:
            await play(url, protocol, [job(i, due_s=0.001 * i) for i in range(count)], behaviours)
            return gc.collect()
        finally:
            gc.enable()

    async def measure(url: str) -> tuple[int, int]:
        await leftovers(url, 5)
        return await leftovers(url, 50), await leftovers(url, 250)

    process, url = fake_process()
    try:
        few, many = uvloop.run(measure(url))  # as the command does; the standard loop leaves cycles
    finally:
        process.kill()
        process.communicate()
    assert many - few < 200


def fake_process() -> tuple[subprocess.Popen[bytes], str]:
    """The selftest's server, in a process whose garbage is its own."""
    command = [sys.executable, "-m", "loadgen.selftest.fake_server", "--gap-s", "0.002"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    assert process.stdout is not None
    return process, f"http://127.0.0.1:{int(process.stdout.readline())}"
