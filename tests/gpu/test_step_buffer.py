"""One piece of memory for all inputs of a step: where they lie, what is copied, and when it is used again."""

import numpy as np
import pytest

from pipeline.gpu.device import Completion
from pipeline.gpu.step_buffer import ALIGNMENT, HostBuffer, PackedBuffer, StepBuffer
from tests.gpu.recording_device import RecordingDevice


def fill(buffer: StepBuffer, number: int) -> list[list[int]]:
    """A step's worth of values; as they are on the device."""
    buffer.begin()
    tensors = [
        buffer.put(np.arange(number, dtype=np.int64)),
        buffer.put(np.full((2, 3), number, np.int32), (4, 5), fill=-1),
        buffer.put(np.array([number / 2], np.float32)),
        buffer.put(np.array([True, False])),
    ]
    buffer.upload()
    return [tensor.tolist() for tensor in tensors]


def values(number: int) -> list[object]:
    padded = [[number] * 3 + [-1] * 2] * 2 + [[-1] * 5] * 2
    return [list(range(number)), padded, [number / 2], [True, False]]


def test_all_values_go_in_one_copy() -> None:
    device = RecordingDevice()
    buffer = PackedBuffer(device, 1000)
    with device.active():
        for number in range(6):
            assert fill(buffer, number) == values(number)
            buffer.guard(device.finish([]))
    assert device.counts["uploads"] == 6 and device.counts["allocations"] == 1


def test_the_cpu_sees_the_same_values_without_a_copy() -> None:
    buffer = HostBuffer()
    assert fill(buffer, 3) == values(3)
    made = np.arange(4)
    assert buffer.put(made).data_ptr() == made.ctypes.data


def test_what_does_not_fit_has_a_copy_of_its_own_and_moves_nothing() -> None:
    device = RecordingDevice()
    buffer = PackedBuffer(device, 300)
    with device.active():
        buffer.begin()
        first = buffer.put(np.arange(5))
        large = [buffer.put(np.full(500, k)) for k in range(3)]
        buffer.upload()
        assert first.tolist() == list(range(5)) and [each.tolist() for each in large] == [
            [k] * 500 for k in range(3)
        ]
        buffer.guard(device.finish([]))
        assert (large[1].data_ptr() - large[0].data_ptr()) % ALIGNMENT == 0
        assert device.counts["uploads"] == 3, "two of the large ones share a piece"
        allocations = device.counts["allocations"]
        buffer.begin()
        assert buffer.put(np.arange(5)).data_ptr() == first.data_ptr()
        buffer.put(np.full(500, 7))
        buffer.upload()
        assert device.counts["uploads"] == 5 and device.counts["allocations"] == allocations, (
            "pieces are kept"
        )


def test_memory_is_used_again_when_its_step_is_done() -> None:
    device = RecordingDevice()
    buffer = PackedBuffer(device, 1000)
    with device.active():
        for number in range(2):
            fill(buffer, number)
            buffer.guard(device.finish([]))
        assert device.counts["waits"] == 0, "two steps in flight wait for nothing"
        buffer.begin()
        assert device.counts["waits"] == 1, "a third one must"


def test_the_recording_device_sees_memory_that_is_used_too_early() -> None:
    device = RecordingDevice()
    buffer = PackedBuffer(device, 1000)
    with device.active():
        steps: list[Completion] = []
        for number in range(3):
            fill(buffer, number)
            steps.append(device.finish([]))
            buffer.guard(Seen())
        with pytest.raises(AssertionError, match="written to while the device read it"):
            steps[0].results_sync()


class Seen:
    """A completion that lies."""

    begin_ns = end_ns = 0

    def is_done(self) -> bool:
        return True

    def results_sync(self) -> list[object]:
        return []
