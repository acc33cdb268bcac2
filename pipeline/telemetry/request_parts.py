"""The parts of one ended request, laid out in time: what spans, the Perfetto file and the slow log draw.

Up to the first token each stage has one part, one after the other: its wait and its service are sums, since a
long prompt goes round the step cycle several times. From the first token on there is one part, decode: there
the stages work on several steps at once, so their times are told as numbers and not as places.
"""

from typing import NamedTuple

from pipeline.messages import SEGMENTS, STEP_SEGMENTS
from pipeline.telemetry.journal import RequestRecord

STAGES = tuple(dict.fromkeys(name.partition(".")[0] for name in SEGMENTS))
"""In the order of SEGMENTS."""
_BEFORE_TEXT = slice(STEP_SEGMENTS.stop)


class StagePart(NamedTuple):
    """A stage's part, on the clock of the record. end_ns - begin_ns == wait_ns + service_ns."""

    stage: str
    begin_ns: int
    wait_ns: int
    service_ns: int

    @property
    def end_ns(self) -> int:
        return self.begin_ns + self.wait_ns + self.service_ns


class DecodePart(NamedTuple):
    """From the first token's write to the end.

    sum(segments_ns) - overlap_ns == end_ns - begin_ns: the steps after the first token's began while its text
    was still on its way, for as long as `overlap_ns`.
    """

    begin_ns: int
    end_ns: int
    segments_ns: dict[str, int]
    overlap_ns: int


def stage_parts(record: RequestRecord) -> list[StagePart]:
    """They fill the time up to the first token, or up to the end where there was none. Empty if rejected."""
    segments_ns = dict(zip(SEGMENTS, record.ttft_segments_ns or record.segments_ns, strict=False))
    parts: list[StagePart] = []
    at_ns = record.arrived_ns
    for stage in STAGES if segments_ns else ():
        part = StagePart(
            stage, at_ns, segments_ns.get(f"{stage}.wait", 0), segments_ns.get(f"{stage}.service", 0)
        )
        parts.append(part)
        at_ns = part.end_ns
    return parts


def decode_part(record: RequestRecord) -> DecodePart | None:
    """None for a request without a first token."""
    if record.ttft_ns is None:
        return None
    first_ns, all_ns = record.ttft_segments_ns, record.segments_ns
    spent_ns = dict(zip(SEGMENTS, all_ns, strict=True))
    for name, value_ns in zip(SEGMENTS[_BEFORE_TEXT], first_ns[_BEFORE_TEXT], strict=True):
        spent_ns[name] -= value_ns
    for name in SEGMENTS[: STEP_SEGMENTS.start]:
        del spent_ns[name]  # the door's: all of it was before the first token
    if spent_ns["schedule.service"] < 0:
        # preempted in the wake-up that sent its first token, which was service then and in the end a wait
        spent_ns["schedule.wait"] += spent_ns["schedule.service"]
        spent_ns["schedule.service"] = 0
    begin_ns, end_ns = record.arrived_ns + record.ttft_ns, record.arrived_ns + record.e2e_ns
    return DecodePart(begin_ns, end_ns, spent_ns, sum(first_ns[STEP_SEGMENTS.stop :]))
