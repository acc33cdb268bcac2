"""Decoders with random weights, in the shapes of real ones: how long a step takes does not depend on what its
weights are.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.api import StepInputs
from pipeline.gpu.host.layout import Choice
from pipeline.gpu.host.library import HostLibrary
from pipeline.gpu.host.model import HostDecoder
from pipeline.gpu.kv.cache import new_kv_cache
from pipeline.gpu.models import find_model
from pipeline.gpu.weights.blocks import Blocks, Weight

if TYPE_CHECKING:
    from gguf.constants import GGMLQuantizationType

SMOLLM2_135M = Architecture(
    family="llama",
    num_layers=30,
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=49_152,
    max_position=8192,
    rms_norm_eps=1e-5,
    rope_theta=100_000.0,
    tie_embeddings=True,
)
GEMMA3_270M = Architecture(
    family="gemma3",
    num_layers=18,
    hidden_size=640,
    intermediate_size=2048,
    num_heads=4,
    num_kv_heads=1,
    head_dim=256,
    vocab_size=262_144,
    max_position=32_768,
    rms_norm_eps=1e-6,
    rope_theta=1_000_000.0,
    tie_embeddings=True,
    qk_norm=True,
    post_norms=True,
    activation="gelu",
    embedding_scale=640**0.5,
    attention_scale=256**-0.5,
    layer_windows=(512, 512, 512, 512, 512, 0) * 3,
    local_rope_theta=10_000.0,
)
BLOCK_SIZE = 16


class RandomWeights:
    """Implements WeightSource. With int4, all that is no norm is Q4_1: blocks of 32 weights."""

    identity = None

    def __init__(self, architecture: Architecture, choice: Choice) -> None:
        self._shapes = find_model(architecture.family).shapes(architecture)
        self._is_int4 = choice == "int4"

    def kinds(self) -> "dict[str, GGMLQuantizationType]":
        if not self._is_int4:
            return {}
        from gguf.constants import GGMLQuantizationType as Kind  # weights that are no blocks need no gguf

        return {name: Kind.Q4_1 for name, shape in self._shapes.items() if len(shape) == 2}

    def __iter__(self) -> Iterator[tuple[str, Weight]]:
        kinds, random = self.kinds(), np.random.default_rng(0)
        for name, shape in self._shapes.items():
            if name not in kinds:
                yield name, torch.ones(shape) if len(shape) == 1 else _normal(shape)
                continue
            blocks = random.integers(0, 256, (shape[0], shape[1] // 32, 20), np.uint8)
            scale_and_minimum = np.array([0.01, -0.08], np.float16)  # of weights from -0.08 to 0.07
            blocks[:, :, :4] = scale_and_minimum.view(np.uint8)
            yield name, Blocks(kinds[name], shape, blocks.reshape(shape[0], -1))


class DecodeStep:
    """One decode step of `num_rows` rows, each of which sees `context` tokens, as often as it is called."""

    def __init__(
        self,
        architecture: Architecture,
        choice: Choice,
        library: HostLibrary,
        num_threads: int,
        num_rows: int,
        context: int = 128,
    ) -> None:
        weights = RandomWeights(architecture, choice)
        self._model = HostDecoder.load(architecture, weights, library, choice, num_threads)
        columns = -(-context // BLOCK_SIZE)
        self._kv_cache = new_kv_cache(
            architecture, self._model, num_rows * columns, BLOCK_SIZE, torch.device("cpu")
        )
        tables = torch.arange(num_rows * columns, dtype=torch.int32).view(num_rows, columns)
        self._inputs = StepInputs(
            token_ids=torch.arange(num_rows),
            positions=torch.full((num_rows,), context - 1),
            slot_mapping=tables[:, -1].long() * BLOCK_SIZE + (context - 1) % BLOCK_SIZE,
            query_start=torch.arange(num_rows + 1, dtype=torch.int32),
            context_lens=torch.full((num_rows,), context, dtype=torch.int32),
            block_tables=tables,
            logits_rows=torch.arange(num_rows),
        )

    def __call__(self) -> Tensor:
        """[num_rows, V] logits."""
        return self._model.forward(self._inputs, self._kv_cache)


def _normal(shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.04, generator=generator)
