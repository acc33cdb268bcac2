"""The mass of prefill rows against softmax in fp64 over the same stored keys."""

import random
from dataclasses import replace

import pytest
import torch

from pipeline.gpu.kv.dtype import KvDtype
from tests.kernels.heads import MODELS
from tests.kernels.isolated import isolated
from tests.kernels.prefilling import Case, Row, Step, any_case, parts

ROWS = [Row(5, 60, 3, 7), Row(1, 40), Row(2, 0), Row(17, 99, 64, 1), Row(36, 70, 20, 33), Row(2, 2, 0, 5)]


@isolated
def test_mass_of_a_mixed_step_with_and_without_windows() -> None:
    Step(Case(ROWS[:4])).check_mass()
    Step(Case(ROWS, 3, 1, has_windows=True)).check_mass()
    Step(Case(ROWS[2:], 2, 1, has_windows=True, layer_window=30)).check_mass()


@pytest.mark.parametrize("block_size", [8, 32, 64, 128])
@isolated
def test_block_sizes(block_size: int) -> None:
    rows = [Row(3, block_size - 1), Row(4, block_size), Row(2, block_size + 1)]
    Step(Case(rows, 2, 1, block_size=block_size)).check_mass()


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8", "fp8", "int4"])
@isolated
def test_kv_dtypes(kv_dtype: KvDtype) -> None:
    Step(Case([Row(9, 50)], 2, 1, kv_dtype=kv_dtype)).check_mass()
    Step(Case([Row(9, 50)], 2, 1, head_dim=80, kv_dtype=kv_dtype, dtype="bfloat16")).check_mass()


@pytest.mark.parametrize("model", ["SmolLM2", "Gemma 3"])
@isolated
def test_heads_of_the_models(model: str) -> None:
    Step(Case([Row(9, 40)], *MODELS[model], kv_dtype="bf16", dtype="bfloat16")).check_mass()


@isolated
def test_all_that_a_query_attends_to_is_in_its_mass() -> None:
    mass = Step(Case(ROWS, 2, 1, has_windows=True)).weigh()
    wanted = [2.0 * row.num_queries * (row.num_queries > 1 and row.context_len > 0) for row in ROWS]
    torch.testing.assert_close(mass.sum(1).double() / 2**32, torch.tensor(wanted).double())


@isolated
def test_it_does_not_depend_on_neighbours_nor_on_chunks() -> None:
    case = Case(ROWS[4:2:-1], 2, 1, kv_dtype="bf16", dtype="bfloat16", has_windows=True)
    whole = Step(case).weigh()
    chunks = sum(step.weigh() for step in parts(case, 0, [2, 19]))
    assert chunks[0].equal(whole[0])


@isolated
def test_it_is_the_reference() -> None:
    from pipeline.gpu.reference.ops import TorchOps

    step = Step(Case(ROWS[3:5], 2, 1, has_windows=True))
    inputs = step.inputs(step.no_mass())
    ops = TorchOps(torch.device("cpu"), 16, "fp32")
    kv = type(step.paged.cache.kv)(*(x.nan_to_num(0).transpose(0, 1) for x in step.paged.cache.kv))
    ops.attention(step.q.contiguous(), kv, ops.plan_attention(inputs), step.scale)
    assert inputs.mass is not None
    assert int((step.weigh() - inputs.mass).abs().max()) < 2**32 * 1e-5


@isolated
def test_it_is_added_to_what_is_there_with_the_default_tiles() -> None:
    from pipeline.gpu.kernels.attention_mass import attention_mass

    step = Step(Case(ROWS[:3]))
    mass = step.no_mass() + 5
    inputs, lse = step.inputs(mass), step.attend()[1]
    attention_mass(step.q, step.paged.cache, inputs, lse, step.scale)
    assert (mass[1:] == 5).all()
    assert int((mass - 5 - step.weigh()).abs().max()) < 2**32 * 1e-5


@isolated
def test_what_does_not_fit_is_refused() -> None:
    from pipeline.gpu.kernels.attention_mass import attention_mass

    step = Step(Case(ROWS[:1]))
    inputs, lse = step.inputs(step.no_mass()), step.attend()[1]
    for change, message in [({"mass": None}, "mass must be given"), ({"mass": lse}, "mass must be given")]:
        with pytest.raises(ValueError, match=message):
            attention_mass(step.q, step.paged.cache, replace(inputs, **change), lse, step.scale)
    with pytest.raises(ValueError, match="lse is"):
        attention_mass(step.q, step.paged.cache, inputs, lse[:3], step.scale)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(40))
@isolated
def test_any_step(seed: int) -> None:
    Step(any_case(random.Random(1000 + seed))).check_mass()
