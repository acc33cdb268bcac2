"""From options to policies.

An order of your own: `policy = "package.module:Name"` names a class (or function) that is called as
Name(parts) and returns an Order. A predictor of your own: `length_predictor`, likewise.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.core.host_places import HostPlaces
from pipeline.core.import_path import resolve
from pipeline.core.length_prediction import JudgedLengths, LengthPredictor, QuantileLengths
from pipeline.core.policies.batching import Continuous, Gather, Static
from pipeline.core.policies.bypass import Bypass
from pipeline.core.policies.contracts import Batching, Eviction, Order, PrefillBudget
from pipeline.core.policies.deadline import DeadlineOrder, Targets
from pipeline.core.policies.eviction import Recompute, Swap
from pipeline.core.policies.fair import FairOrder
from pipeline.core.policies.keyed import KeyedOrder, PriorityOrder, work_shift
from pipeline.core.policies.options import SchedulingOptions
from pipeline.core.policies.policies import Policies
from pipeline.core.policies.preemption import Preemption
from pipeline.core.policies.prefill_budget import FixedBudget, ItlBudget
from pipeline.core.policies.shedding import Limit, Shedding, patience
from pipeline.core.retention import Retentions
from pipeline.core.step_cost import StepCost
from pipeline.errors import ConfigError
from pipeline.messages import DeviceReady

KEY = "stages.schedule.options"


class Parts:
    """What a policy may be made of.

    Args:
        cost: what is known already of what steps cost.
    """

    def __init__(self, options: SchedulingOptions, device: DeviceReady, cost: StepCost | None = None) -> None:
        self.options = options
        self.device = device
        self.asked_cost = cost

    @property
    def cost(self) -> StepCost:
        """What steps cost, learned while serving: 15 us for a step, so only if a policy asks for it."""
        if self.asked_cost is None:
            self.asked_cost = StepCost()
        return self.asked_cost


def _fcfs(parts: Parts) -> Order:
    return KeyedOrder()


def _priority(parts: Parts) -> Order:
    return PriorityOrder(_ns(parts.options.priority_ageing_s * 1e3))


def _sjf(parts: Parts) -> Order:
    return KeyedOrder(work_shift(parts.options.sjf_tokens_per_s, parts.options.sjf_prompt_weight))


def _fair(parts: Parts) -> Order:
    options = parts.options
    return FairOrder(options.fair_weights or {}, options.fair_prompt_weight, options.fair_output_weight)


def _deadline(parts: Parts) -> Order:
    options = parts.options
    default = Targets(options.ttft_target_ms, options.tpot_target_ms)
    return DeadlineOrder(default, options.deadline_classes or {}, parts.cost)


def _quantile(parts: Parts) -> LengthPredictor:
    return QuantileLengths(parts.options.length_quantile)


_OF_ORDERS = (
    "policy",
    "priority_ageing_s",
    "sjf_tokens_per_s",
    "sjf_prompt_weight",
    "fair_weights",
    "fair_prompt_weight",
    "fair_output_weight",
    "ttft_target_ms",
    "tpot_target_ms",
    "deadline_classes",
)
"""Options that ours are made from,"""
_OF_PREDICTORS = ("length_predictor", "length_quantile")
"""and these."""
ORDERS: dict[str, Callable[[Parts], Order]] = {
    "fcfs": _fcfs,
    "priority": _priority,
    "sjf": _sjf,
    "fair": _fair,
    "deadline": _deadline,
}
PREDICTORS: dict[str, Callable[[Parts], LengthPredictor]] = {"quantile": _quantile}


def make_policies(options: SchedulingOptions, device: DeviceReady) -> Policies:
    """New policies for one scheduler. Raises ConfigError naming the key."""
    parts = Parts(options, device)
    order: Order = _make("policy", options.policy, ORDERS, Order, parts)
    budget = _budget(parts)
    host = HostPlaces(device)
    eviction: Eviction = Swap(device, host, parts.cost) if device.num_host_blocks else Recompute()
    predictor = _make("length_predictor", options.length_predictor, PREDICTORS, LengthPredictor, parts)
    return Policies(
        options=options,
        order=order,
        batching=_batching(parts),
        budget=budget,
        bypass=Bypass(options.max_bypasses, _ns(options.bypass_ms)),
        preemption=Preemption(order, options.max_preemptions),
        eviction=eviction,
        retentions=Retentions(device, options.kv_eviction, options.kv_budget, options.kv_sinks),
        shedding=Shedding(_limits(options, order)),
        lengths=JudgedLengths(predictor),
        host=host,
        cost=parts.asked_cost,
    )


def make_others(before: Policies, options: SchedulingOptions, device: DeviceReady) -> Policies:
    """For the scheduler that goes by `before`, which stay as they are: new ones, but for those of which the
    options ask what they were, and what knows of the past: copies in host memory, costs, lengths, counts. A
    static batch under way stays one. Raises ConfigError naming the key.
    """
    if options == before.options:
        return before
    parts = Parts(options, device, before.cost)
    order: Order = before.order
    if not _are_same(_OF_ORDERS, before.options, options):
        order = _make("policy", options.policy, ORDERS, Order, parts)
    lengths = before.lengths
    if not _are_same(_OF_PREDICTORS, before.options, options):
        predictor = _make("length_predictor", options.length_predictor, PREDICTORS, LengthPredictor, parts)
        lengths = JudgedLengths(predictor, lengths.num_judged, lengths.error_tokens)
    return Policies(
        options=options,
        order=order,
        batching=before.batching if options.batching == "static" else _batching(parts),
        budget=_budget(parts),
        bypass=Bypass(options.max_bypasses, _ns(options.bypass_ms), before.bypass.num_passes),
        preemption=Preemption(order, options.max_preemptions),
        eviction=before.eviction,
        retentions=Retentions(device, options.kv_eviction, options.kv_budget, options.kv_sinks),
        shedding=Shedding(_limits(options, order), before.shedding.num_shed),
        lengths=lengths,
        host=before.host,
        cost=parts.asked_cost,
    )


def _are_same(names: tuple[str, ...], options: SchedulingOptions, others: SchedulingOptions) -> bool:
    """Whether what is made from these options would be; one of somebody else's may read all of them."""
    return ":" not in getattr(options, names[0]) and all(
        getattr(options, name) == getattr(others, name) for name in names
    )


def _make(key: str, name: str, ours: Mapping[str, Callable[..., Any]], contract: type, parts: Parts) -> Any:
    """Made by one of ours, or by what an import path names; that must keep the contract."""
    if name in ours:
        return ours[name](parts)
    if ":" not in name:
        allowed = ", ".join(ours)
        raise ConfigError(f"{KEY}.{key} = {name!r}: must be one of {allowed}, or an import path")
    made = resolve(f"{KEY}.{key}", name)(parts)
    if not isinstance(made, contract):
        raise ConfigError(f"{KEY}.{key} = {name!r}: does not make a {contract.__name__}")
    return made


def _batching(parts: Parts) -> Batching:
    options = parts.options
    gather = Gather(_ns(options.gather_ms), parts.device.max_num_seqs)
    return Static(gather, options.pad_to) if options.batching == "static" else Continuous(gather)


def _budget(parts: Parts) -> PrefillBudget:
    options = parts.options
    if options.itl_target_ms is not None:
        return ItlBudget(parts.cost, options.min_prefill_tokens, target_ns=_ns(options.itl_target_ms))
    if 0 < options.itl_stretch <= 1:
        raise ConfigError(
            f"{KEY}.itl_stretch = {options.itl_stretch:g}: must be more than 1, or 0 for no limit"
        )
    if options.itl_stretch:
        return ItlBudget(parts.cost, options.min_prefill_tokens, stretch=options.itl_stretch)
    return FixedBudget()


def _limits(options: SchedulingOptions, order: Order) -> list[Limit]:
    limits = [patience(_ns(options.max_wait_ms) if options.max_wait_ms else None)]
    if options.late == "shed" and isinstance(order, DeadlineOrder):
        limits.append(Limit("deadline_missed", "it can no longer be in time", order.start_by_ns))
    return limits


def _ns(ms: float) -> int:
    return int(ms * 1e6)
