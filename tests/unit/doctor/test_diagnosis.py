"""The whole answer: attribution, order, JSON, and settings that exist."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from pipeline.doctor import Constraint, Diagnosis, diagnose
from pipeline.messages import SEGMENTS
from pipeline.telemetry import Evidence
from tests.unit.doctor.made import HEALTHY, MS, busy, evidence, request, requests, samples, steps

ROOT = Path(__file__).parents[3]
QUEUED = HEALTHY | {"schedule.wait": (900, 1000)}


def all_at_once() -> Evidence:
    """Blocks are short, clients slow, and some are refused."""
    short = steps(num_waiting=3, num_running=4, num_used_blocks=990)
    refusing = samples(lambda second: {"num_refused": second, "refused": {"queue_full": second}})
    slow = QUEUED | {"execute.service": (20, 1000)}
    return evidence(requests(40, slow, paused_ns=300 * MS), short, refusing)


def test_each_attribution_adds_up() -> None:
    mixed = (*requests(40), *requests(5, QUEUED))
    for each in diagnose(evidence(mixed)).attributions:
        assert sum(each.ttft_segments_ns.values()) == pytest.approx(each.ttft_ns)
        assert sum(each.segments_ns.values()) == pytest.approx(each.e2e_ns)
        assert all(0 <= each.decode_segments_ns[name] <= each.segments_ns[name] for name in SEGMENTS)
        assert tuple(each.segments_ns) == SEGMENTS


def test_p50_and_p99_are_of_different_requests() -> None:
    mixed = (*requests(95), *(request(k, QUEUED) for k in range(5)))
    p50, p99 = diagnose(evidence(mixed)).attributions
    assert (p50.percent, p99.percent) == (50, 99)
    assert p50.segments_ns["schedule.wait"] == 15 * MS and p99.segments_ns["schedule.wait"] == 1000 * MS


def test_stages_have_their_rates_waits_and_queues() -> None:
    full = samples(lambda second: {"stages": {"tokenize": {"depth": 4, "busy_ns": second * 1000 * MS}}})
    waits = requests(50, HEALTHY | {"tokenize.wait": (8, 8)})
    tokenize = next(s for s in diagnose(evidence(waits, of_samples=full)).stages if s.name == "tokenize")
    assert (tokenize.utilisation, tokenize.workers, tokenize.mean_depth) == (0.5, 2, 4.0)
    assert (tokenize.arrivals_per_s, tokenize.service_ms, tokenize.wait_ms) == (5.0, 200.0, 8.0)


def test_utilisation_knows_the_busiest_stretch() -> None:
    burst = samples(lambda second: {"stages": {"tokenize": {"busy_ns": 2000 * MS if second >= 5 else 0}}})
    tokenize = next(s for s in diagnose(evidence(of_samples=burst)).stages if s.name == "tokenize")
    assert (tokenize.utilisation, tokenize.peak_utilisation) == (0.1, 1.0)


def test_the_finding_that_explains_most_is_first() -> None:
    findings = diagnose(all_at_once()).findings
    assert [each.constraint for each in findings] == [
        Constraint.KV_CAPACITY,
        Constraint.SLOW_CLIENTS,
        Constraint.ADMISSION,
    ]
    assert [each.share for each in findings] == sorted((each.share for each in findings), reverse=True)


def test_json_there_and_back() -> None:
    diagnosis = diagnose(all_at_once())
    assert msgspec.json.decode(msgspec.json.encode(diagnosis), type=Diagnosis) == diagnosis


def test_evidence_saved_is_judged_the_same() -> None:
    saved = msgspec.json.decode(msgspec.json.encode(all_at_once()), type=Evidence)
    assert diagnose(saved) == diagnose(all_at_once())


def settings(table: dict[str, object], prefix: str = "") -> set[str]:
    """All keys of config.toml, dotted."""
    found = set()
    for name, value in table.items():
        found |= settings(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}"}
    return found


def test_every_setting_that_a_rule_names_exists() -> None:
    text = re.sub(r"^# (?=\w+ = )", "", (ROOT / "config.toml").read_text("utf-8"), flags=re.MULTILINE)
    known = settings(tomllib.loads(text))
    named = set()
    for path in (ROOT / "pipeline" / "doctor").rglob("*.py"):
        named |= set(re.findall(r'"((?:device|model|stages)\.[\w.]+\w)"', path.read_text("utf-8")))
    assert len(named) >= 8
    assert named <= known


def test_a_busy_stage_alone_changes_nothing() -> None:
    for name in ("tokenize", "schedule", "stream"):
        assert diagnose(evidence(of_samples=samples(busy(name, 0.99)))).findings == ()
