"""Checks that a row's hash ids and length belong together: a wrong size makes plausible, short prompts."""

from loadgen.errors import TraceError
from loadgen.traces.row import Blocks


def uniform(
    ids: tuple[int, ...],
    size: int,
    num_input: int,
    where: str,
    *,
    last_is_partial: bool | None,
    scope: str = "",
) -> Blocks:
    """`ids` as blocks of `size` tokens, of a prompt of `num_input` tokens.

    Args:
        last_is_partial: True: the last id stands for what is left of the prompt (ceil); False: what is
            left has no id (floor); None: the format does not say, and both are right.

    Raises:
        TraceError: there are too few or too many of them, naming both numbers.
    """
    floor, ceil = num_input // size, -(-num_input // size)
    wanted = {True: {ceil}, False: {floor}, None: {floor, ceil}}[last_is_partial]
    if len(ids) not in wanted:
        numbers = " or ".join(str(count) for count in sorted(wanted))
        raise TraceError(
            f"{where}: hash_ids: {num_input} input tokens in blocks of {size} are {numbers} ids, the row has "
            f"{len(ids)}; is the block size another one (--block-size)?"
        )
    return Blocks(scope, ids, size)
