"""ModelCard: everything the server must know of a model before a weight is read."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from pipeline.checkpoint.vision import Vision
from pipeline.messages import SamplingParams

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class RopeScaling(msgspec.Struct, frozen=True):
    """How rotary positions are stretched past the trained length (Llama 3.1: kind "llama3")."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


class Architecture(msgspec.Struct, frozen=True):
    """The hyperparameters of a decoder, in the terms of Hugging Face config.json.

    `family` is the key of the gpu.models registry. Sizes are counts of elements.
    """

    family: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tie_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """Queries and keys are normed, each head by itself, before they are rotated."""
    post_norms: bool = False
    """What attention and feed-forward give is normed before it is added."""
    activation: Literal["silu", "gelu"] = "silu"
    """Of the gate; gelu by its tanh formula."""
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    """What scores are multiplied by; None: head_dim ** -0.5."""
    logits_cap: float = 0.0
    """logits = cap * tanh(logits / cap); 0: as they are."""
    layer_windows: tuple[int, ...] = ()
    """How many positions a query of each layer sees back, its own included; 0, or no entry: all."""
    local_rope_theta: float | None = None
    """Of the layers with a window, whose rotation is not scaled; None: as all others."""
    vision: Vision | None = None
    """The image encoder before it; None: it reads text only."""

    @property
    def score_scale(self) -> float:
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    def window(self, layer: int) -> int:
        """Of one layer; 0: it sees all."""
        return self.layer_windows[layer] if self.layer_windows else 0


class ModelCard(msgspec.Struct, frozen=True):
    """A model on this machine. Immutable; tokenizers are made new for each worker."""

    name: str
    """What /v1/models calls it, e.g. SmolLM2-135M-Instruct."""
    reference: str
    path: Path
    format: Literal["folder", "gguf"]
    architecture: Architecture
    tokenizer_json: str
    """A whole `tokenizers` definition."""
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    eos_ids: tuple[int, ...]
    """Every id that ends an answer (config, generation_config and template's end of turn)."""
    generation: SamplingParams = SamplingParams()
    """How its makers would have it sampled (generation_config), where a request does not say otherwise."""

    def new_tokenizer(self) -> "Tokenizer":
        """A tokenizer of the caller's own: one per worker, since a shared one must not be mutated."""
        from tokenizers import Tokenizer  # an architecture is of use where there is no tokenizer

        return Tokenizer.from_str(self.tokenizer_json)
