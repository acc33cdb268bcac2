"""Copies of recorded messages."""

import msgspec

from pipeline import messages
from pipeline.bench.replay.anew import MOMENTS, anew, num_rows_of
from pipeline.bench.samples import Load, generate_request, step_handle, steps, token_batch
from pipeline.checkpoint.card import ModelCard
from pipeline.messages import SampledBatch
from pipeline.messages.stand_ins import RecordedStep

NO_MOMENTS = {
    "DeviceReady.block_copy_ns", "DiskMoved.fetch_ns", "SequenceTimes.base_ns", "TextBatch.elapsed_ns",
    "Timings.e2e_ns", "Timings.segments_ns", "Timings.ttft_ns", "Timings.ttft_segments_ns",
    "TokenBatch.elapsed_ns", "TokenizedRequest.segments_ns", "SampledBatch.times_ns",
}  # fmt: skip
"""How long something took; or, the last, moved by itself."""


def test_every_time_in_a_message_is_known() -> None:
    kinds = [
        each
        for each in vars(messages).values()
        if isinstance(each, type) and issubclass(each, msgspec.Struct)
    ]
    named = {
        f"{kind.__name__}.{name}" for kind in kinds for name in kind.__struct_fields__ if name.endswith("_ns")
    }
    moved = {f"{kind.__name__}.{name}" for kind, names in MOMENTS.items() for name in names}
    assert named == (moved - {"RecordedStep.begin_ns", "RecordedStep.end_ns"}) | NO_MOMENTS


def test_a_copy_is_later_and_shares_no_list(fake_card: ModelCard) -> None:
    load = Load.of(fake_card, 2)
    rows = next(steps(load))
    batch, request = token_batch(load, 1, rows, 100), generate_request(load, 1, 100)
    copy = anew(batch, 5)
    assert (copy.sent_ns, anew(request, 5).arrived_ns) == (105, 105)
    assert copy.request_ids == batch.request_ids
    assert copy.request_ids is not batch.request_ids
    step = anew(step_handle(load, 1, rows, 100), 5)
    assert isinstance(step, RecordedStep)
    assert (step.begin_ns, step.end_ns, step.plan.planned_ns) == (105, 105, 105)
    assert [num_rows_of(each) for each in (batch, request, step)] == [2, 1, 2]


def test_all_times_of_a_result_are_later() -> None:
    result = SampledBatch(1, [], [], [], (1, 2, 3, 4, 5))
    assert anew(result, 10).times_ns == (11, 12, 13, 14, 15)
