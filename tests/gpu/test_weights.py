from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.model import describe
from pipeline.errors import ModelError
from pipeline.gpu.weights.load import load_tensors
from tests.tiny_models import HEADS, KV_HEADS, interleaved, random_tensors, write_folder, write_gguf


def loaded(path: Path) -> dict[str, torch.Tensor]:
    return dict(load_tensors(describe(path, "tiny")))


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_folder_gives_what_was_saved(tmp_path: Path, num_shards: int, dtype: torch.dtype) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in random_tensors().items()}
    assert_equal(loaded(write_folder(tmp_path, tensors, num_shards=num_shards)), tensors)


def test_float32_gguf_gives_the_hugging_face_tensors(tmp_path: Path) -> None:
    """Rotary rows come back out of llama.cpp's order."""
    assert_equal(loaded(write_gguf(tmp_path / "a.gguf")), random_tensors())


@pytest.mark.parametrize(("kind", "dtype"), [(Kind.F16, torch.float16), (Kind.BF16, torch.bfloat16)])
def test_half_precision_gguf_stays_as_it_is(tmp_path: Path, kind: Kind, dtype: torch.dtype) -> None:
    expected = {
        name: tensor.to(dtype) if tensor.ndim == 2 else tensor for name, tensor in random_tensors().items()
    }
    assert_equal(loaded(write_gguf(tmp_path / "a.gguf", kind=kind)), expected)


def dequantized(name: str, tensor: torch.Tensor, kind: Kind) -> torch.Tensor:
    """Quantised in llama.cpp's row order, whose inverse is the permutation of the other factor."""
    if tensor.ndim == 1:
        return tensor
    heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
    rows = interleaved(tensor.numpy(), heads) if heads else tensor.numpy()
    values = gguf.quants.dequantize(gguf.quants.quantize(rows, kind), kind)
    if heads:
        values = values.reshape(heads, -1, 2, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
    return torch.from_numpy(np.ascontiguousarray(values))


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0])
def test_quantised_gguf_gives_float32(tmp_path: Path, kind: Kind) -> None:
    expected = {name: dequantized(name, tensor, kind) for name, tensor in random_tensors().items()}
    assert_equal(loaded(write_gguf(tmp_path / "a.gguf", kind=kind)), expected)


def test_the_head_is_given_only_where_it_is_its_own(tmp_path: Path) -> None:
    untied = random_tensors(is_tied=False)
    assert "lm_head.weight" in loaded(write_gguf(tmp_path / "a.gguf", untied))
    assert "lm_head.weight" in loaded(
        write_folder(tmp_path / "a", untied, config={"tie_word_embeddings": False})
    )
    assert "lm_head.weight" not in loaded(write_folder(tmp_path / "b", untied))


def test_derived_tensors_are_left_out(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    assert_equal(loaded(write_folder(tmp_path / "a", random_tensors() | extra)), random_tensors())
    ones = {"rope_freqs.weight": np.ones(8, np.float32)}
    assert_equal(loaded(write_gguf(tmp_path / "a.gguf", extra=ones)), random_tensors())


def test_a_type_that_cannot_be_dequantised_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", extra={"blk.0.ffn_up.bias": np.ones(128, np.int8)})
    with pytest.raises(ModelError, match=r"tensor blk.0.ffn_up.bias is of type I8"):
        loaded(path)


def test_a_tensor_of_another_architecture_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", extra={"blk.0.ssm_a.weight": np.ones(4, np.float32)})
    with pytest.raises(ModelError, match=r"the tensor blk.0.ssm_a.weight, which no model served here knows"):
        loaded(path)


def test_weights_may_be_written_to(tmp_path: Path) -> None:
    """A tensor over read-only memory would warn, or fault much later."""
    for path in (write_gguf(tmp_path / "a.gguf"), write_folder(tmp_path / "a")):
        for tensor in loaded(path).values():
            tensor.add_(1.0)


@pytest.mark.model
@pytest.mark.nightly  # 20 s of CPU time, most of it in that reader
def test_the_default_model_against_transformers(model_card: ModelCard, model_path: Path) -> None:
    """Every tensor equals the one that transformers' own GGUF reader makes."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(model_path.parent, gguf_file=model_path.name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    expected = load_gguf_checkpoint(model_path, return_tensors=True, model_to_load=model)["tensors"]
    assert_equal(dict(load_tensors(model_card)), expected)
