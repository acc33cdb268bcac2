"""Models as others write them: folders of transformers, GGUF files with the names of the gguf package."""

from pathlib import Path
from typing import Any

import gguf
import msgspec
import pytest
import torch
from transformers import (
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from pipeline.checkpoint.card import Architecture, RopeScaling
from pipeline.checkpoint.model import describe
from pipeline.gpu.runner import load_runner
from pipeline.gpu.weights.load import load_tensors
from tests.gpu.agreement import FP32
from tests.gpu.driver import TINY, Driver, KeepLogits, random_tensors
from tests.gpu.oracle import logits_sync
from tests.gpu.test_gemma3 import GEMMA
from tests.tiny_models import byte_level_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
GEMMA_SIZES = SIZES | {"head_dim": 16, "sliding_window": 32, "query_pre_attn_scalar": 24}
LOCAL = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
SCALED = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def gemma_with_eyes() -> PreTrainedModel:
    text = Gemma3TextConfig(**GEMMA_SIZES)
    config = Gemma3Config(text_config=text.to_dict(), vision_config=VISION, mm_tokens_per_image=4)
    return Gemma3ForConditionalGeneration(config)


MODELS: dict[str, Any] = {
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=100)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen2 with windows": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=40, max_window_layers=1)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**GEMMA_SIZES, **LOCAL, rope_parameters=SCALED)),
    "gemma3 with a vision part": gemma_with_eyes,
}


def saved(model: PreTrainedModel, folder: Path) -> Path:
    """All weights random, norms and biases too, and far from what a lost tensor would leave."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.eval().save_pretrained(folder)
    (folder / "tokenizer.json").write_text(byte_level_tokenizer().to_str())
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_folder_is_served_as_transformers_does(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    keep = KeepLogits()
    driver = Driver(load_runner(describe(saved(model, tmp_path), "saved"), FP32, lambda: keep))
    prompt = torch.randint(0, 300, (150,), generator=torch.Generator().manual_seed(1)).tolist()
    sequence = driver.add(prompt)
    for count in (70, 80, 1, 1):
        driver.step([(sequence, count)])
    expected = logits_sync(model, prompt + sequence.output[:-1])
    torch.testing.assert_close(keep.last[0], expected[-1], atol=2e-5, rtol=1e-5)
    assert expected[-3:].argmax(-1).tolist() == sequence.output


FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"family": "qwen2", "attention_bias": True},
    "qwen3": {"family": "qwen3", "qk_norm": True, "head_dim": 32},
    "gemma3": GEMMA
    | {
        "num_layers": 7,
        "layer_windows": (40,) * 5 + (0, 40),
        "attention_scale": 0.25,
        "rope_scaling": RopeScaling("linear", 8.0),
        "rms_norm_eps": 1e-6,
    },
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_gguf_file_gives_architecture_and_tensors(name: str, tmp_path: Path) -> None:
    architecture = msgspec.structs.replace(TINY, **FAMILIES[name])
    tensors = dict(random_tensors(architecture))
    card = describe(write_gguf(tmp_path / "a.gguf", architecture, tensors), "a")
    assert card.architecture == architecture
    found = dict(load_tensors(card))
    assert found.keys() == tensors.keys()
    for tensor_name, tensor in tensors.items():
        assert torch.equal(found[tensor_name], tensor), tensor_name


def write_gguf(path: Path, architecture: Architecture, tensors: dict[str, torch.Tensor]) -> Path:
    """As llama.cpp's converter: names by the gguf package, Gemma's norms with the 1 added."""
    family = architecture.family
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(architecture.num_layers)
    writer.add_context_length(architecture.max_position)
    writer.add_embedding_length(architecture.hidden_size)
    writer.add_feed_forward_length(architecture.intermediate_size)
    writer.add_head_count(architecture.num_heads)
    writer.add_head_count_kv(architecture.num_kv_heads)
    writer.add_key_length(architecture.head_dim)
    writer.add_value_length(architecture.head_dim)
    writer.add_layer_norm_rms_eps(architecture.rms_norm_eps)
    writer.add_rope_freq_base(architecture.rope_theta)
    if architecture.rope_scaling:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(architecture.rope_scaling.factor)
    if architecture.layer_windows:
        writer.add_sliding_window(max(architecture.layer_windows))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([chr(33 + n) for n in range(90)])
    writer.add_token_merges([])
    kind_of = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kind_of[family], architecture.num_layers)
    for name, tensor in tensors.items():
        base, _, kind = name.rpartition(".")
        writer.add_tensor(f"{names.get_name(base)}.{kind}", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
