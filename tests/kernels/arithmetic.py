"""Kernels of nothing but arithmetic in bf16."""

import triton
import triton.language as tl


@triton.jit
def arithmetic(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(a_ptr + i)
    b = tl.load(b_ptr + i)
    tl.store(out_ptr + i, a + b)
    tl.store(out_ptr + N + i, a - b)
    tl.store(out_ptr + 2 * N + i, a * b)
    tl.store(out_ptr + 3 * N + i, a.to(tl.float32) / b)
    tl.store(out_ptr + 4 * N + i, tl.maximum(a, b))
    tl.store(out_ptr + 5 * N + i, tl.where(a < b, a, b))
    tl.store(out_ptr + 6 * N + i, tl.abs(a))
    tl.store(out_ptr + 7 * N + i, tl.exp(a.to(tl.float32)))
    whole = a.to(tl.int32).to(tl.bfloat16)
    tl.store(out_ptr + 8 * N + i, whole)
    tl.store(out_ptr + 9 * N + i, whole.to(tl.float8e4nv).to(tl.bfloat16))
    tl.store(out_ptr + 10 * N + i, -a)


@triton.jit
def matrix_product(a_ptr, b_ptr, out_ptr):
    i = tl.arange(0, 16)
    index = i[:, None] * 16 + i[None, :]
    tl.store(out_ptr + index, tl.dot(tl.load(a_ptr + index), tl.load(b_ptr + index)))


@triton.jit
def sum_of_bf16(a_ptr, out_ptr, N: tl.constexpr):
    tl.store(out_ptr, tl.sum(tl.load(a_ptr + tl.arange(0, N)), 0))
