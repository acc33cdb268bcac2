"""Prompts with images through the real scheduler, two steps in flight: chunked, shared, preempted, swapped;
on the reference, and the decoder on Triton's kernels in the interpreter.
"""

import random
from hashlib import blake2b
from typing import Any

import pytest
from msgspec.structs import replace

from pipeline.checkpoint.vision import Vision
from pipeline.gpu.models.llava import PROJECTOR
from pipeline.gpu.options import RunnerOptions
from pipeline.messages import PromptImage, TokenizedRequest
from tests.gpu.driver import TINY, random_tensors
from tests.kernels.isolated import isolated
from tests.kernels.served import Served, request, serve
from tests.kernels.test_model import SMALL, assert_same

IMAGE_TOKEN = 100
VISION = Vision("clip", 28, 14, 32, 40, 1, 2, 1e-5, "quick_gelu", IMAGE_TOKEN)
SEES = replace(TINY, **SMALL, family="llava", vision=VISION, num_kv_heads=1, num_layers=1)
WEIGHTS = [
    (name, 3 * each if name.startswith(PROJECTOR) else 1 + each if "layer_norm" in name else each)
    for name, each in random_tensors(SEES)
]
"""What is seen outweighs the text."""
SIZES: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "backend": "torch",
    "block_size": 8,
    "max_num_seqs": 3,
    "max_num_batched_tokens": 12,
}


def image(seed: int, start: int) -> PromptImage:
    rng = random.Random(seed)
    pixels = b"".join(bytes([level]) * 14 for level in rng.randbytes(VISION.num_bytes // 14))
    return PromptImage(pixels, blake2b(pixels).digest(), start, VISION.num_tokens)


def asking(number: int, parts: list[int | None], max_tokens: int) -> TokenizedRequest:
    """Parts: an image by its seed, or None: five tokens of text, the same for all."""
    token_ids: list[int] = []
    images = []
    for part in parts:
        if part is None:
            token_ids += [7, 11, 13, 17, 19]
        else:
            images.append(image(part, len(token_ids)))
            token_ids += [IMAGE_TOKEN] * VISION.num_tokens
    return replace(request(number, token_ids, max_tokens), images=tuple(images))


PROMPTS: list[tuple[list[int | None], int]] = [
    ([None, None, 1, None, 2], 6),
    ([None, None, 1, None, 3], 9),
    ([None, None, 1, None, 2], 4),
    ([4, 5, 4, None], 7),
    ([None, None, 1], 3),
    ([None, None, 2, None, 4], 8),
]
ASKED = [asking(number, parts, max_tokens) for number, (parts, max_tokens) in enumerate(PROMPTS)]


def alone() -> dict[int, list[int]]:
    """Each by itself, in one chunk, with nothing cached."""
    options = RunnerOptions(num_blocks=20, **SIZES | {"max_num_batched_tokens": 64})
    outputs: dict[int, list[int]] = {}
    for each in ASKED:
        outputs |= serve(SEES, [each], options, 1, WEIGHTS).outputs
    return outputs


def test_other_images_have_other_answers() -> None:
    outputs = alone()
    assert outputs[0][:4] == outputs[2]
    assert len({tuple(outputs[number][:3]) for number in (0, 1, 3)}) == 3


@pytest.mark.parametrize("more", [{}, {"host_kv_memory": "1MiB"}], ids=["recomputed", "swapped"])
def test_chunks_hits_and_preemptions_change_no_answer(more: dict[str, Any]) -> None:
    found = serve(SEES, ASKED, RunnerOptions(num_blocks=5, **SIZES, **more), 3, WEIGHTS)
    assert found.outputs == alone()
    assert found.num_preemptions and found.num_hit_tokens
    assert bool(found.num_swaps) == bool(more)
    assert any(is_in_a_chunk(plan) for plan in found.plans), "an image in two steps"


def is_in_a_chunk(plan: Any) -> bool:
    ends = zip(plan.num_computed, plan.num_tokens, plan.request_ids, strict=True)
    return any(
        each.start < computed + count < each.end
        for computed, count, request_id in ends
        for each in ASKED[request_id].images
    )


@isolated
def test_the_decoder_runs_on_triton() -> None:
    def served(backend: str) -> Served:
        options = RunnerOptions(num_blocks=5, **SIZES | {"backend": backend, "max_num_batched_tokens": 6})
        return serve(SEES, [asking(0, [None, 1, 2], 3)], options, 1, WEIGHTS)

    assert_same(served("torch"), served("triton"))
