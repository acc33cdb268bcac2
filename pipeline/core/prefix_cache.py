"""PrefixCache: which blocks hold which tokens, so that a sequence need not compute what another has.

Only full blocks are shared, and nobody writes to a full block: so there is nothing to copy on a write, a
sequence that goes its own way does so in a block of its own. A block can be read as soon as the step that
fills it is planned: a worker's steps run in the order of their plans, and a step writes all rows before it
reads any.

A device block's parent is on the device: whoever holds a block holds all before it, gives them back last, and
the pool evicts whichever was given back first. Behind the device blocks of a chain may come some in host
memory, and on disk (core.tiers). An entry is only ever found through the very entries it was computed behind:
so a hole ends a chain, and what comes behind it is not found again. Tenant, salt and token ids are compared
too: equal keys alone give no hit.
"""

from collections.abc import Iterator
from typing import Protocol

from pipeline.core.kv_events import KvEvents
from pipeline.core.prefix import NOWHERE, Entry, Link, PrefixHash, images_in
from pipeline.core.sequence import Sequence
from pipeline.core.tiers import Tiers
from pipeline.messages import DeviceReady, DiskMoved, DiskMoves


class SharedPrefixes(Protocol):
    """What the residents and the scheduler ask. It holds no blocks: who has which is the pool's to know."""

    def find(self, sequence: Sequence) -> list[int]:
        """The blocks of the sequence's first tokens, without a hole and never with its last token."""
        ...

    def enter(self, sequence: Sequence) -> list[int]:
        """The same; it holds them from now on, as its first blocks."""
        ...

    def load(self, sequence: Sequence) -> list[int]:
        """It has all its blocks. Those behind the shared ones that the next plan fills from other tiers."""
        ...

    def store(self, sequence: Sequence, num_written: int) -> list[int]:
        """Take note of the blocks filled by so many of its tokens; those that are new."""
        ...

    def forget(self, block: int) -> None:
        """It will be written to."""
        ...

    def expect(self, sequence: Sequence, now_ns: int) -> bool:
        """Whether a new one should wait, for its tokens are on their way from disk; see `released`."""
        ...

    def released(self, now_ns: int) -> list[Sequence]:
        """Those that need wait no more."""
        ...

    @property
    def wake_ns(self) -> int | None:
        """When `released` will have something although nothing has happened; None: never."""
        ...

    def planned(self, num_prefill_tokens: int, num_decode_tokens: int, num_kv_tokens: int) -> None:
        """The plan of such a step is complete."""
        ...

    def take_moves(self) -> DiskMoves | None:
        """What the disk is to do, given away."""
        ...

    def moved(self, moved: DiskMoved) -> None:
        """It has done it."""
        ...

    @property
    def is_moving(self) -> bool:
        """Blocks are on their way to disk or back, or have to be before the end."""
        ...

    def renew(self, device: DeviceReady) -> None:
        """The device holds nothing so far, nor does host memory; what is on disk is what it says."""
        ...

    def gauges(self) -> dict[str, float]:
        """For /metrics."""
        ...


class NoSharing:
    """Every sequence computes all its tokens."""

    wake_ns: int | None = None
    is_moving = False

    def find(self, sequence: Sequence) -> list[int]:
        return []

    def enter(self, sequence: Sequence) -> list[int]:
        return []

    def load(self, sequence: Sequence) -> list[int]:
        return []

    def store(self, sequence: Sequence, num_written: int) -> list[int]:
        return []

    def forget(self, block: int) -> None:
        raise AssertionError("no block was kept")

    def expect(self, sequence: Sequence, now_ns: int) -> bool:
        return False

    def released(self, now_ns: int) -> list[Sequence]:
        return []

    def planned(self, num_prefill_tokens: int, num_decode_tokens: int, num_kv_tokens: int) -> None:
        return None

    def take_moves(self) -> DiskMoves | None:
        return None

    def moved(self, moved: DiskMoved) -> None:
        raise AssertionError("nothing was to be moved")

    def renew(self, device: DeviceReady) -> None:
        return None

    def gauges(self) -> dict[str, float]:
        return {}


class PrefixCache:
    """Costs nothing per token: one hash (1 to 2 us) for each block that is looked for or filled.

    Args:
        events: is told of each block of the device that holds something from now on, or no longer.
        tiers: where blocks go that are taken; None: they are lost.
    """

    def __init__(
        self, prefix_hash: PrefixHash, events: KvEvents | None = None, tiers: Tiers | None = None
    ) -> None:
        self.num_queried_tokens = 0
        """Prompt tokens of sequences that were admitted for the first time, and"""
        self.num_hit_tokens = 0
        """how many of them were not computed."""
        self.num_forgotten = 0
        self._events = events
        self.tiers = tiers or Tiers.none()
        self.tiers.open(self._lost)
        self._hash = prefix_hash
        self._block_size = prefix_hash.block_size
        self._entries: dict[bytes, Entry] = {entry.link.key: entry for entry in self.tiers.restored()}
        self._on_device: dict[int, Entry] = {}

    def __len__(self) -> int:
        """Blocks of the device."""
        return len(self._on_device)

    def find(self, sequence: Sequence) -> list[int]:
        prefix = sequence.prefix
        if prefix.found_at != self.num_forgotten:
            prefix.found, prefix.found_at = [], self.num_forgotten
        found = prefix.found
        for entry in self._chain(sequence, [self._on_device[block] for block in found[-1:]], len(found)):
            if entry.block == NOWHERE:
                break
            found.append(entry.block)
        return found

    def enter(self, sequence: Sequence) -> list[int]:
        blocks = list(self.find(sequence))
        entries = [self._on_device[block] for block in blocks]
        prefix = sequence.prefix
        prefix.entries, prefix.num_stored = entries, len(blocks)
        for entry in self._chain(sequence, entries[-1:], len(entries)):
            if entry.place == NOWHERE or not self.tiers.hold(entry):
                break
            entries.append(entry)
        return blocks

    def load(self, sequence: Sequence) -> list[int]:
        prefix, first = sequence.prefix, sequence.prefix.num_stored
        prefix.num_stored = len(prefix.entries)
        loaded = sequence.blocks[first : prefix.num_stored]
        for entry, block in zip(prefix.entries[first:], loaded, strict=True):
            self._put(entry, block)
            self.tiers.load(entry)
        if not sequence.epoch:
            sequence.num_cached_tokens = prefix.num_stored * self._block_size
            self.num_hit_tokens += sequence.num_cached_tokens
            self.num_queried_tokens += len(sequence.token_ids)
        return loaded

    def store(self, sequence: Sequence, num_written: int) -> list[int]:
        """It stops at a block that another sequence has filled with the same: that one stays the cache's, and
        what comes after this sequence's own twin of it would hang on a block that it does not hold.
        """
        prefix, blocks = sequence.prefix, sequence.blocks
        first = prefix.num_stored
        while prefix.num_stored < num_written // self._block_size:
            entry = self._entry(sequence, prefix.num_stored)
            if entry.block != NOWHERE:
                break
            self._put(entry, blocks[prefix.num_stored])
            self.tiers.stored(entry)
            prefix.entries.append(entry)
            prefix.num_stored += 1
        return blocks[first : prefix.num_stored]

    def forget(self, block: int) -> None:
        entry = self._on_device.pop(block)
        entry.block = NOWHERE
        self.num_forgotten += 1
        if self._events is not None:
            self._events.removed(entry.link)
        self.tiers.taken(entry, block)
        if entry.is_lost:
            self._lost(entry)

    def expect(self, sequence: Sequence, now_ns: int) -> bool:
        return self.tiers.expect(sequence, self._chain(sequence, [], 0), now_ns)

    def released(self, now_ns: int) -> list[Sequence]:
        return self.tiers.released(now_ns)

    @property
    def wake_ns(self) -> int | None:
        return self.tiers.wake_ns

    def planned(self, num_prefill_tokens: int, num_decode_tokens: int, num_kv_tokens: int) -> None:
        self.tiers.planned(num_prefill_tokens, num_decode_tokens, num_kv_tokens)

    def take_moves(self) -> DiskMoves | None:
        return self.tiers.take_moves()

    def moved(self, moved: DiskMoved) -> None:
        self.tiers.moved(moved)

    @property
    def is_moving(self) -> bool:
        return self.tiers.shelves.is_moving

    def renew(self, device: DeviceReady) -> None:
        self.num_forgotten += len(self._on_device)
        self._on_device.clear()
        self.tiers.renew(device)
        self._entries = {entry.link.key: entry for entry in self.tiers.restored()}
        if self._events is not None:
            self._events.cleared()

    def rekey(self, prefix_hash: PrefixHash) -> None:
        """Go by other keys, those of the disk, from the next `renew` on; until then nothing is cached."""
        self._hash = prefix_hash

    def gauges(self) -> dict[str, float]:
        return {
            "prefix_queried_tokens_total": self.num_queried_tokens,
            "prefix_hit_tokens_total": self.num_hit_tokens,
            "prefix_evicted_blocks_total": self.num_forgotten,
            **self.tiers.gauges(),
        }

    def _chain(self, sequence: Sequence, last: list[Entry], start: int) -> Iterator[Entry]:
        """Entries of its blocks from `start` on, as far as there are any; `last`: the one before, if any."""
        if sequence.is_computed_whole:
            return
        parent = last[0] if last else None
        num_lasting = min(len(sequence.token_ids) - 1, sequence.retention.num_sinks)
        for index in range(start, num_lasting // self._block_size):
            link = self._link(sequence, index)
            entry = self._entries.get(link.key)
            if entry is None or not entry.is_behind(parent, link, self._images(sequence, index)):
                return
            yield entry
            parent = entry

    def _entry(self, sequence: Sequence, index: int) -> Entry:
        """Of its block `index`, which it holds behind its `prefix.entries`; a new one if there is none.

        One that has the key and is another's stays while it is on the device, else it gives way.
        """
        entries, link = sequence.prefix.entries, self._link(sequence, index)
        images = self._images(sequence, index)
        parent = entries[-1] if entries else None
        entry = self._entries.get(link.key)
        if entry is not None and entry.block == NOWHERE and not entry.is_behind(parent, link, images):
            self.tiers.discard(entry)
            entry = None
        if entry is None:
            entry = self._entries[link.key] = Entry(link, parent, index, images=images)
        return entry

    def _put(self, entry: Entry, block: int) -> None:
        entry.block, self._on_device[block] = block, entry
        if self._events is not None:
            self._events.stored(entry.link)

    def _lost(self, entry: Entry) -> None:
        if self._entries.get(entry.link.key) is entry:
            del self._entries[entry.link.key]

    def _link(self, sequence: Sequence, index: int) -> Link:
        """Of its block `index`, whose tokens are known; `index` grows by one at most from call to call."""
        links, size = sequence.prefix.links, self._block_size
        if index == len(links):
            terms, token_ids = sequence.terms, sequence.token_ids[index * size : (index + 1) * size]
            images = self._images(sequence, index)
            links.append(
                self._hash.after(links[-1], token_ids, images)
                if links
                else self._hash.first(terms.tenant, terms.cache_salt, token_ids, images)
            )
        return links[index]

    def _images(self, sequence: Sequence, index: int) -> bytes:
        """In its block `index`."""
        start = index * self._block_size
        return images_in(sequence.images, start, start + self._block_size) if sequence.images else b""
