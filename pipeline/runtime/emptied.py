"""Emptied: a stage that has finished with all requests which it knows, while new ones wait at the door."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pipeline.errors import SwapRefused
from pipeline.runtime.handover import knows_nothing
from pipeline.runtime.supervisor import AnyStage, Crew, Supervisor

_LOOK_S = 0.01


@asynccontextmanager
async def emptied(
    stages: Sequence[AnyStage], doors: Sequence[Crew], supervisor: Supervisor, within_s: float
) -> AsyncIterator[None]:
    """While these crews take nothing, and so the stages know nothing. Raises SwapRefused: they still do.

    A drain that is to begin ends this.
    """
    try:
        for door in doors:
            door.inbox.pause()
        await _until_empty(stages, supervisor, within_s)
        yield
    finally:
        for door in doors:
            door.inbox.resume()
            door.fill_seats()


async def _until_empty(stages: Sequence[AnyStage], supervisor: Supervisor, within_s: float) -> None:
    try:
        async with asyncio.timeout(within_s):
            while not all(map(knows_nothing, stages)):
                await asyncio.sleep(_LOOK_S)
                if supervisor.is_draining:
                    raise SwapRefused("the server is stopping")
    except TimeoutError as error:
        raise SwapRefused(f"requests of before were still under way after {within_s:g} s") from error
