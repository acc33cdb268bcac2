"""From options to policies.

An order of your own: `policy = "package.module:Name"` names a class (or function) that is called as
Name(options, device, cost) and returns an Order. A predictor of your own: `length_predictor` names one that
is called as Name(options) and returns a LengthPredictor.
"""

from collections.abc import Callable
from typing import Any

from pipeline.core.import_path import resolve
from pipeline.core.length_prediction import JudgedLengths, LengthPredictor, QuantileLengths
from pipeline.core.policies.batching import Continuous, Gather, Static
from pipeline.core.policies.bypass import Bypass
from pipeline.core.policies.contracts import Batching, Order, PrefillBudget
from pipeline.core.policies.deadline import DeadlineOrder, Targets
from pipeline.core.policies.eviction import Recompute
from pipeline.core.policies.fair import FairOrder
from pipeline.core.policies.keyed import KeyedOrder, PriorityOrder, length_shift
from pipeline.core.policies.options import SchedulingOptions
from pipeline.core.policies.policies import Policies
from pipeline.core.policies.preemption import Preemption
from pipeline.core.policies.prefill_budget import FixedBudget, ItlBudget
from pipeline.core.policies.shedding import Limit, Shedding, half_patience
from pipeline.core.step_cost import StepCost
from pipeline.errors import ConfigError
from pipeline.messages import DeviceReady

KEY = "stages.schedule.options"

OrderMaker = Callable[[SchedulingOptions, DeviceReady, StepCost], Order]


def _fcfs(options: SchedulingOptions, device: DeviceReady, cost: StepCost) -> Order:
    return KeyedOrder()


def _priority(options: SchedulingOptions, device: DeviceReady, cost: StepCost) -> Order:
    return PriorityOrder(_ns(options.priority_ageing_s * 1e3))


def _sjf(options: SchedulingOptions, device: DeviceReady, cost: StepCost) -> Order:
    return KeyedOrder(length_shift(options.sjf_tokens_per_s))


def _fair(options: SchedulingOptions, device: DeviceReady, cost: StepCost) -> Order:
    return FairOrder(options.fair_weights or {}, options.fair_prompt_weight, options.fair_output_weight)


def _deadline(options: SchedulingOptions, device: DeviceReady, cost: StepCost) -> Order:
    default = Targets(options.ttft_target_ms, options.tpot_target_ms)
    return DeadlineOrder(default, options.deadline_classes or {}, cost)


ORDERS: dict[str, OrderMaker] = {
    "fcfs": _fcfs,
    "priority": _priority,
    "sjf": _sjf,
    "fair": _fair,
    "deadline": _deadline,
}
PREDICTORS: dict[str, Callable[[SchedulingOptions], LengthPredictor]] = {
    "quantile": lambda options: QuantileLengths(options.length_quantile),
}


def make_policies(options: SchedulingOptions, device: DeviceReady) -> Policies:
    """New policies for one scheduler. Raises ConfigError naming the key."""
    cost = StepCost()
    order: Order = _named("policy", options.policy, ORDERS, Order)(options, device, cost)
    predictor = _named("length_predictor", options.length_predictor, PREDICTORS, LengthPredictor)(options)
    return Policies(
        order=order,
        batching=_batching(options, device),
        budget=_budget(options, cost),
        bypass=Bypass(options.max_bypasses, _ns(options.bypass_ms)),
        preemption=Preemption(order, options.max_preemptions),
        eviction=Recompute(),
        shedding=Shedding(_limits(options, order)),
        lengths=JudgedLengths(predictor),
        cost=cost,
    )


def _named(key: str, name: str, ours: dict[str, Callable[..., Any]], contract: type) -> Callable[..., Any]:
    """Ours, or what an import path names; what it makes must keep the contract."""
    if ":" not in name:
        if name not in ours:
            allowed = ", ".join(ours)
            raise ConfigError(f"{KEY}.{key} = {name!r}: must be one of {allowed}, or an import path")
        return ours[name]
    make = resolve(f"{KEY}.{key}", name)

    def checked(*args: Any) -> Any:
        made = make(*args)
        if not isinstance(made, contract):
            raise ConfigError(f"{KEY}.{key} = {name!r}: does not make a {contract.__name__}")
        return made

    return checked


def _batching(options: SchedulingOptions, device: DeviceReady) -> Batching:
    gather = Gather(_ns(options.gather_ms), device.max_num_seqs)
    return Static(gather, options.pad_to) if options.batching == "static" else Continuous(gather)


def _budget(options: SchedulingOptions, cost: StepCost) -> PrefillBudget:
    if options.itl_target_ms is None:
        return FixedBudget()
    return ItlBudget(cost, _ns(options.itl_target_ms), options.min_prefill_tokens)


def _limits(options: SchedulingOptions, order: Order) -> list[Limit]:
    limits = [half_patience(options.max_wait_ms)]
    if options.late == "shed" and isinstance(order, DeadlineOrder):
        limits.append(Limit("deadline_missed", "it can no longer be in time", order.start_by_ns))
    return limits


def _ns(ms: float) -> int:
    return int(ms * 1e6)
