"""From times to a finding: what a constraint explains of the slow requests, and if that is worth a word."""

from typing import NamedTuple

from pipeline.doctor.diagnosis import Advice, Attribution, Constraint, Finding
from pipeline.doctor.facts import Facts

NOTICEABLE_SHARE = 0.2
"""Of p99 TTFT or E2E. Below a fifth, removing the whole cause gains less than p99 differs from run to run."""
NOTICEABLE_NS = 20_000_000
"""And at least this much: no reader notices 20 ms, and a machine busy with other work makes as much."""
SEVERE_SHARE = 0.5
"""The larger part."""


class Blame(NamedTuple):
    """Times of the p99 requests that a constraint explains, in ns."""

    ttft_ns: float = 0.0
    e2e_ns: float = 0.0

    def __add__(self, other: object) -> "Blame":
        if not isinstance(other, Blame):
            return NotImplemented
        return Blame(self.ttft_ns + other.ttft_ns, self.e2e_ns + other.e2e_ns)

    def times(self, ttft: float, e2e: float | None = None) -> "Blame":
        """Parts of both; one number is for both."""
        return Blame(self.ttft_ns * ttft, self.e2e_ns * (ttft if e2e is None else e2e))


class Share(NamedTuple):
    """The larger of what is explained of p99 TTFT and of p99 E2E."""

    share: float
    ns: float
    of: str


def segments(tail: Attribution, *names: str) -> Blame:
    """All the time of these segments, before the first token and in the whole."""
    return Blame(
        sum(tail.ttft_segments_ns.get(name, 0.0) for name in names),
        sum(tail.segments_ns.get(name, 0.0) for name in names),
    )


def noticeable(facts: Facts, blame: Blame) -> Share | None:
    """None if it is too little to speak of, in both."""
    tail = facts.p99
    shares = [
        Share(min(1.0, ns / whole_ns), ns, of)
        for ns, whole_ns, of in (
            (blame.ttft_ns, tail.ttft_ns, "p99 TTFT"),
            (blame.e2e_ns, tail.e2e_ns, "p99 E2E"),
        )
        if whole_ns and ns >= NOTICEABLE_NS and ns >= NOTICEABLE_SHARE * whole_ns
    ]
    return max(shares, default=None)


def found(
    constraint: Constraint, title: str, share: Share, evidence: str, advice: tuple[Advice, ...], worse: str
) -> Finding:
    """The share's numbers end the evidence."""
    what = f"It explains {share.share:.0%} of {share.of} ({share.ns / 1e6:,.0f} ms)." if share.ns else ""
    return Finding(
        constraint=constraint,
        title=title,
        share=share.share,
        of=share.of,
        severity="severe" if share.share >= SEVERE_SHARE else "notable",
        evidence=f"{evidence} {what}".rstrip(),
        advice=advice,
        worse=worse,
    )
