"""Batched tokenizing against single: what a pool gains that encodes all that waits, over its threads."""

from time import perf_counter

import msgspec

from pipeline.bench.result import StageResult
from pipeline.bench.samples import Load, generate_request
from pipeline.checkpoint.card import ModelCard


class EncodingRate(msgspec.Struct, frozen=True):
    how: str
    prompts_per_s: float
    tokens_per_s: float


def one_by_one(card: ModelCard, load: Load, num_prompts: int) -> EncodingRate:
    """The same prompts, each encoded when the one before is done, on this thread; nothing else is done."""
    tokenizer = card.new_tokenizer()
    prompts = [str(generate_request(load, number, 0).prompt) for number in range(1, num_prompts + 1)]
    begin = perf_counter()
    num_tokens = sum(len(tokenizer.encode(prompt).ids) for prompt in prompts)
    seconds = perf_counter() - begin
    return EncodingRate("one by one, one thread", num_prompts / seconds, num_tokens / seconds)


def by_stage(result: StageResult, single: EncodingRate) -> EncodingRate:
    """What the stage's bench says of the prompts of `single`: queue, threads and messages included."""
    prompts_per_s = result.messages / result.seconds
    how = f"the stage, {result.workers} workers, whole batches"
    return EncodingRate(how, prompts_per_s, prompts_per_s * single.tokens_per_s / single.prompts_per_s)
