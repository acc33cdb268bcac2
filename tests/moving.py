"""A place in a pipeline whose stage is replaced while messages come: moved, tried, or taken back."""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

import msgspec

from pipeline.runtime.hold import HeldOutlet, Hold
from pipeline.runtime.stage import Stage, StageContext

AnyStage = Stage[Any, Any]


class Fate(StrEnum):
    """What happens at a batch."""

    GO = "go"
    MOVE = "move"
    """Another one takes over before it."""
    TRY = "try"
    """Another one takes over before it, and the outside sees what he does when he has done it."""
    TAKE_BACK = "take back"
    """Another one takes over before it and handles it, which nobody sees; then the one before does."""


class Place:
    """Whoever serves there is `stage`, started already. Those who served before are stopped."""

    def __init__(self, stage: AnyStage) -> None:
        self.stage = stage
        self._ctx = replace(stage.ctx, is_successor=True)

    async def handle(self, batch: Sequence[Any], fate: Fate = Fate.GO) -> None:
        if fate is Fate.TAKE_BACK:
            await self._take_back(batch)
        elif fate is Fate.TRY:
            hold = Hold()
            await self.move(_held(self._ctx, hold))
            hold.begin()
            await self.stage.handle(batch)
            await hold.commit()
            return
        elif fate is Fate.MOVE:
            await self.move()
        await self.stage.handle(batch)

    async def move(self, ctx: StageContext | None = None, options: msgspec.Struct | None = None) -> None:
        """Another one, of the same class, in the place of this one."""
        old, new = self.stage, await self._newcomer(ctx or self._ctx, options)
        hand_over(old, new)
        await old.stop()
        self.stage = new

    async def _take_back(self, batch: Sequence[Any]) -> None:
        hold = Hold()
        new = await self._newcomer(_held(self._ctx, hold))
        hand_over(self.stage, new)
        before = new.export_state()
        hold.begin()
        await new.handle(batch)
        hold.seal()
        new.import_state(_nothing(new))
        await new.stop()
        self.stage.import_state(before)

    async def _newcomer(self, ctx: StageContext, options: msgspec.Struct | None = None) -> AnyStage:
        new = type(self.stage)(ctx, options or self.stage.options)
        await new.start()
        return new


def hand_over(old: AnyStage, new: AnyStage) -> None:
    """As runtime.handover does: what is told is told twice where that is a copy."""
    if old.is_revocable:
        old.export_state()
    state = old.export_state()
    old.import_state(_nothing(old))
    new.import_state(state)


def _nothing(stage: AnyStage) -> Any:
    assert stage.State is not None
    return stage.State()


def _held(ctx: StageContext, hold: Hold) -> StageContext:
    outlets = {kind: HeldOutlet(outlet, hold) for kind, outlet in ctx.outlets.items()}  # type: ignore[arg-type]
    return replace(ctx, outlets=outlets, hold=hold)
