"""LLaVA against transformers: models as these publish them, prompts with images, in chunks, and preempted."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    SiglipVisionConfig,
)

from pipeline.checkpoint.card import Architecture
from pipeline.checkpoint.hf_config import architecture_of, read_config
from pipeline.errors import ModelError
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import Runner, build_runner
from pipeline.gpu.weights.tensor_names import of_folder
from pipeline.messages import PromptImage
from tests import tiny_vision
from tests.gpu.driver import Driver, KeepLogits, Sequence
from tests.tiny_vision import IMAGE_SIZE, PATCH_SIZE, PROCESSOR, write_json

IMAGE_TOKEN = 100
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2}
SIDE = {"image_size": IMAGE_SIZE, "patch_size": PATCH_SIZE}
TEXT = LlamaConfig(
    vocab_size=101,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
)
TOWERS: dict[str, dict[str, Any]] = {
    "clip": {"vision_config": CLIPVisionConfig(**SIZES, **SIDE)},
    "clip with its class": {
        "vision_config": CLIPVisionConfig(**SIZES, **SIDE),
        "vision_feature_select_strategy": "full",
        "vision_feature_layer": -1,
        "multimodal_projector_bias": False,
    },
    "siglip": {
        "vision_config": SiglipVisionConfig(**SIZES, **SIDE),
        "vision_feature_select_strategy": "full",
    },
}
FP32 = RunnerOptions(
    dtype="float32",
    device="cpu",
    backend="torch",
    num_blocks=80,
    block_size=8,
    max_num_seqs=8,
    max_num_batched_tokens=64,
)


class Published:
    """A random model that transformers has written, and read again by both."""

    def __init__(self, folder: Path, fields: dict[str, Any]) -> None:
        torch.manual_seed(7)
        config = LlavaConfig(text_config=TEXT, image_token_index=IMAGE_TOKEN, **fields)
        self.judge = LlavaForConditionalGeneration(config).eval()
        for name, weight in self.judge.named_parameters():  # as drawn by transformers, all logits are alike
            if weight.ndim > 1 and "embedding" not in name:
                weight.data = torch.randn(weight.shape) * weight[0].numel() ** -0.5
        self.judge.save_pretrained(folder)
        write_json(folder / "preprocessor_config.json", PROCESSOR)
        self._folder = folder
        file = folder / "config.json"
        self.architecture: Architecture = architecture_of(file, read_config(file))

    def runner(self, keep: KeepLogits, options: RunnerOptions = FP32) -> Runner:
        tensors = load_file(self._folder / "model.safetensors").items()
        named = [(of_folder("llava", name), tensor) for name, tensor in tensors]
        return build_runner(
            self.architecture, [(name, each) for name, each in named if name], options, lambda: keep
        )

    def logits(self, token_ids: list[int], images: list[Tensor]) -> Tensor:
        """[len(token_ids), V] in fp32."""
        mean, std = (torch.tensor(PROCESSOR[name]).view(3, 1, 1) for name in ("image_mean", "image_std"))
        pixels = torch.stack([(image.float() / 255 - mean) / std for image in images])
        with torch.inference_mode():
            logits: Tensor = self.judge(torch.tensor([token_ids]), pixel_values=pixels).logits[0]
        return logits


def an_image(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, IMAGE_SIZE, IMAGE_SIZE), generator=generator, dtype=torch.uint8)


def prompt_of(num_tokens: int, seeds: list[int], gap: int = 5) -> tuple[list[int], tuple[PromptImage, ...]]:
    """Text and images in turn, text last."""
    token_ids: list[int] = []
    images = []
    for seed in seeds:
        token_ids += np.random.default_rng(seed).integers(0, 100, gap).tolist()
        pixels = an_image(seed).numpy().tobytes()
        images.append(PromptImage(pixels, b"", len(token_ids), num_tokens))
        token_ids += [IMAGE_TOKEN] * num_tokens
    return [*token_ids, 3, 4], tuple(images)


@pytest.fixture(params=TOWERS)
def published(request: pytest.FixtureRequest, tmp_path: Path) -> Published:
    return Published(tmp_path, TOWERS[request.param])


@pytest.fixture
def clip(tmp_path: Path) -> Published:
    return Published(tmp_path, TOWERS["clip"])


def check(published: Published, chunks: list[int]) -> None:
    """The logits after a prompt of three images, computed in these chunks, beside another of one image."""
    assert published.architecture.vision is not None
    num_tokens = published.architecture.vision.num_tokens
    keep = KeepLogits()
    driver = Driver(published.runner(keep))
    token_ids, images = prompt_of(num_tokens, [1, 2, 3])
    other_ids, other_images = prompt_of(num_tokens, [4], gap=1)
    first, other = driver.add(token_ids, images=images), driver.add(other_ids, images=other_images)
    driver.step([(other, num_tokens), (first, chunks[0])])
    for chunk in chunks[1:]:
        driver.step([(first, chunk)])
    driver.step([(other, len(other_ids) - num_tokens), (first, len(token_ids) - sum(chunks))])
    close(keep.last[0], published.logits(other_ids, [an_image(4)])[-1])
    close(keep.last[1], published.logits(token_ids, [an_image(seed) for seed in (1, 2, 3)])[-1])


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=3e-5, rtol=1e-4)


def test_prompts_with_images_match_transformers(published: Published) -> None:
    check(published, [8, 7, 4])  # an image begins in one chunk, and ends in another


@pytest.mark.parametrize("chunks", [[5], [6, 1, 1, 9], [9, 5, 4, 5]])
def test_chunks_end_where_images_do_or_inside_of_them(clip: Published, chunks: list[int]) -> None:
    check(clip, chunks)


def test_other_images_make_other_logits(clip: Published) -> None:
    token_ids, _ = prompt_of(4, [1, 2, 3])
    seen = [clip.logits(token_ids, [an_image(1), an_image(2), an_image(last)])[-1] for last in (3, 4)]
    assert not torch.allclose(seen[0], seen[1], atol=1e-2)


def test_a_preempted_sequence_sees_its_images_again(clip: Published) -> None:
    keep = KeepLogits()
    driver = Driver(clip.runner(keep))
    token_ids, images = prompt_of(4, [1, 2])
    sequence = driver.add(token_ids, images=images)
    driver.step([(sequence, 7)])  # in the middle of the first image
    driver.preempt(sequence)
    driver.step([(sequence, 16)])  # in the middle of the second
    driver.preempt(sequence)
    driver.step([(sequence, len(token_ids))])
    expected = clip.logits(token_ids, [an_image(1), an_image(2)])
    close(keep.last[0], expected[-1])
    driver.step([(sequence, 1)])
    driver.preempt(sequence)
    known = [*token_ids, *sequence.output]
    driver.step([(sequence, len(known))])
    close(keep.last[0], clip.logits(known, [an_image(1), an_image(2)])[-1])


def test_a_slot_that_is_given_away_keeps_no_image(clip: Published) -> None:
    keep = KeepLogits()
    driver = Driver(clip.runner(keep))
    token_ids, images = prompt_of(4, [1])
    gone = driver.add(token_ids, images=images)
    driver.step([(gone, 7)])
    driver.remove(gone)
    text = driver.add([7, 8, 9, 10, 11, 12, 13, 14])
    assert text.slot == gone.slot
    driver.step([(text, 8)])
    with torch.inference_mode():
        expected = clip.judge(torch.tensor([text.token_ids[:8]])).logits[0, -1]
    close(keep.last[0], expected)


def test_bits_do_not_depend_on_who_is_in_the_step(clip: Published) -> None:
    alone, together = KeepLogits(), KeepLogits()
    token_ids, images = prompt_of(4, [1, 2])
    driver = Driver(clip.runner(alone))
    driver.step([(driver.add(token_ids, images=images), len(token_ids))])
    driver = Driver(clip.runner(together))
    others = [driver.add(*prompt[:1], images=prompt[1]) for prompt in (prompt_of(4, [3]), prompt_of(4, [4]))]
    rows: list[tuple[Sequence, int]] = [(each, 11) for each in others]
    driver.step([*rows, (driver.add(token_ids, images=images), len(token_ids))])
    assert torch.equal(alone.last[0], together.last[2])


def test_an_image_is_encoded_once(clip: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.gpu.models.llava import Tower

    seen: list[int] = []
    see = Tower.__call__
    monkeypatch.setattr(Tower, "__call__", lambda self, pixels: seen.append(1) or see(self, pixels))
    driver = Driver(clip.runner(KeepLogits()))
    token_ids, images = prompt_of(4, [1, 2])
    sequence = driver.add(token_ids, images=images)
    for _ in token_ids:
        driver.step([(sequence, 1)])
    assert len(seen) == 2
    assert not driver.runner._slots._images.num_held


def test_the_largest_step_sees_images(clip: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.gpu.models.llava import Tower

    seen: list[int] = []
    see = Tower.__call__
    monkeypatch.setattr(Tower, "__call__", lambda self, pixels: seen.append(1) or see(self, pixels))
    options = replace(FP32, num_blocks=None, kv_memory="1MiB", max_num_batched_tokens=12, max_model_len=32)
    clip.runner(KeepLogits(), options)
    assert len(seen) >= 12 // 4 + 1


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"vision_feature_layer": 9}, "vision_feature_layer 9"),
        ({"vision_feature_layer": [1, 2]}, "vision_feature_layer"),
        ({"projector_hidden_act": "relu"}, "projector_hidden_act 'relu'"),
        ({"image_token_index": None}, "no image_token_index"),
        ({"text_config": {"model_type": "qwen2"}}, "a text_config of qwen2"),
        ({"vision_config": {"model_type": "pixtral"}}, "pixtral"),
    ],
)
def test_what_cannot_be_served_is_named(tmp_path: Path, fields: dict[str, Any], fault: str) -> None:
    file = tmp_path / "config.json"
    write_json(file, tiny_vision.CONFIG | fields)
    write_json(tmp_path / "preprocessor_config.json", PROCESSOR)
    with pytest.raises(ModelError, match=re.escape(fault)):
        architecture_of(file, read_config(file))


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"crop_size": {"height": 27, "width": 28}}, "28 x 28"),
        ({"size": {"shortest_edge": 20}}, "cut out"),
        ({"resample": 0}, "resample = 0"),
        ({"do_normalize": False}, "normalised"),
        ({"do_pad": True}, "padded"),
    ],
)
def test_images_that_would_not_fit_are_named(tmp_path: Path, fields: dict[str, Any], fault: str) -> None:
    file = tmp_path / "config.json"
    write_json(file, tiny_vision.CONFIG)
    write_json(tmp_path / "preprocessor_config.json", PROCESSOR | fields)
    with pytest.raises(ModelError, match=re.escape(fault)):
        architecture_of(file, read_config(file))


def test_a_processor_may_be_in_its_newer_place(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    write_json(file, tiny_vision.CONFIG)
    with pytest.raises(ModelError, match=r"processor_config\.json does not exist"):
        architecture_of(file, read_config(file))
    exact = {"size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE}, "do_center_crop": False, "resample": 2}
    write_json(tmp_path / "processor_config.json", {"image_processor": PROCESSOR | exact})
    vision = architecture_of(file, read_config(file)).vision
    assert vision is not None and (vision.resize, vision.resampling) == ("exact", "bilinear")
