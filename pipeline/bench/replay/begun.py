"""Begun: a recording that was begun under load holds rows of requests that a stage was never told of. They
are left out, and counted, so that what is measured is the work of whole requests.
"""

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any

from msgspec.structs import replace

from pipeline.messages import Logprobs, SpelledLogprobs, StepPlan, TextBatch, TokenBatch

_COLUMNS: dict[type, tuple[str, ...]] = {
    TokenBatch: ("request_ids", "token_ids", "finish_reasons"),
    TextBatch: ("request_ids", "texts", "num_tokens", "finish_reasons"),
    Logprobs: ("request_ids", "token_ids", "values", "top_ids", "top_values"),
    SpelledLogprobs: ("request_ids", "entries"),
}


class Begun:
    """Knows whose beginning has been seen; to be shown the messages in their order, each once."""

    def __init__(self) -> None:
        self.num_left_out = 0
        """Rows."""
        self._requests: set[int] = set()
        self._slots: dict[tuple[int, int], int] = {}
        """Whose each worker's slots are, of those that were given since."""

    def of(self, message: Any) -> Any | None:
        """The message without the rows of others; None: nothing is left of it."""
        if isinstance(message, TokenBatch | TextBatch):
            self._requests.update(started.request_id for started in message.started)
            return self._of_text(message)
        return self._of_plan(message) if isinstance(message, StepPlan) else message

    def _of_text(self, message: TokenBatch | TextBatch) -> TokenBatch | TextBatch | None:
        known = [request_id in self._requests for request_id in message.request_ids]
        if all(known):
            return message
        self.num_left_out += known.count(False)
        if not any(known):
            return None
        requests = self._requests
        left: TokenBatch | TextBatch = replace(
            _chosen(message, known),
            times=[times for times in message.times if times.request_id in requests],
            embeddings={key: value for key, value in message.embeddings.items() if key in requests},
            logprobs=self._of_logprobs(message.logprobs),
            scores=self._of_logprobs(message.scores),
        )
        return left

    def _of_logprobs(self, told: Any) -> Any:
        return told and _chosen(told, [each in self._requests for each in told.request_ids])

    def _of_plan(self, plan: StepPlan) -> StepPlan | None:
        for admitted in plan.admitted:
            self._slots[plan.worker, admitted.slot] = admitted.request_id
        known = [
            self._slots.get((plan.worker, slot)) == request_id
            for slot, request_id in zip(plan.slots, plan.request_ids, strict=True)
        ]
        if all(known):
            return plan
        self.num_left_out += known.count(False)
        return _plan_of(plan, known) if any(known) else None


def _plan_of(plan: StepPlan, known: Sequence[bool]) -> StepPlan:
    """Its known rows, and what it says of their slots."""
    slots = {*compress(plan.slots, known), *(admitted.slot for admitted in plan.admitted)}
    places = {row: place for place, row in enumerate(compress(range(len(known)), known))}
    of_block = [slot in slots for slot in plan.block_slots]
    of_drop = [slot in slots for slot in plan.dropped_slots]
    return replace(
        plan,
        **{
            name: _listed(getattr(plan, name), known)
            for name in ("request_ids", "epochs", "slots", "num_tokens", "num_computed", "samples")
        },
        token_ids=_packed(plan, known),
        block_slots=_listed(plan.block_slots, of_block),
        block_cols=_listed(plan.block_cols, of_block),
        block_ids=_listed(plan.block_ids, of_block),
        dropped_slots=_listed(plan.dropped_slots, of_drop),
        dropped_cols=_listed(plan.dropped_cols, of_drop),
        questions=[
            replace(question, row=places[question.row])
            for question in plan.questions
            if question.row in places
        ],
        pooled=[places[row] for row in plan.pooled if row in places],
        scored=[replace(each, row=places[each.row]) for each in plan.scored if each.row in places],
    )


def _packed(plan: StepPlan, known: Sequence[bool]) -> list[int]:
    """The token ids of the known rows."""
    kept: list[int] = []
    begin = 0
    for count, is_known in zip(plan.num_tokens, known, strict=True):
        if is_known:
            kept += plan.token_ids[begin : begin + count]
        begin += count
    return kept


def _chosen(message: Any, known: Sequence[bool]) -> Any:
    names = _COLUMNS[type(message)]
    return replace(message, **{name: _listed(getattr(message, name), known) for name in names})


def _listed(column: Iterable[Any], known: Sequence[bool]) -> list[Any]:
    return list(compress(column, known))
