"""Every kernel is in the catalogue, and compiles as it is launched."""

import re
from pathlib import Path

import pytest

from pipeline.gpu.kernels import config
from pipeline.gpu.kernels.aot import ARCHS, compile_variant, regressions
from pipeline.gpu.kernels.catalogue import KERNELS, entries, variants_of
from pipeline.gpu.kernels.check import check, check_one
from pipeline.gpu.kernels.finding import packaged_find
from pipeline.gpu.kernels.shapes import MODELS, find_shapes

FOLDER = Path(config.__file__).parent
SOME = ("attention_decode", "attention_prefill", "rope_kv", "norm")


def test_every_module_with_variants_is_there() -> None:
    found = {
        file.stem for file in FOLDER.glob("*.py") if re.search(r"^def variants\(", file.read_text(), re.M)
    }
    assert found == set(KERNELS)


def test_a_compilation_is_there_once() -> None:
    alike = [MODELS["Llama-3.1-8B"], MODELS["Mistral-7B"]]
    one, both = (entries(shapes, [90], ["attention_decode"]) for shapes in (alike[:1], alike))
    assert [each.identity for each in one] == [each.identity for each in both]
    assert len(entries([MODELS["SmolLM2-135M"]], [90], ["attention_decode"])) == len(one)


def test_a_gpus_file_is_what_is_compiled() -> None:
    packaged = config.packaged_for("", 89)
    assert packaged is not None
    expected = packaged.find("attention_decode", {"head_dim": 128, "kv_dtype": "bf16"})
    of_ada, of_turing = (
        entries([MODELS["Llama-3.1-8B"]], [arch], ["attention_decode"])[0].variant for arch in (89, 75)
    )
    assert of_ada.config == expected is not None
    assert expected.constants.items() <= of_ada.constants.items()
    assert of_turing.config != expected  # there is no file


@pytest.mark.parametrize("kernel", SOME)
def test_a_model_compiles_for_hopper(kernel: str) -> None:
    """The first variant of each, of the model that most GPUs are bought for."""
    entry, *_ = entries([MODELS["Llama-3.1-8B"]], [90], [kernel])
    row = check_one(entry)
    assert row.faults() == []
    assert row.usage.matrix_instructions > 0 or not entry.variant.has_dot


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("arch", ARCHS)
def test_all_models_compile(arch: int) -> None:
    """No spills where it is hot, registers and shared memory within bounds, tensor cores in use."""
    rows = list(check(entries(find_shapes([]), [arch]), num_processes=2))
    assert [fault for row in rows for fault in row.faults()] == []
    assert {row.kernel for row in rows} == set(KERNELS)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("gpu", ["NVIDIA L4", "NVIDIA GeForce RTX 4090"])
def test_two_models_fit_small_multiprocessors(gpu: str) -> None:
    """By the file of that very GPU: sm_89 has 99 KB of shared memory for a program."""
    find = packaged_find(config.packaged_for(gpu, 89))
    for kernel in KERNELS:
        for name in ("Llama-3.1-8B", "Gemma-3-1B"):
            for variant in variants_of(kernel, MODELS[name], find):
                assert regressions(variant, 89, compile_variant(variant, 89)) == [], variant.name
