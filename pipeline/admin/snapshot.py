"""Snapshots: from two samples, and what ended between them, to what the page is told. Pure.

Counters become rates, records become columns and sums; no record is walked twice.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from pipeline.admin.views import Moment, RequestView, Spread, StageView, Steps, SwapView, Totals
from pipeline.telemetry import Occupancy, RequestRecord, Sample, StageSample, StepRecord, SwapRecord

MAX_STEPS = 96
"""The page draws no more; of a faster device it sees the latest."""
MAX_REQUESTS = 16
_US = 1000


class Work(msgspec.Struct, frozen=True, gc=False):
    """Sums over records; of two stretches of time in a row they add up."""

    num_steps: int = 0
    device_ns: int = 0
    gap_ns: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    num_requests: int = 0
    num_at_door: int = 0
    """Those of them that have segments."""
    door_ns: int = 0


class Bounds(msgspec.Struct, frozen=True):
    """Of what stages hold beside their inboxes; 0 where a stage in its place has none."""

    max_live: int
    max_waiting: int


def work_of(requests: Sequence[RequestRecord], steps: Sequence[StepRecord]) -> Work:
    """The sums of these."""
    at_door_ns = [request.segments_ns[0] for request in requests if request.segments_ns]
    return Work(
        num_steps=len(steps),
        device_ns=sum(step.end_ns - step.begin_ns for step in steps),
        gap_ns=sum(step.host_gap_ns for step in steps),
        prefill_tokens=sum(step.num_prefill_tokens for step in steps),
        decode_tokens=sum(step.num_decode_tokens for step in steps),
        num_requests=len(requests),
        num_at_door=len(at_door_ns),
        door_ns=sum(at_door_ns),
    )


def together(parts: Iterable[Work]) -> Work:
    """Their sum."""
    return Work(*map(sum, zip(*map(msgspec.structs.astuple, parts), strict=True)))


def totals(
    before: Sample,
    now: Sample,
    work: Work,
    occupancy: Occupancy | None,
) -> Totals:
    """`work` is what ended between the samples."""
    elapsed_ns = max(1, now.at_ns - before.at_ns)
    per_s = 1e9 / elapsed_ns
    return Totals(
        live=now.num_live,
        running=occupancy.num_running if occupancy else 0,
        waiting=occupancy.num_waiting if occupancy else 0,
        refused_per_s=_refused_per_s(before, now),
        requests_per_s=round(work.num_requests * per_s, 2),
        prefill_per_s=round(work.prefill_tokens * per_s, 1),
        decode_per_s=round(work.decode_tokens * per_s, 1),
        steps_per_s=round(work.num_steps * per_s, 1),
        step_us=_mean_us(work.device_ns, work.num_steps),
        gap_us=_mean_us(work.gap_ns, work.num_steps),
        cpu=round((now.process_cpu_ns - before.process_cpu_ns) / elapsed_ns, 3),
        loop_cpu=round((_loop_ns(now) - _loop_ns(before)) / elapsed_ns, 3),
        rss_bytes=now.rss_bytes,
        loop_lag_us=now.loop_lag_ns // _US,
    )


def stage_views(
    before: Sample, now: Sample, work: Work, device_ns: int, occupancy: Occupancy | None, bounds: Bounds
) -> list[StageView]:
    """One a stage, in data order. `work` ended between the samples; the device computed for `device_ns`.

    Three are more than their inbox and handle() show: the door has live requests, the scheduler waiting ones,
    and what execute does is done by the device.
    """
    elapsed_ns = max(1, now.at_ns - before.at_ns)
    views = [_stage(a, b, elapsed_ns) for a, b in zip(before.stages, now.stages, strict=True)]
    own: dict[str, dict[str, object]] = {
        "execute": {"busy": round(max(0.0, min(1.0, device_ns / elapsed_ns)), 4)},
        "schedule": _with_waiting(_of(now, "schedule"), occupancy, bounds),
        "ingress": {
            "depth": now.num_live,
            "bound": bounds.max_live,
            "per_s": round(((now.num_received or 0) - (before.num_received or 0)) * 1e9 / elapsed_ns, 2),
            "service_us": _mean_us(work.door_ns, work.num_at_door),
            "refused_per_s": _refused_per_s(before, now),
        },
    }
    return [msgspec.structs.replace(view, **own.get(view.name, {})) for view in views]


def _of(sample: Sample, name: str) -> StageSample:
    return next(stage for stage in sample.stages if stage.name == name)


def _with_waiting(stage: StageSample, occupancy: Occupancy | None, bounds: Bounds) -> dict[str, object]:
    waiting = occupancy.num_waiting if occupancy else 0
    return {"depth": stage.depth + waiting, "bound": stage.bound + bounds.max_waiting}


def _stage(before: StageSample, now: StageSample, elapsed_ns: int) -> StageView:
    per_s = 1e9 / elapsed_ns
    batches = now.num_batches - before.num_batches
    messages = now.num_messages - before.num_messages
    busy_ns = now.busy_ns - before.busy_ns
    return StageView(
        name=now.name,
        workers=now.workers,
        depth=now.depth,
        bound=now.bound,
        peak=now.peak_depth,
        per_s=round(messages * per_s, 2),
        posted_per_s=round((now.posted - before.posted) * per_s, 2),
        busy=round(min(1.0, busy_ns / elapsed_ns / now.workers), 4),
        service_us=busy_ns // batches // _US if batches else None,
        wait_us=_mean_us(now.waited_ns - before.waited_ns, now.num_waited - before.num_waited),
        batch=round(messages / batches, 1) if batches else None,
        refused_per_s=round((now.refused - before.refused) * per_s, 2),
        blocked=round((now.blocked_ns - before.blocked_ns) / elapsed_ns, 3),
    )


def step_columns(steps: Sequence[StepRecord]) -> Steps:
    """The latest MAX_STEPS of them."""
    steps = steps[-MAX_STEPS:]
    return Steps(
        id=[step.step_id for step in steps],
        prefill=[step.num_prefill_tokens for step in steps],
        decode=[step.num_decode_tokens for step in steps],
        rows=[step.num_rows for step in steps],
        device_us=[(step.end_ns - step.begin_ns) // _US for step in steps],
        gap_us=[step.host_gap_ns // _US for step in steps],
        preempted=[step.num_preempted for step in steps],
    )


def request_views(requests: Sequence[RequestRecord]) -> list[RequestView]:
    """The latest MAX_REQUESTS of them, oldest first."""
    return [
        RequestView(
            id=request.request_id,
            finish=request.finish,
            code=request.code,
            prompt=request.num_prompt_tokens,
            output=request.num_output_tokens,
            preemptions=request.num_preemptions,
            e2e_us=request.e2e_ns // _US,
            ttft_us=None if request.ttft_ns is None else request.ttft_ns // _US,
            segments_us=[value_ns // _US for value_ns in request.segments_ns],
            first_us=[value_ns // _US for value_ns in request.ttft_segments_ns],
        )
        for request in requests[-MAX_REQUESTS:]
    ]


def swap_views(swaps: Sequence[SwapRecord]) -> list[SwapView]:
    """All of them, oldest first."""
    return [
        SwapView(
            at_us=swap.at_ns // _US,
            stage=swap.stage,
            was=swap.was,
            now=swap.now,
            ending=swap.ending,
            reason=swap.reason,
            paused_us=swap.paused_ns // _US,
        )
        for swap in swaps
    ]


def moment(at_ns: int, requests: Sequence[RequestRecord], steps: Sequence[StepRecord]) -> Moment:
    """`steps` begins with the last one of the moment before, so that no interval is lost."""
    ttfts_ns = [request.ttft_ns for request in requests if request.ttft_ns is not None]
    gaps_ns = [b.applied_ns - a.applied_ns for a, b in pairwise(steps) if b.num_decode_tokens]
    return Moment(at_ns // _US, _spread(ttfts_ns), _spread(gaps_ns))


def history(
    until_ns: int, tick_ns: int, requests: Sequence[RequestRecord], steps: Sequence[StepRecord]
) -> list[Moment]:
    """The moments before now that had anything in them, oldest first; for a page that has just opened."""
    by_tick: dict[int, tuple[list[RequestRecord], list[StepRecord]]] = {}
    for request in requests:
        tick = (until_ns - end_of(request)) // tick_ns
        by_tick.setdefault(tick, ([], []))[0].append(request)
    last: StepRecord | None = None
    for step in steps:
        kept = by_tick.setdefault((until_ns - step.applied_ns) // tick_ns, ([], []))[1]
        if not kept and last is not None:
            kept.append(last)
        kept.append(step)
        last = step
    return [moment(until_ns - tick * tick_ns, *by_tick[tick]) for tick in sorted(by_tick, reverse=True)]


def end_of(request: RequestRecord) -> int:
    """When it ended, ns."""
    return request.arrived_ns + request.e2e_ns


def _refused_per_s(before: Sample, now: Sample) -> float:
    return round((now.num_refused - before.num_refused) * 1e9 / max(1, now.at_ns - before.at_ns), 2)


def _loop_ns(sample: Sample) -> int:
    return sample.thread_cpu_ns.get("loop", 0)


def _mean_us(total_ns: int, count: int) -> int | None:
    return total_ns // count // _US if count else None


def _spread(values: list[int]) -> Spread | None:
    if not values:
        return None
    values.sort()
    return Spread(len(values), values[(len(values) - 1) // 2] // _US, values[-1] // _US)
