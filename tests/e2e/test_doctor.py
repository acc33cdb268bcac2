"""The doctor over real sockets: each seeded fault is named first, and nothing where there is no fault."""

import asyncio
from collections.abc import Mapping

import msgspec
import pytest

from pipeline.doctor import Constraint, Diagnosis, State
from tests.e2e.confusion import EXPECTED, documented, first, judge_all, table


@pytest.fixture(scope="module")
def judged() -> Mapping[str, Diagnosis]:
    return asyncio.run(judge_all())


@pytest.mark.parametrize("name", EXPECTED)
def test_the_seeded_fault_is_named_first(judged: Mapping[str, Diagnosis], name: str) -> None:
    diagnosis = judged[name]
    assert first(diagnosis) == EXPECTED[name], msgspec.json.format(msgspec.json.encode(diagnosis)).decode()


@pytest.mark.parametrize("name", [name for name, blamed in EXPECTED.items() if blamed is None])
def test_where_there_is_no_fault_there_is_no_finding(judged: Mapping[str, Diagnosis], name: str) -> None:
    assert judged[name].findings == ()
    assert judged[name].state is (State.IDLE if "idle" in name else State.HEALTHY)


def test_every_constraint_has_its_scenario(judged: Mapping[str, Diagnosis]) -> None:
    assert {blamed for blamed in EXPECTED.values() if blamed} == set(Constraint)


def test_a_finding_says_what_to_do(judged: Mapping[str, Diagnosis]) -> None:
    for diagnosis in judged.values():
        for finding in diagnosis.findings:
            assert any(character.isdigit() for character in finding.evidence), finding
            assert finding.advice and finding.worse


def test_the_laws_hold_in_every_scenario(judged: Mapping[str, Diagnosis]) -> None:
    for name, diagnosis in judged.items():
        assert [law for law in diagnosis.laws if not law.holds] == [], name


def test_the_documented_matrix_is_what_a_run_gives(judged: Mapping[str, Diagnosis]) -> None:
    assert documented() == table({name: first(diagnosis) for name, diagnosis in judged.items()})
