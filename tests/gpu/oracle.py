"""Hugging Face transformers as the judge of our models."""

from collections.abc import Iterable

from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.checkpoint.card import Architecture


def hugging_face(architecture: Architecture, tensors: Iterable[tuple[str, Tensor]]) -> LlamaForCausalLM:
    """The same decoder by transformers, in fp32."""
    scaling = architecture.rope_scaling
    rope = {"rope_type": "default", "rope_theta": architecture.rope_theta}
    if scaling is not None:
        rope |= {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            rope |= {
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_position,
            }
    config = LlamaConfig(
        vocab_size=architecture.vocab_size,
        hidden_size=architecture.hidden_size,
        intermediate_size=architecture.intermediate_size,
        num_hidden_layers=architecture.num_layers,
        num_attention_heads=architecture.num_heads,
        num_key_value_heads=architecture.num_kv_heads,
        head_dim=architecture.head_dim,
        max_position_embeddings=architecture.max_position,
        rms_norm_eps=architecture.rms_norm_eps,
        rope_parameters=rope,
        tie_word_embeddings=architecture.tie_embeddings,
        attention_bias=architecture.attention_bias,
        mlp_bias=architecture.mlp_bias,
    )
    model = LlamaForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(dict(tensors), strict=False)
    assert not unexpected
    assert missing == (["lm_head.weight"] if architecture.tie_embeddings else [])
    return model
