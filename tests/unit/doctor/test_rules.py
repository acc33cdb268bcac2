"""Each rule: the fault it names, and the neighbour that looks like it and is none."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from pipeline.doctor import Constraint, Diagnosis, Finding, State, diagnose
from tests.unit.doctor.made import (
    HEALTHY,
    MS,
    SECOND,
    SETTINGS,
    busy,
    evidence,
    packed,
    requests,
    samples,
    shaped,
    steps,
)


def named(diagnosis: Diagnosis) -> list[Constraint]:
    return [finding.constraint for finding in diagnosis.findings]


def only(diagnosis: Diagnosis, constraint: Constraint) -> Finding:
    """The one finding."""
    assert named(diagnosis) == [constraint]
    return diagnosis.findings[0]


def advised(finding: Finding) -> dict[str, str]:
    return {advice.setting: advice.change for advice in finding.advice}


def test_a_healthy_server_is_called_so() -> None:
    diagnosis = diagnose(evidence())
    assert (diagnosis.state, diagnosis.findings) == (State.HEALTHY, ())
    assert "Healthy" in diagnosis.verdict and "execute.service" in diagnosis.verdict


def test_nobody_asked() -> None:
    quiet = samples(lambda _: {"num_live": 0, "stages": {"tokenize": {"sent": 0}}})
    assert diagnose(evidence((), (), quiet)).state is State.IDLE


def test_a_device_that_is_always_busy_with_one_stream_is_healthy() -> None:
    alone = steps(600, ms=16.6, every_ms=16.7, num_rows=1, num_decode_tokens=1, num_running=1)
    assert diagnose(evidence(of_steps=alone)).findings == ()


def test_a_device_that_hardly_works_is_healthy() -> None:
    assert diagnose(evidence(of_steps=steps(20, every_ms=500.0, ms=5))).findings == ()


# The door ---------------------------------------------------------------------------------------

SLOW_TOKENIZE = HEALTHY | {"tokenize.wait": (300, 300), "tokenize.service": (80, 80)}


def test_tokenizer() -> None:
    finding = only(
        diagnose(evidence(requests(45, SLOW_TOKENIZE), of_samples=samples(busy("tokenize", 0.9, 2)))),
        Constraint.TOKENIZER,
    )
    assert finding.share == pytest.approx(380 / 410, abs=0.01) and finding.severity == "severe"
    assert advised(finding)["stages.tokenize.workers"] == "from 2 to 3"


def test_workers_that_wait_for_the_scheduler_are_not_to_blame() -> None:
    def blocked(second: int) -> Mapping[str, Any]:
        waited = {"blocked": second, "blocked_ns": int(second * SECOND * 0.9 * 2)}
        return {"stages": {"tokenize": {"busy_ns": int(second * SECOND * 0.9 * 2)}, "schedule": waited}}

    assert named(diagnose(evidence(requests(45, SLOW_TOKENIZE), of_samples=samples(blocked)))) == []


def test_busy_workers_that_nobody_waits_for_are_no_finding() -> None:
    assert diagnose(evidence(of_samples=samples(busy("tokenize", 0.95, 2)))).findings == ()


def refused(code: str, per_s: int) -> Mapping[str, Any]:
    return samples(lambda second: {"num_refused": per_s * second, "refused": {code: per_s * second}})


@pytest.mark.parametrize(
    ("code", "setting", "change"),
    [
        ("too_many_requests", "stages.ingress.options.max_live_requests", "from 1024 to 2048"),
        ("queue_full", "stages.tokenize.inbox", "from 256 to 512"),
        ("queue_wait", "stages.schedule.options.max_wait_ms", "2.0 times"),
    ],
)
def test_admission_names_the_limit(code: str, setting: str, change: str) -> None:
    finding = only(diagnose(evidence(of_samples=refused(code, 5))), Constraint.ADMISSION)
    assert finding.share == 0.5 and finding.of == "requests offered" and "hardly waited" in finding.evidence
    assert advised(finding)[setting].startswith(change)


def test_who_is_refused_while_the_server_drains_is_no_finding() -> None:
    assert diagnose(evidence(of_samples=refused("draining", 5))).findings == ()


def test_those_dropped_after_too_long_a_wait_count_as_refused() -> None:
    dropped = requests(10, {}, finish="rejected", code="wait_too_long", segments_ns=(), ttft_segments_ns=())
    finding = only(diagnose(evidence((*requests(40), *dropped))), Constraint.ADMISSION)
    assert "10 wait_too_long" in finding.evidence


# The queue --------------------------------------------------------------------------------------

QUEUED = HEALTHY | {"schedule.wait": (900, 1000)}


def full_slots(number: int) -> Mapping[str, Any]:
    rows = 6 + number % 3
    return {"num_waiting": 5, "num_running": 8, "num_rows": rows, "num_decode_tokens": rows}


def test_batch_cap() -> None:
    diagnosis = diagnose(evidence(requests(40, QUEUED), shaped(500, full_slots)))
    assert advised(only(diagnosis, Constraint.BATCH_CAP)) == {"device.max_num_seqs": "from 8 to 13"}


def test_no_larger_batch_where_a_step_grows_with_its_rows() -> None:
    def linear(number: int) -> Mapping[str, Any]:
        fields = full_slots(number)
        return {**fields, "ms": 0.5 + 2.5 * fields["num_rows"], "num_kv_tokens": 300 + number % 7}

    diagnosis = diagnose(evidence(requests(40, QUEUED), packed(500, linear)))
    assert Constraint.BATCH_CAP not in named(diagnosis)
    assert named(diagnosis)[0] is Constraint.DEVICE_COMPUTE


def test_kv_capacity() -> None:
    short = steps(num_waiting=3, num_running=4, num_used_blocks=990, num_kv_tokens=9000)
    finding = only(diagnose(evidence(requests(40, QUEUED), short)), Constraint.KV_CAPACITY)
    assert advised(finding) == {
        "device.num_blocks": "from 1000 to 1733 (or device.kv_memory)",
        "device.block_size": "from 16 to 8",
    }
    assert "43% of the used room is empty" in finding.evidence


def test_where_all_is_free_the_policy_holds_them() -> None:
    diagnosis = diagnose(evidence(requests(40, QUEUED), steps(num_waiting=3)))
    assert diagnosis.findings == () and any("policy" in each for each in diagnosis.unknown)


def test_a_short_wait_for_the_steps_under_way_is_no_queue() -> None:
    natural = HEALTHY | {"schedule.wait": (32, 32)}
    busy_slots = steps(num_waiting=1, num_running=8)
    assert diagnose(evidence(requests(40, natural), busy_slots)).findings == ()


def mixed(number: int) -> Mapping[str, Any]:
    """Every second step holds 200 prompt tokens at 0.2 ms each."""
    prefill = 200 if number % 2 else 0
    return {"num_prefill_tokens": prefill, "ms": 10 + 0.2 * prefill, "every_ms": 55.0}


def test_prefill_that_steals_from_decode() -> None:
    slowed = HEALTHY | {"execute.service": (60, 600)}
    diagnosis = diagnose(evidence(requests(40, slowed), shaped(180, mixed)))
    finding = only(diagnosis, Constraint.TOKEN_BUDGET)
    assert advised(finding)["stages.schedule.options.itl_stretch"] == "to 2"
    assert advised(finding)["device.max_num_batched_tokens"].startswith("instead, from 256 to 5")


def test_a_little_prefill_is_no_theft() -> None:
    slowed = HEALTHY | {"execute.service": (60, 600)}
    little = shaped(400, lambda number: {"num_prefill_tokens": 8 * (number % 2), "ms": 10 + (number % 2)})
    assert diagnose(evidence(requests(40, slowed), little)).findings == ()


def full_of_tokens(base_ms: float, token_ms: float) -> Callable[[int], Mapping[str, Any]]:
    """Steps full of prompts while others wait; every fifth has only decode rows."""

    def shape(number: int) -> Mapping[str, Any]:
        prefill = 240 if number % 5 else 0
        return {
            "num_waiting": 4 if prefill else 0,
            "num_prefill_tokens": prefill,
            "num_decode_tokens": 16,
            "ms": base_ms + token_ms * prefill,
        }

    return shape


def test_steps_too_small_for_the_prompts() -> None:
    diagnosis = diagnose(evidence(requests(40, QUEUED), packed(500, full_of_tokens(16, 0.01))))
    assert advised(only(diagnosis, Constraint.TOKEN_BUDGET)) == {
        "device.max_num_batched_tokens": "from 256 to 512"
    }


# The device -------------------------------------------------------------------------------------


def test_device_compute() -> None:
    diagnosis = diagnose(evidence(requests(40, QUEUED), packed(500, full_of_tokens(1, 0.08))))
    finding = only(diagnosis, Constraint.DEVICE_COMPUTE)
    assert "at most 12,500 tokens/s" in finding.evidence


def long_contexts(number: int) -> Mapping[str, Any]:
    held = 20_000 + 400 * (number * 7 % 50)
    rows = 6 + number % 3
    return {
        "num_kv_tokens": held,
        "num_running": rows,
        "num_decode_tokens": rows,
        "ms": 1 + held * 0.0005,
        "every_ms": 18.0,
    }


def test_device_bandwidth() -> None:
    diagnosis = diagnose(evidence(requests(40, HEALTHY), shaped(500, long_contexts)))
    finding = only(diagnosis, Constraint.DEVICE_BANDWIDTH)
    assert "grows with the tokens held" in finding.evidence


def test_host_gap() -> None:
    gaps = steps(500, ms=8.0, host_gap_ns=10 * MS)
    cycle = HEALTHY | {"schedule.wait": (30, 300)}
    finding = only(diagnose(evidence(requests(45, cycle), gaps)), Constraint.HOST_GAP)
    assert "56% of the cycle" in finding.evidence


def test_with_one_credit_the_gap_is_its_doing() -> None:
    gaps, cycle = steps(500, ms=8.0, host_gap_ns=10 * MS), HEALTHY | {"schedule.wait": (30, 300)}
    diagnosis = diagnose(evidence(requests(45, cycle), gaps, settings=replace(SETTINGS, credits=1)))
    assert advised(diagnosis.findings[0])["stages.schedule.options.credits"] == "from 1 to 2"


def test_rare_long_gaps_are_no_host_gap() -> None:
    rare = shaped(500, lambda number: {"host_gap_ns": 300 * MS if number % 50 == 0 else 0})
    cycle = HEALTHY | {"schedule.wait": (30, 300)}
    assert diagnose(evidence(requests(45, cycle), rare)).findings == ()


def test_sampler() -> None:
    slow = HEALTHY | {"sample.service": (40, 400)}
    diagnosis = diagnose(evidence(requests(45, slow), of_samples=samples(busy("sample", 0.9))))
    assert "stages.sample.use" in advised(only(diagnosis, Constraint.SAMPLER))


def test_a_sampler_that_waits_for_its_turn_on_the_loop_is_not_slow() -> None:
    waits = HEALTHY | {"sample.wait": (40, 400)}
    assert diagnose(evidence(requests(45, waits))).findings == ()


# The text side, and the process ------------------------------------------------------------------


def test_detokenizer() -> None:
    waits = HEALTHY | {"sample.wait": (40, 400), "detokenize.service": (10, 100)}
    diagnosis = diagnose(evidence(requests(45, waits), of_samples=samples(busy("detokenize", 0.9))))
    only(diagnosis, Constraint.DETOKENIZER)


def test_slow_clients() -> None:
    slow = requests(40, HEALTHY | {"schedule.wait": (10, 900)}, paused_ns=800 * MS)
    finding = only(diagnose(evidence(slow)), Constraint.SLOW_CLIENTS)
    assert "40 of 40 requests" in finding.evidence


def test_clients_that_keep_all_slots_without_reading_are_slow_and_the_cap_is_not_too_low() -> None:
    hogs = requests(8, HEALTHY | {"execute.service": (20, 5000)}, paused_ns=4900 * MS)
    diagnosis = diagnose(evidence((*hogs, *requests(40, QUEUED)), shaped(500, full_slots)))
    assert named(diagnosis)[0] is Constraint.SLOW_CLIENTS
    assert "76% of the time that these were taken" in diagnosis.findings[0].evidence


def test_a_blocked_loop() -> None:
    blocked = samples(lambda _: {"loop_lag_ns": 250 * MS})
    finding = only(diagnose(evidence(of_samples=blocked)), Constraint.EVENT_LOOP)
    assert "250 ms late (typically) in 10 of 10 samples" in finding.evidence


def test_a_loop_that_was_late_once_is_no_finding() -> None:
    once = samples(lambda second: {"loop_lag_ns": 250 * MS if second == 4 else 0})
    assert diagnose(evidence(of_samples=once)).findings == ()


def test_a_loop_that_waits_for_a_cpu_is_not_blocked() -> None:
    starved = samples(lambda second: {"loop_lag_ns": 120 * MS, "run_delay_ns": second * 300 * MS})
    diagnosis = diagnose(evidence(of_samples=starved))
    assert diagnosis.findings == () and any("30% of the time for a CPU" in each for each in diagnosis.unknown)


def test_waiting_for_a_cpu_does_not_excuse_a_long_stall() -> None:
    both = samples(lambda second: {"loop_lag_ns": 250 * MS, "run_delay_ns": second * 300 * MS})
    only(diagnose(evidence(of_samples=both)), Constraint.EVENT_LOOP)


def test_lateness_before_the_window_does_not_count() -> None:
    before = samples(lambda second: {"loop_lag_ns": 250 * MS if second in (0, 4) else 0})
    assert diagnose(evidence(of_samples=before)).findings == ()


def test_a_stage_whose_ordinary_call_takes_as_long_is_not_a_stray_callback() -> None:
    def late(second: int) -> Mapping[str, Any]:
        own = {"num_batches": second, "busy_ns": second * 200 * MS}
        return {"loop_lag_ns": 250 * MS, "stages": {"detokenize": own}}

    assert diagnose(evidence(of_samples=samples(late))).findings == ()


def test_garbage_collector() -> None:
    storm = samples(
        lambda second: {
            "loop_lag_ns": 250 * MS,
            "gc_pauses": 3 * second,
            "gc_pause_ns": second * 300 * MS,
            "gc_longest_ns": 240 * MS,
        }
    )
    finding = only(diagnose(evidence(of_samples=storm)), Constraint.GARBAGE_COLLECTOR)
    assert "30 collections took 30% of the time, the longest 240 ms" in finding.evidence


def test_collections_that_cost_little_are_no_finding() -> None:
    little = samples(lambda second: {"gc_pauses": 100 * second, "gc_pause_ns": second * 20 * MS})
    assert diagnose(evidence(of_samples=little)).findings == ()
