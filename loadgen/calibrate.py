"""How long is the text in the server's own tokens? Asked of the server: it says so in each answer's usage."""

import asyncio
from itertools import pairwise

from loadgen.clients import Client
from loadgen.errors import ServerError
from loadgen.prompts import Prompts, Text
from loadgen.record import Record

_REGIONS = 24
_PROBE_WORDS = 128
_AT_ONCE = 4
_WORD = "the"
"""As long at the start of a text as within it: said once and twice, it shows what the server adds."""


async def calibrated(text: Text, client: Client, seed: int, timeout_s: float) -> Prompts:
    """Prompts of `text`, its words measured by up to 26 requests of one output token, before the run.

    Each region of the text is given the tokens per piece (letters or punctuation) of its first words.

    Raises:
        ServerError: a request failed, or its answer has no usage.
    """
    num_regions = min(_REGIONS, len(text))
    edges = [len(text) * i // num_regions for i in range(num_regions + 1)]
    spans = [(begin, min(end, begin + _PROBE_WORDS)) for begin, end in pairwise(edges)]
    pieces = text.pieces()
    probes = [_WORD, f"{_WORD} {_WORD}", *(text.slice(*span) for span in spans)]
    one, two, *counts = await _count(probes, client, timeout_s)
    overhead = max(0, 2 * one - two)
    word_tokens: list[float] = []
    for (first, last), (begin, end), count in zip(spans, pairwise(edges), counts, strict=True):
        per_piece = max(1, count - overhead) / sum(pieces[first:last])
        word_tokens += [per_piece * piece for piece in pieces[begin:end]]
    return Prompts(text, word_tokens, overhead, seed)


def by_rate(text: Text, tokens_per_word: float, seed: int) -> Prompts:
    """Prompts of `text` with every word the same length: no requests, less exact."""
    return Prompts(text, [tokens_per_word] * len(text), 0, seed)


async def _count(probes: list[str], client: Client, timeout_s: float) -> list[int]:
    """Tokens of each probe, by the server's count."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def ask(probe: str) -> int:
        async with gate:
            return await _tokens(probe, client, timeout_s)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(probe)) for probe in probes]
    return [task.result() for task in tasks]


async def _tokens(prompt: str, client: Client, timeout_s: float) -> int:
    record = Record(index=-1, intended_s=0.0, planned_input=0, planned_output=1)
    try:
        async with asyncio.timeout(timeout_s):
            await client.generate(prompt, 1, record)
    except TimeoutError as error:
        raise ServerError(f"a one-token request took over {timeout_s:g} s (raise --timeout-s)") from error
    if record.failure is not None:
        raise ServerError(f"a first request failed: {record.failure.reason}: {record.failure.message}")
    if not record.input_tokens:
        raise ServerError(
            "the server's answers have no usage.prompt_tokens, so that prompts cannot be cut to length; "
            "give --tokens-per-word (about 1.3 for English)"
        )
    return record.input_tokens
