"""What the doctor says: plain values, ready for JSON."""

from enum import StrEnum
from typing import Literal

import msgspec


class Constraint(StrEnum):
    """What can hold a server back; the words of the JSON output and of docs/troubleshooting.md."""

    GENERATOR = "generator"
    ADMISSION = "admission"
    TOKENIZER = "tokenizer"
    BATCH_CAP = "batch_cap"
    KV_CAPACITY = "kv_capacity"
    TOKEN_BUDGET = "token_budget"
    DEVICE_COMPUTE = "device_compute"
    DEVICE_BANDWIDTH = "device_bandwidth"
    HOST_GAP = "host_gap"
    SAMPLER = "sampler"
    DETOKENIZER = "detokenizer"
    SLOW_CLIENTS = "slow_clients"
    EVENT_LOOP = "event_loop"
    GARBAGE_COLLECTOR = "garbage_collector"


class State(StrEnum):
    IDLE = "idle"
    """Nobody asked for anything."""
    HEALTHY = "healthy"
    CONSTRAINED = "constrained"
    """There is at least one finding."""
    UNKNOWN = "unknown"
    """Too little to judge by."""


class Advice(msgspec.Struct, frozen=True):
    """One thing to change."""

    setting: str
    """A key of config.toml, or what else there is to change."""
    change: str
    """From what to what; the number follows from the evidence."""


class Finding(msgspec.Struct, frozen=True):
    """A binding constraint."""

    constraint: Constraint
    title: str
    share: float
    """How much of `of` it explains, 0 to 1."""
    of: str
    """`p99 TTFT`, `p99 E2E` or `requests offered`."""
    severity: Literal["severe", "notable"]
    """severe: it explains half or more."""
    evidence: str
    advice: tuple[Advice, ...]
    worse: str
    """What the change costs."""


class Attribution(msgspec.Struct, frozen=True):
    """Where the time of the requests around one quantile went, as means in ns.

    The requests around the quantile of TTFT are others than those around the quantile of E2E.
    """

    percent: int
    num_requests: int
    """Around the quantile, of E2E."""
    num_output_tokens: float
    """Of each of them."""
    ttft_ns: float
    ttft_segments_ns: dict[str, float]
    """They add up to ttft_ns."""
    e2e_ns: float
    segments_ns: dict[str, float]
    """They add up to e2e_ns."""
    decode_segments_ns: dict[str, float]
    """The part of `segments_ns` after the first token."""


class StageState(msgspec.Struct, frozen=True):
    """One stage over the window; `device` is the device's own."""

    name: str
    workers: int
    utilisation: float
    """Share of its workers' time inside handle(); of sample and tokenize, waiting for a thread included."""
    peak_utilisation: float
    """In the busiest stretch between two samples; of the device, while it had work."""
    arrivals_per_s: float
    """Data messages into its inbox."""
    served_per_s: float
    """Messages handled, control lane included."""
    service_ms: float
    """Of a call of handle()."""
    wait_ms: float | None
    """Mean wait of a finished request before this stage, over its whole life; of the device, of a step."""
    mean_depth: float
    peak_depth: int
    bound: int


class Law(msgspec.Struct, frozen=True):
    """An identity that the numbers have to obey, whatever the server does."""

    name: str
    claim: str
    """With its numbers."""
    residual: float
    """Relative: 0 is exact."""
    holds: bool
    why: str
    """What may be the matter where it does not hold, else empty."""


class Diagnosis(msgspec.Struct, frozen=True):
    """The whole answer."""

    state: State
    verdict: str
    """One line."""
    window_s: float
    num_requests: int
    """Ended in the window, with segments."""
    findings: tuple[Finding, ...]
    """The one that explains most first."""
    attributions: tuple[Attribution, ...]
    stages: tuple[StageState, ...]
    laws: tuple[Law, ...]
    unknown: tuple[str, ...]
    """What these numbers cannot tell."""
