"""Random models of known shapes in a runner, and steps of them."""

import time
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.models import find_model
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.runner import Runner, build_runner
from pipeline.messages import NO_TOKEN, Admitted, SamplingParams, StepHandle, StepPlan

Backend = Literal["triton", "torch"]
BLOCK_SIZE: Literal[16] = 16
MAX_LEN = 1152
GREEDY = SamplingParams(temperature=0.0)


def _llama(layers: int, hidden: int, inner: int, heads: int, kv_heads: int, vocab: int) -> Architecture:
    return Architecture(
        family="llama",
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=inner,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // heads,
        vocab_size=vocab,
        max_position=MAX_LEN,
        rms_norm_eps=1e-5,
        rope_theta=500_000.0,
        tie_embeddings=hidden < 4096,
    )


SMALL = _llama(2, 64, 96, 4, 2, 128)
MODELS = {
    "tiny": SMALL,
    "1B": _llama(16, 2048, 8192, 32, 8, 128_256),
    "8B": _llama(32, 4096, 14_336, 32, 8, 128_256),
}


def num_weight_bytes(architecture: Architecture) -> int:
    """In bf16."""
    shapes = find_model(architecture.family).shapes(architecture).values()
    return 2 * sum(torch.Size(shape).numel() for shape in shapes)


def new_runner(
    architecture: Architecture,
    device: torch.device,
    backend: Backend,
    *,
    max_num_seqs: int,
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
    has_graphs: bool = True,
) -> Runner:
    """With room for max_num_seqs sequences of MAX_LEN. The same weights whenever it is called."""
    options = RunnerOptions(
        device="cuda" if device.type == "cuda" else "cpu",
        backend=backend,
        dtype=dtype,
        block_size=BLOCK_SIZE,
        max_num_seqs=max_num_seqs,
        max_model_len=MAX_LEN,
        max_num_batched_tokens=MAX_LEN,
        num_blocks=max_num_seqs * MAX_LEN // BLOCK_SIZE,
        cuda_graphs=has_graphs,
        cuda_graph_memory="4GiB",
        cuda_graph_s=20.0,
    )
    torch.manual_seed(1)
    return build_runner(architecture, _weights(architecture, device), options)


def _weights(architecture: Architecture, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    for name, shape in find_model(architecture.family).shapes(architecture).items():
        weight = torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0.0, 0.02)
        yield name, weight.add_(1.0) if name.endswith("norm.weight") else weight


def plan(step_id: int, num_rows: int, num_computed: int, token_ids: list[int]) -> StepPlan:
    """Rows 0 ... of the same length, each over blocks of its own; the first step admits them.

    Args:
        token_ids: of each row.
    """
    slots, columns = list(range(num_rows)), MAX_LEN // BLOCK_SIZE
    is_first = step_id == 0
    admitted = [Admitted(slot=slot, sampling=GREEDY, request_id=slot) for slot in slots if is_first]
    return StepPlan(
        step_id=step_id,
        planned_ns=0,
        request_ids=slots,
        epochs=[0] * num_rows,
        slots=slots,
        num_tokens=[len(token_ids)] * num_rows,
        num_computed=[num_computed] * num_rows,
        samples=[True] * num_rows,
        token_ids=token_ids * num_rows,
        admitted=admitted,
        block_slots=[slot for slot in slots for _ in range(columns)] if is_first else [],
        block_cols=list(range(columns)) * num_rows if is_first else [],
        block_ids=list(range(columns * num_rows)) if is_first else [],
    )


def greedy(runner: Runner, num_steps: int) -> list[int]:
    """Two rows: a prompt of 20 tokens, then one token a step; -> all that were sampled."""
    prompt = [1 + 7 * i % 100 for i in range(20)]
    found = runner.launch(plan(0, 2, 0, prompt)).token_ids_sync()
    for step in range(1, num_steps):
        found += runner.launch(plan(step, 2, len(prompt) + step - 1, [NO_TOKEN])).token_ids_sync()
    runner.close()
    return found


class Decoded(NamedTuple):
    """Steps that are done."""

    handles: list[StepHandle]
    launch_s: list[float]
    """What the host took to launch each."""


def decode(runner: Runner, num_rows: int, context: int, num_steps: int) -> Decoded:
    """Steps of rows whose context is there already, whatever its contents; two are in flight at a time."""
    done = Decoded([], [])
    for step in range(num_steps):
        each = plan(step, num_rows, context + step, [NO_TOKEN] if step else [1])
        begin = time.perf_counter()
        done.handles.append(runner.launch(each))
        done.launch_s.append(time.perf_counter() - begin)
        if step:
            done.handles[-2].token_ids_sync()
    done.handles[-1].token_ids_sync()
    return done
