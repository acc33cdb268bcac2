"""Whether kernels run compiled, on CUDA, or in Triton's interpreter, on tensors in host memory.

triton decides for each function when it is decorated, its own library's at its import: so prepare() comes
before the first import of triton in a process, and a process can do only one of the two.
The interpreter (3.6 to 3.9) keeps bf16 as uint16 and computes on these bits. prepare() makes it compute in
fp32 and round each result to nearest even, as a GPU does, and like a GPU not warn of overflow and NaN. A
comparison of two scalars is of their type there, so that it can be no mask; it is made a truth value. That of
3.6 cannot loop up to a number that was loaded if numpy is 2.4 or later; that error is left as it is.
"""

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pipeline.errors import ConfigError

SWITCH = "TRITON_INTERPRET"
FUSION = "TRITON_DEFAULT_FP_FUSION"
"""Of a product and a sum, when kernels are compiled."""
MIN_CAPABILITY = 8, 0
RESULT_TYPE_OF = {
    "binary_op": 0,
    "unary_op": 0,
    "create_erf": 0,
    "create_rsqrt": 0,
    "ternary_op": 2,
    "create_fma": 2,
    "create_dot": 2,
}
"""Methods of InterpreterBuilder that compute, and which argument the result has the type of."""

Handle = Any
"""triton's TensorHandle: a numpy array and what it stands for."""


def prepare(device: torch.device) -> str:
    """Let the kernels run on tensors of this device: call it before a module with a kernel is imported.

    -> what the bits of their results depend on, beside their inputs. Raises ConfigError if they cannot run.
    """
    interprets = device.type == "cpu"
    version = _import(interprets)
    if is_interpreting() != interprets:
        raise ConfigError(_wrong_mode(device))
    if interprets:
        repair(importlib.import_module("triton.runtime.interpreter"))
        return f"triton {version} interpreter torch {torch.__version__}"
    _check_capability(device)
    return f"triton {version} {torch.cuda.get_device_name(device)} torch {torch.__version__}"


def _import(interprets: bool) -> str:
    if interprets and "triton" not in sys.modules:
        os.environ[SWITCH] = "1"
    if not interprets:  # 3.6 to 3.9 do by themselves, though 3.9 warns; later ones do not
        os.environ.setdefault(FUSION, "1")
    try:
        return str(importlib.import_module("triton").__version__)
    except ImportError as error:
        raise ConfigError(
            f'backend = "triton" needs triton, which cannot be imported ({error}): pip install triton'
        ) from error


def _check_capability(device: torch.device) -> None:
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        needed, found = (".".join(map(str, each)) for each in (MIN_CAPABILITY, capability))
        raise ConfigError(
            f'backend = "triton" needs a GPU of compute capability {needed}, the first with bf16, and'
            f" {torch.cuda.get_device_name(device)} has {found}"
        )


def is_interpreting() -> bool:
    """Whether triton was imported with its interpreter on; it is imported if it is not yet."""
    library: Any = importlib.import_module("triton.language")
    return type(library.sum).__name__ == "InterpretedFunction"


def _wrong_mode(device: torch.device) -> str:
    if device.type == "cpu":
        return (
            'backend = "triton" on the CPU needs the interpreter of triton, and this process has imported'
            f" triton without it: set {SWITCH}=1 in the environment, or run it in a process of its own"
        )
    return (
        f'backend = "triton" on {device.type} compiles its kernels, and this process has imported triton with'
        f" its interpreter: take {SWITCH} out of the environment"
    )


def repair(interpreter: ModuleType) -> None:
    """Make triton.runtime.interpreter compute in bf16; twice is as once. Raises ConfigError if it is not the
    interpreter that this was written for."""
    _check(interpreter)
    builder = interpreter.InterpreterBuilder
    if getattr(builder, "computes_bf16", False):
        return
    bf16 = _Bf16(interpreter)
    builder.cast_impl = bf16.cast(builder.cast_impl)
    builder.create_fp_to_fp = bf16.convert(builder.create_fp_to_fp)
    for name, index in RESULT_TYPE_OF.items():
        setattr(builder, name, bf16.compute(getattr(builder, name), index))
    for ops in (interpreter.ReduceOps, interpreter.ScanOps):
        ops.apply_impl = bf16.refuse(ops.apply_impl)
    interpreter.GridExecutor.__call__ = _quiet(interpreter.GridExecutor.__call__)
    builder.computes_bf16 = True


def _quiet(call: Callable[..., None]) -> Callable[..., None]:
    def quiet(*args: Any, **kwargs: Any) -> None:
        with np.errstate(all="ignore"):
            call(*args, **kwargs)

    return quiet


def _check(interpreter: ModuleType) -> None:
    names = ["TensorHandle", "GridExecutor.__call__", "ReduceOps.apply_impl", "ScanOps.apply_impl"]
    names += [f"InterpreterBuilder.{name}" for name in ("cast_impl", "create_fp_to_fp", *RESULT_TYPE_OF)]
    for name in names:
        found: Any = interpreter
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is None:
            version = importlib.import_module("triton").__version__
            raise ConfigError(
                f"the interpreter of triton {version} has no {name}, so that bf16 cannot be repaired in it;"
                " versions 3.6 to 3.9 have been looked at"
            )


class _Bf16:
    """Wraps the interpreter's functions."""

    def __init__(self, interpreter: ModuleType) -> None:
        self._handle = interpreter.TensorHandle
        language = importlib.import_module("triton.language")
        self._bf16, self._fp32, self._int1 = language.bfloat16, language.float32, language.int1

    def cast(self, cast_impl: Callable[..., Handle]) -> Callable[..., Handle]:
        def cast(builder: Any, src: Handle, dst_type: Any) -> Handle:
            wide = self._widened(src)
            if dst_type.scalar != self._bf16:
                return cast_impl(builder, wide, dst_type)
            return src if self._is_bf16(src) else self._rounded(wide)

        return cast

    def convert(self, create_fp_to_fp: Callable[..., Handle]) -> Callable[..., Handle]:
        def convert(builder: Any, src: Handle, dst_type: Any, rounding_mode: Any) -> Handle:
            wide = self._widened(src)
            if dst_type.scalar == self._bf16:
                wide = create_fp_to_fp(builder, wide, self._fp32, rounding_mode) if _is_fp8(wide) else wide
                return self._rounded(wide)
            if wide is src or _is_fp8_type(dst_type.scalar):
                return create_fp_to_fp(builder, wide, dst_type, rounding_mode)
            return builder.cast_impl(wide, dst_type)

        return convert

    def compute(self, function: Callable[..., Handle], index: int) -> Callable[..., Handle]:
        def compute(builder: Any, *args: Any, **kwargs: Any) -> Handle:
            is_bf16 = [self._is_bf16(arg) for arg in args]
            if any(is_bf16):
                args = tuple(self._widened(arg) for arg in args)
            result = function(builder, *args, **kwargs)
            if result.data.dtype == np.bool_:
                return self._handle(result.data, self._int1)
            return self._rounded(result) if is_bf16[index] else result

        return compute

    def refuse(self, apply_impl: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(ops: Any, values: Any) -> Any:
            if any(self._is_bf16(value.handle) for value in values):
                raise TypeError("a reduction or a scan of bf16: the kernel must convert it to fp32 first")
            return apply_impl(ops, values)

        return refuse

    def _is_bf16(self, value: Any) -> bool:
        is_tensor = isinstance(value, self._handle) and value.data.dtype == np.uint16
        return is_tensor and value.dtype.scalar == self._bf16

    def _widened(self, value: Any) -> Any:
        return self._handle(widen(value.data), self._fp32) if self._is_bf16(value) else value

    def _rounded(self, value: Handle) -> Handle:
        return self._handle(round_to_bf16(value.data.astype(np.float32)), self._bf16)


def _is_fp8(handle: Handle) -> bool:
    return _is_fp8_type(handle.dtype.scalar)


def _is_fp8_type(scalar: Any) -> bool:
    return bool(scalar.primitive_bitwidth == 8)


def widen(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """bf16 -> fp32, exactly."""
    return (np.asarray(bits, order="C").astype(np.uint32) << 16).view(np.float32)


def round_to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """fp32 -> bf16, to nearest even; NaN stays NaN."""
    bits = np.asarray(values, order="C").view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
