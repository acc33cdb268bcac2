"""Prompts that share what the recorded ones shared: token ids, made from hash ids.

The same id is the same tokens in every prompt, on every machine, in every run with the same seed. They
are sent as ids: text would be cut into tokens anew at every seam, and neither lengths nor blocks would
come out as recorded.
"""

import hashlib

import msgspec
import numpy as np
import numpy.typing as npt

from loadgen.traces.row import Blocks


class TokenRange(msgspec.Struct, frozen=True):
    """Prompts are made of the ids first..last; by default what every common vocabulary has as plain text."""

    first: int = 1000
    last: int = 20_000


class Prefixes:
    """Token ids by content. Every method is a pure function of its arguments, the seed and the range."""

    def __init__(self, seed: int, tokens: TokenRange) -> None:
        self._seed = seed
        self._tokens = tokens

    def prompt(self, blocks: Blocks, num_tokens: int, index: int) -> list[int]:
        """Exactly `num_tokens` ids: of its blocks, then, past them, ids that only prompt `index` has."""
        parts = [self._block(f"{blocks.scope}:{hash_id}", size) for hash_id, size in blocks.spans(num_tokens)]
        num_own = num_tokens - sum(map(len, parts))
        if num_own:
            parts.append(self._block(f"prompt {index}", num_own))
        ids: list[int] = np.concatenate(parts).tolist()
        return ids

    def _block(self, name: str, size: int) -> npt.NDArray[np.int64]:
        """`size` ids; a longer block of this name begins with the same ones.

        SHAKE (FIPS 202) is a stream: exact everywhere, and 512 ids take 12 us.
        """
        stream = hashlib.shake_128(f"{self._seed}:{name}".encode()).digest(4 * size)
        values = np.frombuffer(stream, "<u4").astype(np.int64)
        return values % (self._tokens.last - self._tokens.first + 1) + self._tokens.first
