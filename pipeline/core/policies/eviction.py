"""Eviction: what becomes of a preempted sequence's KV."""

from typing import NamedTuple

from pipeline.core.block_pool import BlockPool, blocks_for
from pipeline.core.sequence import Sequence
from pipeline.core.step_cost import StepCost
from pipeline.messages import DeviceReady


class BlockCopies(NamedTuple):
    """Columns of a StepPlan; see there."""

    saved_ids: list[int]
    saved_places: list[int]
    loaded_places: list[int]
    loaded_ids: list[int]


class Recompute:
    """It is thrown away; all tokens known so far are computed anew when the sequence is admitted again."""

    def evict(self, sequence: Sequence) -> int:
        return 0

    def restore(self, sequence: Sequence) -> None:
        return None

    def discard(self, sequence: Sequence) -> None:
        return None

    def copies(self) -> BlockCopies:
        return BlockCopies([], [], [], [])

    def gauges(self) -> dict[str, float]:
        return {}


class Swap:
    """It is kept in host memory where there is room and copying is quicker than computing it again.

    The cost model: two copies of each block by what the runner measured at start, against the tokens by what
    prefill tokens have cost so far. Until that is known, copying is taken to be the quicker.

    Why copies come at the right time: a plan's copies run after all steps before it, and before its own. So a
    save sees every token that was planned before the preemption, and a block that is free since then is not
    written to before it is saved. Within one plan all preemptions come before all admissions, so its loads
    come after its saves.
    """

    def __init__(self, device: DeviceReady, cost: StepCost) -> None:
        self.places = BlockPool(device.num_host_blocks)
        self.num_swaps = 0
        self._block_size = device.block_size
        self._block_copy_ns = device.block_copy_ns
        self._cost = cost
        self._kept: dict[int, list[int]] = {}
        """Places by request id."""
        self._saves: dict[int, int] = {}
        """Of the next plan: place and block."""
        self._loads: list[tuple[int, int]] = []

    def evict(self, sequence: Sequence) -> int:
        num_kept = min(sequence.num_computed, len(sequence.token_ids) - 1)
        num_blocks = blocks_for(num_kept, self._block_size)
        if not self._is_quicker(num_kept, num_blocks):
            return 0
        places = self.places.take(num_blocks)
        if not places:
            return 0
        self._kept[sequence.request_id] = places
        self._saves.update(zip(places, sequence.blocks, strict=False))
        self.num_swaps += 1
        return num_kept

    def restore(self, sequence: Sequence) -> None:
        places = self._kept.pop(sequence.request_id, [])
        num_shared = sequence.prefix.num_stored  # they hold what was kept, and nobody writes to them
        self._loads += zip(places[num_shared:], sequence.blocks[num_shared:], strict=False)
        self.places.give_back(places)  # to saves of later plans only: see the class

    def discard(self, sequence: Sequence) -> None:
        places = self._kept.pop(sequence.request_id, [])
        self.places.give_back(places)
        for place in places:
            self._saves.pop(place, None)

    def copies(self) -> BlockCopies:
        saves, loads = self._saves, self._loads
        self._saves, self._loads = {}, []
        return BlockCopies(
            list(saves.values()), list(saves), [place for place, _ in loads], [block for _, block in loads]
        )

    def gauges(self) -> dict[str, float]:
        return {
            "swaps_total": self.num_swaps,
            "host_blocks": self.places.num_blocks,
            "host_blocks_used": self.places.num_owned,
        }

    def _is_quicker(self, num_tokens: int, num_blocks: int) -> bool:
        compute_ns = num_tokens * self._cost.coefficients.per_prefill_token
        is_known = self._cost.is_ready and compute_ns > 0
        return not is_known or 2 * num_blocks * self._block_copy_ns < compute_ns
