"""Trial: a stage that is new handles live batches, each of which can be taken back.

    export_state     what it knows before the batch
    handle           with all that it does to the outside held back (runtime.hold), and bounded in time
    commit           now the outside sees it; or, if it failed,
    seal             nobody does, nor of anything later; the one before gets that state, and the batch

A batch is always seen by exactly one stage, so nothing is lost, doubled or reordered.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.runtime.hold import Hold
from pipeline.runtime.patience import within
from pipeline.runtime.stage import Stage


class Trial:
    """Of one stage. Its `handle` takes the place of the stage's own, also when the trial is over.

    Args:
        hold: that of the stage's context.
        batch_s: what a batch may take, waiting for room downstream not included.
        on_failure: called once, at once.
    """

    def __init__(
        self, stage: Stage[Any, Any], hold: Hold, batch_s: float, on_failure: Callable[[Exception], None]
    ) -> None:
        self._stage = stage
        self._hold = hold
        self._batch_s = batch_s
        self._on_failure = on_failure
        self._is_over = False
        self._handling = asyncio.Lock()
        self._state: Any = None
        self.num_batches = 0
        """Handled without a fault."""
        self.failure: Exception | None = None
        self.batch: Sequence[Any] = ()
        """The one at which it failed: nobody has handled it."""

    async def handle(self, batch: Sequence[Any]) -> None:
        """Raises what export_state does: a stage that cannot tell what it knows cannot step back."""
        if self._is_over:
            await self._stage.handle(batch)
            return
        async with self._handling:
            await self._try(batch)

    async def end(self) -> None:
        """When the batch under way is done: from then on the stage is on its own, unless it has failed."""
        async with self._handling:
            self._is_over = True

    def known(self) -> Any:
        """What the next one must know: the state before the batch that failed, else the present one."""
        return self._stage.export_state() if self.failure is None else self._state

    async def _try(self, batch: Sequence[Any]) -> None:
        self._state = self._stage.export_state()
        num_errors = self._stage.service.num_errors
        self._hold.begin()
        try:
            await within(self._batch_s, self._stage.handle(batch))
        except Exception as error:
            self._hold.seal()
            self._stage.service.num_errors = num_errors
            self.failure, self.batch = error, batch
            self._on_failure(error)
            return
        await self._hold.commit()
        self._state = None
        self.num_batches += 1
