"""Recovery: what becomes of every sequence when the device is lost, and all KV with it.

Whoever ran waits again, and is computed anew from the tokens that are known of him: so his tokens are those
that he would have had. What is kept elsewhere starts anew too: copies to host memory may not have been made,
and on disk is what the disk, asked again, says.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from pipeline.core.outcome import Outcome
from pipeline.core.policies import Policies
from pipeline.core.prefix import Prefix
from pipeline.core.residents import Residents
from pipeline.core.sequence import Sequence
from pipeline.core.waiting import Waiting
from pipeline.messages import DeviceReady


class Recovery:
    """`live`: every sequence, by request id."""

    def __init__(
        self,
        policies: Policies,
        residents: Residents,
        waiting: Waiting,
        outcome: Outcome,
        live: Mapping[int, Sequence],
    ) -> None:
        self.num_recomputed = 0
        """Times that a sequence ran when the device was lost."""
        self._policies = policies
        self._residents = residents
        self._waiting = waiting
        self._outcome = outcome
        self._live = live

    def lose(self, device: DeviceReady) -> list[int]:
        """The device that held so much is gone. Those that ran, in the order of their admission."""
        for sequence in self._residents.running.values():
            self._outcome.leave(sequence)
        lost = self._residents.lose()
        for sequence in self._live.values():
            self._forget(sequence)
        self._renew(replace(device, num_host_blocks=0, disk=None))
        for sequence in lost:
            self._waiting.push(sequence)
        self.num_recomputed += len(lost)
        return [sequence.request_id for sequence in lost]

    def renew(self, device: DeviceReady) -> Iterable[Sequence]:
        """One that holds so much is there. Everybody waits, and may not fit it."""
        self._renew(device)
        for sequence in self._live.values():
            sequence.prefix = Prefix()  # keys may be others now
        return list(self._live.values())

    def _forget(self, sequence: Sequence) -> None:
        """What is kept of its KV elsewhere, or on its way, is of no use."""
        self._policies.eviction.discard(sequence)
        sequence.lose()
        if sequence.is_fetching:
            self._waiting.fetched(sequence)

    def _renew(self, device: DeviceReady) -> None:
        self._policies.renew(device)
        self._residents.prefixes.renew(device)
        self._residents.renew(device)
