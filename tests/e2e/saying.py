"""A runner that says what a test gives it, a byte a token."""

from collections.abc import Mapping

from pipeline.checkpoint.fake import byte_card
from pipeline.messages import DeviceReady, StepPlan
from pipeline.runtime.testing import FakeHandle, FakeRunner

ROOM = DeviceReady(400, 16, 16, 256)
END = byte_card().eos_ids[0]


class SayingRunner(FakeRunner):
    """Args:
    texts: by the seed of the request that is to hear them; after the last byte the answer ends.
    """

    def __init__(self, texts: Mapping[int, str], capacity: DeviceReady = ROOM) -> None:
        super().__init__(capacity)
        self._texts = {seed: text.encode() for seed, text in texts.items()}
        self._starts: dict[int, int] = {}

    def launch(self, plan: StepPlan, /) -> FakeHandle:
        handle = super().launch(plan)
        for admitted in plan.admitted:
            self._starts.pop(admitted.slot, None)
        rows = zip(plan.slots, plan.num_tokens, plan.num_computed, plan.samples, strict=True)
        token_ids = [
            self._next(slot, tokens + computed) for slot, tokens, computed, samples in rows if samples
        ]
        return FakeHandle(plan, token_ids, handle.begin_ns, handle.end_ns)

    def _next(self, slot: int, position: int) -> int:
        text = self._texts[self._sampling[slot].seed]
        index = position - self._starts.setdefault(slot, position)
        return text[index] if index < len(text) else END
