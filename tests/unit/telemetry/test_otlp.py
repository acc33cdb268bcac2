"""The spans as a collector decodes them from a real socket."""

import time
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Sent
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from pipeline.core.trace_context import SpanContext
from pipeline.telemetry import otlp
from pipeline.telemetry.otlp import OtlpSender
from pipeline.telemetry.spans import spans_of
from tests.collector import Collector, attributes, collecting
from tests.unit.telemetry.records import MS, rejected, request

OWN = SpanContext("a" * 32, "b" * 16, 1)


def sent(collector: Collector, record: Any, parent_span_id: str = "") -> list[Any]:
    sender = OtlpSender(collector.url)
    assert sender.send([(OWN, parent_span_id, spans_of(record, "smol"))])
    sender.close()
    return collector.spans


def test_ids_and_parents() -> None:
    with collecting() as collector:
        root, *children = sent(collector, request(), "c" * 16)
    assert collector.paths == ["/v1/traces"]
    assert root.trace_id.hex() == OWN.trace_id and root.span_id.hex() == OWN.span_id
    assert root.parent_span_id.hex() == "c" * 16
    assert {child.parent_span_id.hex() for child in children} == {OWN.span_id}
    assert {child.trace_id.hex() for child in children} == {OWN.trace_id}
    assert len({child.span_id for child in children} | {root.span_id}) == 9
    assert root.kind == Sent.SPAN_KIND_SERVER
    assert {child.kind for child in children} == {Sent.SPAN_KIND_INTERNAL}


def test_the_first_span_of_a_trace_has_no_parent() -> None:
    with collecting() as collector:
        root = sent(collector, request())[0]
    assert root.parent_span_id == b""


def test_times_are_wall_times_to_the_nanosecond() -> None:
    now_ns = time.perf_counter_ns()
    with collecting() as collector:
        root, *children = sent(collector, request(arrived_ns=now_ns, preempted_ns=(now_ns + 100 * MS,)))
    assert abs(root.start_time_unix_nano - time.time_ns()) < 10e9
    assert root.end_time_unix_nano - root.start_time_unix_nano == 208 * MS
    edges = [root.start_time_unix_nano, *(child.end_time_unix_nano for child in children)]
    assert edges == [*(child.start_time_unix_nano for child in children), root.end_time_unix_nano]
    events = [(event.name, event.time_unix_nano - root.start_time_unix_nano) for event in root.events]
    assert events == [("first_token", 55 * MS), ("preempted", 100 * MS)]


def test_attributes_and_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab")
    with collecting() as collector:
        root, _, tokenize, *_ = sent(collector, request())
    assert attributes(root) == dict(spans_of(request(), "smol")[0].attributes)
    assert attributes(tokenize) == {"stageline.wait_ms": 2.0, "stageline.service_ms": 3.0}
    assert collector.resource["service.name"] == "stageline"
    assert collector.resource["deployment.environment.name"] == "lab"


def test_an_error_is_the_status() -> None:
    with collecting() as collector:
        (root,) = sent(collector, rejected())
    assert (root.status.code, root.status.message) == (Status.STATUS_CODE_ERROR, "context_length_exceeded")


def fails(url: str) -> bool:
    try:
        return not OtlpSender(url).send([(OWN, "", spans_of(request(), "smol"))])
    except OSError:  # the SDK's older versions
        return True


def test_a_collector_that_refuses_hangs_or_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(otlp, "TIMEOUT_S", 0.3)
    with collecting() as collector:
        collector.status = 400
        assert fails(collector.url)
        collector.status = 200
        collector.go_on.clear()
        assert fails(collector.url)
    assert fails(collector.url)
    assert capfd.readouterr() == ("", ""), "the SDK has its own log lines; they are not for us"


def test_the_endpoint_may_have_the_path_already() -> None:
    with collecting() as collector:
        assert OtlpSender(f"{collector.url}/v1/traces/").send([(OWN, "", spans_of(request(), "smol"))])
    assert collector.paths == ["/v1/traces"]
