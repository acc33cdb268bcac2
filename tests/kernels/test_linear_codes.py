"""Linears over int8 and 4-bit codes against the product with the weights that the codes stand for."""

from typing import Any

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from msgspec.structs import replace
from torch import Tensor

from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.weights.blocks import Blocks
from pipeline.gpu.weights.source import GivenWeights
from tests.gpu.driver import TINY, random_tensors
from tests.kernels.guarded import guarded
from tests.kernels.isolated import isolated

TOLERANCE = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.bfloat16: {"rtol": 1e-2, "atol": 2e-2}}
EVEN = replace(TINY, hidden_size=64, intermediate_size=96)
"""Whole blocks in every row."""
SIZES = [(1, 64, 40), (5, 576, 33), (17, 96, 64), (70, 160, 24), (130, 64, 130)]
"""Rows, inputs, outputs: of each number of rows its tiles, inputs and outputs that fill none."""


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def check(linear: Any, dequantised: Tensor, bias: Tensor | None, rows: int, dtype: torch.dtype) -> None:
    """On inputs that lie within wider rows."""
    num_inputs = dequantised.shape[1]
    x = guarded(random(rows, num_inputs + 16).to(dtype))[:, :num_inputs]
    expected = x.double() @ dequantised.double().T + (0 if bias is None else bias.double())
    out = linear(x)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("size", SIZES)
@isolated
def test_int8(size: tuple[int, int, int]) -> None:
    from pipeline.gpu.kernels.linear_int8 import Int8Linear, pack_int8

    rows, inputs, outputs = size
    weight = random(outputs, inputs) / inputs**0.5
    weight[3] = 0
    codes, scales = pack_int8(weight)
    dequantised = codes.view(torch.int8).float() * scales[:, None]
    assert bool(((dequantised - weight).abs() <= scales[:, None] * 0.501).all())
    bias = guarded(random(outputs)) if rows % 2 else None
    linear = Int8Linear(weight, bias)
    linear._codes, linear._scales = guarded(linear._codes), guarded(linear._scales)
    for dtype in TOLERANCE:
        check(linear, dequantised, bias, rows, dtype)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
@pytest.mark.parametrize("size", SIZES)
@isolated
def test_int4(size: tuple[int, int, int], kind: str) -> None:
    from pipeline.gpu.kernels.linear_int4 import Int4Linear

    rows, inputs, outputs = size
    blocks = blocks_of(random(outputs, inputs) / inputs**0.5, kind)
    bias = random(outputs) if rows % 2 else None
    linear = Int4Linear(blocks, bias, torch.device("cpu"))
    for name in ("_codes", "_scales", "_minima"):
        setattr(linear, name, guarded(getattr(linear, name)))
    for dtype in TOLERANCE:
        check(linear, blocks.dequantised(), bias, rows, dtype)


@isolated
def test_a_row_has_the_same_bits_among_any_number() -> None:
    from pipeline.gpu.kernels import linear_int4, linear_int8

    weight, x = random(40, 320), random(65, 320).bfloat16()
    blocks = blocks_of(weight, "Q4_1")
    for linear in (linear_int8.Int8Linear(weight, None), linear_int4.Int4Linear(blocks, None, x.device)):
        alone = linear(x[:1])[0]
        assert all(linear(x[:rows])[0].equal(alone) for rows in (16, 17, 65))
    for module in (linear_int4, linear_int8):
        assert not any("DEPTH" in config.constants for config in module.CONFIGS.values())


@isolated
def test_a_model_with_int8_weights_is_served_on_triton() -> None:
    from tests.kernels.served import request, serve

    asked = [request(0, [5, 9, 2], 2)]
    sizes: dict[str, Any] = {"device": "cpu", "dtype": "float32", "block_size": 8, "num_blocks": 8}
    sizes |= {"max_num_seqs": 2, "max_num_batched_tokens": 16, "backend": "triton"}
    plain, rounded = (serve(TINY, asked, RunnerOptions(weights=w, **sizes), 2) for w in ("bf16", "int8"))
    difference = (rounded.logits[0] - plain.logits[0]).norm() / plain.logits[0].norm()
    assert 1e-4 < difference < 0.03


class InBlocks(GivenWeights):
    """Weights as a GGUF would hold them: the feed-forward in 4 bits, queries in 8, the rest as it is."""

    def __init__(self) -> None:
        kinds = {"gate_proj": "Q4_1", "up_proj": "Q4_1", "down_proj": "Q4_0", "q_proj": "Q8_0"}
        named = dict(random_tensors(EVEN))
        self.blocks = {
            name: blocks_of(weight, kinds[part])
            for name, weight in named.items()
            for part in kinds
            if part in name
        }
        super().__init__((named | self.blocks).items())

    def kinds(self) -> dict[str, GGMLQuantizationType]:
        return {name: each.kind for name, each in self.blocks.items()}


@isolated
def test_a_model_runs_on_the_files_own_blocks() -> None:
    from pipeline.gpu.kernels import linear_int4
    from tests.kernels.served import request, serve

    asked = [request(0, [5, 9, 2], 2)]
    sizes: dict[str, Any] = {"device": "cpu", "dtype": "float32", "block_size": 8, "num_blocks": 8}
    sizes |= {"max_num_seqs": 2, "max_num_batched_tokens": 16, "backend": "triton"}
    as_tensors = serve(EVEN, asked, RunnerOptions(weights="bf16", **sizes), 2, InBlocks())
    made: list[tuple[int, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        pack = linear_int4.pack_int4
        patch.setattr(linear_int4, "pack_int4", lambda weight: made.append(weight.shape) or pack(weight))
        as_blocks = serve(EVEN, asked, RunnerOptions(weights="int4", **sizes), 2, InBlocks())
    inner, hidden = EVEN.intermediate_size, EVEN.hidden_size
    assert made == [(2 * inner, hidden), (hidden, inner)] * EVEN.num_layers
    assert as_blocks.outputs == as_tensors.outputs
    torch.testing.assert_close(as_blocks.logits[0], as_tensors.logits[0], rtol=1e-4, atol=1e-5)


@isolated
def test_what_does_not_fit_is_refused() -> None:
    from pipeline.gpu.kernels.linear_int4 import Int4Linear
    from pipeline.gpu.kernels.linear_int8 import Int8Linear

    with pytest.raises(ValueError, match="Q8_0 are not 4 bits"):
        Int4Linear(blocks_of(random(4, 64), "Q8_0"), None, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"\[2, 63\]"):
        Int8Linear(random(4, 64), None)(random(2, 63))
    with pytest.raises(ValueError, match="strides"):
        Int8Linear(random(4, 64), None)(random(64, 2).T)


def blocks_of(weight: Tensor, kind: str) -> Blocks:
    quantised = GGMLQuantizationType[kind]
    return Blocks(quantised, tuple(weight.shape), np.ascontiguousarray(quantize(weight.numpy(), quantised)))
