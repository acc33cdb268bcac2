"""The kernels' C ABI, bound with ctypes: structs as kernels/*.h has them, and one function each.

ctypes releases the GIL for the length of a call. Nothing here checks a pointer: callers own what they pass.
"""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_void_p, sizeof
from pathlib import Path

from pipeline.gpu.host.build import Build, HostUnavailable, compile_library, provide_library
from pipeline.gpu.kv.dtype import KvDtype

CODES: dict[KvDtype, int] = {"bf16": 0, "int8": 1, "fp8": 2, "int4": 3}
"""KvShape.code."""


class KvShape(Structure):
    _fields_ = (("num_kv_heads", c_int32), ("head_dim", c_int32), ("block_size", c_int32), ("code", c_int32))


class Heads(Structure):
    _fields_ = (("kv", KvShape), ("num_heads", c_int32), ("scale", c_float), ("soft_cap", c_float))


class Panel(Structure):
    _fields_ = (("weight", c_void_p), ("format", c_int32), ("unused", c_int32))


class Linear(Structure):
    _fields_ = (
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("width", c_int32),
        ("outputs", c_int32),
        ("is_int8", c_int32),
    )


class Placement(Structure):
    _fields_ = (("first", c_int32), ("is_interleaved", c_int32))


class Rows(Structure):
    _fields_ = (
        ("is_int8", ctypes.c_bool),
        ("width", c_int32),
        ("wide", c_void_p),
        ("bytes", c_void_p),
        ("scales", c_void_p),
        ("totals", c_void_p),
        ("sums", c_void_p),
    )


class Layer(Structure):
    _fields_ = (
        ("input_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("post_attention_norm", c_void_p),
        ("post_mlp_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("qkv", Linear),
        ("output", Linear),
        ("gate_up", Linear),
        ("down", Linear),
        ("window", c_int32),
    )


class Model(Structure):
    _fields_ = (
        ("num_layers", c_int32),
        ("hidden", c_int32),
        ("vocab", c_int32),
        ("max_position", c_int32),
        ("is_gelu", c_int32),
        ("embedding_scale", c_float),
        ("logits_cap", c_float),
        ("eps", c_float),
        ("heads", Heads),
        ("layers", POINTER(Layer)),
        ("norm", c_void_p),
        ("embedding", Linear),
        ("head", Linear),
    )


class Batch(Structure):
    _fields_ = (
        ("num_rows", c_int32),
        ("table_stride", c_int32),
        ("query_start", c_void_p),
        ("context_lens", c_void_p),
        ("block_tables", c_void_p),
        ("sinks", c_void_p),
        ("windows", c_void_p),
        ("mass", c_void_p),
    )


class Step(Structure):
    _fields_ = (
        ("num_tokens", c_int32),
        ("num_logits", c_int32),
        ("num_hidden", c_int32),
        ("num_threads", c_int32),
        ("batch", Batch),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("chosen_rows", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("logits", c_void_p),
        ("hidden", c_void_p),
        ("workspace", c_void_p),
    )


class SamplingRows(Structure):
    _fields_ = (
        ("logits", c_void_p),
        ("stride", c_int64),
        ("vocab", c_int32),
        ("num_rows", c_int32),
        ("temperature", c_void_p),
        ("top_k", c_void_p),
        ("top_p", c_void_p),
        ("seed", c_void_p),
        ("position", c_void_p),
        ("mask", c_void_p),
    )


_STRUCTS = (KvShape, Heads, Panel, Linear, Placement, Rows, Layer, Model, Batch, Step, SamplingRows)

_PTR, _INT = c_void_p, c_int32
_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "isa": (c_char_p, ()),
    "struct_sizes": (None, (_PTR,)),
    "panel_bytes": (c_int64, (_INT, _INT)),
    "pack": (None, (POINTER(Linear), _PTR, _INT, _INT, _INT, Placement, _INT)),
    "pack_blocks": (None, (POINTER(Linear), _INT, _PTR, _INT, _INT, _INT, Placement, _INT)),
    "unpack": (None, (POINTER(Linear), _INT, _PTR)),
    "workspace_bytes": (c_int64, (POINTER(Model), _INT, _INT)),
    "step": (c_int32, (POINTER(Model), POINTER(Step))),
    "sample": (None, (POINTER(SamplingRows), _PTR, _INT)),
    "linear": (None, (POINTER(Linear), POINTER(Rows), _PTR, _INT, _PTR, _INT)),
    "swiglu": (None, (POINTER(Linear), POINTER(Rows), _PTR, _INT, _PTR, _INT)),
    "geglu": (None, (POINTER(Linear), POINTER(Rows), _PTR, _INT, _PTR, _INT)),
    "attention": (None, (POINTER(Heads), POINTER(Batch), _PTR, _PTR, _PTR, _PTR, _INT, _INT)),
    "rms_norm": (None, (_PTR, _PTR, _INT, _INT, c_float, _PTR)),
    "cap": (None, (_PTR, _INT, c_float)),
    "rope": (None, (_PTR, _INT, _INT, _PTR, _PTR)),
    "write_kv": (None, (POINTER(KvShape), _PTR, _PTR, _PTR, _INT, _PTR, _PTR)),
}


class HostLibrary:
    """The functions of kernels/exports.cpp, under their names without "stageline_"."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, f"stageline_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        sizes = (c_int32 * len(_STRUCTS))()
        self.struct_sizes(sizes)
        assert list(sizes) == [sizeof(struct) for struct in _STRUCTS], "library.py and kernels/ disagree"
        self.isa_name: str = self.isa().decode()
        """avx512, avx2 or portable."""
        self.name = path.name
        """Stands for all that it was made of; see build."""

    def __getattr__(self, name: str) -> "ctypes._NamedFuncPointer":
        raise AttributeError(name)  # here for the type checker: __init__ sets every one of _FUNCTIONS


def load_library(build: Build) -> HostLibrary:
    """From the cache, or compiled first. Import torch before: one OpenMP runtime for both.

    Raises HostUnavailable.
    """
    path = provide_library(build)
    try:
        return HostLibrary(path)
    except OSError:
        compile_library(build, path)  # what the cache holds is damaged
    try:
        return HostLibrary(path)
    except OSError as error:
        raise HostUnavailable(f"the host kernels cannot be loaded: {error}") from error
