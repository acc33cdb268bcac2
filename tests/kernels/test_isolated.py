"""The harness itself, and the interpreter's bf16: a test fails for each thing that it is there to find."""

import ctypes
import sys
from types import SimpleNamespace

import pytest
import torch

from pipeline.errors import ConfigError
from pipeline.gpu.kernels import interpreter
from pipeline.gpu.kv.dtype import KvDtype, is_quantised
from pipeline.gpu.reference.quantise import dequantise
from tests.kernels.guarded import guarded, poisoned
from tests.kernels.isolated import KernelTestFailed, isolated
from tests.kernels.paged import POISON, paged, stored_rows


@isolated
def fails(message: str) -> None:
    raise ValueError(message)


@isolated
def reads_past_the_end() -> None:
    tensor = guarded(torch.zeros(3))
    ctypes.string_at(tensor.data_ptr() + 3 * 4, 1)


@isolated
def writes_before_the_start() -> None:
    tensor = guarded(torch.zeros(3))
    ctypes.memset(tensor.data_ptr() - 1, 0, 1)


@isolated
def is_at_home() -> None:
    assert guarded(torch.arange(5)).tolist() == [0, 1, 2, 3, 4]
    assert bool(poisoned((3, 2), torch.bfloat16).isnan().all())
    assert poisoned((2,), torch.int8).tolist() == [-91, -91]
    assert poisoned((0, 4), torch.int8).shape == (0, 4)


def test_what_a_test_raises_is_its_failure() -> None:
    with pytest.raises(KernelTestFailed, match="ValueError: of this kind"):
        fails(message="of this kind")
    is_at_home()


def test_a_read_past_the_end_is_a_fault() -> None:
    with pytest.raises(KernelTestFailed, match=r"SIGSEGV[\s\S]*reads_past_the_end"):
        reads_past_the_end()
    is_at_home()


def test_a_write_before_the_start_is_found() -> None:
    with pytest.raises(KernelTestFailed, match="before the start"):
        writes_before_the_start()
    is_at_home()


@isolated
def test_bf16_is_computed_in_fp32_and_rounded() -> None:
    from tests.kernels.arithmetic import arithmetic, matrix_product

    a, b = (torch.randn(64, generator=torch.Generator().manual_seed(k)).bfloat16() for k in (1, 2))
    out = poisoned((11, 64), torch.bfloat16)
    arithmetic[(1,)](guarded(a), guarded(b), out, 64)
    expected = [a + b, a - b, a * b, (a.float() / b.float()).bfloat16(), torch.maximum(a, b)]
    expected += [torch.where(a < b, a, b), a.abs(), a.float().exp().bfloat16(), a.to(torch.int32).bfloat16()]
    expected += [a.to(torch.int32).bfloat16(), -a]
    for row, (got, wanted) in enumerate(zip(out, expected, strict=True)):
        assert got.equal(wanted), row
    x, y = a.view(4, 16).repeat(4, 1), b.view(16, 4).repeat(1, 4)
    product = poisoned((16, 16), torch.float32)
    matrix_product[(1,)](guarded(x), guarded(y), product)
    torch.testing.assert_close(product, x.float() @ y.float(), rtol=1e-6, atol=1e-6)


@isolated
def test_a_sum_of_bf16_is_refused() -> None:
    from tests.kernels.arithmetic import sum_of_bf16

    with pytest.raises(Exception, match="must convert it to fp32 first"):
        sum_of_bf16[(1,)](torch.zeros(16, dtype=torch.bfloat16), torch.zeros(1), 16)


def test_another_interpreter_is_refused() -> None:
    changed = SimpleNamespace(TensorHandle=object, GridExecutor=object, ReduceOps=None)
    with pytest.raises(ConfigError, match=r"no ReduceOps\.apply_impl.*3\.6 to 3\.9"):
        interpreter.repair(changed)  # type: ignore[arg-type]


@isolated
def test_a_process_is_of_one_mode() -> None:
    interpreter.prepare(torch.device("cpu"))
    with pytest.raises(ConfigError, match="take TRITON_INTERPRET out of the environment"):
        interpreter.prepare(torch.device("cuda"))


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ConfigError, match=r"needs triton, which cannot be imported .*: pip install triton"):
        interpreter.prepare(torch.device("cpu"))


@pytest.mark.parametrize("kv_dtype", ["fp32", "bf16", "int8", "fp8", "int4"])
def test_a_paged_cache_gives_back_what_was_written(kv_dtype: KvDtype) -> None:
    generator = torch.Generator().manual_seed(3)
    rows = [
        (torch.randn(n, 2, 64, generator=generator), torch.randn(n, 2, 64, generator=generator))
        for n in (0, 1, 8, 13)
    ]
    made = paged(rows, kv_dtype, 8)
    assert made.block_tables.shape == (4, 2) and made.context_lens.tolist() == [0, 1, 8, 13]
    written = 0
    for side, expected in zip(made.cache.kv, (made.keys, made.values), strict=True):
        found = stored_rows(made.cache, side)
        for row, (table, wanted) in enumerate(zip(made.block_tables, expected, strict=True)):
            entries = found[table.long()].transpose(1, 2).flatten(0, 1)[: len(wanted)]
            got = dequantise(entries, 64, kv_dtype) if is_quantised(kv_dtype) else entries.float()
            assert got.equal(wanted)
            torch.testing.assert_close(got, rows[row][side is made.cache.kv.v], rtol=0.2, atol=0.4)
            written += len(wanted)
        poison = found == POISON if is_quantised(kv_dtype) else found.isnan()
        assert int(poison.all(-1).sum()) == 2 * (made.cache.kv.k.shape[0] * 8 - 22)
    assert written == 44
