"""Random models of the Llama family, small enough to write in a test, in both formats.

The GGUF writer lays rotary rows out as llama.cpp's converter does, so that reading must undo it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, TokenType
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 2, 64, 128, 4, 2, 16
MARKERS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("Ġ", "Ġ"), ("1", "2")]
TOKENS = [*MARKERS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]
VOCAB = len(TOKENS)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}
_IN_LAYER = {
    "attn_norm": ("input_layernorm", (HIDDEN,)),
    "attn_q": ("self_attn.q_proj", (HEADS * HEAD_DIM, HIDDEN)),
    "attn_k": ("self_attn.k_proj", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "attn_v": ("self_attn.v_proj", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "attn_output": ("self_attn.o_proj", (HIDDEN, HEADS * HEAD_DIM)),
    "ffn_norm": ("post_attention_layernorm", (HIDDEN,)),
    "ffn_gate": ("mlp.gate_proj", (INTERMEDIATE, HIDDEN)),
    "ffn_up": ("mlp.up_proj", (INTERMEDIATE, HIDDEN)),
    "ffn_down": ("mlp.down_proj", (HIDDEN, INTERMEDIATE)),
}
_TOP = {
    "token_embd": ("model.embed_tokens", (VOCAB, HIDDEN)),
    "output_norm": ("model.norm", (HIDDEN,)),
    "output": ("lm_head", (VOCAB, HIDDEN)),
}
_LAYER_PARTS = {
    f"blk.{layer}.{part}": (f"model.layers.{layer}.{name}", shape)
    for layer in range(LAYERS)
    for part, (name, shape) in _IN_LAYER.items()
}
PARTS = {**_TOP, **_LAYER_PARTS}
"""GGUF name -> (Hugging Face name, shape), both without ".weight"."""


def random_tensors(seed: int = 0, *, is_tied: bool = True) -> dict[str, torch.Tensor]:
    """Float32 weights under their Hugging Face names."""
    generator = torch.Generator().manual_seed(seed)
    return {
        f"{name}.weight": torch.randn(shape, generator=generator)
        for name, shape in PARTS.values()
        if not (is_tied and name == "lm_head")
    }


def byte_level_tokenizer() -> Tokenizer:
    """The 256 bytes, seven merges and three markers; single digits, as SmolLM2 has them."""
    tokenizer = Tokenizer(BPE({token: token_id for token_id, token in enumerate(TOKENS)}, MERGES))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), byte_level]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(marker, normalized=False, special=True) for marker in MARKERS])
    return tokenizer


def write_folder(
    folder: Path,
    tensors: Mapping[str, torch.Tensor] | None = None,
    *,
    num_shards: int = 1,
    config: Mapping[str, Any] | None = None,
    tokenizer_config: Mapping[str, Any] | None = None,
) -> Path:
    """A model in Hugging Face layout; `config` replaces fields, None removes one."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {key: value for key, value in (CONFIG | dict(config or {})).items() if value is not None}
    words = {"bos_token": MARKERS[1], "eos_token": MARKERS[2], "chat_template": TEMPLATE}
    words |= dict(tokenizer_config or {})
    (folder / "config.json").write_text(json.dumps(fields))
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    (folder / "tokenizer.json").write_text(byte_level_tokenizer().to_str())
    _write_safetensors(folder, dict(tensors or random_tensors()), num_shards)
    return folder


def _write_safetensors(folder: Path, tensors: dict[str, torch.Tensor], num_shards: int) -> None:
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = dict(list(tensors.items())[shard::num_shards])
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def write_gguf(
    path: Path,
    tensors: Mapping[str, torch.Tensor] | None = None,
    *,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    architecture: str = "llama",
    extra: Mapping[str, np.ndarray] | None = None,
    metadata: Mapping[str, int | float | str] | None = None,
    pre: str = "smollm",
    has_tokenizer: bool = True,
) -> Path:
    """A GGUF file; matrices of type `kind`, norms float32, `extra` tensors as they are."""
    writer = gguf.GGUFWriter(path, architecture)
    _write_sizes(writer)
    if has_tokenizer:
        _write_byte_level(writer, pre)
    for key, value in (metadata or {}).items():
        kinds = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        kinds[type(value)](key, value)  # type: ignore[operator]
    weights = tensors or random_tensors()
    for name, (source, _) in PARTS.items():
        if f"{source}.weight" in weights:
            _write_tensor(writer, name, weights[f"{source}.weight"].numpy(), kind)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def interleaved(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of each head reordered for llama.cpp's rope, as its converter does."""
    return rows.reshape(num_heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _write_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: GGMLQuantizationType) -> None:
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-1])
    if heads:
        values = interleaved(values, heads)
    kind = kind if values.ndim == 2 else GGMLQuantizationType.F32
    writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)


def _write_sizes(writer: gguf.GGUFWriter) -> None:
    writer.add_name("Run 7 Mix 1")
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)


def _write_byte_level(writer: gguf.GGUFWriter, pre: str) -> None:
    types = [TokenType.CONTROL if token in MARKERS else TokenType.NORMAL for token in TOKENS]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
