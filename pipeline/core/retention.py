"""Retention: which blocks of its context a running sequence keeps, and which it drops for good.

An entry is a token's place in a context: its position, less the tokens dropped before it. Everything is in
whole blocks: sinks and budget are rounded up to them, so that what is kept is also seen. A sequence that
never outgrows its budget keeps all.

While a prompt is computed a sequence holds up to a chunk above its budget, at most the budget once more; and
always at least a block, so that it goes on whatever others hold: see Residents.drop.
"""

import sys
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from pipeline.core.block_pool import blocks_for
from pipeline.errors import ConfigError, RequestError
from pipeline.messages import DeviceReady, Terms

KvEviction = Literal["none", "sink_window", "heavy_hitter"]
MIN_BLOCKS = 2
"""Of a budget, beside the sinks: one of the latest tokens, and one before it that may be dropped."""


class Retention(Protocol):
    """What one sequence keeps. It has no state. Columns are those of its block table."""

    @property
    def drops(self) -> bool:
        """False: it keeps all, and none of the rest is asked."""
        ...

    @property
    def max_blocks(self) -> int:
        """The most it ever holds."""
        ...

    @property
    def num_sinks(self) -> int:
        """Its first tokens, never dropped: only their blocks may be shared with others."""
        ...

    @property
    def window(self) -> int:
        """A query sees the sinks and the last so many entries, its own included; 0: all."""
        ...

    @property
    def is_weighed(self) -> bool:
        """The device adds up how much each block is attended to, and is asked which to drop."""
        ...

    def unseen(self, num_entries: int) -> range:
        """Columns that no query sees from the one on that comes after so many entries."""
        ...

    def num_drops(self, num_entries: int) -> int:
        """How many blocks of so many entries are to be dropped, as the device says."""
        ...

    def candidates(self, num_entries: int) -> range:
        """Columns that may be: at least `num_drops`."""
        ...


@dataclass(frozen=True, slots=True)
class KeepAll:
    """The context is the sequence."""

    drops: ClassVar[bool] = False
    max_blocks: ClassVar[int] = sys.maxsize
    num_sinks: ClassVar[int] = sys.maxsize
    window: ClassVar[int] = 0
    is_weighed: ClassVar[bool] = False

    def unseen(self, num_entries: int) -> range:
        return range(0)

    def num_drops(self, num_entries: int) -> int:
        return 0

    def candidates(self, num_entries: int) -> range:
        return range(0)


KEEP_ALL = KeepAll()


@dataclass(frozen=True, slots=True)
class SinkWindow:
    """The first tokens and the last (Xiao et al. 2024, StreamingLLM), at their true positions.

    What a query sees does not depend on when blocks are dropped: they are when nothing sees them any more.
    """

    drops: ClassVar[bool] = True
    is_weighed: ClassVar[bool] = False
    block_size: int
    num_sinks: int
    window: int
    max_blocks: int

    def unseen(self, num_entries: int) -> range:
        return range(self.num_sinks // self.block_size, (num_entries + 1 - self.window) // self.block_size)

    def num_drops(self, num_entries: int) -> int:
        return 0

    def candidates(self, num_entries: int) -> range:
        return range(0)


@dataclass(frozen=True, slots=True)
class HeavyHitter:
    """The first tokens, the last, and of the others the blocks that were attended to most (after Zhang et al.
    2023, H2O, which keeps single tokens, a set for each head).

    Half of what the sinks leave of the budget is for the last. Which blocks go depends on what has been
    computed when the device is asked: so texts depend on how a prompt was cut into chunks.
    """

    drops: ClassVar[bool] = True
    window: ClassVar[int] = 0
    is_weighed: ClassVar[bool] = True
    block_size: int
    num_sinks: int
    budget: int
    """Tokens, sinks included."""
    max_blocks: int

    def unseen(self, num_entries: int) -> range:
        return range(0)

    def num_drops(self, num_entries: int) -> int:
        return blocks_for(max(0, num_entries - self.budget), self.block_size)

    def candidates(self, num_entries: int) -> range:
        num_blocks = (self.budget - self.num_sinks) // self.block_size
        num_recent = num_blocks // 2 * self.block_size
        return range(self.num_sinks // self.block_size, (num_entries - num_recent) // self.block_size)


class Retentions:
    """Makes each request's, from what it asks and what the server does otherwise.

    Args:
        kind, budget, sinks: of a request that does not say; see policies.options.
    """

    def __init__(self, device: DeviceReady, kind: KvEviction, budget: int, sinks: int) -> None:
        self._device = device
        self._default = Terms(kv_eviction=kind, kv_budget=budget, kv_sinks=sinks)

    def renew(self, device: DeviceReady) -> None:
        """It holds so much from now on."""
        self._device = device

    def check(self) -> None:
        """Whether requests that do not say can run on this device. Raises ConfigError."""
        try:
            self.of(Terms(), sys.maxsize)
        except RequestError as error:
            raise ConfigError(f"stages.schedule.options: {error.message}") from error

    def of(self, terms: Terms, max_kv_tokens: int) -> Retention:
        """For a request that comes to hold so many tokens if it drops none. Raises RequestError."""
        default, device = self._default, self._device
        kind = terms.kv_eviction or default.kv_eviction
        if kind == "none":
            _refuse_without_kind(terms)
            return KEEP_ALL
        size = device.block_size
        sinks = _or(terms.kv_sinks, default.kv_sinks)
        budget = _or(terms.kv_budget, default.kv_budget)
        num_sink_blocks, num_blocks = blocks_for(sinks, size), blocks_for(budget, size)
        if num_blocks < num_sink_blocks + MIN_BLOCKS:
            least = (num_sink_blocks + MIN_BLOCKS) * size
            raise _wrong(
                "kv_budget", f"at least {least} for {sinks} sinks in blocks of {size}, but is {budget}"
            )
        if max_kv_tokens <= num_blocks * size:
            return KEEP_ALL
        if num_blocks >= device.num_blocks:
            most = (device.num_blocks - 1) * size
            raise _wrong("kv_budget", f"at most {most}: the KV cache has no more, but is {budget}")
        max_blocks = min(self._max_blocks(num_blocks), blocks_for(max_kv_tokens, size))
        num_sinks = num_sink_blocks * size
        if kind == "sink_window":
            return SinkWindow(size, num_sinks, num_blocks * size - num_sinks, max_blocks)
        return HeavyHitter(size, num_sinks, num_blocks * size, max_blocks)

    def max_blocks(self, terms: Terms, num_tokens: int) -> int:
        """The most that such a request may hold; for one that will be refused as for one that keeps all."""
        try:
            return self.of(terms, num_tokens).max_blocks
        except RequestError:
            return KEEP_ALL.max_blocks

    def _max_blocks(self, num_blocks: int) -> int:
        device = self._device
        num_chunk_blocks = min(num_blocks, blocks_for(device.max_num_batched_tokens, device.block_size))
        return min(num_blocks + num_chunk_blocks, device.num_blocks)


def _refuse_without_kind(terms: Terms) -> None:
    for name, value in (("kv_budget", terms.kv_budget), ("kv_sinks", terms.kv_sinks)):
        if value is not None:
            raise _wrong(name, f"left out where 'kv_eviction' is \"none\", but is {value}")


def _wrong(name: str, expected: str) -> RequestError:
    return RequestError(f"'{name}' must be {expected}.", param=name, code="invalid_value")


def _or(value: int | None, default: int | None) -> int:
    chosen = default if value is None else value
    assert chosen is not None, "the server's are set"
    return chosen
