from pipeline.telemetry import TraceSampler

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_callers_trace_goes_on_whether_or_not_there_is_an_exporter() -> None:
    for ratio in (0.0, 1.0):
        span = TraceSampler(ratio).span(f"00-{TRACE}-{SPAN}-01")
        assert span is not None
        assert (span.own.trace_id, span.parent_span_id, span.own.flags) == (TRACE, SPAN, 1)
        assert span.own.span_id != SPAN


def test_a_caller_that_does_not_sample_is_obeyed() -> None:
    span = TraceSampler(1.0).span(f"00-{TRACE}-{SPAN}-00")
    assert span is not None and not span.own.is_sampled


def test_without_an_exporter_no_request_begins_a_trace() -> None:
    sampler = TraceSampler()
    assert sampler.span(None) is None
    assert sampler.span("00-nonsense") is None


def test_an_invalid_traceparent_is_as_none() -> None:
    span = TraceSampler(1.0).span(f"00-{'0' * 32}-{SPAN}-01")
    assert span is not None
    assert span.parent_span_id == "" and span.own.is_sampled


def test_a_share_of_the_requests_begins_a_trace_each_its_own() -> None:
    sampler = TraceSampler(0.25)
    spans = [span for _ in range(4000) if (span := sampler.span(None))]
    assert 800 < len(spans) < 1200  # 7 standard deviations
    assert len({span.own.trace_id for span in spans}) == len(spans)
