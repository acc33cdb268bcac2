"""A recorder taps an inbox: what it writes, in which order, and when it ends."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.messages import Cancel, FinishReason, Grant, StepPlan
from pipeline.messages.recorded import is_ready, kind_of_type, written_of
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.recorder import Recorder, Writing
from pipeline.runtime.recording import Recording, read
from pipeline.runtime.recording_file import RecordingFile
from pipeline.runtime.testing import FakeHandle
from tests.unit.runtime.test_recording import HEAD


def writing(kind: type) -> Writing:
    name = kind_of_type(kind)
    return Writing(name, written_of(name), is_ready if issubclass(kind, Step) else None)


Play = Callable[[Inbox[Any], Recorder], Awaitable[None]]


class Step(FakeHandle):
    """One that takes until it is told that it is done; or its device is lost."""

    is_done = False
    is_lost = False

    def is_ready(self) -> bool:
        if self.is_lost:
            raise RuntimeError("the device is lost")
        return self.is_done


def step(number: int) -> Step:
    return Step(StepPlan(number, 1, [], [], [], [], [], [], [], [], [], [], []), [], 0, 0)


def play(path: Path, do: Play, **options: Any) -> tuple[Recorder, Recording]:
    """What is in the file after `do`."""

    async def main() -> Recorder:
        inbox = Inbox[Any](8, clock=iter(range(100, 10_000)).__next__)
        file = RecordingFile(path, HEAD, options.pop("max_bytes", 1 << 20))
        recorder = Recorder(inbox, file, writing, 100, options.pop("max_s", 60), **options)
        recorder.start()
        await do(inbox, recorder)
        await recorder.stop("the test is over")
        assert inbox.taps == ()
        return recorder

    recorder = asyncio.run(main())
    return recorder, read(path)


def ids(recording: Recording) -> list[tuple[int, int]]:
    return [(entry.batch, entry.message.plan.step_id) for entry in recording.entries]


def test_it_writes_what_is_taken_and_when(tmp_path: Path) -> None:
    async def do(inbox: Inbox[Any], recorder: Recorder) -> None:
        inbox.offer(Grant(1, 8))
        inbox.post(Cancel(2, FinishReason.CANCELLED))
        await inbox.recv_many()
        inbox.offer(Grant(3, 8))
        inbox.offer(Grant(4, 8))
        await inbox.recv_many(1)

    recorder, recording = play(tmp_path / "a.rec", do)
    assert [tuple(entry) for entry in recording.entries] == [
        (1, 2, True, 0, Cancel(2, FinishReason.CANCELLED)),
        (0, 2, False, 0, Grant(1, 8)),
        (3, 5, False, 1, Grant(3, 8)),
    ]
    assert recording.end is not None and recording.end.reason == recorder.reason == "the test is over"


def test_it_writes_the_kinds_that_it_is_asked_for(tmp_path: Path) -> None:
    async def do(inbox: Inbox[Any], recorder: Recorder) -> None:
        inbox.post(Cancel(2, FinishReason.CANCELLED))
        inbox.offer(Grant(1, 8))
        await inbox.recv_many()
        inbox.offer(Grant(3, 8))
        await inbox.recv_many()

    recorder, recording = play(tmp_path / "a.rec", do, kinds={"Cancel"})
    assert [(entry.is_control, entry.message) for entry in recording.entries] == [
        (True, Cancel(2, FinishReason.CANCELLED))
    ]
    assert recorder.file.num_batches == 1


def test_a_step_is_written_when_its_device_is_done(tmp_path: Path) -> None:
    async def do(inbox: Inbox[Any], recorder: Recorder) -> None:
        steps = [step(number) for number in range(4)]
        for each in steps:
            inbox.offer(each)
            await inbox.recv_many()
        assert recorder.file.num_batches == 0
        steps[1].is_done = True
        inbox.offer(step(4))
        await inbox.recv_many()
        assert recorder.file.num_batches == 0, "order is kept"
        steps[0].is_done = True
        inbox.offer(step(5))
        await inbox.recv_many()
        assert recorder.file.num_batches == 2
        steps[2].is_done = steps[3].is_done = True

    _, recording = play(tmp_path / "a.rec", do)
    assert ids(recording) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert recording.end is not None and recording.end.num_lost == 2


def test_a_step_whose_device_is_lost_is_left_out(tmp_path: Path) -> None:
    async def do(inbox: Inbox[Any], recorder: Recorder) -> None:
        steps = [step(number) for number in range(3)]
        steps[1].is_lost = True
        steps[0].is_done = steps[2].is_done = True
        for each in steps:
            inbox.offer(each)
        await inbox.recv_many()

    recorder, recording = play(tmp_path / "a.rec", do)
    assert ids(recording) == [(0, 0), (0, 2)]
    assert recorder.num_lost == 1


def test_it_ends_when_it_is_full(tmp_path: Path) -> None:
    ends: list[str] = []

    async def do(inbox: Inbox[Any], recorder: Recorder) -> None:
        for number in range(200):
            inbox.offer(Grant(number, 8))
            await inbox.recv_many()
        assert inbox.taps == ()

    recorder, recording = play(tmp_path / "a.rec", do, max_bytes=4000, ended=lambda: ends.append("ended"))
    assert recorder.reason == "it is as large as it may be"
    assert ends == ["ended"]
    assert 10 < len(recording.entries) < 200
    assert [entry.message.request_id for entry in recording.entries] == list(range(len(recording.entries)))
    assert (tmp_path / "a.rec").stat().st_size <= 4000


def test_it_ends_when_its_time_is_over(tmp_path: Path) -> None:
    async def do(inbox: Inbox[Any], recorder: Recorder) -> None:
        await asyncio.sleep(0.1)
        assert recorder.reason == "it has run for 0.02 s"

    _, recording = play(tmp_path / "a.rec", do, max_s=0.02)
    assert recording.end is not None and recording.end.reason == "it has run for 0.02 s"


def test_what_cannot_be_written_ends_it_and_harms_nobody(tmp_path: Path) -> None:
    async def do(inbox: Inbox[Any], recorder: Recorder) -> None:
        inbox.offer(Grant(1, 8))
        await inbox.recv_many()
        inbox.offer(object())
        assert len(await inbox.recv_many()) == 1
        assert inbox.taps == ()

    recorder, recording = play(tmp_path / "a.rec", do)
    assert "object cannot be recorded" in recorder.reason
    assert [entry.message for entry in recording.entries] == [Grant(1, 8)]


def test_a_message_that_msgpack_cannot_write_ends_it_and_is_left_out(tmp_path: Path) -> None:
    async def do(inbox: Inbox[Any], recorder: Recorder) -> None:
        inbox.offer(Grant(1, 8))
        await inbox.recv_many()
        inbox.offer(Grant(2, 8))
        inbox.offer(Grant(3, object()))  # type: ignore[arg-type]
        assert len(await inbox.recv_many()) == 2
        assert inbox.taps == ()

    recorder, recording = play(tmp_path / "a.rec", do)
    assert "object is unsupported" in recorder.reason
    assert [entry.message for entry in recording.entries] == [Grant(1, 8)]
    assert recorder.file.num_messages == 1


def test_a_disk_that_is_behind_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.runtime.recording_file.MAX_UNWRITTEN_BYTES", -1)

    async def do(inbox: Inbox[Any], recorder: Recorder) -> None:
        inbox.offer(Grant(1, 8))
        await inbox.recv_many()

    recorder, _ = play(tmp_path / "a.rec", do)
    assert recorder.reason == "the disk is too slow"


def test_a_crowd_of_unfinished_steps_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.runtime.recorder.MAX_KEPT", 3)

    async def do(inbox: Inbox[Any], recorder: Recorder) -> None:
        for number in range(10):
            inbox.offer(step(number))
            await inbox.recv_many()

    recorder, recording = play(tmp_path / "a.rec", do)
    assert recorder.num_lost == 10
    assert recording.entries == []
