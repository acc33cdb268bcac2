"""Rehearsal: the swap on the bench, in a process of its own, before anything live is touched.

Whatever the stage does there - crash, hang, never let go of the loop, take the process down, send what no
link carries - costs the server nothing. What is done there: swapping.rehearsed.
"""

import asyncio
import sys
from typing import Any

import msgspec

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.words import path_as_text
from pipeline.config import Config, StageConfig
from pipeline.errors import SwapRefused

PROCESS_S = 60.0
"""For all of it, with the start of the process; a machine may be busy."""


class Words(msgspec.Struct, frozen=True):
    """What the process must know."""

    stage: str
    use: str
    """That of the stage which is to take over,"""
    options: dict[str, Any]
    """and its options."""
    running: dict[str, StageConfig]
    device: dict[str, Any]
    max_model_len: int | None
    topology: str | None
    card: ModelCard
    path: list[str]
    """Where modules are found."""


class Outcome(msgspec.Struct, frozen=True):
    reason: str
    """Why the stage is refused; empty: it is not."""


async def rehearse(config: Config, stage: str, use: str, options: dict[str, Any], card: ModelCard) -> None:
    """Raises SwapRefused with what went wrong.

    Args:
        config: of what runs.
        use: what is to take the place of `stage`.
    """
    words = Words(
        stage,
        use,
        options,
        config.stages,
        config.device,
        config.model.max_model_len,
        config.topology.use,
        card,
        sys.path,
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __package__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PROCESS_S):
            told, _ = await process.communicate(msgspec.msgpack.encode(words, enc_hook=path_as_text))
    except TimeoutError as error:
        raise SwapRefused(f"in its rehearsal it did not come to an end within {PROCESS_S:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    reason = _reason(told, process.returncode)
    if reason:
        raise SwapRefused(reason)


def _reason(told: bytes, status: int | None) -> str:
    try:
        return msgspec.json.decode(told, type=Outcome).reason
    except msgspec.DecodeError:
        return f"in its rehearsal it ended the process, with status {status}"
