"""Every kernel is in the catalogue, and compiles as it is launched."""

import re
from pathlib import Path

import pytest

from pipeline.gpu.kernels import config
from pipeline.gpu.kernels.aot import ARCHS
from pipeline.gpu.kernels.catalogue import KERNELS, configured, entries
from pipeline.gpu.kernels.check import check, check_one
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
    one, both = (entries(shapes, ["attention_decode"]) for shapes in (alike[:1], alike))
    assert [each.identity for each in one] == [each.identity for each in both]
    assert len(entries([MODELS["SmolLM2-135M"]], ["attention_decode"])) == len(one)


def test_a_gpus_file_is_what_is_compiled() -> None:
    entry, *_ = entries([MODELS["Llama-3.1-8B"]], ["attention_prefill"])
    packaged = config.packaged_for("", 89)
    assert packaged is not None
    expected = packaged.find("attention_prefill", {"head_dim": 128, "kv_dtype": "bf16"})
    found = configured(entry, 89).variant
    assert found.config == expected is not None
    assert expected.constants.items() <= found.constants.items()
    assert configured(entry, 75) == entry  # no file


@pytest.mark.parametrize("kernel", SOME)
def test_a_model_compiles_for_hopper(kernel: str) -> None:
    """The first variant of each, of the model that most GPUs are bought for."""
    entry, *_ = entries([MODELS["Llama-3.1-8B"]], [kernel])
    row = check_one(entry, 90)
    assert row.faults() == []
    assert row.usage.matrix_instructions > 0 or not entry.variant.has_dot


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("arch", ARCHS)
def test_all_models_compile(arch: int) -> None:
    """No spills where it is hot, registers and shared memory within bounds, tensor cores in use."""
    rows = list(check(entries(find_shapes([])), [arch], num_processes=2))
    assert [fault for row in rows for fault in row.faults()] == []
    assert {row.kernel for row in rows} == set(KERNELS)
