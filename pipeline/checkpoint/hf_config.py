"""config.json of Hugging Face transformers -> Architecture, family by family."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from pipeline.checkpoint.card import Architecture, RopeScaling
from pipeline.checkpoint.hf_vision import LlavaConfig, vision_of
from pipeline.checkpoint.json_file import read_json
from pipeline.errors import ModelError


class _Rope(msgspec.Struct, frozen=True):
    """rope_scaling (transformers 4) or rope_parameters (transformers 5)."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    partial_rotary_factor: float = 1.0

    @property
    def kind(self) -> str:
        return self.rope_type or self.type or "default"


class Config(msgspec.Struct, frozen=True):
    """config.json; defaults are those of transformers' LlamaConfig, other families' in _DEFAULTS."""

    model_type: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    hidden_activation: str = "gelu_pytorch_tanh"
    rope_theta: float = 10000.0
    rope_scaling: _Rope | None = None
    rope_parameters: _Rope | None = None
    local_rope: _Rope | None = None
    """rope_parameters["sliding_attention"]; the one above is then ["full_attention"]."""
    rope_local_base_freq: float = 10000.0
    partial_rotary_factor: float = 1.0
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    use_sliding_window: bool = True
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    sliding_window_pattern: int = 6
    query_pre_attn_scalar: float = 256.0
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    use_bidirectional_attention: bool = False
    num_experts: int = 0
    num_local_experts: int = 0
    quantization_config: dict[str, object] | None = None
    eos_token_id: int | list[int] | None = None
    llava: LlavaConfig | None = None
    """The image side of a LLaVA, whose text_config the others are of."""

    @property
    def rope(self) -> _Rope:
        return self.rope_parameters or self.rope_scaling or _Rope()

    @property
    def effective_window(self) -> int:
        """0 where every query of a context as long as may be sees all of it."""
        window = (self.sliding_window or 0) if self.use_sliding_window else 0
        return window if window < self.max_position_embeddings else 0


Fields: TypeAlias = dict[str, Any]

_DEFAULTS: dict[str, Fields] = {
    "llava": {
        "model_type": "llama",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "qwen2": {"max_position_embeddings": 32768, "use_sliding_window": False, "sliding_window": 4096},
    "qwen3": {
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
        "sliding_window": 4096,
    },
    "gemma3_text": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "rope_theta": 1e6,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
}
"""What transformers takes where a family's config.json says nothing and Llama's default is another."""


def read_config(file: Path) -> Config:
    """Of a text model, a Gemma 3's text part, or a LLaVA. Raises ModelError naming file and field."""
    raw = read_json(file, Fields)
    try:
        return msgspec.convert(_flattened(raw), Config)
    except msgspec.ValidationError as error:
        raise ModelError(f"{file}: {error}") from error


def _flattened(raw: Fields) -> Fields:
    """One level, with the family's defaults."""
    if raw.get("model_type") == "gemma3" and isinstance(raw.get("text_config"), dict):
        raw = {**raw, "model_type": "gemma3_text", **raw["text_config"]}
    if raw.get("model_type") == "llava" and isinstance(raw.get("text_config"), dict):
        raw = {**raw, **_DEFAULTS["llava"], **raw["text_config"], "llava": raw}
    fields = _DEFAULTS.get(raw.get("model_type", ""), {}) | raw
    rope = fields.get("rope_parameters")
    if isinstance(rope, dict) and "full_attention" in rope:
        fields |= {"rope_parameters": rope["full_attention"], "local_rope": rope.get("sliding_attention")}
    return {key: value for key, value in fields.items() if value is not None}


def architecture_of(file: Path, config: Config) -> Architecture:
    """Raises ModelError for what the configuration asks for and cannot be served."""
    _refuse_unsupported(file, config)
    specific = FAMILIES.get(config.model_type, _other)(file, config)
    fields: Fields = {
        "family": config.model_type,
        "num_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_heads": config.num_attention_heads,
        "num_kv_heads": config.num_key_value_heads or config.num_attention_heads,
        "head_dim": config.head_dim or config.hidden_size // config.num_attention_heads,
        "vocab_size": config.vocab_size,
        "max_position": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.rope_theta or config.rope_theta,
        "rope_scaling": _rope_scaling(file, config.rope),
        "tie_embeddings": config.tie_word_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
    }
    return Architecture(**(fields | specific | _llava(file, config)))


def _llava(file: Path, config: Config) -> Fields:
    if config.llava is None:
        return {}
    _refuse(file, {f"a text_config of {config.model_type}": config.model_type not in ("llama", "mistral")})
    return {"family": "llava", "vision": vision_of(file.parent, config.llava)}


def _other(file: Path, config: Config) -> Fields:
    _refuse(file, {f"sliding_window = {config.sliding_window}": bool(config.effective_window)})
    return {}


def _mistral(file: Path, config: Config) -> Fields:
    local = [True] * config.num_hidden_layers
    return {"family": "llama", "layer_windows": _windows(file, config, config.effective_window, local)}


def _qwen2(file: Path, config: Config) -> Fields:
    local = [layer >= config.max_window_layers for layer in range(config.num_hidden_layers)]
    windows = _windows(file, config, config.effective_window, local)
    return {"attention_bias": True, "layer_windows": windows}


def _qwen3(file: Path, config: Config) -> Fields:
    return _qwen2(file, config) | {"attention_bias": config.attention_bias, "qk_norm": True}


def _gemma3(file: Path, config: Config) -> Fields:
    _refuse(
        file,
        {
            f"hidden_activation = {config.hidden_activation!r}": config.hidden_activation
            != "gelu_pytorch_tanh",
            "attn_logit_softcapping": config.attn_logit_softcapping is not None,
            "use_bidirectional_attention": config.use_bidirectional_attention,
            "a scaled rotation of its local layers": config.local_rope is not None
            and config.local_rope.kind != "default",
        },
    )
    every = config.sliding_window_pattern
    local = [(layer + 1) % every != 0 for layer in range(config.num_hidden_layers)]
    local_theta = config.local_rope.rope_theta if config.local_rope else None
    return {
        "family": "gemma3",
        "layer_windows": _windows(file, config, config.sliding_window or 0, local),
        "local_rope_theta": local_theta or config.rope_local_base_freq,
        "qk_norm": True,
        "post_norms": True,
        "activation": "gelu",
        "embedding_scale": config.hidden_size**0.5,
        "attention_scale": config.query_pre_attn_scalar**-0.5,
        "logits_cap": config.final_logit_softcapping or 0.0,
    }


FAMILIES: dict[str, Callable[[Path, Config], Fields]] = {
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3_text": _gemma3,
}
"""By model_type: what a family's Architecture has beside the fields that all have."""


def _windows(file: Path, config: Config, window: int, is_local: Iterable[bool]) -> tuple[int, ...]:
    """Of every layer, by layer_types where the configuration has them; () where none has one."""
    kinds = config.layer_types
    if kinds is not None:
        unknown = sorted(set(kinds) - {"sliding_attention", "full_attention"})
        _refuse(
            file,
            {
                f"layer_types {', '.join(unknown)}": bool(unknown),
                f"{len(kinds)} layer_types for {config.num_hidden_layers} layers": len(kinds)
                != config.num_hidden_layers,
            },
        )
        is_local = [kind == "sliding_attention" for kind in kinds]
    windows = tuple(window if local else 0 for local in is_local)
    return windows if any(windows) else ()


def _refuse_unsupported(file: Path, config: Config) -> None:
    gated = config.model_type == "gemma3_text"  # which has hidden_activation
    _refuse(
        file,
        {
            "quantization_config": config.quantization_config is not None,
            f"hidden_act = {config.hidden_act!r} (only 'silu')": config.hidden_act != "silu" and not gated,
            "a mixture of experts": config.num_experts > 0 or config.num_local_experts > 0,
            "partial_rotary_factor": config.partial_rotary_factor != 1.0
            or config.rope.partial_rotary_factor != 1.0,
            "hidden_size not a multiple of num_attention_heads": config.head_dim is None
            and config.hidden_size % config.num_attention_heads != 0,
        },
    )


def _refuse(file: Path, faults: dict[str, bool]) -> None:
    for fault, is_present in faults.items():
        if is_present:
            raise ModelError(f"{file}: a model with {fault} cannot be served")


def _rope_scaling(file: Path, rope: _Rope) -> RopeScaling | None:
    if rope.kind == "default":
        return None
    if rope.kind == "linear":
        return RopeScaling(kind="linear", factor=rope.factor)
    if rope.kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=rope.factor,
            low_freq_factor=rope.low_freq_factor,
            high_freq_factor=rope.high_freq_factor,
            original_max_position=rope.original_max_position_embeddings,
        )
    raise ModelError(
        f"{file}: rope of type {rope.kind!r} cannot be served; 'default', 'linear' and 'llama3' can"
    )
