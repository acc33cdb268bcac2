"""Trial steps of a model that has just been loaded: which thread counts it runs best with."""

import structlog
import torch

from pipeline.checkpoint.card import Architecture
from pipeline.gpu.api import StepInputs
from pipeline.gpu.host.model import HostDecoder
from pipeline.gpu.host.threads import MANY, Threads, candidates, choose
from pipeline.gpu.kv.cache import new_kv_cache


def choose_threads(model: HostDecoder, architecture: Architecture, block_size: int) -> Threads:
    """Some tenths of a second; logged with the figures. `model.threads` is left as it was tried last."""
    longest = min(MANY, architecture.max_position)
    num_blocks = -(-longest // block_size)
    kv_cache = new_kv_cache(architecture, model, num_blocks, block_size, torch.device("cpu"))

    def step(num_tokens: int, num_threads: int) -> None:
        model.threads = Threads(num_threads, num_threads)
        model.forward(_prompt(min(num_tokens, longest), num_blocks), kv_cache)

    choice = choose(step, candidates())
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    log.info(
        "threads by trial",
        decode=choice.threads.few,
        prefill=choice.threads.many,
        decode_ms={count: round(ms, 2) for count, ms in choice.few_ms.items()},
        prefill_ms={count: round(ms, 2) for count, ms in choice.many_ms.items()},
        foreign_cores=round(choice.foreign_cores, 2),
    )
    return choice.threads


def _prompt(num_tokens: int, num_blocks: int) -> StepInputs:
    """One row, from its first token on, in the blocks from 0 on; its last token yields logits."""
    positions = torch.arange(num_tokens)
    return StepInputs(
        token_ids=torch.zeros(num_tokens, dtype=torch.int64),
        positions=positions,
        slot_mapping=positions.clone(),
        query_start=torch.tensor([0, num_tokens], dtype=torch.int32),
        context_lens=torch.tensor([num_tokens], dtype=torch.int32),
        block_tables=torch.arange(num_blocks, dtype=torch.int32)[None],
        logits_rows=torch.tensor([num_tokens - 1]),
    )
