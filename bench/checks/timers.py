"""What a launch takes, by the device's clock; in the interpreter by the host's, and only once."""

import time

import torch

from pipeline.gpu.kernels.timing import EventTimer, Timer, Work


class HostTimer:
    """Implements kernels.timing.Timer."""

    def __call__(self, work: Work) -> float:
        begin = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - begin)


def new_timer(device: torch.device) -> Timer:
    return EventTimer(device) if device.type == "cuda" else HostTimer()
