"""Target: what the workload is simulated on: the cost of a step, what the device holds, what it is called."""

import msgspec

from pipeline.checkpoint.card import Architecture
from pipeline.errors import ConfigError
from pipeline.messages import DeviceReady
from pipeline.simulate.devices import find_device
from pipeline.simulate.host import HostCosts
from pipeline.simulate.measured import Measured, MeasuredCost
from pipeline.simulate.models import DTYPE_BYTES, check_length
from pipeline.simulate.roofline import Roofline, capacity
from pipeline.simulate.work import Cost


class Limits(msgspec.Struct, frozen=True):
    """The device's options (config.toml, [device]); None: as many as a GPU server or the measured one has."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    max_model_len: int | None = None


DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_MAX_NUM_BATCHED_TOKENS = 2048
DEFAULT_BLOCK_SIZE = 16


class Target(msgspec.Struct, frozen=True):
    name: str
    cost: Cost
    ready: DeviceReady
    host: HostCosts
    max_model_len: int
    price_per_hour: float | None
    """Of one replica, US dollars."""
    model: Architecture | None = None
    """Of a data sheet's; a measured one may be any."""


def from_data_sheet(
    device_name: str,
    model_name: str,
    model: Architecture,
    limits: Limits,
    *,
    dtype: str = "bfloat16",
    num_gpus: int = 1,
    price_per_hour: float | None = None,
) -> Target:
    """`num_gpus` of a known device as one replica. Raises ConfigError."""
    device = find_device(device_name)
    if dtype not in DTYPE_BYTES:
        raise ConfigError(f"--dtype {dtype}: must be one of {', '.join(DTYPE_BYTES)}")
    if model.num_kv_heads % num_gpus:
        raise ConfigError(
            f"--gpus {num_gpus}: {model_name} has {model.num_kv_heads} KV heads, which must divide evenly"
        )
    ready = capacity(
        device,
        model,
        dtype,
        num_gpus,
        block_size=limits.block_size or DEFAULT_BLOCK_SIZE,
        max_num_seqs=limits.max_num_seqs or DEFAULT_MAX_NUM_SEQS,
        max_num_batched_tokens=limits.max_num_batched_tokens or DEFAULT_MAX_NUM_BATCHED_TOKENS,
    )
    return Target(
        name=f"{model_name} on {f'{num_gpus} x ' if num_gpus > 1 else ''}{device.name}, {dtype}",
        cost=Roofline(device, model, dtype, num_gpus),
        ready=_limited(ready, limits),
        host=HostCosts(),
        max_model_len=check_length(model, limits.max_model_len),
        price_per_hour=num_gpus * (device.price_per_hour if price_per_hour is None else price_per_hour),
        model=model,
    )


def from_measured(measured: Measured, limits: Limits, price_per_hour: float | None = None) -> Target:
    """What `stageline bench execute --fit` has measured."""
    return Target(
        name=measured.name,
        cost=MeasuredCost(measured.step),
        ready=_limited(measured.ready, limits),
        host=measured.host,
        max_model_len=limits.max_model_len or measured.max_model_len,
        price_per_hour=price_per_hour,
    )


def _limited(ready: DeviceReady, limits: Limits) -> DeviceReady:
    return DeviceReady(
        num_blocks=limits.num_blocks or ready.num_blocks,
        block_size=limits.block_size or ready.block_size,
        max_num_seqs=limits.max_num_seqs or ready.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens or ready.max_num_batched_tokens,
    )
