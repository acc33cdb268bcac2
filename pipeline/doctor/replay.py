"""What loadgen's result.json alone tells: where time went, whether the generator kept up, who was refused.

Read with structs of its own, since pipeline and loadgen import nothing of each other; fields that are not
read here are ignored.
"""

from collections.abc import Sequence

import msgspec

from pipeline.doctor.blame import NOTICEABLE_SHARE, Share, found
from pipeline.doctor.diagnosis import Advice, Attribution, Constraint, Diagnosis, Finding, State
from pipeline.doctor.rules.door import MIN_REFUSED

VERSION = 1
LATE = "generator: late"
REMAINDER = "network + client"
UNKNOWN = (
    "utilisation, batch, KV and device: ask the server while it runs (stageline doctor), or save its "
    "evidence beside the result (--save)",
    "where TTFT goes: a result has the segments of the whole answer only",
)


class Failure(msgspec.Struct):
    reason: str


class Timings(msgspec.Struct):
    e2e_ms: float
    segments_ms: dict[str, float]


class Request(msgspec.Struct):
    """Seconds after the start of the run."""

    intended_s: float
    sent_s: float | None = None
    chunk_s: list[float] = []
    output_tokens: int | None = None
    ended_by: str = "server"
    failure: Failure | None = None
    server_timings: Timings | None = None

    @property
    def is_finished(self) -> bool:
        return self.failure is None and self.ended_by == "server" and bool(self.chunk_s)

    @property
    def e2e_s(self) -> float:
        """From when it was due."""
        return self.chunk_s[-1] - self.intended_s

    @property
    def ttft_s(self) -> float:
        return self.chunk_s[0] - self.intended_s

    @property
    def late_s(self) -> float:
        return (self.sent_s if self.sent_s is not None else self.intended_s) - self.intended_s

    def parts_ns(self) -> dict[str, float]:
        """The whole from due time to last token, by who had it."""
        segments = self.server_timings.segments_ms if self.server_timings else {}
        parts = {LATE: self.late_s * 1e9, **{name: ms * 1e6 for name, ms in segments.items()}}
        return parts | {REMAINDER: max(0.0, self.e2e_s * 1e9 - sum(parts.values()))}


class Spread(msgspec.Struct):
    p99_ms: float


class Summary(msgspec.Struct):
    num_sent: int
    num_shed: int
    wall_s: float
    client_bound: list[str]
    loop_lag: Spread | None = None
    """How late the generator's own loop came."""


class Replay(msgspec.Struct):
    """A result.json. Its first field says of which version."""

    version: int
    summary: Summary
    requests: list[Request]


def diagnose_replay(replay: Replay) -> Diagnosis:
    """What a client's side alone can tell; `unknown` says what it cannot."""
    finished = sorted((r for r in replay.requests if r.is_finished), key=lambda r: r.e2e_s)
    attributions = tuple(_attribution(finished, percent) for percent in (50, 99)) if finished else ()
    findings = [f for f in (_generator(replay, attributions), _admission(replay)) if f is not None]
    return Diagnosis(
        state=State.CONSTRAINED if findings else State.UNKNOWN,
        verdict=_verdict(findings, attributions),
        window_s=replay.summary.wall_s,
        num_requests=len(finished),
        findings=tuple(findings),
        attributions=attributions,
        stages=(),
        laws=(),
        unknown=_unknown(replay),
    )


def _attribution(finished: Sequence[Request], percent: int) -> Attribution:
    """Of the requests around a quantile of E2E; their TTFT is not divided."""
    last = len(finished) - 1
    near = finished[round((percent - 2) / 100 * last) : round(min(1.0, (percent + 2) / 100) * last) + 1]
    names = dict.fromkeys(name for r in near for name in r.parts_ns())
    parts = {name: sum(r.parts_ns().get(name, 0.0) for r in near) / len(near) for name in names}
    return Attribution(
        percent=percent,
        num_requests=len(near),
        num_output_tokens=sum(r.output_tokens or 0 for r in near) / len(near),
        ttft_ns=sum(r.ttft_s for r in near) / len(near) * 1e9,
        ttft_segments_ns={},
        e2e_ns=sum(r.e2e_s for r in near) / len(near) * 1e9,
        segments_ns=parts,
        decode_segments_ns={},
    )


def _generator(replay: Replay, attributions: Sequence[Attribution]) -> Finding | None:
    """The generator was late, or read late, by a part of p99 that matters: that part is its own doing."""
    if not attributions:
        return None
    tail, lag = attributions[-1], replay.summary.loop_lag
    own_ns = tail.segments_ns[LATE] + (lag.p99_ms * 1e6 if lag else 0.0)
    share = min(1.0, own_ns / tail.e2e_ns)
    if share < NOTICEABLE_SHARE:
        return None
    reasons = "; ".join(replay.summary.client_bound) or "requests left late"
    return found(
        Constraint.GENERATOR,
        "The load generator cannot keep up",
        Share(share, own_ns, "p99 E2E"),
        f"{reasons}: these latencies are not the server's alone.",
        (
            Advice("loadgen", "cores of its own (taskset), or a machine of its own"),
            Advice("--speed", "lower: fewer requests a second"),
        ),
        "nothing: numbers that are the generator's say nothing of the server.",
    )


def _unknown(replay: Replay) -> tuple[str, ...]:
    """What a result cannot tell, and how exact it is."""
    reasons = "; ".join(replay.summary.client_bound)
    return (*UNKNOWN, f"times of the client to the last digit: {reasons}") if reasons else UNKNOWN


def _admission(replay: Replay) -> Finding | None:
    sent, shed = replay.summary.num_sent, replay.summary.num_shed
    if not shed or shed < MIN_REFUSED * sent:
        return None
    return found(
        Constraint.ADMISSION,
        "The door refuses requests",
        Share(shed / sent, 0.0, "requests offered"),
        f"{shed} of {sent} requests were refused (429, 503); if the device was busy, a result does not say.",
        (Advice("stages.ingress.options.max_live_requests", f"times {sent / max(1, sent - shed):.1f}"),),
        "those taken in wait longer, if the device is the limit: ask the server first.",
    )


def _verdict(findings: Sequence[Finding], attributions: Sequence[Attribution]) -> str:
    if findings:
        return f"{findings[0].title}: {findings[0].share:.0%} of {findings[0].of}."
    if not attributions:
        return "Not judged: no request of this result was finished."
    parts = attributions[-1].segments_ns
    most = max(parts, key=lambda name: parts[name])
    return (
        f"Most of p99 E2E is {most} ({parts[most] / attributions[-1].e2e_ns:.0%}); what binds there only the "
        "server's own evidence tells."
    )
