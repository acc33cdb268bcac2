"""What the ahead-of-time check reads of machine code, and what it calls worse."""

from dataclasses import replace
from pathlib import Path

import pytest
import triton

from pipeline.__main__ import main
from pipeline.errors import ConfigError
from pipeline.gpu.kernels import attention_decode
from pipeline.gpu.kernels.aot import Usage, _source, compile_variant, occupancy, regressions
from pipeline.gpu.kernels.config import LaunchConfig
from pipeline.gpu.kernels.occupancy import programs_at_once
from pipeline.gpu.kernels.shapes import MODELS
from pipeline.gpu.kernels.variant import Variant
from tests.kernels.sample_kernels import product_kernel, scale_kernel

SCALE = Variant(
    name="scale",
    kernel=scale_kernel,
    types={"x": "*fp32", "out": "*fp32", "n": "i32", "factor": "fp32"},
    constants={"BLOCK": 1024},
    aligned=frozenset(("x", "out")),
    config=LaunchConfig(num_warps=4),
)
POINTERS = {"a": "*bf16", "b": "*bf16", "out": "*bf16"}
SIZES = {"M": 64, "N": 64, "K": 64}
PRODUCT = Variant(
    "product", product_kernel, POINTERS, SIZES, frozenset(POINTERS), LaunchConfig(), has_dot=True
)
USAGE = Usage(64, 0, 8192, 4, 100, 0, 8, ["HMMA"], 0.5)


def test_what_the_machine_code_says() -> None:
    usage = compile_variant(SCALE, 80)
    assert 0 < usage.registers < 64 and usage.num_warps == 4
    assert (usage.stack_bytes, usage.shared_bytes, usage.matrix_kinds) == (0, 0, [])
    assert usage.instructions > 10
    assert regressions(replace(SCALE, has_dot=True), 80, usage) == ["no tensor-core instruction"]


def test_what_is_compiled_has_one_name_in_all_processes() -> None:
    """Triton's cache names it by the order of these too, and a set has another order in each process."""
    variant, *_ = attention_decode.variants(MODELS["Llama-3.1-8B"])
    places = list(_source(variant).attrs)
    assert len(places) == len(variant.aligned) > 10 and places == sorted(places)


def test_tensor_cores_are_seen() -> None:
    usage = compile_variant(PRODUCT, 90)
    assert usage.matrix_instructions > 0 and set(usage.matrix_kinds) <= {"HMMA", "HGMMA"}
    assert usage.shared_bytes > 0
    assert regressions(PRODUCT, 90, usage) == []


def test_a_spill_is_seen_where_it_matters() -> None:
    wide = replace(PRODUCT, constants={"M": 128, "N": 128, "K": 16}, config=LaunchConfig(num_warps=1))
    usage = compile_variant(wide, 80)
    assert usage.stack_bytes > 0 and usage.spill_instructions > 0
    assert regressions(wide, 80, usage)[0].startswith(f"spills: {usage.stack_bytes} bytes")
    assert not any("spills" in each for each in regressions(replace(wide, is_hot=False), 80, usage))


@pytest.mark.parametrize(
    ("bounds", "fault"),
    [
        ({"max_registers": 63}, "64 registers, over 63"),
        ({"max_registers": 64, "max_shared_bytes": 8192}, ""),
        ({"max_shared_bytes": 8191}, "8,192 bytes of shared memory, over 8,191"),
    ],
)
def test_over_the_bounds(bounds: dict[str, int], fault: str) -> None:
    assert regressions(replace(PRODUCT, **bounds), 90, USAGE) == ([fault] if fault else [])


def test_no_more_shared_memory_than_the_architecture_has() -> None:
    much = Usage(64, 0, 200_000, 4, 100, 0, 8, ["HMMA"], 0.5)
    assert regressions(PRODUCT, 90, much) == []
    assert regressions(PRODUCT, 80, much) == ["200,000 bytes of shared memory, over 166,912"]


@pytest.mark.parametrize(
    ("arch", "num_warps", "registers", "shared_bytes", "programs"),
    [
        (80, 4, 32, 0, 16),  # 64 warps
        (90, 8, 128, 0, 2),  # 65,536 registers
        (90, 4, 255, 0, 2),
        (80, 4, 33, 0, 12),  # in units of eight a thread: 40
        (80, 4, 32, 40 * 1024, 4),  # 164 KiB, one KiB each kept
        (90, 4, 32, 113 * 1024, 2),
        (90, 4, 32, 228 * 1024, 0),
        (89, 1, 16, 0, 24),
    ],
)
def test_programs_at_once(
    arch: int, num_warps: int, registers: int, shared_bytes: int, programs: int
) -> None:
    assert programs_at_once(arch, num_warps, registers, shared_bytes) == programs


def test_the_occupancy_that_is_aimed_at() -> None:
    bound = replace(PRODUCT, max_registers=128, max_shared_bytes=56 * 1024)
    assert occupancy(bound, 80, USAGE) == (8, 2)
    assert occupancy(PRODUCT, 90, USAGE) == (8, 2)


def test_an_interpreting_process_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ConfigError, match="TRITON_INTERPRET"):
        compile_variant(SCALE, 80)


def test_the_command_prints_a_table_and_writes_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "kernels.md"
    asked = ["--kernel", "activation", "--model", "SmolLM2-135M", "--kv-dtype", "bf16", "--arch", "90"]
    assert main(["compile-kernels", *asked]) == 0
    out = capsys.readouterr().out
    assert "silu_and_mul SmolLM2-135M" in out and "sm_90" in out

    page.write_text(
        "before\n<!-- stageline compile-kernels -->\nold\n<!-- end of stageline compile-kernels -->\nafter\n"
    )
    assert main(["compile-kernels", *asked, "--docs", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert (
        f"Triton {triton.__version__}" in text
        and "| activation | silu_and_mul SmolLM2-135M | sm_90 |" in text
    )


def test_what_the_command_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile-kernels", "--model", "GPT-5"]) == 2
    assert "there are SmolLM2-135M, Llama-3.2-1B" in capsys.readouterr().err
    assert main(["compile-kernels", "--kernel", "flash"]) == 2
    assert "no kernel is called flash" in capsys.readouterr().err


def test_a_regression_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "pipeline.gpu.kernels.activation.variants", lambda shape, find: [replace(SCALE, max_registers=4)]
    )
    assert main(["compile-kernels", "--kernel", "activation", "--arch", "80"]) == 1
    said = capsys.readouterr()
    assert "registers, over 4" in said.err and "1 worse than they are to be" in said.err
