"""Eviction: what becomes of a preempted sequence's KV."""

from pipeline.core.block_pool import blocks_for
from pipeline.core.host_places import HostPlaces
from pipeline.core.prefix import NOWHERE
from pipeline.core.sequence import Sequence
from pipeline.core.step_cost import StepCost
from pipeline.messages import DeviceReady


class Recompute:
    """It is thrown away; all tokens known so far are computed anew when the sequence is admitted again."""

    def evict(self, sequence: Sequence) -> int:
        return 0

    def restore(self, sequence: Sequence) -> None:
        return None

    def discard(self, sequence: Sequence) -> None:
        return None

    def gauges(self) -> dict[str, float]:
        return {}


class Swap:
    """It is kept in host memory where there is room and copying is quicker than computing it again.

    The cost model: two copies of each block by what the runner measured at start, against the tokens by what
    prefill tokens have cost so far. Until that is known, copying is taken to be the quicker. Blocks of the
    prefix cache that have a place already are not copied again.
    """

    def __init__(self, device: DeviceReady, host: HostPlaces, cost: StepCost) -> None:
        self.num_swaps = 0
        self._host = host
        self._block_size = device.block_size
        self._block_copy_ns = device.block_copy_ns
        self._cost = cost
        self._kept: dict[int, list[int]] = {}
        """Places by request id, each held."""

    def evict(self, sequence: Sequence) -> int:
        num_kept = min(sequence.num_computed, len(sequence.token_ids) - 1)
        num_blocks = blocks_for(num_kept, self._block_size)
        if not self._is_quicker(num_kept, num_blocks):
            return 0
        places = self._take(sequence, num_blocks)
        if not places:
            return 0
        self._kept[sequence.request_id] = places
        self.num_swaps += 1
        return num_kept

    def restore(self, sequence: Sequence) -> None:
        places = self._kept.pop(sequence.request_id, [])
        num_shared = sequence.prefix.num_stored  # they hold what was kept, and nobody writes to them
        for place, block in zip(places[num_shared:], sequence.blocks[num_shared:], strict=False):
            self._host.load(place, block)
        self._host.pool.give_back(places)

    def discard(self, sequence: Sequence) -> None:
        places = self._kept.pop(sequence.request_id, [])
        self._host.unsave(places)
        self._host.pool.give_back(places)

    def gauges(self) -> dict[str, float]:
        return {"swaps_total": self.num_swaps}

    def _take(self, sequence: Sequence, num_blocks: int) -> list[int] | None:
        """Places for its first blocks: those that have the content, and others that it is saved to."""
        pool, entries = self._host.pool, sequence.prefix.entries[:num_blocks]
        places = [each.place for each in entries] + [NOWHERE] * (num_blocks - len(entries))
        pool.share([place for place in places if place != NOWHERE])
        taken = pool.take(places.count(NOWHERE))
        if taken is None:
            pool.give_back([place for place in places if place != NOWHERE])
            return None
        for index, place in enumerate(places):
            if place == NOWHERE:
                places[index] = place = taken.pop()
                self._host.save(sequence.blocks[index], place)
                if self._host.is_tier and index < len(entries):
                    self._host.assign(entries[index], place)
        return places

    def _is_quicker(self, num_tokens: int, num_blocks: int) -> bool:
        compute_ns = num_tokens * self._cost.coefficients.per_prefill_token
        is_known = self._cost.is_ready and compute_ns > 0
        return not is_known or 2 * num_blocks * self._block_copy_ns < compute_ns
