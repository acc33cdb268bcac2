"""The door of a replica: whether a request is let in, as stages.ingress and stages.schedule ask core.gate."""

from collections.abc import Sequence

from pipeline.core.flights import Flight
from pipeline.core.gate import Gate
from pipeline.core.retention import Retentions
from pipeline.core.scheduling import Scheduler
from pipeline.core.standing import Standing, by_arrival
from pipeline.messages import DeviceReady, GenerateRequest, TokenizedRequest


class OpenDoor:
    """Lets everybody in. Base of the others: it says what a replica tells its door."""

    is_watching = False
    """Whether it must be told of every step."""

    def refusal(self, request: TokenizedRequest) -> str | None:
        """Why this request is sent away: a code; None: it is in."""
        return None

    def started(self, request_ids: Sequence[int], now_ns: int) -> None:
        return None

    def applied(self, flight: Flight) -> None:
        return None

    def ended(self, request_id: int, num_output_tokens: int, now_ns: int) -> None:
        """It has its last row, or was dropped while it waited."""

    def planned(self, scheduler: Scheduler, now_ns: int) -> None:
        """The last call of each wake-up."""


class GatedDoor(OpenDoor):
    """Refuses whoever would wait longer than he may, by the server's own Gate.

    Args:
        max_wait_ns: of the options (max_wait_ms); None: nobody is refused who names no patience.
        standing: of the order.
        retentions: of the scheduler's policies; None: everybody keeps all of his context.
    """

    is_watching = True

    def __init__(
        self,
        ready: DeviceReady,
        max_wait_ns: int | None,
        standing: Standing = by_arrival,
        retentions: Retentions | None = None,
    ) -> None:
        self._gate = Gate()
        self._gate.open(ready, max_wait_ns, standing, retentions)

    def refusal(self, request: TokenizedRequest) -> str | None:
        asked = GenerateRequest(
            request.request_id,
            request.token_ids,
            None,
            request.sampling,
            request.arrived_ns,
            request.sent_ns,
            request.terms,
        )
        if refusal := self._gate.refusal(asked):
            return refusal.code
        self._gate.enter(asked)
        self._gate.tokenized(request.request_id, len(request.token_ids))
        return None

    def started(self, request_ids: Sequence[int], now_ns: int) -> None:
        for request_id in request_ids:
            self._gate.started(request_id, now_ns)

    def applied(self, flight: Flight) -> None:
        self._gate.prefilled(flight.num_prefill_tokens)

    def ended(self, request_id: int, num_output_tokens: int, now_ns: int) -> None:
        self._gate.released(request_id, now_ns)
        self._gate.leave(request_id, num_output_tokens)

    def planned(self, scheduler: Scheduler, now_ns: int) -> None:
        residents = scheduler.residents
        self._gate.planned(residents.num_free_slots, residents.pool.num_free, now_ns)
