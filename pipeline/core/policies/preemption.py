"""Preemption: who is sent back to the queue, and how often that may happen to one request."""

from collections.abc import Iterable

from pipeline.core.policies.contracts import Order
from pipeline.core.residents import Residents, Room
from pipeline.core.sequence import Sequence


class Preemption:
    """Asks the order for victims, and sees to it that everybody ends.

    A request that was preempted `max_preemptions` times never gives way to a waiting one, and to a growing
    one only where all that run have been preempted as often; then the latest arrival goes. So each request
    costs a bounded number of preemptions, and after these the oldest always progresses.

    One that is paused, since its client does not take its text, gives way before all others, and to anybody:
    it would not use what it holds.
    """

    def __init__(self, order: Order, max_preemptions: int) -> None:
        self._order = order
        self._max_preemptions = max_preemptions

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        """Who gives way so that another running one can grow; it may be that one itself."""
        running = list(running)
        if paused := [each for each in running if each.is_paused]:
            return self._order.victim(paused)
        spare = [each for each in running if each.epoch < self._max_preemptions]
        if spare:
            return self._order.victim(spare)
        return max(running, key=lambda each: (each.arrived_ns, each.request_id))

    def victims(self, waiting: Sequence, residents: Residents) -> list[Sequence]:
        """Who gives way so that `waiting` can start; none if all who may would not be enough."""
        room = Room(residents, waiting)
        victims: list[Sequence] = []
        paused = [each for each in residents.running.values() if each.is_paused]
        active = [each for each in residents.running.values() if not each.is_paused]
        for victim in (*paused, *self._order.outranked(waiting, active)):
            if room.is_enough:
                break
            if victim.epoch < self._max_preemptions:
                victims.append(victim)
                room.leave(victim)
        return victims if room.is_enough else []
