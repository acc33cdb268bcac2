"""What is seen of a scheduler: a record of each step, and what it holds now."""

from pipeline.core.flights import Flight
from pipeline.core.scheduling import Scheduler
from pipeline.telemetry import Occupancy, StepRecord


def step_record(
    flight: Flight, times_ns: tuple[int, int, int, int, int], applied_ns: int, host_gap_ns: int
) -> StepRecord:
    planned_ns, begin_ns, end_ns, _, sampled_ns = times_ns
    return StepRecord(
        step_id=flight.step_id,
        planned_ns=planned_ns,
        begin_ns=begin_ns,
        end_ns=end_ns,
        sampled_ns=sampled_ns,
        applied_ns=applied_ns,
        host_gap_ns=host_gap_ns,
        num_rows=flight.num_rows,
        num_prefill_tokens=flight.num_prefill_tokens,
        num_decode_tokens=flight.num_decode_tokens,
        num_running=flight.num_running,
        num_waiting=flight.num_waiting,
        num_used_blocks=flight.num_used_blocks,
        num_kv_tokens=flight.num_kv_tokens,
        num_shared_tokens=flight.num_shared_tokens,
        num_preempted=len(flight.preempted_ids),
        worker=flight.worker,
    )


def occupancy(scheduler: Scheduler) -> Occupancy:
    return Occupancy(
        scheduler.num_running,
        scheduler.num_waiting,
        scheduler.pool.states(),
        scheduler.num_in_flight > 0,
    )


def gauges(scheduler: Scheduler) -> dict[str, float]:
    pins = scheduler.residents.pins
    return {
        "requests_running": scheduler.num_running,
        "requests_waiting": scheduler.num_waiting,
        "preemptions_total": scheduler.num_preemptions,
        "recomputed_requests_total": scheduler.recovery.num_recomputed,
        "preemptions_outranked_total": scheduler.num_outranked,
        "padding_tokens_total": scheduler.num_padding_tokens,
        "steps_total": scheduler.num_steps,
        "steps_in_flight": scheduler.num_in_flight,
        "kv_blocks": scheduler.pool.num_blocks,
        "kv_blocks_used": scheduler.pool.num_owned,
        "kv_blocks_cached": scheduler.pool.num_cached,
        "kv_blocks_saved": scheduler.pool.num_saved,
        "kv_dropped_blocks_total": scheduler.residents.num_dropped_blocks,
        **scheduler.residents.prefixes.gauges(),
        **scheduler.policies.gauges(),
        **(pins.gauges() if pins is not None else {}),
    }
