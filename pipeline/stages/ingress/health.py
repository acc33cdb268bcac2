"""Health: does the pipeline still turn? Asked by sending one token through all of it."""

import asyncio
from collections.abc import Callable

from pipeline.core.wire import Wanted
from pipeline.errors import RequestError
from pipeline.messages import Completion, SamplingParams
from pipeline.stages.ingress.intake import Arrival, Intake, LiveRequest

_LOOKS = 50
"""How often, within the timeout, a server without room for a probe is looked at."""
_PROBE = Wanted(
    prompt="Hello", chat=None, sampling=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
)


class Probe(LiveRequest):
    """A request whose text nobody reads."""

    def __init__(self, intake: Intake, request_id: int) -> None:
        super().__init__(intake, request_id)
        self.ended = asyncio.Event()
        self.is_answered = False

    def write_delta(self, text: str, num_tokens: int) -> None:
        pass

    def write_done(self, completion: Completion) -> None:
        self.is_answered = True
        self.ended.set()

    def write_error(self, error: RequestError) -> None:
        self.ended.set()


class Health:
    """Probes share one request, however many ask at once.

    A server under load is not a sick one: where the probe finds no room, or is still in the queue when the
    time is up, the pipeline is healthy if it moved anybody's request meanwhile.
    """

    def __init__(self, intake: Intake, timeout_s: float, clock: Callable[[], int]) -> None:
        self._intake = intake
        self._timeout_s = timeout_s
        self._clock = clock
        self._probe: Probe | None = None

    async def check(self) -> bool:
        """True if the pipeline answered within the timeout."""
        before = self._intake.num_events
        probe = self._join()
        if probe is None:
            return await self._moves(before)
        try:
            async with asyncio.timeout(self._timeout_s):
                await probe.ended.wait()
        except TimeoutError:
            self._intake.leave(probe)
            return self._intake.num_events > before
        return probe.is_answered

    def _join(self) -> Probe | None:
        """The probe under way, or a new one; None if there is no room for one."""
        probe = self._probe
        if probe is not None and not probe.ended.is_set() and not probe.is_cancelled:
            return probe
        try:
            self._probe = self._intake.submit(
                _PROBE, Arrival(self._clock()), lambda request_id: Probe(self._intake, request_id)
            )
        except RequestError:
            self._probe = None
        return self._probe

    async def _moves(self, before: int) -> bool:
        for _ in range(_LOOKS):
            await asyncio.sleep(self._timeout_s / _LOOKS)
            if self._intake.num_events > before:
                return True
        return False
