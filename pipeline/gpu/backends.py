"""Which code runs the model: the host kernels, or torch. Chosen once, and logged with the reason."""

from collections.abc import Iterable
from typing import NamedTuple

import structlog
import torch
from torch import Tensor

from pipeline.checkpoint.card import Architecture
from pipeline.errors import ConfigError
from pipeline.gpu.api import KvLayout, Model
from pipeline.gpu.evidence import Evidence
from pipeline.gpu.host.build import Build, HostUnavailable, find_compiler
from pipeline.gpu.host.library import HostLibrary, load_library
from pipeline.gpu.host.model import HostLlama, check_shape
from pipeline.gpu.host.sampling import HostSampler
from pipeline.gpu.kernels.reference import TorchOps
from pipeline.gpu.kv_dtype import KvDtype
from pipeline.gpu.models import find_model
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.sampling import SamplingOp


class Opened(NamedTuple):
    """What runs a model."""

    model: Model
    layout: KvLayout
    sampler: SamplingOp | None
    """A faster one to take the built-in op's place."""
    kv_dtype: KvDtype
    grows_by_context: bool = True
    """Whether the memory that a step needs grows with the contexts of its rows."""
    arithmetic: str = ""
    """What the bits of keys and values depend on, beside the model and what they are stored as."""


def open_model(
    architecture: Architecture,
    tensors: Iterable[tuple[str, Tensor]],
    options: RunnerOptions,
    dtype: torch.dtype,
    device: torch.device,
    evidence: Evidence | None = None,
) -> Opened:
    """The model with its weights. Raises ModelError or ConfigError.

    Args:
        evidence: what `weights = "auto"` goes by; None is bf16.
    """
    family = find_model(architecture.family)
    kv_dtype = _kv_dtype(options, dtype)
    library = _host_library(architecture, options, dtype, device)
    if library is None:
        ops = TorchOps(device, options.block_size, kv_dtype)
        model = family.load(architecture, tensors, ops, dtype, device)
        return Opened(model, ops, None, kv_dtype, True, f"torch {torch.__version__} {device.type} {dtype}")
    is_int8 = _choose_int8(options, evidence)
    weights, threads = "int8" if is_int8 else "bf16", torch.get_num_threads()
    _log().info("the model runs on the host kernels", isa=library.isa_name, weights=weights, threads=threads)
    host = HostLlama.load(architecture, tensors, library, is_int8, threads, kv_dtype)
    return Opened(host, host, HostSampler(library, threads), kv_dtype, False, f"{library.name} {weights}")


def _kv_dtype(options: RunnerOptions, dtype: torch.dtype) -> KvDtype:
    if options.kv_dtype != "auto":
        return options.kv_dtype
    return "fp32" if dtype == torch.float32 else "bf16"


def _host_library(
    architecture: Architecture, options: RunnerOptions, dtype: torch.dtype, device: torch.device
) -> HostLibrary | None:
    """None is torch. Raises ConfigError where the configuration asks for what cannot be."""
    if options.backend == "torch":
        _choose_torch(options, 'backend = "torch"', is_asked_for=True)
        return None
    try:
        _check(architecture, options, dtype, device)
        library = load_library(Build(find_compiler()))
    except HostUnavailable as reason:
        if options.backend == "host":
            raise ConfigError(f'backend = "host" cannot run: {reason}') from reason
        _choose_torch(options, str(reason), device.type != "cpu" or dtype != torch.bfloat16)
        return None
    return library


def _check(
    architecture: Architecture, options: RunnerOptions, dtype: torch.dtype, device: torch.device
) -> None:
    if device.type != "cpu":
        raise HostUnavailable(f"it runs on the CPU, and the device is {device.type}")
    if dtype != torch.bfloat16:
        raise HostUnavailable('it computes in bf16, and dtype = "float32"')
    check_shape(architecture, options.block_size)


def _choose_int8(options: RunnerOptions, evidence: Evidence | None) -> bool:
    if options.weights != "auto":
        return options.weights == "int8"
    if evidence is None:
        _log().info("bf16 weights: nothing is known of int8 for this model (stageline eval finds out)")
        return False
    _log().info(
        "int8 weights are good enough" if evidence.allows_int8 else "int8 weights are not good enough",
        perplexity=f"{evidence.increase:+.2%} against {evidence.against}",
        predictions=evidence.num_tokens,
    )
    return evidence.allows_int8


def _choose_torch(options: RunnerOptions, reason: str, is_asked_for: bool) -> None:
    """Log the choice of torch: as a warning where nothing in the configuration asked for it."""
    if options.weights == "int8":
        raise ConfigError(f'weights = "int8" needs the host backend, which cannot run: {reason}')
    log = _log().debug if is_asked_for else _log().warning
    log("the model runs on torch, not on the host kernels", reason=reason)


def _log() -> structlog.typing.FilteringBoundLogger:
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return log
