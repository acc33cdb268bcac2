"""A plan's rows as arrays in host memory, real or empty ones. Knows no device."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.messages import StepPlan

Ints = npt.NDArray[np.int64]
ShortInts = npt.NDArray[np.int32]
NO_INTS: Ints = np.zeros(0, np.int64)


class StepRows(NamedTuple):
    """Shapes: B rows, T tokens, N columns of tables, R rows that yield a token."""

    slots: Ints
    """[B]."""
    ends: Ints
    """[B]: where each row's tokens end among the T."""
    token_ids: Ints
    positions: Ints
    slot_mapping: Ints
    token_slots: Ints
    """[T] each; the last is in which slot a token's sequence is."""
    context_lens: ShortInts
    """[B]."""
    block_tables: ShortInts
    """[B, N]."""
    sampling: Ints
    """[R] of the B rows."""
    max_queries: int

    @property
    def is_decode(self) -> bool:
        """Each row has one token, and yields the next."""
        return self.max_queries == 1 and len(self.sampling) == len(self.slots)


def scored_tokens(plan: StepPlan, ends: Ints) -> Ints:
    """[S]: which of the T tokens the plan's scored ones come after."""
    if not plan.scored:
        return NO_INTS
    starts = [ends[each.row] - plan.num_tokens[each.row] for each in plan.scored]
    return np.concatenate(
        [start + np.arange(len(each.token_ids)) for start, each in zip(starts, plan.scored, strict=True)]
    )


def no_rows() -> StepRows:
    """All of a captured step's rows are empty."""
    none, short = np.zeros(0, np.int64), np.zeros(0, np.int32)
    return StepRows(none, none, none, none, none, none, short, short.reshape(0, 0), none, max_queries=1)


def rows_of(plan: StepPlan, num_dropped: Ints, tables: ShortInts, block_size: int) -> StepRows:
    """numpy over all tokens.

    Args:
        num_dropped: tokens of each slot's context, and
        tables: [max_num_seqs, max_blocks], the plan taken in.
    """
    slots, num_tokens = np.array(plan.slots), np.array(plan.num_tokens)
    ends = np.cumsum(num_tokens)
    lens = np.array(plan.num_computed) + num_tokens
    positions = np.arange(ends[-1]) + np.repeat(lens - ends, num_tokens)
    dropped = num_dropped[slots]
    lens -= dropped
    token_slots = np.repeat(slots, num_tokens)
    blocks, offsets = np.divmod(positions - np.repeat(dropped, num_tokens), block_size)
    return StepRows(
        slots=slots,
        ends=ends,
        token_ids=np.array(plan.token_ids),
        positions=positions,
        slot_mapping=tables[token_slots, blocks].astype(np.int64) * block_size + offsets,
        token_slots=token_slots,
        context_lens=lens.astype(np.int32),
        block_tables=tables[slots, : -(-int(lens.max()) // block_size)],
        sampling=np.flatnonzero(plan.samples),
        max_queries=int(num_tokens.max()),
    )
