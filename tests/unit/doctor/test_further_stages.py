"""Stages that a graph has besides the seven: the doctor names the one that is at fault."""

from typing import Any

from msgspec.structs import replace

from pipeline.doctor import Constraint, diagnose
from pipeline.doctor.facts import Facts
from pipeline.doctor.laws import conservation
from pipeline.telemetry import Evidence, Sample
from tests.unit.doctor.made import BEGIN, HEALTHY, SECOND, evidence, requests, samples, stage


def further(found: Evidence, name: str, *, after: str, share: float, workers: int = 1) -> Evidence:
    """With one more stage, so busy."""

    def one(each: Sample) -> Sample:
        second = (each.at_ns - BEGIN) // SECOND
        more: dict[str, Any] = {"workers": workers, "busy_ns": int(second * SECOND * share * workers)}
        place = [known.name for known in each.stages].index(after) + 1
        stages = (*each.stages[:place], stage(name, second, **more), *each.stages[place:])
        return replace(each, stages=stages)

    return replace(found, samples=tuple(map(one, found.samples)))


def test_a_filter_that_takes_the_loop() -> None:
    waits = HEALTHY | {"sample.wait": (40, 400), "stream.wait": (10, 100)}
    slow = further(evidence(requests(45, waits)), "house_rules", after="detokenize", share=0.9)
    (finding,) = diagnose(slow).findings
    assert (finding.constraint, finding.title) == (Constraint.DETOKENIZER, "house_rules holds the steps back")
    assert finding.advice[0].setting == "stages.house_rules.use"


def test_a_filter_that_waits_for_the_next_stage_is_not_to_blame() -> None:
    waits = HEALTHY | {"sample.wait": (40, 400), "stream.wait": (10, 100)}
    blocked = samples(lambda second: {"stages": {"stream": {"blocked_ns": int(second * SECOND * 0.9)}}})
    slow = further(
        evidence(requests(45, waits), of_samples=blocked), "house_rules", after="detokenize", share=0.9
    )
    assert diagnose(slow).findings == ()


def test_the_pool_that_is_busy() -> None:
    waits = HEALTHY | {"tokenize.wait": (300, 300), "tokenize.service": (80, 80)}
    found = further(evidence(requests(45, waits)), "tokenize_urgent", after="tokenize", share=0.9)
    (finding,) = diagnose(found).findings
    assert finding.constraint is Constraint.TOKENIZER
    assert finding.title == "tokenize_urgent is too slow for the prompts that come"
    assert finding.advice[0].setting == "stages.tokenize_urgent.workers"


def test_a_healthy_server_is_one_with_them_too() -> None:
    found = further(evidence(), "house_rules", after="detokenize", share=0.01)
    assert diagnose(further(found, "tokenize_urgent", after="tokenize", share=0.01)).findings == ()


def test_requests_are_counted_at_the_door_wherever_they_go() -> None:
    """50 came; half of them to another pool, and somebody asked tokenize for token ids."""
    told = samples(lambda second: {"num_received": 5 * second, "stages": {"tokenize": {"sent": 9 * second}}})
    facts = Facts(evidence(requests(50), of_samples=told))
    assert facts.num_taken == 50 and conservation(facts).holds
