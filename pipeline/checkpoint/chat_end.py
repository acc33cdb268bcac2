"""Which ids end an answer, beyond those the files name: the marker that a chat template ends turns with."""

from collections.abc import Callable, Iterable

TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>")


def eos_ids(
    named: Iterable[int | None], template: str | None, token_to_id: Callable[[str], int | None]
) -> tuple[int, ...]:
    """The `named` ids and those of the turn ends that `template` writes, sorted, each once."""
    written = (token_to_id(marker) for marker in TURN_ENDS if template and marker in template)
    return tuple(sorted({token_id for token_id in (*named, *written) if token_id is not None}))
