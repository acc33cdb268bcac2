"""What arrives: lengths and times, and how they may be changed. Every function is pure."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipeline.errors import ConfigError
from pipeline.messages import Terms

NS_PER_S = 1_000_000_000


class Arrival(NamedTuple):
    """One request of the workload. Times are from the first one's."""

    at_ns: int
    num_input: int
    num_output: int
    """Tokens until it ends by itself."""
    terms: Terms = Terms()
    max_tokens: int | None = None
    """What the client asks for at most, at least `num_output`; None: just that."""
    spans: tuple[tuple[int, int], ...] = ()
    """What the prompt shares with others: (id, tokens), equal ids being equal tokens; () is nothing known."""


TOKEN = 1
"""Stands for whatever was said."""
FIRST_ID = 16
"""Token ids from here on stand for the ids of spans."""


def prompt_of(arrival: Arrival) -> list[int]:
    """Its token ids: of one that names spans the same where these are the same."""
    token_ids: list[int] = []
    for span, num_tokens in arrival.spans:
        token_ids += [FIRST_ID + span] * min(num_tokens, arrival.num_input - len(token_ids))
    return token_ids + [TOKEN] * (arrival.num_input - len(token_ids))


Workload = Sequence[Arrival]
"""In order of arrival, the first at 0."""


def from_zero(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Sorted, with the first at 0. Raises ConfigError if there are none."""
    if not arrivals:
        raise ConfigError("the workload holds no request")
    ordered = sorted(arrivals, key=lambda arrival: arrival.at_ns)
    start_ns = ordered[0].at_ns
    return [arrival._replace(at_ns=arrival.at_ns - start_ns) for arrival in ordered]


def span_ns(workload: Workload) -> int:
    """From the first arrival to where the next one after the last would be, at the mean rate."""
    gaps = max(1, len(workload) - 1)
    return workload[-1].at_ns * (gaps + 1) // gaps


def rate(workload: Workload) -> float:
    """Requests/s; infinite where all arrive at once."""
    span = span_ns(workload)
    return len(workload) * NS_PER_S / span if span else float("inf")


def at_rate(workload: Workload, requests_per_s: float) -> list[Arrival]:
    """The same requests with all times stretched so that the mean rate is this: bursts stay bursts."""
    span = span_ns(workload)
    if not span:
        raise ConfigError("--rate and --load mean nothing for a workload whose requests all arrive at once")
    factor = len(workload) * NS_PER_S / span / requests_per_s
    return [arrival._replace(at_ns=int(arrival.at_ns * factor)) for arrival in workload]


def repeated(workload: Workload, times: int) -> list[Arrival]:
    """The workload `times` over, one after the other at its own rate."""
    span = span_ns(workload)
    return [
        arrival._replace(at_ns=arrival.at_ns + number * span)
        for number in range(times)
        for arrival in workload
    ]


def at_once(workload: Workload) -> list[Arrival]:
    """All are due at 0, in their order."""
    return [arrival._replace(at_ns=0) for arrival in workload]


def clamped(workload: Workload, max_input: int | None, max_output: int | None) -> list[Arrival]:
    return [
        arrival._replace(
            num_input=min(arrival.num_input, max_input or arrival.num_input),
            num_output=min(arrival.num_output, max_output or arrival.num_output),
        )
        for arrival in workload
    ]


def asking(workload: Workload, max_tokens: int) -> list[Arrival]:
    """Every client asks for `max_tokens`, or for as many as its answer has if that is more."""
    return [arrival._replace(max_tokens=max(max_tokens, arrival.num_output)) for arrival in workload]


def with_terms(workload: Workload, terms_of: Callable[[int, Arrival], Terms]) -> list[Arrival]:
    """Each with the terms that `terms_of(index, arrival)` gives."""
    return [arrival._replace(terms=terms_of(index, arrival)) for index, arrival in enumerate(workload)]
