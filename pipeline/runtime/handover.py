"""Handover: what one stage knows becomes what another knows, and the other way round.

Whoever gives his state away is then told that of a stage which has seen nothing, so that he neither acts by a
timer nor closes what is not his any more.
"""

from dataclasses import replace
from typing import Any, cast

from pipeline.errors import SwapRefused
from pipeline.runtime.hold import HeldOutlet, Hold
from pipeline.runtime.inbox import Inbox
from pipeline.runtime.stage import NoState, StageContext
from pipeline.runtime.supervisor import AnyStage
from pipeline.runtime.trial import Trial


class Seat:
    """One instance's place: who gives it up, and who takes it."""

    def __init__(self, number: int, old: AnyStage, new: AnyStage, trial: Trial, hold: Hold) -> None:
        self.number = number
        self.old = old
        self.new = new
        self.trial = trial
        self._hold = hold

    async def hand_over(self) -> None:
        """If this raises, the old one knows what it knew. A coroutine, so that it can be bounded in time.

        Where the two have not the same State, the old one must know nothing.
        """
        if not have_same_state(type(self.old), type(self.new)):
            if self.new.State is not None:
                self.new.import_state(_nothing(self.new))
            self.new.service = self.old.service
            return
        state = _exported(self.old)
        kept = _exported(self.old) if self.old.is_revocable else state
        try:
            self.old.import_state(_nothing(self.old))
            self.new.import_state(state)
        except BaseException:
            self._give_up()
            self.old.import_state(kept)
            raise
        self.new.service = self.old.service

    def take_back(self) -> None:
        """The old one goes on from what the new one knows."""
        state = self.trial.known()
        self._give_up()
        self.old.import_state(state)

    def _give_up(self) -> None:
        """Whatever the new one still does, nobody sees it."""
        self._hold.seal()
        try:
            self.new.import_state(_nothing(self.new))
        except Exception:
            self.new.ctx.log.exception("a stage that was given up does not forget", part=self.new.ctx.name)


def held(ctx: StageContext, hold: Hold) -> StageContext:
    """The context for a newcomer: what it does to the outside can be held back."""
    outlets = {kind: HeldOutlet(cast(Inbox[Any], outlet), hold) for kind, outlet in ctx.outlets.items()}
    return replace(ctx, outlets=outlets, hold=hold, is_successor=True)


def have_same_state(old: type[AnyStage], new: type[AnyStage]) -> bool:
    """By name: the State of a module that was edited is another class, and the same to who wrote it."""
    return class_path(old.State) == class_path(new.State)


def check_states(old: type[AnyStage], new: type[AnyStage]) -> None:
    """Whether one can be told what the other knows, or wait until that is nothing. Raises SwapRefused."""
    if old.State is None:
        raise SwapRefused(f"{class_path(old)} has no State: what it knows would be lost")
    if not have_same_state(old, new) and not (old.is_revocable or old.State is NoState):
        raise SwapRefused(
            f"{class_path(new)} must have the State of {class_path(old)}, which is {class_path(old.State)}, "
            f"not {class_path(new.State)}: that one always knows something"
        )


def knows_nothing(stage: AnyStage) -> bool:
    """Between two batches."""
    return not stage.service.begun_ns and bool(stage.export_state() == _nothing(stage))


def class_path(kind: type | None) -> str:
    """As config names it."""
    return "None" if kind is None else f"{kind.__module__}:{kind.__qualname__}"


def _exported(stage: AnyStage) -> Any:
    state = stage.export_state()
    if stage.State is None or not isinstance(state, stage.State):
        raise TypeError(f"export_state must give a {class_path(stage.State)}, not a {type(state).__name__}")
    return state


def _nothing(stage: AnyStage) -> Any:
    """The state of a stage that has seen nothing."""
    assert stage.State is not None, "checked before it was started"
    return stage.State()
