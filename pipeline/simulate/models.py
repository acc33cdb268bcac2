"""Model shapes: the published hyperparameters (Hugging Face config.json), and what follows from them."""

from pipeline.checkpoint.card import Architecture
from pipeline.errors import ConfigError

DTYPE_BYTES = {"bfloat16": 2, "float32": 4}


def _shape(
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    length: int,
    *,
    tied: bool = False,
) -> Architecture:
    return Architecture(
        family="llama",
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // heads,
        vocab_size=vocab,
        max_position=length,
        rms_norm_eps=1e-5,
        rope_theta=500_000.0,
        tie_embeddings=tied,
    )


MODELS = {
    "llama-3-8b": _shape(32, 4096, 14336, 32, 8, 128_256, 8192),
    "llama-3.1-8b": _shape(32, 4096, 14336, 32, 8, 128_256, 131_072),
    "llama-3-70b": _shape(80, 8192, 28672, 64, 8, 128_256, 8192),
    "llama-3.1-70b": _shape(80, 8192, 28672, 64, 8, 128_256, 131_072),
    "qwen-2.5-7b": _shape(28, 3584, 18944, 28, 4, 152_064, 32_768),
    "smollm2-135m": _shape(30, 576, 1536, 9, 3, 49_152, 8192, tied=True),
}


def find_model(name: str) -> Architecture | None:
    """None: it is no name of a known shape, and may be a reference of a checkpoint."""
    return MODELS.get(name)


def layer_parameters(model: Architecture) -> int:
    """Elements of one layer's matrices: attention's four, and the three of the gated feed-forward."""
    attention = 2 * model.hidden_size * (model.num_heads + model.num_kv_heads) * model.head_dim
    return attention + 3 * model.hidden_size * model.intermediate_size


def weight_bytes(model: Architecture, dtype: str) -> int:
    """Of all weights; norms and biases are left out."""
    num_tables = 1 if model.tie_embeddings else 2
    tables = num_tables * model.vocab_size * model.hidden_size
    return (model.num_layers * layer_parameters(model) + tables) * DTYPE_BYTES[dtype]


def kv_bytes(model: Architecture, dtype: str) -> int:
    """Of one token's keys and values in all layers."""
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * DTYPE_BYTES[dtype]


def check_length(model: Architecture, max_model_len: int | None) -> int:
    """The longest sequence. Raises ConfigError if more is asked than the model was made for."""
    if max_model_len is not None and max_model_len > model.max_position:
        raise ConfigError(f"--max-model-len {max_model_len}: the model's own limit is {model.max_position}")
    return max_model_len or model.max_position
