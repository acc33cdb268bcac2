"""Stage: what an engineer implements. One task, one inbox, private state.

A stage knows the message types it takes and gives, never its neighbours: an outlet is found by the type
of message it carries, and topology says where it leads.

What is public here is the stage API, which has a version (`STAGE_API`): docs/stages.md says how to use it.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import msgspec
import structlog

from pipeline.runtime.equivalence import MESSAGES, Equivalence
from pipeline.runtime.histogram import SIZES, Histogram
from pipeline.runtime.hold import Hold
from pipeline.runtime.inbox import ALL, Inbox
from pipeline.runtime.trace import Point, Trace

STAGE_API = 1
"""Rises when a stage that was written for the number before would not work any more."""

In = TypeVar("In")
R = TypeVar("R")
M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
Opts = TypeVar("Opts", bound=msgspec.Struct)


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For stages without settings."""


class NoState(msgspec.Struct, frozen=True):
    """For stages that know nothing between two batches but what `drain` finishes."""


class Outlet(Protocol[M_contra]):
    """The sending side of an Inbox; see there. Topology says which of the methods a link uses."""

    def offer(self, message: M_contra) -> bool: ...

    async def send(self, message: M_contra) -> None: ...

    def post(self, message: M_contra) -> None: ...

    def room(self) -> int: ...

    def when_room(self, callback: Callable[[], None]) -> None: ...


@dataclass(slots=True)
class Service:
    """What a stage's handle() has cost since start; read by metrics and benches."""

    num_batches: int = 0
    num_messages: int = 0
    busy_ns: int = 0
    """Wall time inside handle(), waiting for room downstream or for a thread included."""
    num_errors: int = 0
    """Requests that this stage answered with an error; the stage counts them."""
    begun_ns: int = 0
    """When the handle() under way began; 0: none is."""
    times: Histogram = field(default_factory=Histogram)
    """Of handle(), ns."""
    sizes: Histogram = field(default_factory=lambda: Histogram(SIZES))
    """Messages in a batch."""

    def begin(self, now_ns: int) -> None:
        self.begun_ns = now_ns

    def end(self, now_ns: int, num_messages: int) -> None:
        """handle() has returned. Must follow begin()."""
        took_ns = now_ns - self.begun_ns
        self.begun_ns = 0
        self.num_batches += 1
        self.num_messages += num_messages
        self.busy_ns += took_ns
        self.times.add(took_ns)
        self.sizes.add(num_messages)

    def busy_until(self, now_ns: int) -> int:
        """busy_ns with the time of the handle() under way: a long one shows before its end."""
        return self.busy_ns + (now_ns - self.begun_ns if self.begun_ns else 0)


@dataclass(frozen=True, slots=True)
class StageContext:
    """All that a stage is given of the outside."""

    name: str
    inbox: Inbox[Any]
    outlets: Mapping[type, Outlet[Any]]
    resources: Mapping[type, object]
    trace: Trace = field(default_factory=lambda: Trace(enabled=False))
    log: structlog.typing.FilteringBoundLogger = field(default_factory=structlog.get_logger)
    clock: Callable[[], int] = time.perf_counter_ns
    hold: Hold | None = None
    """Of a stage whose batches may be taken back (runtime.hold): the outlets are held by it already."""
    is_successor: bool = False
    """Another one serves while this one starts; after start() it is told what that one knows. It must not
    acquire what its state brings along."""

    def do(self, function: Callable[..., object], *args: object) -> None:
        """What a stage does to the outside beside sending, such as answering a client: at once or, where its
        batches may be taken back, once this one is known to be right."""
        if self.hold is None:
            function(*args)
        else:
            self.hold.call(function, *args)

    def outlet(self, message: type[M]) -> Outlet[M]:
        """The outlet that carries `message`. KeyError is a fault of topology, checked by assemble."""
        return self.outlets[message]

    def resource(self, kind: type[R]) -> R:
        """What the composition root hands to stages (the model's description, metrics, ...), by its type."""
        return cast(R, self.resources[kind])


class Stage(ABC, Generic[In, Opts]):
    """start() -> run() until the inbox is closed and empty -> stop().

    Class attributes: `Options`, a frozen msgspec.Struct that forbids unknown fields; `takes` and `gives`, the
    message types it reads and writes. The constructor takes exactly (ctx, options) and does no I/O.

    While the server runs, another stage may take its place (runtime.swap) where both have the same `State`.
    """

    api: ClassVar[int] = STAGE_API
    """The version that it was written for."""
    Options: ClassVar[type[msgspec.Struct]] = NoOptions
    takes: ClassVar[tuple[type, ...]]
    gives: ClassVar[tuple[type, ...]] = ()
    State: ClassVar[type | None] = None
    """What it knows between two batches, as `export_state` tells it; `State()` is that of a stage which has
    seen nothing. None: it cannot be swapped, for nobody said what would be lost."""
    is_revocable: ClassVar[bool] = False
    """A batch of it can be taken back: `export_state` copies, and what it does to the outside goes through
    its outlets or `ctx.do`."""
    equivalence: ClassVar[Equivalence] = MESSAGES
    """What another in its place must say as it does (`stageline compare`, a swap's shadow mode)."""

    def __init__(self, ctx: StageContext, options: Opts) -> None:
        self.ctx = ctx
        self.options = options
        self.service = Service()

    async def start(self) -> None:
        """Acquire what the stage needs. May fail; stop() is called then too."""

    @abstractmethod
    async def handle(self, batch: Sequence[In]) -> None:
        """Process one drained batch. Raise only for faults of the stage itself."""

    async def drain(self) -> None:
        """Finish what is still under way once the inbox is closed and empty."""

    async def stop(self) -> None:
        """Release. Idempotent; called after every start(), crash or not."""

    def export_state(self) -> Any:
        """A `State`. Called between two batches; the stage may go on afterwards."""
        return NoState()

    def import_state(self, state: Any) -> None:
        """Know what `state` says, and nothing else. Called after start(), between two batches."""

    def gauges(self) -> Mapping[str, float]:
        """What /metrics shows of it, {name without prefix: value}; those of a pool's instances are added up.
        A name that ends in _total is a counter, any other a gauge."""
        return {}

    def limit(self) -> int:
        """How many data messages the next batch may hold; 0 leaves them queued (backpressure)."""
        return ALL

    async def run(self, handle: Callable[[Sequence[In]], Awaitable[None]] | None = None) -> None:
        """The actor's loop: one wake-up takes all that waits. Where the inbox is paused it ends undrained.

        Args:
            handle: called in the place of the stage's own.
        """
        handle = handle or self.handle
        inbox, clock, trace, name, service = (
            self.ctx.inbox,
            self.ctx.clock,
            self.ctx.trace,
            self.ctx.name,
            self.service,
        )
        while batch := await inbox.recv_many(self.limit()):
            taken_ns = clock()
            service.begin(taken_ns)
            await handle(batch)
            done_ns = clock()
            trace.record(Point.HANDLED, name, done_ns - taken_ns, len(batch), taken_ns)
            service.end(done_ns, len(batch))
        if not inbox.is_paused:
            await self.drain()
