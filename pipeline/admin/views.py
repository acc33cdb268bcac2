"""Views: what the live page is told, as JSON. Rates are per second, times whole microseconds.

The page's modules under page/ read these by name.
"""

import msgspec

from pipeline import __version__
from pipeline.admin.blocks import BlockMap
from pipeline.messages import SEGMENTS
from pipeline.topology import Lane, Link


class StageView(msgspec.Struct, frozen=True, gc=False):
    """One stage between two samples."""

    name: str
    workers: int
    depth: int
    """Of the inbox; of schedule, with the requests that wait in it; of ingress, live requests."""
    bound: int
    peak: int
    per_s: float
    """Messages handled; of ingress, requests taken in."""
    posted_per_s: float
    """Of those that came, how many by the control lane."""
    busy: float
    """Share of the time inside handle(), of one worker; of execute, that its device computed."""
    service_us: int | None
    """Of one handle(), on average; None where there was none."""
    wait_us: int | None
    """Of one data message in the inbox, on average."""
    batch: float | None
    """Messages that one handle() took, on average."""
    refused_per_s: float
    blocked: float
    """Senders that waited for room, on average."""


class Steps(msgspec.Struct, frozen=True, gc=False):
    """The latest steps, one column a value, oldest first."""

    id: list[int]
    prefill: list[int]
    decode: list[int]
    rows: list[int]
    device_us: list[int]
    gap_us: list[int]
    preempted: list[int]


class RequestView(msgspec.Struct, frozen=True, gc=False):
    id: int
    finish: str
    code: str
    prompt: int
    output: int
    preemptions: int
    e2e_us: int
    ttft_us: int | None
    segments_us: list[int]
    """messages.SEGMENTS; empty for a rejected one."""
    first_us: list[int]
    """Their part before the first token."""


class Spread(msgspec.Struct, frozen=True, gc=False):
    """Of the values of a moment; `worst` is the highest."""

    count: int
    p50_us: int
    worst_us: int


class Moment(msgspec.Struct, frozen=True, gc=False):
    """A point of the charts over time."""

    at_us: int
    ttft: Spread | None
    """Of requests that ended since the moment before."""
    itl: Spread | None
    """Between the results of two steps in a row, where the second has decode rows: what a client that reads
    a stream sees."""


class SwapView(msgspec.Struct, frozen=True, gc=False):
    """Another one was to take a stage's place."""

    at_us: int
    stage: str
    was: str
    now: str
    ending: str
    """swapped, rolled_back or refused."""
    reason: str
    """Why the one that served still does, else empty."""
    paused_us: int
    """How long the hand-over took."""


class Totals(msgspec.Struct, frozen=True, gc=False):
    """The whole server between two samples."""

    live: int
    running: int
    waiting: int
    refused_per_s: float
    requests_per_s: float
    prefill_per_s: float
    decode_per_s: float
    steps_per_s: float
    step_us: int | None
    """Device time of one step, on average."""
    gap_us: int | None
    cpu: float
    """Cores that the process used."""
    loop_cpu: float
    rss_bytes: int
    loop_lag_us: int


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    state: str
    """starting, ready or draining."""
    totals: Totals
    stages: list[StageView]
    moment: Moment
    steps: Steps
    requests: list[RequestView]
    swaps: list[SwapView]
    blocks: BlockMap | None
    """None where nothing has changed since the snapshot before, or the device is not ready."""


class LinkView(msgspec.Struct, frozen=True):
    source: str
    target: str
    carries: str
    is_control: bool


def link_view(link: Link) -> LinkView:
    return LinkView(link.source, link.target, link.carries.__name__, link.lane is Lane.CONTROL)


class About(msgspec.Struct, frozen=True):
    """What does not change while the server runs."""

    model: str
    door: str
    """The websocket to generate on; empty until it is open."""
    has_door: bool
    """There is one: the pipeline does not run embedded in a program."""
    has_chat: bool
    """The model has a chat template."""
    version: str = __version__
    segments: tuple[str, ...] = SEGMENTS
    stages: tuple[str, ...] = ()
    links: tuple[LinkView, ...] = ()


class Backlog(msgspec.Struct, frozen=True):
    """What a page that has just opened has missed."""

    moments: list[Moment]
    steps: Steps
    requests: list[RequestView]
    swaps: list[SwapView]
