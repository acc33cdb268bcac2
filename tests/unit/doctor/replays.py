"""Results of loadgen, made up with its own code: what it writes is what the doctor must read."""

from loadgen.digest import Digest
from loadgen.machine import this_machine
from loadgen.record import Record, ServerTimings
from loadgen.result import VERSION, Result, TraceFacts, encode
from loadgen.summary import summarise
from pipeline.cli.doctor_source import judge
from pipeline.doctor import Diagnosis
from pipeline.messages import SEGMENTS

LATE_GENERATOR = "load generator too slow"


def record(index: int, *, late_s: float = 0.0, queue_s: float = 0.0, shed: bool = False) -> Record:
    """A request due every 0.1 s: sent `late_s` late, `queue_s` in the queue, 0.2 s of steps."""
    due_s = 0.1 * index
    made = Record(index, due_s, 10, 5, sent_s=due_s + late_s)
    if shed:
        made.fail("http_429", "full")
        return made
    for step in range(5):
        made.chunk(due_s + late_s + queue_s + 0.04 * (step + 1) + 0.002, 1)
    made.usage(10, 5)
    spent_ms = {"schedule.wait": 1000 * queue_s, "execute.service": 200.0}
    segments = {name: spent_ms.get(name, 0.0) for name in SEGMENTS}
    made.server_timings = ServerTimings(sum(spent_ms.values()), 1000 * queue_s + 40, segments)
    return made


def result(records: list[Record]) -> bytes:
    """A result.json."""
    digest = Digest("d", "l", "c", "s", "b", "t")
    return encode(
        Result(
            version=VERSION,
            started_at="2026-01-01T00:00:00+00:00",
            config={},
            machine=this_machine(),
            trace=TraceFacts("t.csv", "azure", "a", len(records), len(records), {}, 0, 0, []),
            workload=digest,
            summary=summarise(records, len(records), 0.1, [0.0001], None),
            verification=None,
            queues=[],
            requests=records,
        )
    )


def late_generator() -> Diagnosis:
    """Of a generator that sends later and later."""
    return judge(result([record(k, late_s=0.01 * k) for k in range(100)]), "result.json")
