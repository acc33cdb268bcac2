"""The capacity command against a server whose capacity is known: slots of a fixed service time."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from rich.console import Console

from loadgen.__main__ import main
from loadgen.capacity.command import NOT_FOUND, Plan, capacity
from loadgen.capacity.runs import Load, vote
from loadgen.clients.connect import target
from loadgen.replay import Options
from loadgen.slo import parse_slo
from loadgen.workload import Limits
from tests.unit.loadgen.fake_llm_server import DONE, FakeServer, serve, text, usage
from tests.unit.loadgen.test_replay import write_trace

SLOTS, SERVICE_S = 2, 0.02
CAPACITY = SLOTS / SERVICE_S
SLO = parse_slo("ttft=70ms,p=90")


class Slots(FakeServer):
    """Requests queue for a slot, in order and without end."""

    def __init__(self) -> None:
        super().__init__(lambda body: [text("x", "length"), usage(4, 1), DONE])
        self._slots = asyncio.Semaphore(SLOTS)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        async with self._slots:
            await asyncio.sleep(SERVICE_S)
            return await super().completions(request)


@asynccontextmanager
async def slots() -> AsyncIterator[str]:
    """Its URL."""
    async with serve(lambda body: [], Slots()) as server:
        yield server.url


def plan(trace: Path, url: str, **more: Any) -> Plan:
    options = Options(trace, target(url, "sse", None, 1), Limits(), tokens_per_word=1.3)
    load = Load(options, SLO, 90.0, more.pop("duration_s", 1.0), None, 10_000, more.pop("gap_cv", 0.0))
    asked = {"start": 60.0, "ceiling": 10_000.0, "precision": 0.1, "repeats": 1, "json": None} | more
    return Plan(load, **asked)


async def run(chosen: Plan) -> tuple[int, str]:
    out = StringIO()
    code = await capacity(chosen, Console(file=out, width=200))
    return code, out.getvalue()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path, [(0.01 * i, 4, 1) for i in range(1000)])


def test_a_known_capacity_is_found(trace: Path, tmp_path: Path) -> None:
    """Even arrivals: the queue grows as soon as the rate is over slots / service time."""
    path = tmp_path / "capacity.json"

    async def body() -> None:
        async with slots() as url:
            code, out = await run(plan(trace, url, json=path))
            assert code == 0, out
            assert "capacity: " in out and "held in 1 of 1 runs" in out

    asyncio.run(body())
    found = json.loads(path.read_text())
    assert 0.85 * CAPACITY < found["held_req_s"] < 1.1 * CAPACITY
    assert found["held_req_s"] < found["failed_req_s"] <= 1.1 * found["held_req_s"] * (1 + 1e-9)


def test_a_hopeless_run_is_cut(trace: Path) -> None:
    """Four times what the server can do: after a fraction of the 3 s it is clear."""

    async def body() -> None:
        async with slots() as url:
            found = await vote(plan(trace, url, duration_s=3.0).load, 4 * CAPACITY, 1)
            assert found.is_cut and not found.holds and found.wall_s < 1.5
            assert found.num_requests < 1200 and "requests are over TTFT 70 ms, 120 may" in found.broken[0]

    asyncio.run(body())


def test_runs_have_seeds_of_their_own(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "capacity.json"

    async def body() -> None:
        async with slots() as url:
            chosen = plan(trace, url, json=path, repeats=2, start=10, ceiling=20, duration_s=0.4, gap_cv=1.0)
            code, out = await run(chosen)
            assert code == 0 and "capacity: at least 20 req/s" in out
            assert "p90 is the worst" in out and "runs of 0 s are short" in out

    asyncio.run(body())
    votes = [vote for verdict in json.loads(path.read_text())["verdicts"] for vote in verdict["votes"]]
    assert len({vote["seed"] for vote in votes}) == len(votes) == 4
    assert len({vote["rate_per_s"] for vote in votes}) == 4


@pytest.mark.nightly
def test_a_server_that_sheds_everything_has_no_capacity(trace: Path) -> None:
    async def body() -> None:
        async with serve(lambda request: []) as server:
            server.status = (503, "full")
            code, out = await run(plan(trace, server.url, duration_s=0.2))
            assert code == NOT_FOUND
            assert "requests have failed, " in out and "no capacity found: no rate held p90 of TTFT" in out

    asyncio.run(body())


def test_a_client_bound_run_is_no_evidence(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.summary.MAX_LAG_S", -1.0)

    async def body() -> None:
        async with slots() as url:
            code, out = await run(plan(trace, url, repeats=1, start=20, duration_s=0.3))
            assert code == NOT_FOUND
            assert "NO EVIDENCE, client-bound: p99 loop lag" in out
            assert "at 20 req/s the generator itself is the bound" in out
            assert "2 runs were client-bound" in out

    asyncio.run(body())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs --slo with a limit on ttft or e2e"),
        (["--slo", "itl=50ms,p=99"], "a queue that grows without end would hold it"),
        (["--slo", "ttft=1s", "--from", "5", "--to", "2"], "--to 2: is under --from 5"),
        (["--slo", "ttft=1s", "--json", "absent/x.json"], "there is no folder absent"),
    ],
)
def test_what_cannot_be_searched_for(
    trace: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["capacity", "--trace", str(trace), "--url", "http://127.0.0.1:9", *arguments]) == 2
    assert message in capsys.readouterr().err
