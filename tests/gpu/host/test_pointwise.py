"""Norm and rotation against the torch reference kernels."""

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.gpu.host.library import HostLibrary
from pipeline.gpu.reference.ops import TorchOps
from pipeline.gpu.reference.ops import rope as torch_rope
from tests.gpu.host.kernels import cap, rms_norm, rope

few = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
OPS = TorchOps(torch.device("cpu"), 16, "fp32")


@given(size=st.integers(1, 700), scale=st.sampled_from([1e-4, 1.0, 1e4]), seed=st.integers(0, 999))
@few
def test_rms_norm(library: HostLibrary, size: int, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, weight = (scale * rng.normal(size=size)).astype("f"), rng.normal(size=size).astype("f")
    expected = OPS.rms_norm(torch.from_numpy(x)[None], torch.from_numpy(weight), 1e-5)[0]
    torch.testing.assert_close(
        torch.from_numpy(rms_norm(library, x, weight, 1e-5)), expected, atol=1e-5, rtol=1e-5
    )


@given(
    scale=st.sampled_from([1e-3, 1.0, 1e3, 1e6]), limit=st.sampled_from([0.5, 30.0]), seed=st.integers(0, 999)
)
@few
def test_cap(library: HostLibrary, scale: float, limit: float, seed: int) -> None:
    x = (scale * np.random.default_rng(seed).normal(size=64)).astype("f")
    expected = limit * np.tanh(x.astype("d") / limit)
    np.testing.assert_allclose(cap(library, x, limit), expected, atol=1e-6 * limit, rtol=1e-6)


@given(heads=st.integers(1, 12), dim=st.sampled_from([16, 64, 80, 96, 128, 256]), seed=st.integers(0, 999))
@few
def test_rope(library: HostLibrary, heads: int, dim: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(heads, dim)).astype("f")
    angles = rng.uniform(0, 100, dim // 2)
    cos, sin = np.cos(angles).astype("f"), np.sin(angles).astype("f")
    expected = torch.from_numpy(x.copy())[None]
    torch_rope(expected, torch.from_numpy(cos)[None, None], torch.from_numpy(sin)[None, None])
    torch.testing.assert_close(
        torch.from_numpy(rope(library, x, cos, sin)), expected[0], atol=1e-6, rtol=1e-5
    )
