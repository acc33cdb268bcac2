"""Live streams for tests of swaps: each asks again when it is answered, and every text is checked."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from pipeline.messages import SamplingParams
from pipeline.runtime.testing import fake_token

PROMPT = "swap me"
STRIDE = 1024
"""From the seed of one answer of a stream to that of the next."""


class Streams:
    """What all of them together have seen."""

    def __init__(self, expected: Callable[[int, int], str], max_tokens: int, prompts: Sequence[str]) -> None:
        self.expected = expected
        """Of a seed and a number of tokens."""
        self.max_tokens = max_tokens
        self.prompts = prompts
        self.num_ended = 0
        self.longest_gap_s = 0.0
        """Between two pieces of one answer."""
        self.is_ending = False

    async def run(self, session: aiohttp.ClientSession, number: int) -> None:
        seed = number
        while not self.is_ending:
            await self._one(session, seed)
            seed += STRIDE

    async def _one(self, session: aiohttp.ClientSession, seed: int) -> None:
        text, last_s = "", 0.0
        async with session.ws_connect("/v1/stream") as socket:
            prompt = self.prompts[seed % len(self.prompts)]
            asked = {"prompt": prompt, "max_tokens": self.max_tokens, "seed": seed, "ignore_eos": True}
            await socket.send_json({"type": "generate", "id": "a", "temperature": 0, **asked})
            async for message in socket:
                frame: dict[str, Any] = message.json()
                if frame["type"] == "delta":
                    now_s = time.perf_counter()
                    self.longest_gap_s = max(self.longest_gap_s, now_s - last_s if last_s else 0.0)
                    text, last_s = text + frame["text"], now_s
                elif frame["type"] != "accepted":
                    assert frame["type"] == "done" and frame["finish_reason"] == "length", frame
                    break
        assert text == self.expected(seed, self.max_tokens), f"seed {seed}"
        self.num_ended += 1


@asynccontextmanager
async def streaming(
    url: str,
    num_streams: int,
    max_tokens: int,
    expected: Callable[[int, int], str],
    prompts: Sequence[str] = (PROMPT,),
) -> AsyncIterator[Streams]:
    """So many streams, until the end of the block; each then finishes the answer that it is at."""
    streams = Streams(expected, max_tokens, prompts)
    connector = aiohttp.TCPConnector(limit=num_streams)
    async with (
        aiohttp.ClientSession(url, connector=connector) as session,
        asyncio.TaskGroup() as group,
    ):
        for number in range(num_streams):
            group.create_task(streams.run(session, number))
        try:
            yield streams
        finally:
            streams.is_ending = True


def fake_text(seed: int, num_tokens: int) -> str:
    """What the fake runner answers to PROMPT."""
    sampling = SamplingParams(seed=seed)
    return "".join(chr(fake_token(sampling, len(PROMPT) + k)) for k in range(num_tokens))
