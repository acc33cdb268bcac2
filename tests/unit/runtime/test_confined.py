"""A confined process: limits of time and memory, nothing to open, and another one after its death."""

import os
import time
from collections.abc import Iterator

import pytest

from pipeline.runtime.confined import Bounds, Confined

WORKER = "tests.confined_worker"


@pytest.fixture(scope="module")
def confined() -> Iterator[Confined]:
    confined = Confined(WORKER, b"opened ", Bounds(cpu_s=1, memory_bytes=64 << 20))
    yield confined
    confined.close()
    confined.close()
    assert confined.pid is None


def test_it_is_opened_once_and_answers(confined: Confined) -> None:
    assert confined.ask(b"hello", 10) == b"opened hello"
    pid = confined.pid
    assert confined.ask(b"large", 10) == b"opened " + bytes(3_000_000)
    assert confined.pid == pid is not None


@pytest.mark.parametrize("what", [b"file", b"socket"])
def test_it_can_open_nothing(confined: Confined, what: bytes) -> None:
    assert confined.ask(what, 10) == b"OSError"


def test_it_gets_no_more_memory(confined: Confined) -> None:
    assert confined.ask(b"memory", 10) == b"MemoryError"


def test_what_takes_too_long_is_ended_and_the_next_question_answered(confined: Confined) -> None:
    began_s = time.monotonic()
    assert confined.ask(b"sleep", 0.2) is None and confined.pid is None
    assert time.monotonic() - began_s < 10
    assert confined.ask(b"hello", 10) == b"opened hello"


def test_cpu_time_is_limited_by_the_kernel(confined: Confined) -> None:
    assert confined.ask(b"spin", 60) is None
    assert confined.ask(b"hello", 10) == b"opened hello"


def test_after_its_death_there_is_another(confined: Confined) -> None:
    confined.start()
    pid = confined.pid
    assert pid is not None
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert confined.ask(b"hello", 10) == b"opened hello" and confined.pid != pid


def test_a_module_that_does_not_start_is_a_fault() -> None:
    with pytest.raises(RuntimeError, match=r"tests\.no_such_worker does not start"):
        Confined("tests.no_such_worker", b"", Bounds(1, 1)).ask(b"", 1)
