"""How often each token is in the prompt and output of those sequences whose sampling goes by it.

On the device, since the last token sampled may be known only there. A slot takes a place when a sequence that
asks for it is admitted; places are made as they are needed, so a server that is never asked pays nothing.
"""

import numpy as np
import torch
from torch import Tensor

from pipeline.gpu.logit_rules import ANY
from pipeline.messages import MAX_BAD_WORD_IDS

TAIL = MAX_BAD_WORD_IDS - 1
"""Output tokens that are kept in order."""


class SeenTokens:
    """Places of slots. Work on the device follows the order of the calls.

    Args:
        max_num_seqs: slots.
        vocab_size: V.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._device = device
        self.counts = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        """[P, V] int32: 2 * times in the output + 1 if in the prompt."""
        self.tails = torch.zeros((0, TAIL), dtype=torch.int32, device=device)
        """[P, TAIL] int32: the last output tokens, ANY before the first."""
        self.places = np.full(max_num_seqs, -1, dtype=np.int64)
        """[max_num_seqs]; -1: none."""
        self._free: list[int] = []

    def admit(self, slot: int, token_ids: list[int], num_prompt_tokens: int) -> None:
        """The sequence in `slot` has these tokens so far."""
        if self.places[slot] < 0:
            if not self._free:
                self._grow()
            self.places[slot] = self._free.pop()
        place = int(self.places[slot])
        ids = torch.tensor(token_ids, dtype=torch.int64).to(self._device)
        output = ids[num_prompt_tokens:]
        counts = self.counts[place].zero_()  # bincount would wait for the device
        counts.index_add_(0, output, torch.full_like(output, 2, dtype=torch.int32))
        counts[ids[:num_prompt_tokens]] |= 1
        self.tails[place] = ANY
        if tail := min(TAIL, output.shape[0]):
            self.tails[place, -tail:] = output[-tail:].to(torch.int32)

    def leave(self, slot: int) -> None:
        """Whoever is in the slot now does not ask."""
        if self.places[slot] >= 0:
            self._free.append(int(self.places[slot]))
            self.places[slot] = -1

    def add(self, places: Tensor, token_ids: Tensor) -> None:
        """One output token [N] more at each of the places [N], no two of which are the same."""
        self.counts[places, token_ids] += 2
        tails = self.tails[places].roll(-1, 1)
        tails[:, -1] = token_ids
        self.tails[places] = tails

    def _grow(self) -> None:
        num, most = self.counts.shape[0], self.places.shape[0]
        num_new = min(max(1, num), most - num)
        self._free += range(num, num + num_new)
        self.counts = torch.cat([self.counts, self.counts.new_zeros((num_new, self.counts.shape[1]))])
        self.tails = torch.cat([self.tails, self.tails.new_full((num_new, TAIL), ANY)])
