"""Start order, drain order, crashes, and the deadline."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
import structlog

from pipeline.errors import StageCrashed
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import NoOptions, Stage, StageContext
from pipeline.runtime.supervisor import Supervisor


class Number(msgspec.Struct, frozen=True):
    value: int


class Relay(Stage[Number, NoOptions]):
    """Passes numbers on; crashes on negative ones; never ends one that is 999."""

    takes = (Number,)
    gives = (Number,)

    def __init__(self, ctx: StageContext, diary: list[str]) -> None:
        super().__init__(ctx, NoOptions())
        self.diary = diary

    async def start(self) -> None:
        self.diary.append(f"start {self.ctx.name}")

    async def handle(self, batch: Sequence[Number]) -> None:
        for number in batch:
            if number.value < 0:
                raise ValueError("negative")
            if number.value == 999:
                await asyncio.sleep(60)
            await self.ctx.outlet(Number).send(number)

    async def drain(self) -> None:
        self.diary.append(f"drained {self.ctx.name}")

    async def stop(self) -> None:
        self.diary.append(f"stop {self.ctx.name}")


class Neighbour:
    """A companion that writes its diary into that of the stages."""

    def __init__(self, name: str, diary: list[str]) -> None:
        self.name = name
        self.diary = diary

    async def start(self) -> None:
        self.diary.append(f"start {self.name}")

    async def stop(self) -> None:
        self.diary.append(f"stop {self.name}")


class Graph:
    """Three relays in a row and an open end."""

    def __init__(self, drain_timeout_s: float = 5.0, num_companions: int = 0) -> None:
        self.diary: list[str] = []
        self.inboxes: list[Inbox[Number]] = [Inbox(2), Inbox(2), Inbox(2)]
        self.end: Inbox[Number] = Inbox(1000)
        outlets = [*self.inboxes[1:], self.end]
        self.stages = [
            Relay(StageContext(name, inbox, {Number: outlet}, {}), self.diary)
            for name, inbox, outlet in zip("abc", self.inboxes, outlets, strict=True)
        ]
        self.companions = [Neighbour(str(number), self.diary) for number in range(num_companions)]
        self.supervisor = Supervisor(
            [[s] for s in self.stages], drain_timeout_s, structlog.get_logger(), self.companions
        )


def test_sinks_start_first_and_sources_drain_first() -> None:
    async def main() -> None:
        graph, until = Graph(), asyncio.Event()
        ready: list[list[str]] = []
        task = asyncio.create_task(graph.supervisor.run(until, lambda: ready.append(list(graph.diary))))
        for k in range(50):
            await graph.inboxes[0].send(Number(k))
        until.set()
        await asyncio.wait_for(task, 5)
        assert ready == [["start c", "start b", "start a"]]
        assert graph.diary[3:] == ["drained a", "drained b", "drained c", "stop a", "stop b", "stop c"]
        assert [n.value for n in await graph.end.recv_many()] == list(range(50))

    asyncio.run(main())


def test_a_crash_names_the_stage_keeps_its_cause_and_stops_all() -> None:
    async def main() -> None:
        graph = Graph()
        await graph.inboxes[1].send(Number(-1))
        with pytest.raises(StageCrashed, match="'b' crashed") as caught:
            await asyncio.wait_for(graph.supervisor.run(asyncio.Event()), 5)
        assert isinstance(caught.value.__cause__, ValueError)
        assert graph.diary[-3:] == ["stop a", "stop b", "stop c"]
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_the_deadline_ends_what_does_not_drain() -> None:
    async def main() -> None:
        graph, until = Graph(drain_timeout_s=0.05), asyncio.Event()
        await graph.inboxes[0].send(Number(999))
        until.set()
        await asyncio.wait_for(graph.supervisor.run(until), 5)
        assert graph.diary[-3:] == ["stop a", "stop b", "stop c"]

    asyncio.run(main())


def test_a_stage_that_cannot_start_stops_those_that_did() -> None:
    async def main() -> None:
        graph = Graph()

        async def refuse() -> None:
            raise OSError("port in use")

        graph.stages[0].start = refuse  # type: ignore[method-assign]
        with pytest.raises(OSError, match="port in use"):
            await graph.supervisor.run(asyncio.Event())
        assert graph.diary[-2:] == ["stop b", "stop c"]

    asyncio.run(main())


def test_cancelling_forces_the_end() -> None:
    async def main() -> None:
        graph, until = Graph(), asyncio.Event()
        await graph.inboxes[0].send(Number(999))
        until.set()
        task = asyncio.create_task(graph.supervisor.run(until))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 5)
        assert graph.diary[-3:] == ["stop a", "stop b", "stop c"]

    asyncio.run(main())


def test_companions_live_while_the_stages_do() -> None:
    async def main() -> None:
        graph, until = Graph(num_companions=2), asyncio.Event()
        until.set()
        await asyncio.wait_for(graph.supervisor.run(until), 5)
        assert graph.diary[3:5] == ["start 0", "start 1"]
        assert graph.diary[-5:] == ["stop 1", "stop 0", "stop a", "stop b", "stop c"]

    asyncio.run(main())


def test_a_companion_that_cannot_start_ends_the_start() -> None:
    async def main() -> None:
        graph = Graph(num_companions=2)

        async def refuse() -> None:
            raise OSError("port in use")

        graph.companions[0].start = refuse  # type: ignore[method-assign]
        with pytest.raises(OSError, match="port in use"):
            await graph.supervisor.run(asyncio.Event())
        assert graph.diary[-4:] == ["stop 0", "stop a", "stop b", "stop c"]
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
