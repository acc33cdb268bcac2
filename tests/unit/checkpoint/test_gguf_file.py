from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.checkpoint.card import Architecture, ModelCard, RopeScaling
from pipeline.checkpoint.gguf_config import llama3_divisors
from pipeline.checkpoint.gguf_file import describe_gguf, display_name
from pipeline.errors import ModelError
from tests.tiny_models import HEAD_DIM, TEMPLATE, VOCAB, random_tensors, write_gguf


def test_a_whole_card(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "Tiny-Instruct.Q8_0.gguf")
    card = describe_gguf(path, "tiny")
    assert (card.name, card.reference, card.path, card.format) == ("Tiny-Instruct", "tiny", path, "gguf")
    assert (card.bos_token, card.eos_token, card.chat_template) == ("<|im_start|>", "<|im_end|>", TEMPLATE)
    assert card.eos_ids == (2,)
    assert card.architecture == Architecture(
        family="llama",
        num_layers=2,
        hidden_size=64,
        intermediate_size=128,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=VOCAB,
        max_position=256,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_embeddings=True,
    )


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
        ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Llama-3.2-1B-Instruct"),
        ("model-f16.gguf", "model"),
        ("a.IQ3_XXS.gguf", "a"),
        ("a-MXFP4_MOE.gguf", "a"),
        ("TinyLlama-1.1B-v1.0.gguf", "TinyLlama-1.1B-v1.0"),
    ],
)
def test_the_name_leaves_the_quantization_out(file: str, name: str) -> None:
    assert display_name(Path(file)) == name


def test_an_untied_head_is_seen(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", random_tensors(is_tied=False))
    assert not describe_gguf(path, "a").architecture.tie_embeddings


def test_every_end_that_the_metadata_names(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", metadata={"tokenizer.ggml.eot_token_id": 0})
    assert describe_gguf(path, "a").eos_ids == (0, 2)


def scaled(path: Path, factors: list[float]) -> ModelCard:
    extra = {"rope_freqs.weight": np.array(factors, np.float32)}
    return describe_gguf(write_gguf(path, extra=extra), "a")


def transformers_divisors(scaling: RopeScaling) -> torch.Tensor:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": "llama3", "rope_theta": 1e4, "factor": scaling.factor}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    sizes = {"head_dim": HEAD_DIM, "hidden_size": 64, "max_position_embeddings": 131072}
    config = LlamaConfig(**sizes, rope_parameters=rope)
    scaled_by, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    return 1e4 ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM) / scaled_by


def test_llama_3_scaling_is_recovered_from_its_divisors(tmp_path: Path) -> None:
    expected = RopeScaling("llama3", 32.0)
    divisors = llama3_divisors(expected, 1e4, HEAD_DIM)
    np.testing.assert_allclose(divisors, transformers_divisors(expected), rtol=1e-5)
    assert scaled(tmp_path / "a.gguf", divisors).architecture.rope_scaling == expected


def test_other_divisors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"rope_freqs.weight.* are not Llama 3's"):
        scaled(tmp_path / "a.gguf", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])


def test_linear_scaling(tmp_path: Path) -> None:
    metadata = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    path = write_gguf(tmp_path / "a.gguf", metadata=metadata)
    assert describe_gguf(path, "a").architecture.rope_scaling == RopeScaling("linear", 4.0)


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"llama.rope.scaling.type": "yarn"}, "'yarn'"),
        ({"llama.expert_count": 8}, "mixture of 8 experts"),
        ({"llama.attention.value_length": 32}, "values of 32 elements a head and keys of 16"),
        ({"llama.rope.dimension_count": 8}, "rotates 8 of 16"),
        ({"split.count": 3}, "one part of several"),
    ],
)
def test_what_cannot_be_served_is_named(tmp_path: Path, metadata: dict[str, int | str], named: str) -> None:
    path = write_gguf(tmp_path / "a.gguf", metadata=metadata)
    with pytest.raises(ModelError, match=rf"a.gguf .*{named}"):
        describe_gguf(path, "a")


def test_mistrals_window_is_that_of_every_layer(tmp_path: Path) -> None:
    for window, expected in ((64, (64, 64)), (256, ())):
        metadata = {"llama.attention.sliding_window": window}
        path = write_gguf(tmp_path / f"{window}.gguf", metadata=metadata)
        assert describe_gguf(path, "a").architecture.layer_windows == expected


def test_an_architecture_without_a_decoders_keys_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf")
    path.write_bytes(path.read_bytes().replace(b"llama.feed_forward_length", b"llama.feed_backward_lengt"))
    with pytest.raises(ModelError, match=r"'llama' is not a decoder .*`feed_forward_length`"):
        describe_gguf(path, "a")


def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", has_tokenizer=False)
    with pytest.raises(ModelError, match="holds no tokenizer"):
        describe_gguf(path, "a")
