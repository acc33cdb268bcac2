"""Copies of stages that are slower, or subtly wrong, by what goes through their outlets and sinks."""

import dataclasses
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from msgspec.structs import replace

from pipeline.messages import Completion, FinishReason, Open, StepPlan
from pipeline.runtime.stage import Stage, StageContext
from pipeline.runtime.testing import FakeHandle

AnyStage = type[Stage[Any, Any]]
Spoil = Callable[[Any], list[Any] | None]
"""What is sent in the place of a message; None: it is not of the kind that is to be spoiled."""


def twice_as_slow(stage_class: AnyStage) -> AnyStage:
    """Each handle() is followed by nothing for as long again."""

    class Slower(stage_class):  # type: ignore[misc, valid-type]
        async def handle(self, batch: Sequence[Any]) -> None:
            begin_ns = perf_counter_ns()
            await super().handle(batch)
            took_ns = perf_counter_ns() - begin_ns
            while perf_counter_ns() < begin_ns + 2 * took_ns:
                pass

    return Slower


def spoiled(stage_class: AnyStage, kind: type | None, spoil: Spoil) -> AnyStage:
    """The first message of `kind` (None: the first call of a sink) that can be spoiled is."""

    class Spoiled(stage_class):  # type: ignore[misc, valid-type]
        def __init__(self, ctx: StageContext, options: Any) -> None:
            self._once = Once(spoil)
            outlets = {
                each: SpoiledOutlet(outlet, self._once) if each is kind else outlet
                for each, outlet in ctx.outlets.items()
            }
            super().__init__(dataclasses.replace(ctx, outlets=outlets), options)

        async def handle(self, batch: Sequence[Any]) -> None:
            if kind is None:
                batch = [
                    replace(message, sink=SpoiledSink(message.sink, self._once))
                    if isinstance(message, Open)
                    else message
                    for message in batch
                ]
            await super().handle(batch)

    return Spoiled


class Once:
    """Spoils one message."""

    def __init__(self, spoil: Spoil) -> None:
        self._spoil = spoil
        self.is_done = False

    def __call__(self, message: Any) -> list[Any]:
        if self.is_done or (instead := self._spoil(message)) is None:
            return [message]
        self.is_done = True
        return instead


class SpoiledOutlet:
    def __init__(self, outlet: Any, once: Once) -> None:
        self._outlet = outlet
        self._once = once
        self.room = outlet.room
        self.when_room = outlet.when_room

    def offer(self, message: Any) -> bool:
        return all(self._outlet.offer(each) for each in self._once(message))

    async def send(self, message: Any) -> None:
        for each in self._once(message):
            await self._outlet.send(each)

    def post(self, message: Any) -> None:
        for each in self._once(message):
            self._outlet.post(each)


class SpoiledSink:
    """Spoils a delta, given as (text, num_tokens), or a Completion."""

    def __init__(self, sink: Any, once: Once) -> None:
        self._sink = sink
        self._once = once
        self.error = sink.error
        self.buffered_bytes = sink.buffered_bytes
        self.is_away = sink.is_away

    def delta(self, text: str, num_tokens: int) -> None:
        for each in self._once((text, num_tokens)):
            self._sink.delta(*each)

    def done(self, completion: Completion) -> None:
        for each in self._once(completion):
            self._sink.done(each)


# What is done to a message ------------------------------------------------------------------------


def drops_it(message: Any) -> list[Any]:
    return []


def doubles_it(message: Any) -> list[Any]:
    return [message, message]


def drops_a_row(*columns: str) -> Spoil:
    return lambda step: [
        replace(step, **{name: getattr(step, name)[:-1] for name in ("request_ids", *columns)})
    ]


def swaps_two(column: str) -> Spoil:
    """Of one step; where all rows are alike, there is nothing to swap."""

    def spoil(step: Any) -> list[Any] | None:
        values = list(getattr(step, column))
        other = next((at for at, value in enumerate(values) if value != values[0]), None)
        if other is None:
            return None
        values[0], values[other] = values[other], values[0]
        return [replace(step, **{column: values})]

    return spoil


def off_by_one(column: str) -> Spoil:
    def spoil(step: Any) -> list[Any] | None:
        values = list(getattr(step, column))
        if not values:
            return None
        return [replace(step, **{column: [values[0] + 1, *values[1:]]})]

    return spoil


def ends_otherwise(step: Any) -> list[Any] | None:
    reasons = list(step.finish_reasons)
    at = next((at for at, reason in enumerate(reasons) if reason == FinishReason.LENGTH), None)
    if at is None:
        return None
    reasons[at] = FinishReason.STOP
    return [replace(step, finish_reasons=reasons)]


def halves(text: str) -> str | None:
    """Its first character beyond the BMP, or of several bytes, as it is when half of it was lost."""
    for at, character in enumerate(text):
        if ord(character) > 0xFFFF:
            high = character.encode("utf-16-be", "surrogatepass")[:2].decode("utf-16-be", "surrogatepass")
            return text[:at] + high + text[at + 1 :]
    return None


def loses_half_a_character(step: Any) -> list[Any] | None:
    texts = list(step.texts)
    for at, text in enumerate(texts):
        if (half := halves(text)) is not None:
            texts[at] = half
            return [replace(step, texts=texts)]
    return None


def loses_a_character(step: Any) -> list[Any] | None:
    at = next((at for at, text in enumerate(step.texts) if text), None)
    if at is None:
        return None
    texts = list(step.texts)
    texts[at] = texts[at][:-1]
    return [replace(step, texts=texts)]


def of_a_handle(spoil: Callable[[list[int]], list[int]]) -> Spoil:
    def spoiled_handle(step: Any) -> list[Any] | None:
        token_ids = step.token_ids_sync()
        if len(set(token_ids)) < 2:
            return None
        plan: StepPlan = step.plan
        return [FakeHandle(plan, spoil(list(token_ids)), step.begin_ns, step.end_ns)]

    return spoiled_handle


def of_a_delta(spoil: Callable[[str, int], list[tuple[str, int]] | None]) -> Spoil:
    return lambda call: spoil(*call) if isinstance(call, tuple) and call[0] else None


def of_a_completion(**changes: Any) -> Spoil:
    return lambda call: [replace(call, **changes)] if isinstance(call, Completion) else None
