from typing import Any

import msgspec
import pytest

from pipeline.assemble import check
from pipeline.config import loads
from pipeline.core.length_prediction import QuantileLengths
from pipeline.core.policies import SchedulingOptions, make_policies
from pipeline.core.policies.deadline import DeadlineOrder
from pipeline.core.policies.fair import FairOrder
from pipeline.core.policies.keyed import KeyedOrder, PriorityOrder
from pipeline.core.policies.make import Parts
from pipeline.core.policies.prefill_budget import ItlBudget
from pipeline.core.sequence import Sequence
from pipeline.errors import ConfigError
from pipeline.messages import DeviceReady
from tests.scheduler_world import sequence

DEVICE = DeviceReady(16, 4, 4, 64)


def latest_first(parts: Parts) -> KeyedOrder:
    """An order of somebody's own."""
    return KeyedOrder(lambda each: -2 * each.arrived_ns)


class AlwaysThree:
    """A predictor of somebody's own."""

    def __init__(self, parts: Parts) -> None:
        self.device = parts.device

    def predict(self, sequence: Sequence) -> int:
        return 3

    def observe(self, sequence: Sequence) -> None:
        return None


def no_order(parts: Parts) -> str:
    return "not an order"


def make(**options: Any) -> Any:
    return make_policies(SchedulingOptions(**options), DEVICE)


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("fcfs", KeyedOrder),
        ("priority", PriorityOrder),
        ("sjf", KeyedOrder),
        ("fair", FairOrder),
        ("deadline", DeadlineOrder),
    ],
)
def test_each_policy_has_its_order(policy: str, order: type) -> None:
    assert type(make(policy=policy).order) is order


def test_an_order_and_a_predictor_of_ones_own_by_import_path() -> None:
    policies = make(policy=f"{__name__}:latest_first", length_predictor=f"{__name__}:AlwaysThree")
    first, second = sequence(0, arrived_ms=1), sequence(1, arrived_ms=2)
    for each in (first, second):
        policies.order.push(each)
        policies.lengths.predict(each)
    assert list(policies.order.candidates(0)) == [second, first]
    assert first.predicted_tokens == 3


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("policy", "lifo", "must be one of fcfs, priority, sjf, fair, deadline, or an import path"),
        ("policy", "pipeline.nowhere:Order", "cannot be imported"),
        ("policy", f"{__name__}:absent", "cannot be imported"),
        ("policy", f"{__name__}:no_order", "does not make a Order"),
        ("length_predictor", f"{__name__}:latest_first", "does not make a LengthPredictor"),
        ("length_predictor", "oracle", "must be one of quantile"),
        ("itl_stretch", 0.5, "must be more than 1, or 0 for no limit"),
    ],
)
def test_what_cannot_be_made_is_a_config_error_naming_the_key(key: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make(**{key: value})
    assert f"stages.schedule.options.{key} = {value!r}" in str(raised.value)
    assert says in str(raised.value)


def test_a_fault_is_told_with_the_file_before_anything_starts() -> None:
    config = loads("[stages.schedule.options]\npolicy = 'pipeline.nowhere:Order'", "my.toml")
    with pytest.raises(ConfigError, match=r"my\.toml: stages\.schedule\.options\.policy = "):
        check(config)


def test_steps_are_learned_from_only_where_a_policy_asks() -> None:
    assert make(itl_stretch=0).cost is None and make(itl_stretch=0, policy="fair").cost is None
    assert make(itl_stretch=0, policy="deadline").cost is not None
    for budgeted in (make(), make(itl_stretch=0, itl_target_ms=50.0)):
        assert budgeted.cost is not None and isinstance(budgeted.budget, ItlBudget)


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "no such!"},
        {"late": "never"},
        {"sjf_tokens_per_s": 0},
        {"gather_ms": -1},
        {"min_prefill_tokens": 0},
        {"length_quantile": 1.5},
        {"fair_weights": {"a": 0}},
        {"deadline_classes": {"a": {"ttft_ms": 0, "tpot_ms": 1}}},
        {"deadline_classes": {"a": {"ttft_ms": 1}}},
    ],
)
def test_what_is_out_of_range_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(options, SchedulingOptions)


def test_the_default_predictor_is_the_quantile() -> None:
    assert isinstance(make().lengths._predictor, QuantileLengths)
