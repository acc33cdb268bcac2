"""Every metric against a server that writes down when it wrote each frame: right to 2 ms."""

import asyncio
from collections.abc import Callable
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadgen.clients import connect
from loadgen.clients.connect import target
from loadgen.clock import RunClock
from loadgen.record import Record
from loadgen.replay import Options, Run, measure
from loadgen.workload import Limits
from tests.unit.loadgen.fake_llm_server import DONE, DROP, Script, data, delta, done, serve, text, usage

EXACT_S = 0.002
TRIES = 5
"""A busy machine delays a frame now and then; a wrong definition is off every time."""

PING, ROLE, ERROR, CLOSE = "ping", "role", "error", "close"
Plan = list[Any]
"""What an answer does, whatever the protocol: a number waits (s), (text, tokens) is a frame."""


def sse(plan: Plan, num_output: int) -> Script:
    frames = {
        PING: b": ping\n\n",
        ROLE: data({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
        ERROR: data({"error": {"message": "device lost"}}),
        CLOSE: DROP,
    }
    script = [text(step[0]) if isinstance(step, tuple) else frames.get(step, step) for step in plan]
    return script if CLOSE in plan else [*script, text("", "length"), 0.03, usage(3, num_output), DONE]


def ws(plan: Plan, num_output: int) -> Script:
    frames = {
        PING: {"type": "ping"},
        ROLE: delta("", 0),
        ERROR: {"type": "error", "error": {"message": "device lost"}},
        CLOSE: DROP,
    }
    script = [delta(*step) if isinstance(step, tuple) else frames.get(step, step) for step in plan]
    return script if {CLOSE, ERROR} & set(plan) else [*script, 0.03, done(3, num_output)]


PROTOCOLS: dict[str, Callable[[Plan, int], Script]] = {"sse": sse, "ws": ws}


def ask(protocol: str, plan: Plan, num_output: int) -> tuple[Record, list[float]]:
    """One request that is due 50 ms before it is sent, and when each of its frames was written."""

    async def main() -> tuple[Record, list[float]]:
        async with serve(lambda _: PROTOCOLS[protocol](plan, num_output)) as server:
            clock = server.clock = RunClock()
            async with connect(target(server.url, protocol, None, 1), clock) as (client, _):
                clock.start()
                await asyncio.sleep(0.05)
                record = Record(0, 0.0, planned_input=3, planned_output=num_output)
                await client.generate("hello there", num_output, record)
                record.closed_s = clock()
            return record, server.written[0]

    return asyncio.run(main())


def errors_s(record: Record, plan: Plan, written: list[float], num_output: int) -> dict[str, float]:
    """How far each metric is from what the server's own times make of it."""
    steps = [step for step in plan if not isinstance(step, float) and step is not CLOSE]
    times = [at for step, at in zip(steps, written, strict=False) if isinstance(step, tuple)]
    first, last = times[0], times[-1]
    sent = record.sent_s or 0.0
    expected = {
        "ttft": (record.ttft_s, first),
        "raw ttft": (record.raw_ttft_s, first - sent),
        "e2e": (record.e2e_s, last),
        "raw e2e": (record.raw_e2e_s, last - sent),
    }
    expected |= {
        f"gap {i}": (gap, later - sooner)
        for i, (gap, (sooner, later)) in enumerate(zip(record.itl_s, pairwise(times), strict=True))
    }
    if record.failure is None and num_output > 1:
        expected["tpot"] = (record.tpot_s, (last - first) / (num_output - 1))
    return {name: abs((value or 0.0) - wanted) for name, (value, wanted) in expected.items()}


CASES = {
    "steady": ([0.02, ("a", 1), 0.02, ("b", 1), 0.02, ("c", 1)], 3),
    "the worked example: 1, 1 and 3 tokens": ([0.1, ("a", 1), 0.04, ("b", 1), 0.04, ("cde", 3)], 5),
    "a gap in the middle": ([0.01, ("a", 1), 0.3, ("b", 1), 0.01, ("c", 1)], 3),
    "one frame": ([0.05, ("abcd", 4)], 4),
    "one token": ([0.05, ("a", 1)], 1),
    "role and pings before, between and after": (
        [ROLE, 0.05, PING, 0.05, ("a", 1), 0.02, PING, 0.02, ("b", 2), 0.02, PING],
        3,
    ),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("case", CASES)
def test_metrics_are_right_to_2_ms(protocol: str, case: str) -> None:
    plan, num_output = CASES[case]
    for _ in range(TRIES):
        record, written = ask(protocol, plan, num_output)
        assert record.failure is None and record.num_output == num_output
        assert record.finish_reason == "length" and (record.sent_s or 0.0) >= 0.05
        assert record.closed_s is not None and record.closed_s - record.chunk_s[-1] >= 0.03
        off = errors_s(record, plan, written, num_output)
        if max(off.values()) < EXACT_S:
            return
    pytest.fail(f"{TRIES} times off, at last by {off}")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("ending", "reason"),
    [(CLOSE, "disconnected"), (ERROR, {"sse": "error_event", "ws": "error_frame"})],
)
def test_what_came_before_a_broken_end_is_right_to_2_ms(
    protocol: str, ending: str, reason: str | dict[str, str]
) -> None:
    plan = [0.03, ("a", 1), 0.03, ("bc", 2), 0.02, ending]
    for _ in range(TRIES):
        record, written = ask(protocol, plan, 3)
        assert record.failure is not None and record.num_tokens_seen >= 2
        assert record.failure.reason == (reason if isinstance(reason, str) else reason[protocol])
        off = errors_s(record, plan, written, 3)
        if max(off.values()) < EXACT_S:
            return
    pytest.fail(f"{TRIES} times off, at last by {off}")


def test_the_first_byte_is_not_the_first_token() -> None:
    record, _ = ask("sse", [0.1, ("a", 1)], 1)
    assert record.first_byte_s is not None and record.chunk_s[0] - record.first_byte_s > 0.08


STALL_S, BEGIN_S, GAP_S, COUNT, SERVICE_S = 10.0, 2.0, 0.1, 140, 0.01


@pytest.mark.nightly
def test_a_stall_of_ten_seconds_is_charged_to_every_request_that_was_due_in_it(tmp_path: Path) -> None:
    """Coordinated omission: 100 of 140 requests are due while the server stands still."""
    rows = "".join(f"2023-11-16 18:00:{GAP_S * i:010.7f},40,1\n" for i in range(COUNT))
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)

    async def run(protocol: str) -> Run:
        starts: list[float] = []
        loop = asyncio.get_running_loop()

        def stalled(_: dict[str, Any]) -> Script:
            starts.append(loop.time())
            at = loop.time() - starts[0]
            wait = BEGIN_S + STALL_S - at if BEGIN_S - GAP_S / 2 < at < BEGIN_S + STALL_S else SERVICE_S
            return [wait, *PROTOCOLS[protocol]([("a", 1)], 1)]

        async with serve(stalled) as server:
            options = Options(trace, target(server.url, protocol, None, 2), Limits(), tokens_per_word=1.3)
            return await measure(options, Console(file=StringIO()))

    async def main() -> list[Run]:
        return list(await asyncio.gather(*map(run, PROTOCOLS)))

    due = [GAP_S * i for i in range(COUNT)]
    in_stall = [BEGIN_S + STALL_S - at for at in due if BEGIN_S <= at + 1e-9 < BEGIN_S + STALL_S]
    worked_s = (sum(in_stall) + SERVICE_S * (COUNT - len(in_stall))) / COUNT
    assert len(in_stall) == 100 and worked_s == pytest.approx(3.61, abs=0.01)
    for finished in asyncio.run(main()):
        assert finished.summary.num_finished == COUNT and finished.summary.ttft is not None
        assert finished.summary.ttft.mean_ms / 1000 == pytest.approx(worked_s, rel=0.02)
        assert finished.summary.ttft.max_ms / 1000 == pytest.approx(STALL_S, rel=0.02)
