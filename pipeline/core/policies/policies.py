"""Policies: one of each, as the scheduler takes them."""

from dataclasses import dataclass, fields

from pipeline.core.host_places import HostPlaces
from pipeline.core.length_prediction import JudgedLengths
from pipeline.core.policies.bypass import Bypass
from pipeline.core.policies.contracts import Batching, Eviction, Order, PrefillBudget
from pipeline.core.policies.options import SchedulingOptions
from pipeline.core.policies.preemption import Preemption
from pipeline.core.policies.shedding import Shedding
from pipeline.core.retention import Retentions
from pipeline.core.step_cost import StepCost
from pipeline.messages import DeviceReady

KNOWN_STEPS = 256
"""After so many steps, those that only decode are known: they cost alike, and"""
DECODE_STEPS = 8
"""of so many one is learned from."""


@dataclass(slots=True)
class Policies:
    """All that is decided outside the scheduler. They have state, so each scheduler needs its own."""

    options: SchedulingOptions
    """That they are made from."""
    order: Order
    batching: Batching
    budget: PrefillBudget
    bypass: Bypass
    preemption: Preemption
    eviction: Eviction
    retentions: Retentions
    shedding: Shedding
    lengths: JudgedLengths
    host: HostPlaces
    """What eviction and the prefix cache copy to and from; it may have no place."""
    cost: StepCost | None
    """None where no policy asks what steps cost."""

    def renew(self, device: DeviceReady) -> None:
        """The device holds so much, and nothing so far. Nobody may run, nor be kept in host memory."""
        self.host.renew(device)
        self.retentions.renew(device)

    def learn(
        self, step_id: int, num_prefill_tokens: int, num_decode_tokens: int, num_kv_tokens: int, step_ns: int
    ) -> None:
        """From a step's time on the device."""
        cost = self.cost
        if cost is None:
            return
        if num_prefill_tokens or cost.num_steps < KNOWN_STEPS or step_id % DECODE_STEPS == 0:
            cost.observe(num_prefill_tokens, num_decode_tokens, num_kv_tokens, step_ns)

    def become(self, others: "Policies") -> None:
        """Whoever goes by these goes by the others from now on."""
        for each in fields(self):
            setattr(self, each.name, getattr(others, each.name))

    def gauges(self) -> dict[str, float]:
        """What of them is to be seen in the metrics."""
        return {
            "bypasses_total": self.bypass.num_passes,
            "shed_total": self.shedding.num_shed,
            "predicted_lengths_total": self.lengths.num_judged,
            "predicted_length_error_tokens_total": self.lengths.error_tokens,
            **self.eviction.gauges(),
            **self.host.gauges(),
        }
