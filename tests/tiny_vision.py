"""A random LLaVA, small enough to write in a test: tests.tiny_models' decoder behind a CLIP of two layers."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer

from tests import tiny_models

IMAGE_SIZE, PATCH_SIZE, WIDTH, INNER, LAYERS, HEADS = 28, 14, 32, 48, 2, 2
NUM_TOKENS = (IMAGE_SIZE // PATCH_SIZE) ** 2
MARKER = "<image>"
IMAGE_TOKEN = tiny_models.VOCAB
PROCESSOR: dict[str, Any] = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": IMAGE_SIZE},
    "crop_size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
    "do_center_crop": True,
    "resample": 3,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>\n{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG: dict[str, Any] = {
    "model_type": "llava",
    "image_token_index": IMAGE_TOKEN,
    "text_config": tiny_models.CONFIG | {"vocab_size": tiny_models.VOCAB + 1},
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "image_size": IMAGE_SIZE,
        "patch_size": PATCH_SIZE,
    },
}


def write_json(file: Path, value: object) -> None:
    file.write_text(json.dumps(value))


def random_tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    """Under the names that LLaVA 1.5 has in files; what the tower sees outweighs the text."""
    generator = torch.Generator().manual_seed(seed + 1)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.1)

    tensors = {f"language_model.{name}": each for name, each in tiny_models.random_tensors(seed).items()}
    embedding = tensors["language_model.model.embed_tokens.weight"]
    tensors["language_model.model.embed_tokens.weight"] = torch.cat((embedding, drawn(1, embedding.shape[1])))
    tower, projector = "vision_tower.vision_model.", "multi_modal_projector."
    tensors |= {
        f"{tower}embeddings.class_embedding": drawn(WIDTH),
        f"{tower}embeddings.patch_embedding.weight": 2 * drawn(WIDTH, 3, PATCH_SIZE, PATCH_SIZE),
        f"{tower}embeddings.position_embedding.weight": drawn(NUM_TOKENS + 1, WIDTH),
        f"{projector}linear_1.weight": drawn(tiny_models.HIDDEN, WIDTH) * 4,
        f"{projector}linear_1.bias": drawn(tiny_models.HIDDEN),
        f"{projector}linear_2.weight": drawn(tiny_models.HIDDEN, tiny_models.HIDDEN) * 4,
        f"{projector}linear_2.bias": drawn(tiny_models.HIDDEN),
    }
    norms = [f"{tower}pre_layrnorm", f"{tower}post_layernorm"]
    for i in range(LAYERS):
        layer = f"{tower}encoder.layers.{i}."
        norms += [f"{layer}layer_norm1", f"{layer}layer_norm2"]
        sizes = {f"self_attn.{name}_proj": (WIDTH, WIDTH) for name in ("q", "k", "v", "out")}
        for name, (num_out, num_in) in (
            sizes | {"mlp.fc1": (INNER, WIDTH), "mlp.fc2": (WIDTH, INNER)}
        ).items():
            tensors[f"{layer}{name}.weight"] = drawn(num_out, num_in)
            tensors[f"{layer}{name}.bias"] = drawn(num_out)
    for name in norms:
        tensors |= {f"{name}.weight": 1 + drawn(WIDTH), f"{name}.bias": drawn(WIDTH)}
    return tensors


def write_folder(folder: Path, *, template: str = TEMPLATE, seed: int = 0) -> Path:
    """A model in Hugging Face layout."""
    tiny_models.write_folder(
        folder, random_tensors(seed), config=CONFIG, tokenizer_config={"chat_template": template}
    )
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {name: config[name] for name in CONFIG})
    write_json(folder / "preprocessor_config.json", PROCESSOR)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(MARKER, normalized=False, special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def picture(seed: int = 0, size: tuple[int, int] = (60, 40), kind: str = "PNG", **options: Any) -> bytes:
    """A file: coloured noise in large squares, so that a JPEG of it is not far off."""
    from PIL import Image

    generator = torch.Generator().manual_seed(seed)
    squares = torch.randint(0, 256, (4, 6, 3), generator=generator, dtype=torch.uint8).numpy()
    file = BytesIO()
    Image.fromarray(squares).resize(size, Image.Resampling.NEAREST).save(file, kind, **options)
    return file.getvalue()
