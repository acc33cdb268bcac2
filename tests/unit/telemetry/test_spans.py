from pipeline.telemetry.spans import SpanEvent, spans_of
from tests.unit.telemetry.records import MS, rejected, request, unserved


def test_the_root_is_named_and_described_by_the_conventions_for_generative_ai() -> None:
    root = spans_of(request(), "smol")[0]
    assert (root.name, root.begin_ns, root.end_ns, root.error) == ("chat smol", 1000 * MS, 1208 * MS, "")
    assert root.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "stageline",
        "gen_ai.request.model": "smol",
        "gen_ai.response.model": "smol",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": 0.055,
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 8,
        "gen_ai.usage.cache_read.input_tokens": 96,
        "stageline.request_id": 7,
        "stageline.num_preemptions": 1,
        "stageline.num_dropped_tokens": 0,
        "stageline.paused_ms": 0.0,
    }


def test_events_are_in_the_order_of_time() -> None:
    root = spans_of(request(preempted_ns=(1100 * MS, 1010 * MS)), "smol")[0]
    assert root.events == (
        SpanEvent("preempted", 1010 * MS),
        SpanEvent("first_token", 1055 * MS),
        SpanEvent("preempted", 1100 * MS),
    )


def test_the_children_fill_the_root() -> None:
    root, *children = spans_of(request(), "smol")
    assert [child.name for child in children] == [
        *("ingress", "tokenize", "schedule", "execute", "sample", "detokenize", "stream", "decode")
    ]
    assert [root.begin_ns, *(child.end_ns for child in children)] == [
        *(child.begin_ns for child in children),
        root.end_ns,
    ]
    assert children[3].attributes == {"stageline.wait_ms": 4.0, "stageline.service_ms": 20.0}
    assert children[-1].attributes["stageline.execute.wait_ms"] == 10.0


def test_a_completion_that_is_cancelled_is_no_error() -> None:
    root, *children = spans_of(unserved(is_chat=False), "smol")
    assert (root.name, root.error) == ("text_completion smol", "")
    assert (
        "error.type" not in root.attributes and "gen_ai.response.time_to_first_chunk" not in root.attributes
    )
    assert children[-1].name == "stream"


def test_faults_have_a_type() -> None:
    (root,) = spans_of(rejected(), "smol")
    assert root.error == root.attributes["error.type"] == "context_length_exceeded"
    root = spans_of(request(finish="error"), "smol")[0]
    assert root.error == root.attributes["error.type"] == "internal_error"
