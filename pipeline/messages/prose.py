"""Prose: what stands in redacted messages for what people wrote. As long as it, and nothing else of it.

A chunk of the replacement depends, by a key, on the original up to the chunk's end: where two originals begin
alike, so do what stands for them, and nobody without the key can try out what it was.
"""

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate, compress, cycle, islice

TEXT = (
    "The old harbour lies behind the hill, and in the morning the first boats come back with what they "
    "found at night. People wait on the stones, talk about the weather and drink coffee from small cups. "
    "When the market opens, a bell rings twice; then everybody moves at once, and for an hour nobody has "
    "time to say much. By noon the baskets are empty, the cats are full, and the square is quiet again. "
)
"""Plain words of plain ASCII: it is cut into tokens as most text is."""

CHUNK_TOKENS = 16
_CHUNK_BYTES = 48
_STARTS = [0, *accumulate(len(word) + 1 for word in TEXT.split(" ")[:-2])]
"""Where its words begin."""


def prose(num_bytes: int, start: int = 0) -> str:
    """So much of TEXT, from there on, again and again."""
    begin = start % len(TEXT)
    return (TEXT * ((begin + num_bytes) // len(TEXT) + 1))[begin : begin + num_bytes]


class Prose:
    """What stands for what.

    Args:
        token_ids: of TEXT, as the model's tokenizer has it.
        kept_ids: special tokens, which say nothing but where something begins or ends.
    """

    def __init__(self, token_ids: Sequence[int], kept_ids: frozenset[int], key: bytes) -> None:
        self._words = list(islice(cycle(token_ids), 256))
        """One for every value of a byte."""
        self._many = self._words * 5
        self._kept = kept_ids
        self._key = key

    def text(self, original: str) -> str:
        """For what has a beginning that others may have too."""
        data = original.encode()
        chunks = [
            prose(len(chunk), _STARTS[digest[0] % len(_STARTS)]) for chunk, digest in self._chunks(data)
        ]
        return "".join(chunks)

    def prompt(self, token_ids: Sequence[int]) -> list[int]:
        """Likewise, of token ids."""
        chosen: list[int] = []
        for chunk, digest in self._chunks(array("q", token_ids).tobytes(), CHUNK_TOKENS * 8):
            chosen += [self._words[byte] for byte in digest[: len(chunk) // 8]]
        return self._with_kept(token_ids, chosen)

    def output(self, token_ids: Sequence[int], start: int) -> list[int]:
        """For ids of which each is a text's or a row's own; `start` tells one list from the next."""
        return self._with_kept(token_ids, self._some(len(token_ids), start))

    def rows(self, token_ids: Sequence[int], are_last: Sequence[int], start: int) -> list[int]:
        """Likewise, where it is known which ids are the last of their texts: only there special ones stay."""
        chosen = self._some(len(token_ids), start)
        for index in compress(range(len(chosen)), are_last):
            if token_ids[index] in self._kept:
                chosen[index] = token_ids[index]
        return chosen

    def alias(self, name: str) -> str:
        """Of the same length, and the same for the same name."""
        if not name:
            return name
        digest = blake2b(name.encode(), key=self._key).hexdigest()
        return (digest * (len(name) // len(digest) + 1))[: len(name)]

    def alias_bytes(self, name: bytes) -> bytes:
        return self.alias(name.hex())[: len(name)].encode()

    def _some(self, count: int, start: int) -> list[int]:
        begin = start % 256
        end = begin + count
        many = self._many if end <= len(self._many) else self._words * (end // 256 + 1)
        return many[begin:end]

    def _with_kept(self, token_ids: Sequence[int], chosen: list[int]) -> list[int]:
        if self._kept.isdisjoint(token_ids):
            return chosen
        for index, token_id in enumerate(token_ids):
            if token_id in self._kept:
                chosen[index] = token_id
        return chosen

    def _chunks(self, data: bytes, size: int = _CHUNK_BYTES) -> Iterator[tuple[bytes, bytes]]:
        """Each chunk, and a digest of all up to its end."""
        digest = b""
        for begin in range(0, len(data), size):
            chunk = data[begin : begin + size]
            digest = blake2b(digest + chunk, digest_size=CHUNK_TOKENS, key=self._key).digest()
            yield chunk, digest
