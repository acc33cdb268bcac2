"""Turns: what each mode has cost; and what is recorded in them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pipeline.bench.recording_cost import RecordingCost
from pipeline.bench.seeing import seeing
from pipeline.bench.turns import Mode, Turns
from pipeline.checkpoint.fake import byte_card
from pipeline.messages import StepPlan
from pipeline.runtime.histogram import Histogram
from pipeline.runtime.testing import FakeRunner
from tests.e2e.test_recording import streams
from tests.e2e.world import serving


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.bench.turns.TURN_S", 0.01)
    monkeypatch.setattr("pipeline.bench.turns.WARM_TURNS", 2)


def test_modes_take_turns_and_each_has_its_costs() -> None:
    begun: list[str] = []

    async def main() -> Turns:
        turns = Turns()
        plan: Any = StepPlan(1, 0, [], [], [0] * 7, [], [], [], [], [], [], [], [])
        turns.take([Mode(name, lambda name=name: begun.append(name)) for name in ("dear", "cheap")])  # type: ignore[misc]
        while len(begun) < 10:
            turns.count(plan)
            for _ in range(100_000 if begun[-1] == "dear" else 1):
                pass
            await asyncio.sleep(0.001)
        return turns

    turns = asyncio.run(main())
    assert begun[:4] == ["dear", "cheap", "dear", "cheap"]
    dear, cheap = turns.us_per_row()
    assert dear > cheap > 0
    assert turns.report("it").startswith("it: us CPU a token: ") and " dear (+" in turns.report("it")


def test_a_run_that_was_too_short_says_so() -> None:
    async def main() -> str:
        turns = Turns()
        turns.take([Mode("a", lambda: None), Mode("b", lambda: None)])
        return turns.report("it")

    assert asyncio.run(main()) == "it: the run was too short"


def test_a_link_is_recorded_in_its_turns_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(byte_card(), FakeRunner) as server:
            cost = RecordingCost(server.pipeline, byte_card(), "schedule->detokenize", tmp_path)
            redacted, plain, neither = await cost.begin()
            for mode in (redacted, plain, neither):
                mode.begin()
                await streams(server, range(2))
            said = await cost.end()
            counts = [recordings.states()[0].num_messages for recordings in cost._both]
            assert all(count > 10 for count in counts) and "messages" in said

    asyncio.run(main())


def test_seeing_is_turned_off_and_on() -> None:
    async def main() -> None:
        async with serving(byte_card(), FakeRunner) as server:
            on, off = seeing(server.pipeline)
            add = Histogram.add
            off.begin()
            assert not server.pipeline.trace.enabled and Histogram.add is not add
            on.begin()
            assert server.pipeline.trace.enabled and Histogram.add is add

    asyncio.run(main())
