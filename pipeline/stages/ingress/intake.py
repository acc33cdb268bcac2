"""Intake: takes requests into the pipeline, and knows those that are live."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from pipeline.core.allowance import Allowance, Charge
from pipeline.core.gate import Gate
from pipeline.core.keys import NOBODY, Principal
from pipeline.core.wire import SERVER_ERROR, Wanted
from pipeline.errors import InboxClosed, RequestError
from pipeline.messages import (
    Cancel,
    Completion,
    FinishReason,
    GenerateRequest,
    Grant,
    Open,
    TokenLogprob,
)
from pipeline.runtime.stage import StageContext
from pipeline.runtime.trace import Point
from pipeline.telemetry import RequestSpan, Telemetry
from pipeline.telemetry.journal import NUM_REQUESTS

DRAINING = RequestError("The server is shutting down; try another.", status=503, code="draining")


class LiveRequest(ABC):
    """One request in the pipeline, and the ClientSink that the streamer writes to.

    Ends once, by `done` or `error`. A client that leaves detaches it: from then on nothing is written, but it
    stays live until the pipeline has ended it too. Subclasses give the client's side of it.
    """

    def __init__(self, intake: "Intake", request_id: int) -> None:
        self.request_id = request_id
        self._intake = intake
        self._is_attached = True
        self.is_cancelled = False
        self.num_output_tokens = 0
        """Of the text so far."""
        self.num_images = 0
        """In its prompt."""
        self.first_id = request_id
        """Of the first choice of its answer."""
        self.allowance: Allowance | None = None
        """Of who asked, and"""
        self.charge: Charge | None = None
        """what was counted of it for this request."""
        self._told: list[TokenLogprob] = []
        """Of the tokens of the next delta, where it asked for logprobs."""
        self.trace_parent = ""
        """The W3C traceparent of its own span, for its client; empty: it has no trace."""

    def delta(self, text: str, num_tokens: int) -> None:
        self._intake.num_events += 1
        self.num_output_tokens += num_tokens
        if self._is_attached:
            self.write_delta(text, num_tokens)

    def logprobs(self, entries: list[TokenLogprob]) -> None:
        self._told = entries

    def take_logprobs(self) -> list[TokenLogprob]:
        """For the delta that is being written."""
        told, self._told = self._told, []
        return told

    def done(self, completion: Completion) -> None:
        if completion.finish_reason is FinishReason.ERROR:
            self.error(SERVER_ERROR)
        elif self._end(completion.num_prompt_tokens + completion.num_output_tokens):
            self.write_done(completion)

    def error(self, error: RequestError) -> None:
        if self._end(self.num_output_tokens):
            self.write_error(error)

    def detach(self) -> None:
        self._is_attached = False

    def settle(self, num_tokens: int, now_ns: int) -> None:
        """What was counted of its allowance when it came becomes what it used."""
        if self.allowance is not None and self.charge is not None:
            self.allowance.settle(self.charge, num_tokens, now_ns)

    def _end(self, num_tokens: int) -> bool:
        """True if there is still a client to be told. `num_tokens`: what it used, prompt and answer."""
        was_live = self._intake.ended(self, num_tokens)
        was_attached, self._is_attached = self._is_attached, False
        return was_live and was_attached

    @abstractmethod
    def write_delta(self, text: str, num_tokens: int) -> None: ...

    @abstractmethod
    def write_done(self, completion: Completion) -> None: ...

    @abstractmethod
    def write_error(self, error: RequestError) -> None: ...

    def buffered_bytes(self) -> int:
        """See ClientSink; 0 where nothing is written before the end."""
        return 0

    def is_away(self) -> bool:
        """See ClientSink."""
        return False


R = TypeVar("R", bound=LiveRequest)


class Arrival(NamedTuple):
    """Of one HTTP request or frame."""

    at_ns: int
    principal: Principal = NOBODY
    traceparent: str | None = None
    """As its client sent it, unchecked."""


class Intake:
    """Single loop. Request ids have no holes and are offered in order: an id is used only when it got in."""

    def __init__(self, ctx: StageContext, max_live: int, max_live_images: int) -> None:
        self._ctx = ctx
        self._max_live = max_live
        self._max_live_images = max_live_images
        self._num_live_images = 0
        self._requests = ctx.outlet(GenerateRequest)
        self._opens = ctx.outlet(Open)
        self._cancels = ctx.outlet(Cancel)
        self._grants = ctx.outlet(Grant)
        self._gate = ctx.resource(Gate)
        self._telemetry = ctx.resource(Telemetry)
        self._next_id = 0
        self.live: dict[int, LiveRequest] = {}
        self._tenants: dict[int, str] = {}
        """Of the latest requests, ended ones too."""
        self.num_events = 0
        """Deltas and endings so far, of all requests: it moves as long as the pipeline works."""

    @property
    def is_draining(self) -> bool:
        """A closed inbox is how the supervisor says that no more may come in."""
        return self._ctx.inbox.is_closed

    @property
    def next_id(self) -> int:
        """Of the next request that gets in."""
        return self._next_id

    def submit(self, wanted: Wanted, arrival: Arrival, build: Callable[[int], R]) -> R:
        """Offer a request to the pipeline; `build` makes its live side from its id. Never waits.

        Raises RequestError 429 when there is no room, it would wait for too long, or its key has used what it
        may; 503 while draining.
        """
        return self.submit_all([wanted], arrival, lambda request_id, _: build(request_id))[0]

    def submit_all(
        self, wanted: Sequence[Wanted], arrival: Arrival, build: Callable[[int, int], R]
    ) -> list[R]:
        """Offer the choices of one answer, all or none; `build` gets each one's id and place. See submit."""
        self._check_open(len(wanted), sum(each.num_images for each in wanted))
        charge = self._charge(wanted, arrival)
        lives: list[R] = []
        try:
            for index, each in enumerate(wanted):
                live = build(self._next_id, index)
                live.allowance, live.charge = arrival.principal.allowance, charge
                live.first_id = live.request_id - index
                self._offer(live, each, arrival)
                lives.append(live)
        except RequestError:
            for live in lives:
                self.leave(live)
            if charge is not None and arrival.principal.allowance is not None:
                for _ in wanted[len(lives) :]:
                    arrival.principal.allowance.settle(charge, 0, self._ctx.clock())
            raise
        return lives

    def is_of(self, request_id: int, principal: Principal) -> bool:
        """Whether it is one of the latest, and that of this principal."""
        return self._tenants.get(request_id) == principal.tenant

    def cancel(self, request: LiveRequest) -> None:
        """Ask the pipeline to end a live request; its terminal row still comes. Posts at most once."""
        if request.request_id in self.live and not request.is_cancelled:
            request.is_cancelled = True
            self._cancels.post(Cancel(request.request_id, FinishReason.CANCELLED))

    def grant(self, request: LiveRequest, num_tokens: int) -> None:
        """Its client takes so many more tokens. No-op for one that has ended, or has no credits."""
        if request.request_id in self.live:
            self._grants.post(Grant(request.request_id, num_tokens))

    def leave(self, request: LiveRequest) -> None:
        """Its client is gone, or was told all. No-op for a request that has ended."""
        request.detach()
        self.cancel(request)

    def ended(self, request: LiveRequest, num_tokens: int) -> bool:
        """Forget a request that has used so many tokens; False if it had ended before."""
        self.num_events += 1
        self._gate.leave(request.request_id, request.num_output_tokens)
        was_live = self.live.pop(request.request_id, None) is not None
        if was_live:
            self._num_live_images -= request.num_images
            request.settle(num_tokens, self._ctx.clock())
        return was_live

    def fail_all(self, error: RequestError) -> None:
        """Answer every live request: the pipeline will not."""
        for request in list(self.live.values()):
            request.error(error)

    @staticmethod
    def _opened(live: LiveRequest, arrived_ns: int, wanted: Wanted, span: RequestSpan | None) -> Open:
        parent_span_id = ""
        if span is not None:
            live.trace_parent, parent_span_id = str(span.own), span.parent_span_id
        return Open(
            live.request_id,
            live,
            arrived_ns,
            live.trace_parent,
            parent_span_id,
            is_chat=wanted.chat is not None,
            logprobs_sink=None if wanted.sampling.logprobs is None else live,
            credits=wanted.credits,
            flush_tokens=wanted.flush_tokens,
            flush_ms=wanted.flush_ms,
        )

    def _check_open(self, num_requests: int, num_images: int) -> None:
        if self.is_draining:
            raise self._refused(DRAINING)
        if num_images and self._num_live_images + num_images > self._max_live_images:
            raise self._refused(self._full("The server holds too many images", "too_many_live_images"))
        if len(self.live) + num_requests > self._max_live:
            raise self._refused(self._full("The server has too many live requests", "too_many_requests"))

    def _charge(self, wanted: Sequence[Wanted], arrival: Arrival) -> Charge | None:
        if arrival.principal.allowance is None:
            return None
        max_tokens = wanted[0].sampling.max_tokens
        try:
            return arrival.principal.allowance.admit(len(wanted), max_tokens, self._ctx.clock())
        except RequestError as error:
            raise self._refused(error) from None

    def _offer(self, live: LiveRequest, wanted: Wanted, arrival: Arrival) -> None:
        request = GenerateRequest(
            live.request_id,
            wanted.prompt,
            wanted.chat,
            wanted.sampling,
            arrival.at_ns,
            self._ctx.clock(),
            wanted.terms,
            "" if wanted.toolset is None else wanted.toolset.told,
            pooling=wanted.pooling,
            num_image_tokens=wanted.num_image_tokens,
        )
        if refusal := self._gate.refusal(request):
            raise self._refused(refusal)
        self._send(request)
        self._gate.enter(request)
        self._next_id += 1
        self._telemetry.received()
        self.live[live.request_id] = live
        live.num_images = wanted.num_images
        self._num_live_images += live.num_images
        self._remember(live.request_id, arrival.principal.tenant)
        span = self._telemetry.trace_sampler.span(arrival.traceparent)
        self._opens.post(self._opened(live, arrival.at_ns, wanted, span))  # same tick: before any answer
        self._ctx.trace.record(Point.ARRIVED, self._ctx.name, live.request_id, at_ns=arrival.at_ns)

    def _remember(self, request_id: int, tenant: str) -> None:
        self._tenants[request_id] = tenant
        if len(self._tenants) > NUM_REQUESTS:
            del self._tenants[next(iter(self._tenants))]

    def _send(self, request: GenerateRequest) -> None:
        try:
            if self._requests.offer(request):
                return
        except InboxClosed:
            raise self._refused(DRAINING) from None
        raise self._refused(self._full("The waiting queue is full", "queue_full"))

    def _full(self, what: str, code: str) -> RequestError:
        """A bound that does not know how long the wait would be is reached."""
        message = f"{what}; try again later."
        return RequestError(message, status=429, code=code, retry_after_s=self._gate.retry_after_s())

    def _refused(self, error: RequestError) -> RequestError:
        self._telemetry.refused(error.code or str(error.status))
        return error
