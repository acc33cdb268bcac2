"""Whatever a server recorded, the doctor judges it: it never raises, and its numbers are in order."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pipeline.doctor import State, diagnose
from pipeline.messages import SEGMENTS
from pipeline.telemetry import Evidence, RequestRecord, Sample, StepRecord
from pipeline.topology import NODES
from tests.unit.doctor.made import BEGIN, MS, SETTINGS, request, sample, step

SPAN_NS = 10_000 * MS
counts = st.integers(0, 5000)
times = st.integers(0, SPAN_NS)
spans = st.tuples(*[st.integers(0, 400 * MS)] * len(SEGMENTS))


@st.composite
def ended(draw: st.DrawFn) -> RequestRecord:
    whole, first = draw(spans), draw(spans)
    has_segments, has_first = draw(st.booleans()), draw(st.booleans())
    whole, first = (whole if has_segments else ()), (first if has_segments and has_first else ())
    return request(
        draw(st.integers(0, 60)),
        segments_ns=whole,
        ttft_segments_ns=first,
        e2e_ns=sum(whole),
        ttft_ns=sum(first) if first else None,
        code=draw(st.sampled_from(["", "wait_too_long", "kv_capacity_exceeded"])),
        num_prompt_tokens=draw(counts),
        num_output_tokens=draw(counts),
        paused_ns=draw(times),
    )


@st.composite
def applied(draw: st.DrawFn) -> StepRecord:
    fields = ("num_prefill_tokens", "num_decode_tokens", "num_running", "num_waiting", "num_used_blocks")
    drawn = {name: draw(counts) for name in (*fields, "num_kv_tokens", "num_preempted", "num_rows")}
    ms, gap_ns = draw(st.floats(0, 300)), draw(times)
    return step(draw(st.integers(0, 500)), ms=ms, host_gap_ns=gap_ns, **drawn)


@st.composite
def sampled(draw: st.DrawFn) -> Sample:
    """Of any moment; counters that fall are a server's fault, and no reason to fail."""
    stages = {
        node.name: {
            "busy_ns": draw(times),
            "blocked_ns": draw(times),
            "sent": draw(counts),
            "depth": draw(counts),
        }
        for node in NODES
    }
    return sample(
        0,
        stages,
        at_ns=BEGIN + draw(times),
        num_live=draw(counts),
        num_refused=draw(counts),
        refused=draw(st.dictionaries(st.sampled_from(["queue_full", "draining", "other"]), counts)),
        loop_lag_ns=draw(times),
        gc_pauses=draw(counts),
        gc_pause_ns=draw(times),
    )


@st.composite
def recorded(draw: st.DrawFn) -> Evidence:
    taken = sorted(draw(st.lists(sampled(), min_size=2, max_size=5)), key=lambda each: each.at_ns)
    taken[0], taken[-1] = replace(taken[0], at_ns=BEGIN), replace(taken[-1], at_ns=BEGIN + SPAN_NS)
    steps = sorted(draw(st.lists(applied(), max_size=40)), key=lambda each: each.begin_ns)
    return Evidence(
        begin_ns=BEGIN,
        end_ns=BEGIN + SPAN_NS,
        settings=SETTINGS,
        samples=tuple(taken),
        requests=tuple(draw(st.lists(ended(), min_size=1, max_size=20))),
        steps=tuple(steps),
    )


@given(recorded())
def test_any_evidence_is_judged(evidence: Evidence) -> None:
    diagnosis = diagnose(evidence)
    shares = [finding.share for finding in diagnosis.findings]
    assert all(0 < share <= 1 for share in shares) and shares == sorted(shares, reverse=True)
    assert (diagnosis.state is State.CONSTRAINED) == bool(diagnosis.findings)
    assert diagnosis.verdict
    for finding in diagnosis.findings:
        assert " nan" not in finding.evidence and " inf" not in finding.evidence
