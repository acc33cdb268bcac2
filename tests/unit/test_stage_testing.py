"""The fakes that are shipped for authors of stages do what docs/stages.md says of them."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from pipeline.errors import ConfigError
from pipeline.messages import Cancel, FinishReason, GenerateRequest, SampledBatch, StepHandle, TextBatch
from pipeline.runtime.inbox import Inbox
from pipeline.stage_api import NoOptions, NoState, Stage
from pipeline.stage_api.testing import SAMPLED, Collect, Script, differences, run_alone, sample_messages
from pipeline.stages.sample import Sample


class Counting(Stage[TextBatch, NoOptions]):
    """Numbers the steps that it passes on, and says so once when it drains."""

    takes = (TextBatch,)
    gives = (TextBatch, Cancel)
    State = NoState

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.calls: list[str] = []
        self.num_steps = 0

    async def start(self) -> None:
        made.append(self)
        self.calls.append(f"start {self.ctx.is_successor}")

    async def handle(self, batch: Sequence[TextBatch]) -> None:
        for step in batch:
            self.num_steps += 1
            await self.ctx.outlet(TextBatch).send(replace(step, step_id=self.num_steps))

    async def drain(self) -> None:
        self.ctx.outlet(Cancel).post(Cancel(self.num_steps, FinishReason.CANCELLED))

    async def stop(self) -> None:
        self.calls.append("stop")


class Forgetful(Stage[TextBatch, NoOptions]):
    takes = (TextBatch,)

    async def handle(self, batch: Sequence[TextBatch]) -> None:
        raise ValueError(batch[0].step_id)


class OffByOne(Sample):
    async def handle(self, batch: Sequence[StepHandle]) -> None:
        await super().handle(batch)
        for step in batch:
            if step.plan.step_id == 3:
                self.ctx.outlet(SampledBatch).post(SampledBatch(3, [1], [0], [7], (0, 0, 0, 0, 0)))


made: list[Counting] = []
STEPS = sample_messages(TextBatch, 6)


@pytest.fixture(autouse=True)
def nobody() -> None:
    made.clear()


def test_a_stage_alone_lives_from_start_to_drain() -> None:
    gave = asyncio.run(run_alone(Counting, NoOptions(), STEPS))
    assert [step.step_id for step in gave[TextBatch]] == [1, 2, 3, 4, 5, 6]
    assert gave[Cancel] == [Cancel(6, FinishReason.CANCELLED)]
    assert [stage.calls for stage in made] == [["start False", "stop"]]


def test_another_goes_on_where_it_is_told_to() -> None:
    gave = asyncio.run(run_alone(Counting, NoOptions(), STEPS, swap_after=4))
    assert [step.step_id for step in gave[TextBatch]] == [1, 2, 3, 4, 1, 2], "NoState: it knows nothing"
    assert gave[Cancel] == [Cancel(2, FinishReason.CANCELLED)], "only the last one drains"
    assert [stage.calls for stage in made] == [["start False", "stop"], ["start True", "stop"]]


def test_its_fault_is_the_tests_fault() -> None:
    with pytest.raises(ValueError, match=r"^1$"):
        asyncio.run(run_alone(Forgetful, NoOptions(), STEPS))
    with pytest.raises(AssertionError, match=r"Forgetful\.State is None: it cannot be swapped"):
        asyncio.run(run_alone(Forgetful, NoOptions(), [], swap_after=0))


def test_the_script_waits_until_a_message_is_taken() -> None:
    async def main() -> None:
        inbox = Inbox[int](1)
        playing = asyncio.create_task(Script([1, 2]).play(inbox))
        await asyncio.sleep(0.01)
        assert inbox.stats().depth == 1 and not playing.done()
        assert await inbox.recv_many() == [1]
        assert await inbox.recv_many() == [2]
        await playing

    asyncio.run(main())


def test_a_sink_takes_everything_in_its_order() -> None:
    async def main() -> list[int]:
        sink = Collect[int]()
        await sink.send(1)
        assert sink.offer(2) and sink.room() > 1 << 20
        sink.post(3)
        with pytest.raises(AssertionError, match="never full"):
            sink.when_room(lambda: None)
        return sink.messages

    assert asyncio.run(main()) == [1, 2, 3]


@pytest.mark.parametrize("kind", SAMPLED)
def test_there_are_samples_of_what_data_links_carry(kind: type) -> None:
    first, second = sample_messages(kind, 2)
    assert first != second or kind is StepHandle


def test_of_other_messages_there_are_none() -> None:
    with pytest.raises(KeyError):
        sample_messages(Cancel, 1)
    assert len(sample_messages(GenerateRequest, 0)) == 0


def test_a_stage_that_answers_otherwise_is_found_out() -> None:
    assert differences("sample", f"{__name__}:Sample") == []
    assert differences("sample", f"{__name__}:OffByOne")
    with pytest.raises(ConfigError, match="delay"):
        differences("sample", f"{__name__}:Sample", delay=1)
