"""Run by test_sanitizers in a process of its own, with a library built with ASan and UBSan: every kernel and
whole steps on small shapes, over buffers that end where they must. Knows no torch: its runtime is not built
for a sanitizer.
"""

import ctypes
import sys
from pathlib import Path

import numpy as np

from pipeline.gpu.host import library as abi
from pipeline.gpu.host.formats import BLOCK_FORMATS
from pipeline.gpu.kv.dtype import KvDtype
from tests.gpu.host import kernels
from tests.gpu.host.gguf_rows import KINDS, random_rows
from tests.gpu.host.kernels import Floats, Packed, pack, pointer, to_bf16

RNG = np.random.default_rng(0)


def normal(*shape: int) -> Floats:
    return RNG.normal(size=shape).astype("f")


def run_linears(library: abi.HostLibrary) -> None:
    for is_int8 in (False, True):
        for rows, inputs, outputs in ((1, 1, 1), (7, 48, 33), (100, 130, 70)):
            x = normal(rows, inputs)
            kernels.linear(library, pack(library, [normal(outputs, inputs)], is_int8, normal(outputs)), x)
            gated = pack(
                library, [normal(outputs, inputs), normal(outputs, inputs)], is_int8, interleave=True
            )
            kernels.swiglu(library, gated, x)


def run_blocks(library: abi.HostLibrary) -> None:
    for kind in KINDS:
        for outputs, rows in ((1, 1), (33, 7)):
            blocks, inputs = random_rows(kind, outputs, 2, seed=outputs)
            packed = kernels.new_packed(library, inputs, [BLOCK_FORMATS[kind]] * -(-outputs // 32))
            kernels.pack_blocks(library, packed, kind, blocks, inputs)
            packed.unpacked(library)
            kernels.linear(library, packed, normal(rows, inputs))


def run_attention(library: abi.HostLibrary) -> None:
    for kv_dtype in abi.CODES:
        for num_kv, group, dim, block_size in (
            (1, 1, 16, 16),
            (2, 3, 80, 32),
            (1, 8, 256, 16),
            (1, 11, 64, 128),
        ):
            run_attention_of(library, num_kv, group, dim, block_size, kv_dtype)


def run_attention_of(
    library: abi.HostLibrary, num_kv: int, group: int, dim: int, block_size: int, kv_dtype: KvDtype
) -> None:
    contexts = np.array([1, 300, 17], np.int32)
    tables = RNG.permutation(60).astype(np.int32).reshape(3, 20)
    cache = kernels.new_cache(60, block_size, num_kv, dim, kv_dtype)
    for table, context in zip(tables, contexts, strict=True):
        position = np.arange(context)
        slots = table[position // block_size].astype(np.int64) * block_size + position % block_size
        kernels.write_kv(library, cache, normal(context, num_kv, dim), normal(context, num_kv, dim), slots)
    q, starts = to_bf16(normal(23, num_kv * group, dim)), np.array([0, 1, 6, 23], np.int32)
    sinks, windows = np.array([0, 4, 0], np.int32), np.array([0, 20, 7], np.int32)
    mass = np.zeros(tables.shape, np.int64)
    kernels.attention(library, cache, q, starts, contexts, tables)
    kernels.attention(
        library, cache, q, starts, contexts, tables, 3, sinks, windows, mass, layer_window=9, soft_cap=30.0
    )
    kernels.attention(library, cache, q, starts, contexts, tables, 3, sinks, windows, mass)


def run_rows(library: abi.HostLibrary) -> None:
    kernels.rms_norm(library, normal(50), normal(50), 1e-5)
    kernels.rope(library, normal(3, 80), normal(40), normal(40))


def run_sampling(library: abi.HostLibrary) -> None:
    for vocab in (1, 15, 300, 1000, 6001):
        logits = 3 * normal(12, vocab)
        logits[3, : vocab // 2] = -np.inf
        temperature = np.resize(np.array([0.0, 1e-30, 1.0], "f"), 12)
        top_k, top_p = (
            np.resize(np.array([0, 1, 7, 10**6]), 12),
            np.resize(np.array([1.0, 0.0, 0.9, 0.5, 1.0], "f"), 12),
        )
        seed = RNG.integers(-(2**63), 2**63 - 1, 12)
        rows = abi.SamplingRows(
            pointer(logits),
            vocab,
            vocab,
            12,
            pointer(temperature),
            pointer(top_k),
            pointer(top_p),
            pointer(seed),
            pointer(seed),
        )
        token_ids = np.full(12, -1)
        library.sample(ctypes.byref(rows), pointer(token_ids), kernels.THREADS)
        assert ((token_ids >= 0) & (token_ids < vocab)).all()


def run_steps(library: abi.HostLibrary) -> None:
    """Two layers, 6 heads of 16 over 2, hidden size 48: the prompt of one sequence beside a decode row."""
    for is_int8, is_gemma in ((False, False), (True, False), (False, True), (True, True)):
        linears = {
            "qkv": pack(library, [normal(n, 48) for n in (96, 32, 32)], is_int8, normal(160)),
            "output": pack_to(library, 48, 96, is_int8),
            "gate_up": pack(library, [normal(80, 48), normal(80, 48)], is_int8, interleave=True),
            "down": pack_to(library, 48, 80, is_int8),
        }
        norm, head_norm, angles = np.zeros(64, np.float32), normal(16), normal(64, 8)
        norm[:48] = 1
        structs = {name: packed.struct for name, packed in linears.items()}
        parts = {"input_norm": norm, "mlp_norm": norm, "cos": angles, "sin": angles}
        if is_gemma:
            parts |= {"post_attention_norm": norm, "post_mlp_norm": norm}
            parts |= {"q_norm": head_norm, "k_norm": head_norm}
        pointers = {name: pointer(part) for name, part in parts.items()}
        windows = (8 if is_gemma else 0, 0)
        layers = (abi.Layer * 2)(*(abi.Layer(**pointers, **structs, window=window) for window in windows))
        head = pack(library, [normal(101, 48)], is_int8)
        model = abi.Model(
            num_layers=2,
            hidden=48,
            vocab=101,
            max_position=64,
            is_gelu=is_gemma,
            embedding_scale=48**0.5 if is_gemma else 1,
            logits_cap=30 if is_gemma else 0,
            eps=1e-5,
            heads=abi.Heads(abi.KvShape(2, 16, 16), 6, 0.25),
            layers=layers,
            norm=pointer(norm),
            embedding=head.struct,
            head=head.struct,
        )
        caches = [kernels.new_cache(6, 16, 2, 16) for _ in range(2)]
        run_step(library, model, caches, [20, 1], [20, 33])


def pack_to(library: abi.HostLibrary, outputs: int, inputs: int, is_int8: bool) -> Packed:
    """Outputs padded to the width of the residual."""
    return pack(library, [np.concatenate((normal(outputs, inputs), np.zeros((16, inputs), "f")))], is_int8)


def run_step(
    library: abi.HostLibrary,
    model: abi.Model,
    caches: list[kernels.Cache],
    counts: list[int],
    contexts: list[int],
) -> None:
    starts, lens = np.cumsum([0, *counts]).astype(np.int32), np.array(contexts, np.int32)
    tables = np.array([[0, 1, 5], [2, 3, 4]], np.int32)
    positions = np.concatenate([np.arange(c - n, c) for n, c in zip(counts, contexts, strict=True)])
    rows = np.repeat(np.arange(len(counts)), counts)
    slots = tables[rows, positions // 16].astype(np.int64) * 16 + positions % 16
    token_ids, chosen_rows = RNG.integers(0, 101, len(rows)), np.array([int(starts[1]) - 1, len(rows) - 1, 0])
    logits = np.full((2, model.head.outputs), np.nan, np.float32)
    hidden = np.full((1, model.layers[0].qkv.width), np.nan, np.float32)
    size = library.workspace_bytes(ctypes.byref(model), len(rows), kernels.THREADS)
    workspace = np.zeros(size + 64, np.uint8)
    aligned = -(-workspace.ctypes.data // 64) * 64
    keys, values = (
        (ctypes.c_void_p * 2)(*(pointer(p) for p in parts))
        for parts in ([c.keys for c in caches], [c.values for c in caches])
    )
    step = abi.Step(
        len(rows),
        2,
        1,
        kernels.THREADS,
        abi.Batch(len(counts), 3, pointer(starts), pointer(lens), pointer(tables)),
        pointer(token_ids),
        pointer(positions),
        pointer(slots),
        pointer(chosen_rows),
        ctypes.cast(keys, ctypes.c_void_p),
        ctypes.cast(values, ctypes.c_void_p),
        pointer(logits),
        pointer(hidden),
        aligned,
    )
    assert library.step(ctypes.byref(model), ctypes.byref(step)) == 0
    assert np.isfinite(logits).all() and np.isfinite(hidden).all()
    token_ids[0] = 101
    assert library.step(ctypes.byref(model), ctypes.byref(step)) == 1
    token_ids[0], positions[0] = 0, 64
    assert library.step(ctypes.byref(model), ctypes.byref(step)) == 2


def write_past_the_end(library: abi.HostLibrary) -> None:
    """What a sanitizer must find: the last slot of a cache that is one block too short."""
    cache = kernels.new_cache(1, 16, 1, 64)
    kernels.write_kv(library, cache, normal(1, 1, 64), normal(1, 1, 64), np.array([16]))


if __name__ == "__main__":
    path, *faults = sys.argv[1:]
    library = abi.HostLibrary(Path(path))
    for run in (
        (write_past_the_end,)
        if faults
        else (run_linears, run_blocks, run_attention, run_rows, run_sampling, run_steps)
    ):
        run(library)
        print(run.__name__, "done")
