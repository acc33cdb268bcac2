"""Which code runs the model: host kernels, Triton's, or torch. Chosen once, and logged with the reason."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import structlog
import torch

from pipeline.checkpoint.card import Architecture
from pipeline.errors import ConfigError
from pipeline.gpu.api import KvLayout, Model, Ops
from pipeline.gpu.evaluation.evidence import NO_EVIDENCE, SCHEMES, Evidence
from pipeline.gpu.host.build import Build, HostUnavailable, find_compiler
from pipeline.gpu.host.library import HostLibrary, load_library
from pipeline.gpu.host.model import HostDecoder, check_shape
from pipeline.gpu.host.sampling import HostSampler
from pipeline.gpu.host.trial import choose_threads
from pipeline.gpu.kernels.interpreter import prepare
from pipeline.gpu.kv.dtype import KvDtype
from pipeline.gpu.models import find_model
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.reference.ops import TorchOps
from pipeline.gpu.sampling import SamplingOp
from pipeline.gpu.weights.blocks import Weight
from pipeline.gpu.weights.choice import choose_weights
from pipeline.gpu.weights.source import WeightSource, as_source


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
    can_capture: bool = False
    """A decode step waits for nothing on the device, and takes rows that are empty (api.StepInputs)."""


def open_model(
    architecture: Architecture,
    weights: Iterable[tuple[str, Weight]],
    options: RunnerOptions,
    dtype: torch.dtype,
    device: torch.device,
    evidence: Mapping[str, Evidence] = NO_EVIDENCE,
) -> Opened:
    """The model with its weights. Raises ModelError or ConfigError.

    Args:
        weights: under their Hugging Face names. What is made of FileWeights is kept on disk.
        evidence: what `weights = "auto"` goes by, by weights; without any it is bf16.
    """
    family = find_model(architecture.family)
    kv_dtype = _kv_dtype(options, dtype)
    library = _host_library(architecture, options, dtype, device)
    if library is None:
        ops, arithmetic = _make_ops(options, kv_dtype, device)
        source = as_source(weights)
        if options.weights == "int4":
            _check_blocks(source, ops)
        model = family.load(architecture, source, ops, dtype, device)
        arithmetic, can_capture = f"{arithmetic} {dtype}", not isinstance(ops, TorchOps)
        sampler = None if isinstance(ops, TorchOps) else _triton_sampler()
        return Opened(model, ops, sampler, kv_dtype, arithmetic=arithmetic, can_capture=can_capture)
    choice, most = choose_weights(options.weights, evidence), torch.get_num_threads()
    decoder = HostDecoder.load(architecture, as_source(weights), library, choice, most, kv_dtype)
    _log().info(
        "the model runs on the host kernels", isa=library.isa_name, weights=choice, formats=decoder.formats
    )
    if options.num_threads is None:
        decoder.threads = choose_threads(decoder, architecture, options.block_size)
    sampler = HostSampler(library, decoder.threads.many)
    return Opened(decoder, decoder, sampler, kv_dtype, False, f"{library.name} {choice} {decoder.formats}")


def _kv_dtype(options: RunnerOptions, dtype: torch.dtype) -> KvDtype:
    if options.kv_dtype != "auto":
        return options.kv_dtype
    return "fp32" if dtype == torch.float32 else "bf16"


def _host_library(
    architecture: Architecture, options: RunnerOptions, dtype: torch.dtype, device: torch.device
) -> HostLibrary | None:
    """None: the model runs on Ops. Raises ConfigError where the configuration asks for what cannot be."""
    try:
        _check(architecture, options, dtype, device)
        return load_library(Build(find_compiler()))
    except HostUnavailable as reason:
        if options.backend == "host":
            raise ConfigError(f'backend = "host" cannot run: {reason}') from reason
        if options.weights in SCHEMES and not _wants_triton(options, device):
            raise ConfigError(
                f'weights = "{options.weights}" needs the host backend, which cannot run: {reason}'
            ) from reason
        is_asked_for = options.backend != "auto" or device.type != "cpu" or dtype != torch.bfloat16
        log = _log().debug if is_asked_for else _log().warning
        log("the model does not run on the host kernels", reason=str(reason))
        return None


def _check(
    architecture: Architecture, options: RunnerOptions, dtype: torch.dtype, device: torch.device
) -> None:
    if options.backend not in ("auto", "host"):
        raise HostUnavailable(f'backend = "{options.backend}"')
    if device.type != "cpu":
        raise HostUnavailable(f"it runs on the CPU, and the device is {device.type}")
    if dtype != torch.bfloat16:
        raise HostUnavailable('it computes in bf16, and dtype = "float32"')
    check_shape(architecture, options.block_size)


def _make_ops(options: RunnerOptions, kv_dtype: KvDtype, device: torch.device) -> tuple[Ops, str]:
    """Triton's or torch's, and what the bits of their results depend on."""
    if _wants_triton(options, device):
        try:
            arithmetic = prepare(device)
        except ConfigError as reason:
            if options.backend == "triton" or options.weights in SCHEMES:
                raise
            _log().warning("the model runs on torch, not on Triton's kernels", reason=str(reason))
        else:
            from pipeline.gpu.kernels.ops import TritonOps  # imports triton, as prepare() has settled

            weights = "bf16" if options.weights == "auto" else options.weights
            _log().info("the model runs on Triton's kernels", arithmetic=arithmetic, weights=weights)
            return TritonOps(device, options.block_size, kv_dtype, weights), f"{arithmetic} {weights}"
    return TorchOps(device, options.block_size, kv_dtype), f"torch {torch.__version__} {device.type}"


def _check_blocks(source: WeightSource, ops: Ops) -> None:
    if not any(kind.name in ops.block_kinds for kind in source.kinds().values()):
        kinds = " and ".join(sorted(ops.block_kinds))
        raise ConfigError(
            f'weights = "int4": Triton runs blocks of {kinds} of a GGUF as they are, and this model has '
            'none; use "int8" or "bf16"'
        )


def _wants_triton(options: RunnerOptions, device: torch.device) -> bool:
    return options.backend == "triton" or (options.backend == "auto" and device.type == "cuda")


def _triton_sampler() -> SamplingOp:
    from pipeline.gpu.kernels.sampling import TritonSampler  # imports triton, as prepare() has settled

    return TritonSampler()


def _log() -> structlog.typing.FilteringBoundLogger:
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return log
