"""HostKv: KV blocks kept in host memory while their sequence waits for the device."""

from collections.abc import Callable

import torch

from pipeline.gpu.api import LayerKv
from pipeline.gpu.kv.staging import Staging, staging_of
from pipeline.messages import StepPlan

_CHUNK = 32
"""Blocks copied at once: bounds what a copy takes of the device's memory."""
_NUM_MEASURED = 8
_TRIALS = 5
"""The quickest counts: a busy machine says nothing of what a copy takes."""


class HostKv:
    """Places of one block each, all layers together; pinned where the device is a GPU.

    Copies are queued on the device's stream like a step's own work, so they need no waiting.
    Shapes: N blocks of a copy, L layers; E, several dimensions, the content of a block's k or v in one layer.

    Args:
        layers: the device's cache.
        block_dim: api.KvLayout.kv_block_dim.
        num_places: may be 0.
    """

    def __init__(self, layers: list[LayerKv], block_dim: int, num_places: int) -> None:
        first = layers[0].k
        self._device, self._dtype, self._num_blocks = first.device, first.dtype, first.shape[block_dim]
        self._staging: Staging | None = staging_of(layers, block_dim)
        self._content = self._staging.content
        self._places = torch.empty(
            (num_places, *self._content), dtype=first.dtype, pin_memory=first.is_cuda and num_places > 0
        )

    def place(self, place: int) -> memoryview:
        """The bytes of one."""
        return self._places[place].view(torch.uint8).reshape(-1).numpy().data

    def copy(self, plan: StepPlan) -> None:
        """What the plan saves, then what it loads."""
        for ids, places in _chunks(plan.saved_ids, plan.saved_places):
            self.save(ids, places)
        for ids, places in _chunks(plan.loaded_ids, plan.loaded_places):
            self.load(ids, places)

    def close(self) -> None:
        """Let all memory go. Idempotent; no copy may follow."""
        self._staging = None
        self._places = torch.empty(0)

    def save(self, block_ids: list[int], places: list[int]) -> None:
        """Blocks to places; one gather on the device, [N, 2 L, E]."""
        gathered = self._open_staging.gather(block_ids)
        for content, place in zip(gathered, places, strict=True):
            self._places[place].copy_(content, non_blocking=True)

    def load(self, block_ids: list[int], places: list[int]) -> None:
        """Places to blocks; one scatter on the device."""
        staged = torch.empty((len(places), *self._content), dtype=self._dtype, device=self._device)
        for content, place in zip(staged, places, strict=True):
            content.copy_(self._places[place], non_blocking=True)
        self._open_staging.scatter(block_ids, staged)

    def measure_sync(self, clock: Callable[[], int]) -> int:
        """ns to save one block or to load it; 0 without places. The blocks stay as they are."""
        count = min(_NUM_MEASURED, len(self._places), self._num_blocks)
        if not count:
            return 0
        ids = list(range(count))
        self.save(ids, ids)  # touches the memory: the first use of a page costs more than a copy
        self._wait()
        return max(1, min(self._there_and_back_ns(ids, clock) for _ in range(_TRIALS)) // (2 * count))

    def _there_and_back_ns(self, ids: list[int], clock: Callable[[], int]) -> int:
        begin_ns = clock()
        self.save(ids, ids)
        self.load(ids, ids)
        self._wait()
        return clock() - begin_ns

    @property
    def _open_staging(self) -> Staging:
        if self._staging is None:
            raise RuntimeError("HostKv has been closed")
        return self._staging

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _chunks(ids: list[int], places: list[int]) -> list[tuple[list[int], list[int]]]:
    return [(ids[i : i + _CHUNK], places[i : i + _CHUNK]) for i in range(0, len(ids), _CHUNK)]
