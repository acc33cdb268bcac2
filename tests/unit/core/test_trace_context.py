"""The rules of https://www.w3.org/TR/trace-context-2/, one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.trace_context import SpanContext, child_of, new_trace, parse_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_the_example_of_the_recommendation() -> None:
    context = parse_traceparent(f"00-{TRACE}-{SPAN}-01")
    assert context == SpanContext(TRACE, SPAN, 1)
    assert context.is_sampled
    assert str(context) == f"00-{TRACE}-{SPAN}-01"


def test_flags() -> None:
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-00") == SpanContext(TRACE, SPAN, 0)
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-03") == SpanContext(TRACE, SPAN, 3)
    unknown = parse_traceparent(f"00-{TRACE}-{SPAN}-ff")
    assert unknown is not None and unknown.flags == 3, "unknown flags must not be passed on"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",  # version 255 is forbidden
        f"00-{TRACE}-{SPAN}-01-extra",  # version 00 has nothing after the flags
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE}-{SPAN}-011",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN.upper()}-01",
        f"0A-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}0-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-0x",
        f"00_{TRACE}_{SPAN}_01",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"01-{TRACE}-{SPAN}-01.more",  # a later version may go on, but with a dash
        f"00-{TRACE[:-1]}٣-{SPAN}-01",  # a digit of another script
    ],
)
def test_invalid(text: str) -> None:
    assert parse_traceparent(text) is None


@pytest.mark.parametrize("rest", ["", "-", "-what-the-future-brings"])
def test_of_a_later_version_the_known_fields_are_read(rest: str) -> None:
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-01{rest}") == SpanContext(TRACE, SPAN, 1)


def test_a_child_stays_in_its_trace() -> None:
    child = child_of(SpanContext(TRACE, SPAN, 3), 0xAB)
    assert child == SpanContext(TRACE, "00000000000000ab", 3)


def test_ids_are_never_all_zero() -> None:
    assert new_trace(0, 0) == SpanContext("0" * 31 + "1", "0" * 15 + "1", 3)


@given(st.integers(0, (1 << 128) - 1), st.integers(0, (1 << 64) - 1))
def test_what_is_written_can_be_read(trace_bits: int, span_bits: int) -> None:
    context = new_trace(trace_bits, span_bits)
    assert parse_traceparent(str(context)) == context
    assert context.is_sampled


@given(st.text(max_size=70))
def test_any_text_is_read_or_refused(text: str) -> None:
    context = parse_traceparent(text)
    assert context is None or parse_traceparent(str(context)) == context
