from pipeline.telemetry.request_parts import STAGES, decode_part, stage_parts
from tests.unit.telemetry.records import ALL_MS, FIRST_MS, MS, rejected, request, unserved


def test_the_stages_fill_the_time_up_to_the_first_token() -> None:
    record = request()
    parts = stage_parts(record)
    assert [part.stage for part in parts] == list(STAGES)
    edges = [record.arrived_ns, *(part.end_ns for part in parts)]
    assert [part.begin_ns for part in parts] == edges[:-1]
    assert edges[-1] == record.arrived_ns + (record.ttft_ns or 0)


def test_a_stage_has_its_wait_and_its_service() -> None:
    parts = {part.stage: (part.wait_ns // MS, part.service_ns // MS) for part in stage_parts(request())}
    assert parts["ingress"] == (0, 1)
    assert parts["schedule"] == (10, 1)
    assert parts["stream"] == (2, 5)


def test_without_a_first_token_they_fill_the_whole_life() -> None:
    record = unserved()
    assert stage_parts(record)[-1].end_ns == record.arrived_ns + record.e2e_ns
    assert decode_part(record) is None


def test_a_rejected_request_has_no_parts() -> None:
    assert stage_parts(rejected()) == []
    assert decode_part(rejected()) is None


def test_a_wake_up_that_was_service_at_first_and_a_wait_in_the_end_is_a_wait() -> None:
    """See core.timeline: preempted in the wake-up that sent its first token."""
    changed = [value * MS for value in ALL_MS]
    changed[3], changed[4] = changed[3] + changed[4], 0
    part = decode_part(request(segments_ns=tuple(changed)))
    assert part is not None
    assert part.segments_ns["schedule.service"] == 0
    assert part.segments_ns["schedule.wait"] == (40 + 5 - 10 - 1) * MS
    assert sum(part.segments_ns.values()) - part.overlap_ns == part.end_ns - part.begin_ns


def test_decode_fills_the_rest_and_its_numbers_add_up() -> None:
    record = request()
    part = decode_part(record)
    assert part is not None
    assert (part.begin_ns, part.end_ns) == (1055 * MS, 1208 * MS)
    assert sum(part.segments_ns.values()) - part.overlap_ns == part.end_ns - part.begin_ns
    assert part.segments_ns["execute.service"] == 100 * MS
    assert part.segments_ns["stream.service"] == 8 * MS, "the last token's text, not a difference"
    assert part.overlap_ns == sum(FIRST_MS[9:]) * MS
    assert min(part.segments_ns.values()) >= 0
