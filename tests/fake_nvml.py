"""A stand-in for the module pynvml: one GPU, or none, or one that fails."""

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As pynvml's: the base of what its functions raise."""


class FakeNvml:
    """Give it to sys.modules as "pynvml"."""

    NVMLError = NVMLError

    def __init__(self, handles: dict[int | str, str] | None = None) -> None:
        self.handles = {0: "first"} if handles is None else handles
        self.is_lost = False
        self.asked: list[str] = []
        """Handles whose utilisation was read."""

    def nvmlInit(self) -> None:
        if not self.handles:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return self._handle(index)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return self._handle(uuid)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if self.is_lost:
            raise NVMLError("GPU is lost")
        self.asked.append(handle)
        return SimpleNamespace(gpu=50, memory=25)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(used=3 << 30, total=8 << 30)

    def _handle(self, key: int | str) -> str:
        if key not in self.handles:
            raise NVMLError("Invalid Argument")
        return self.handles[key]
