"""Images of slots: each is encoded once, in the step that computes the first of its tokens, and its states
are kept until the step that computes the last.

So however a prompt is cut into chunks, a token of an image is the same. Since images are tokens of a step
like others, what the encoder does for a step is bounded by these: of each row, all images that end in it and
one more. A sequence that is admitted again brings its images along, and they are encoded again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.gpu.step_rows import Ints
from pipeline.messages import Admitted, PromptImage, StepPlan

See = Callable[[Tensor], Tensor]
"""gpu.api.Sees.see."""


@dataclass(slots=True, eq=False)
class _Held:
    image: PromptImage
    states: Tensor | None = None
    """[n, C], once it is encoded."""


class _Part(NamedTuple):
    """Tokens first ... end - 1 of an image."""

    held: _Held
    first: int
    end: int


class ImageTokens(NamedTuple):
    """Those of a step."""

    parts: list[_Part]
    rows: Ints
    """[E]: which of the step's tokens they are, in the order of the parts."""


class ImageSlots:
    """Costs nothing while no slot holds an image.

    Args:
        see: None: the model reads no images, and no sequence has any.
        image_size: S of [3, S, S].
    """

    def __init__(self, see: See | None, image_size: int, device: torch.device) -> None:
        self._see = see
        self._shape = (3, image_size, image_size)
        self._device = device
        self._held: dict[int, list[_Held]] = {}
        """By slot, those with tokens that are not computed yet."""

    @property
    def num_held(self) -> int:
        return sum(map(len, self._held.values()))

    def admit(self, admitted: Sequence[Admitted]) -> None:
        """Who gets a slot replaces what was there."""
        for each in admitted:
            self._held.pop(each.slot, None)
            if each.images:
                self._held[each.slot] = [_Held(image) for image in each.images]

    def tokens(self, plan: StepPlan) -> ImageTokens | None:
        """None: no row of the step has a token of an image. What is complete with it is let go."""
        if not self._held:
            return None
        parts: list[_Part] = []
        rows: list[int] = []
        begin = 0
        for slot, computed, count in zip(plan.slots, plan.num_computed, plan.num_tokens, strict=True):
            for held in self._held.get(slot, ()):
                first = max(computed, held.image.start)
                end = min(computed + count, held.image.end)
                if first < end:
                    parts.append(_Part(held, first - held.image.start, end - held.image.start))
                    rows += range(begin + first - computed, begin + end - computed)
            self._let_go(slot, computed + count)
            begin += count
        return ImageTokens(parts, np.array(rows, dtype=np.int64)) if parts else None

    def states(self, tokens: ImageTokens) -> Tensor:
        """[E, C]. Queues the encoder for images that come first with this step."""
        states = []
        for held, first, end in tokens.parts:
            if held.states is None:
                held.states = self._encoded(held.image)
            states.append(held.states[first:end])
        return torch.cat(states)

    def forget(self) -> None:
        """All sequences will be admitted anew."""
        self._held.clear()

    def _let_go(self, slot: int, num_computed: int) -> None:
        if slot in self._held:
            self._held[slot] = [held for held in self._held[slot] if held.image.end > num_computed]
            if not self._held[slot]:
                del self._held[slot]

    def _encoded(self, image: PromptImage) -> Tensor:
        assert self._see is not None, "who cannot see is sent no images"
        pixels = torch.tensor(np.frombuffer(image.pixels, dtype=np.uint8)).view(self._shape)
        if self._device.type == "cuda":  # a copy from memory that is not pinned waits for the step
            pixels = pixels.pin_memory().to(self._device, non_blocking=True)
        return self._see(pixels)
