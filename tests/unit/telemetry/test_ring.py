"""A ring gives back what was put in, and no more than it is meant to hold."""

import msgspec
import pytest

from pipeline.telemetry.ring import Ring


class Part(msgspec.Struct, frozen=True):
    name: str


class Record(msgspec.Struct, frozen=True):
    at_ns: int
    parts: tuple[Part, ...]
    delay_ns: int | None = None


def record(at_ns: int) -> Record:
    return Record(at_ns, (Part("a"), Part(str(at_ns))), at_ns if at_ns % 2 else None)


@pytest.fixture
def ring() -> Ring[Record]:
    ring = Ring(Record, 4)
    for at_ns in range(6):
        ring.append(record(at_ns))
    return ring


def test_it_holds_the_latest_as_they_were(ring: Ring[Record]) -> None:
    assert ring.latest() == [record(at_ns) for at_ns in (2, 3, 4, 5)]
    assert len(ring) == 4


@pytest.mark.parametrize(("count", "expected"), [(0, []), (2, [4, 5]), (9, [2, 3, 4, 5])])
def test_the_last_so_many(ring: Ring[Record], count: int, expected: list[int]) -> None:
    assert [each.at_ns for each in ring.latest(count)] == expected


@pytest.mark.parametrize(("since", "expected"), [(0, [2, 3, 4, 5]), (4, [4, 5]), (6, [])])
def test_since(ring: Ring[Record], since: int, expected: list[int]) -> None:
    assert [each.at_ns for each in ring.since(since, lambda each: each.at_ns)] == expected
