"""A decoder whose step is one C++ call. Implements api.Model and api.KvLayout."""

import ctypes
import threading
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.api import KvFormat, LayerKv, StepInputs
from pipeline.gpu.host import library as abi
from pipeline.gpu.host.build import HostUnavailable
from pipeline.gpu.host.layout import NORM, Choice
from pipeline.gpu.host.provision import provide_weights
from pipeline.gpu.host.threads import Threads
from pipeline.gpu.host.weights import PackedWeights, address
from pipeline.gpu.kv.dtype import SCALE_BYTES, KvDtype, code_bytes, num_scales
from pipeline.gpu.models import find_model
from pipeline.gpu.rope import RopeTable, rope_tables
from pipeline.gpu.weights.source import WeightSource

STRIP = 16
"""kv.h: positions that lie together in the cache."""

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
MAX_HEAD_DIM = 256
"""kv.h."""

_FAULTS = {1: "a token id is outside the vocabulary", 2: "a position is past the model's last"}


class _Scratch(threading.local):
    """A step's own memory: each thread has another."""

    def __init__(self) -> None:
        self.memory = np.zeros(0, np.uint8)


class HostDecoder:
    """Every family of FAMILIES on the CPU; weights as layout.Choice has them, keys and values of any KvDtype
    but fp32.

    Activations are fp32 between the linears, so its logits differ from those of gpu.models in bf16, by less
    than bf16 itself does from fp32.
    """

    kv_block_dim: ClassVar[int] = 0

    def __init__(
        self,
        architecture: Architecture,
        weights: PackedWeights,
        library: abi.HostLibrary,
        num_threads: int,
        kv_dtype: KvDtype = "bf16",
    ) -> None:
        self._library = library
        self.threads = Threads(num_threads, num_threads)
        """May be changed between steps."""
        self._kv_dtype: KvDtype = kv_dtype
        self._vocab_size = architecture.vocab_size
        ropes = rope_tables(architecture, torch.device("cpu"))
        self._keep = (weights, ropes)  # what the structs point to
        self._layers = (abi.Layer * architecture.num_layers)(
            *(_layer(architecture, weights, rope, i) for i, rope in enumerate(ropes))
        )
        self._head = weights.linears["head"]
        self._model = _model(architecture, weights, self._layers)
        self._model.heads.kv.code = abi.CODES[kv_dtype]
        self._scratch = _Scratch()

    @classmethod
    def load(
        cls,
        architecture: Architecture,
        weights: WeightSource,
        library: abi.HostLibrary,
        choice: Choice,
        num_threads: int,
        kv_dtype: KvDtype = "bf16",
    ) -> "HostDecoder":
        """Packed weights, from the cache or packed now. Raises ModelError or ConfigError."""
        shapes = find_model(architecture.family).shapes(architecture)
        packed = provide_weights(weights, architecture, shapes, choice, library, num_threads)
        return cls(architecture, packed, library, num_threads, kv_dtype)

    @property
    def formats(self) -> str:
        """Of the weights of the linears."""
        return self._keep[0].layout.formats

    def kv_format(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> KvFormat:
        """[block, head, strip, ...]: kv.h says what lies in a strip, in keys and in values."""
        self._model.heads.kv.block_size = block_size
        strips = (num_blocks, num_kv_heads, block_size // STRIP)
        if self._kv_dtype == "bf16":
            return KvFormat((*strips, STRIP * head_dim), torch.bfloat16)
        scales = SCALE_BYTES * num_scales(head_dim, self._kv_dtype)
        return KvFormat((*strips, STRIP * (code_bytes(head_dim, self._kv_dtype) + scales)), torch.uint8)

    def forward(self, inputs: StepInputs, layers: list[LayerKv]) -> Tensor:
        """-> [R, V] fp32. Waits for the step to end."""
        logits = torch.empty(inputs.logits_rows.shape[0], self._head.outputs)
        chosen, hidden = inputs.logits_rows, None
        if inputs.hidden is not None and inputs.hidden_rows is not None:
            chosen = torch.cat((chosen, inputs.hidden_rows))
            hidden = torch.empty(inputs.hidden.shape[0], self._model.layers[0].qkv.width)
        step = self._step(inputs, layers, chosen, logits, hidden)
        if fault := self._library.step(ctypes.byref(self._model), ctypes.byref(step)):
            raise IndexError(f"a step cannot be run: {_FAULTS[fault]}")
        if inputs.hidden is not None and hidden is not None:
            inputs.hidden.copy_(hidden[:, : inputs.hidden.shape[1]])
        return logits[:, : self._vocab_size]

    def _step(
        self,
        inputs: StepInputs,
        layers: list[LayerKv],
        chosen: Tensor,
        logits: Tensor,
        hidden: Tensor | None,
    ) -> abi.Step:
        num_tokens = inputs.token_ids.shape[0]
        pointers = ctypes.c_void_p * len(layers)
        batch = abi.Batch(
            num_rows=inputs.context_lens.shape[0],
            table_stride=inputs.block_tables.shape[1],
            query_start=inputs.query_start.data_ptr(),
            context_lens=inputs.context_lens.data_ptr(),
            block_tables=inputs.block_tables.data_ptr(),
            sinks=_address(inputs.sinks),
            windows=_address(inputs.windows),
            mass=_address(inputs.mass),
        )
        return abi.Step(
            num_tokens=num_tokens,
            num_logits=logits.shape[0],
            num_hidden=0 if hidden is None else hidden.shape[0],
            num_threads=self.threads.of(num_tokens),
            batch=batch,
            token_ids=inputs.token_ids.data_ptr(),
            positions=inputs.positions.data_ptr(),
            slots=inputs.slot_mapping.data_ptr(),
            chosen_rows=chosen.data_ptr(),
            keys=ctypes.cast(pointers(*(kv.k.data_ptr() for kv in layers)), ctypes.c_void_p),
            values=ctypes.cast(pointers(*(kv.v.data_ptr() for kv in layers)), ctypes.c_void_p),
            logits=logits.data_ptr(),
            hidden=_address(hidden),
            workspace=self._workspace_for(num_tokens),
        )

    def _workspace_for(self, num_tokens: int) -> int:
        needed = self._library.workspace_bytes(
            ctypes.byref(self._model), num_tokens, self.threads.of(num_tokens)
        )
        scratch = self._scratch
        if scratch.memory.size < needed + 64:
            scratch.memory = np.zeros(needed + 64, np.uint8)
        return -(-scratch.memory.ctypes.data // 64) * 64


def check_shape(architecture: Architecture, block_size: int) -> None:
    """Raises HostUnavailable with what the kernels cannot take."""
    if architecture.family not in FAMILIES:
        raise HostUnavailable(f"it does not know the family {architecture.family}")
    if block_size % STRIP:
        raise HostUnavailable(f"it needs blocks of a multiple of {STRIP} tokens, not {block_size}")
    if architecture.head_dim % STRIP or architecture.head_dim > MAX_HEAD_DIM:
        allowed = f"a multiple of {STRIP} elements up to {MAX_HEAD_DIM}"
        raise HostUnavailable(f"it needs heads of {allowed}, not {architecture.head_dim}")


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _layer(architecture: Architecture, weights: PackedWeights, rope: RopeTable, i: int) -> abi.Layer:
    def norm(name: str) -> int | None:
        return address(weights.norms.get(f"model.layers.{i}.{name}.weight"))

    after = "post_attention_layernorm"  # where Llama norms before the feed-forward, Gemma after attention
    return abi.Layer(
        input_norm=norm("input_layernorm"),
        mlp_norm=norm("pre_feedforward_layernorm" if architecture.post_norms else after),
        post_attention_norm=norm(after) if architecture.post_norms else None,
        post_mlp_norm=norm("post_feedforward_layernorm"),
        q_norm=norm("self_attn.q_norm"),
        k_norm=norm("self_attn.k_norm"),
        cos=rope.cos.data_ptr(),
        sin=rope.sin.data_ptr(),
        window=architecture.window(i),
        **{name: weights.linears[f"{i}.{name}"].as_struct() for name in ("qkv", "output", "gate_up", "down")},
    )


def _model(
    architecture: Architecture, weights: PackedWeights, layers: "ctypes.Array[abi.Layer]"
) -> abi.Model:
    kv = abi.KvShape(architecture.num_kv_heads, architecture.head_dim, STRIP)
    return abi.Model(
        num_layers=architecture.num_layers,
        hidden=architecture.hidden_size,
        vocab=architecture.vocab_size,
        max_position=architecture.max_position,
        is_gelu=architecture.activation == "gelu",
        embedding_scale=torch.tensor(architecture.embedding_scale, dtype=torch.bfloat16).item(),
        logits_cap=architecture.logits_cap,
        eps=architecture.rms_norm_eps,
        heads=abi.Heads(kv, architecture.num_heads, architecture.score_scale),
        layers=layers,
        norm=address(weights.norms[NORM]),
        embedding=weights.embedding.as_struct(),
        head=weights.linears["head"].as_struct(),
    )
