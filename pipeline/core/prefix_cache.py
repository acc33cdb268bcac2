"""PrefixCache: which blocks hold which tokens, so that a sequence need not compute what another has.

Only full blocks are shared, and nobody writes to a full block: so there is nothing to copy on a write, a
sequence that goes its own way does so in a block of its own. A block can be read as soon as the step that
fills it is planned: a worker's steps run in the order of their plans, and a step writes all rows before it
reads any.

A cached block's parent is cached: whoever holds a block holds all before it, gives them back last, and the
pool evicts whichever was given back first. So a chain has no holes, and a block is only ever found through
the very chain it was computed in. Tenant, salt and token ids are compared too: equal keys alone give no hit.
"""

from typing import Protocol

from pipeline.core.kv_events import KvEvents
from pipeline.core.prefix import Link, PrefixHash
from pipeline.core.sequence import Sequence


class SharedPrefixes(Protocol):
    """What the residents ask. It holds no blocks: who has how many is the pool's to know."""

    def find(self, sequence: Sequence) -> list[int]:
        """The blocks of the sequence's first tokens, without a hole and never with its last token."""
        ...

    def enter(self, sequence: Sequence) -> list[int]:
        """The same; it holds them from now on, as its first blocks."""
        ...

    def store(self, sequence: Sequence, num_written: int) -> list[int]:
        """Take note of the blocks filled by so many of its tokens; those that are new."""
        ...

    def forget(self, block: int) -> None:
        """It will be written to."""
        ...

    def gauges(self) -> dict[str, float]:
        """For /metrics."""
        ...


class NoSharing:
    """Every sequence computes all its tokens."""

    def find(self, sequence: Sequence) -> list[int]:
        return []

    def enter(self, sequence: Sequence) -> list[int]:
        return []

    def store(self, sequence: Sequence, num_written: int) -> list[int]:
        return []

    def forget(self, block: int) -> None:
        raise AssertionError("no block was kept")

    def gauges(self) -> dict[str, float]:
        return {}


class PrefixCache:
    """Costs nothing per token: one hash (1 to 2 us) for each block that is looked for or filled.

    Args:
        events: is told of each block that holds something from now on, or no longer.
    """

    def __init__(self, prefix_hash: PrefixHash, events: KvEvents | None = None) -> None:
        self.num_queried_tokens = 0
        """Prompt tokens of sequences that were admitted for the first time, and"""
        self.num_hit_tokens = 0
        """how many of them were not computed."""
        self.num_forgotten = 0
        self._events = events
        self._hash = prefix_hash
        self._block_size = prefix_hash.block_size
        self._blocks: dict[bytes, int] = {}
        self._links: dict[int, Link] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, sequence: Sequence) -> list[int]:
        prefix = sequence.prefix
        if prefix.found_at != self.num_forgotten:
            prefix.found, prefix.found_at = [], self.num_forgotten
        found = prefix.found
        num_lasting = min(len(sequence.token_ids) - 1, sequence.retention.num_sinks)
        for index in range(len(found), num_lasting // self._block_size):
            link = self._link(sequence, index)
            block = self._blocks.get(link.key)
            if block is None or self._links[block] != link:
                break
            found.append(block)
        return found

    def enter(self, sequence: Sequence) -> list[int]:
        blocks = list(self.find(sequence))
        sequence.prefix.num_stored = len(blocks)
        if not sequence.epoch:
            sequence.num_cached_tokens = len(blocks) * self._block_size
            self.num_hit_tokens += sequence.num_cached_tokens
            self.num_queried_tokens += len(sequence.token_ids)
        return blocks

    def store(self, sequence: Sequence, num_written: int) -> list[int]:
        """It stops at a block that another sequence has filled with the same: that one stays the cache's, and
        what comes after this sequence's own twin of it would hang on a block that it does not hold.
        """
        prefix, blocks = sequence.prefix, sequence.blocks
        first = prefix.num_stored
        while prefix.num_stored < num_written // self._block_size:
            link = self._link(sequence, prefix.num_stored)
            if link.key in self._blocks:
                break
            block = blocks[prefix.num_stored]
            self._blocks[link.key], self._links[block] = block, link
            prefix.num_stored += 1
            if self._events is not None:
                self._events.stored(link)
        return blocks[first : prefix.num_stored]

    def forget(self, block: int) -> None:
        link = self._links.pop(block)
        del self._blocks[link.key]
        self.num_forgotten += 1
        if self._events is not None:
            self._events.removed(link)

    def gauges(self) -> dict[str, float]:
        return {
            "prefix_queried_tokens_total": self.num_queried_tokens,
            "prefix_hit_tokens_total": self.num_hit_tokens,
            "prefix_evicted_blocks_total": self.num_forgotten,
        }

    def _link(self, sequence: Sequence, index: int) -> Link:
        """Of its block `index`, whose tokens are known; `index` grows by one at most from call to call."""
        links, size = sequence.prefix.links, self._block_size
        if index == len(links):
            terms, token_ids = sequence.terms, sequence.token_ids[index * size : (index + 1) * size]
            links.append(
                self._hash.after(links[-1], token_ids)
                if links
                else self._hash.first(terms.tenant, terms.cache_salt, token_ids)
            )
        return links[index]
