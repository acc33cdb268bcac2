"""What files call the tensors that a family expects, and what they leave for the reader to do."""

import re
from collections.abc import Mapping

from torch import Tensor

from pipeline.gpu.decoder import HEAD

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OF_FAMILY: Mapping[str, dict[str, str]] = {
    "gemma3": _IN_LAYER
    | {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
}
_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<kind>weight|bias)")

_OF_IMAGES = re.compile(r"^(?:model\.)?(vision_tower|multi_modal_projector)\.(?:vision_model\.)?")
_TEXT = re.compile(r"^(?:language_model\.model\.|model\.language_model\.)")


def of_gguf(family: str, name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor; None if the family has no such."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    layer, part, kind = found["layer"], found["part"], found["kind"]
    if layer is None:
        return f"{_TOP[part]}.{kind}" if part in _TOP else None
    in_layer = _OF_FAMILY.get(family, _IN_LAYER)
    return f"model.layers.{layer}.{in_layer[part]}.{kind}" if part in in_layer else None


def of_folder(family: str, name: str) -> str | None:
    """The name that the family expects of a published tensor; None for one that it does without."""
    if name.endswith("rotary_emb.inv_freq"):  # a buffer old checkpoints hold; derived
        return None
    if family not in ("gemma3", "llava"):
        return name
    if _OF_IMAGES.match(name):
        return _OF_IMAGES.sub(r"\1.", name) if family == "llava" else None
    return HEAD if name == f"language_model.{HEAD}" else _TEXT.sub("model.", name)


def as_multiplied(family: str, name: str, tensor: Tensor) -> Tensor:
    """A published tensor as the family uses it: Gemma's norms multiply by 1 + weight, summed in fp32."""
    return tensor.float() + 1 if family == "gemma3" and name.endswith("norm.weight") else tensor
