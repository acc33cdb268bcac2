"""A model's vocabulary as llguidance wants it: the bytes that detokenization itself goes by.

So a text that the grammar takes is the text that the client gets.
"""

from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer

from pipeline.core.detok import Vocabulary


class Words:
    """What llguidance asks of a tokenizer (llguidance.TokenizerWrapper)."""

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_ids: tuple[int, ...]) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        vocabulary = Vocabulary(self._tokenizer, vocab_size)
        self._pieces = [_as_bytes(piece) for piece in vocabulary.pieces]
        self.tokens = [_as_bytes(piece) for piece in vocabulary.all_pieces]
        self.special_token_ids = [
            token_id for token_id, piece in enumerate(self._pieces) if not piece and self.tokens[token_id]
        ]
        self.bos_token_id = None
        self.eos_token_id = eos_ids[0]
        self.cut: Callable[[str], list[int]] = lambda _: []

    def __call__(self, text: bytes) -> list[int]:
        """As the model's tokenizer has it, if those tokens are that text; else the longest tokens there are.

        Where only one text can come next, the model may say it in these tokens alone.
        """
        words = text.decode(errors="replace")
        ids: list[int] = self._tokenizer.encode(words, add_special_tokens=False).ids
        return ids if b"".join(self._pieces[each] for each in ids) == text else self.cut(words)


def _as_bytes(piece: Any) -> bytes:
    return piece.encode() if isinstance(piece, str) else bytes(piece)
