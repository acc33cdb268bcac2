"""The faults that the doctor has to find, one scenario each: a server, a load, a fault, who is to blame."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from time import perf_counter
from typing import Any, NamedTuple

from msgspec.structs import replace

from pipeline.checkpoint.fake import byte_card
from pipeline.doctor import Constraint, Diagnosis, diagnose
from pipeline.telemetry import Evidence
from tests.e2e.faults import ROOMY, Price, blocked_loop, device, gc_storm, no_fault, small_send_buffers
from tests.e2e.load import Load, both, closed_loop, nothing, open_loop, slow_readers
from tests.e2e.world import Server, serving


class Scenario(NamedTuple):
    name: str
    blames: Constraint | None
    """What the first finding has to be; None: there must be none."""
    load: Load
    runner: Callable[[], Any] = device(Price())
    toml: str = ""
    fault: Callable[[Server], AbstractAsyncContextManager[None]] = no_fault


SCENARIOS = (
    Scenario(
        "tokenizer 20 times slower",
        Constraint.TOKENIZER,
        open_loop(60, 2.0, 8000, 2),
        device(Price(base=2), replace(ROOMY, num_blocks=65_536, max_num_batched_tokens=32_768)),
        toml='[stages.tokenize]\nworkers = 1\nuse = "tests.e2e.faults:SlowTokenize"\n',
    ),
    Scenario(
        "detokenizer slowed",
        Constraint.DETOKENIZER,
        closed_loop(8, 2.5, 20, 30),
        toml='[stages.detokenize]\nuse = "tests.e2e.faults:SlowDetokenize"\n',
    ),
    Scenario(
        "too few KV blocks",
        Constraint.KV_CAPACITY,
        closed_loop(16, 1.5, 60, 50),
        device(Price(), replace(ROOMY, num_blocks=32)),
    ),
    Scenario(
        "huge prefills among decodes",
        Constraint.TOKEN_BUDGET,
        both(closed_loop(6, 2.0, 16, 30), closed_loop(1, 2.0, 6000, 2)),
        device(Price(base=8, prefill=0.05)),
    ),
    Scenario(
        "batch cap of 1",
        Constraint.BATCH_CAP,
        closed_loop(12, 2.0, 20, 8),
        device(Price(), replace(ROOMY, max_num_seqs=1)),
    ),
    Scenario(
        "slow readers",
        Constraint.SLOW_CLIENTS,
        slow_readers(3, 8, 1200, 2.5),
        device(Price(base=1, row=0.0)),
        fault=small_send_buffers,
        toml="[stages.stream.options]\nclient_buffer_bytes = 1024\nflush_tokens = 1\nflush_ms = 0\n",
    ),
    Scenario(
        "blocking callback on the loop",
        Constraint.EVENT_LOOP,
        closed_loop(6, 3.5, 20, 20),
        fault=blocked_loop,
    ),
    Scenario(
        "host gap",
        Constraint.HOST_GAP,
        closed_loop(8, 2.5, 20, 30),
        device(Price(base=3, row=0.0)),
        toml='[stages.schedule]\nuse = "tests.e2e.faults:SlowSchedule"\n',
    ),
    Scenario(
        "burst over admission",
        Constraint.ADMISSION,
        both(closed_loop(2, 2.5, 20, 20), open_loop(400, 0.3, 20, 20)),
        toml="[stages.ingress.options]\nmax_live_requests = 16\n",
    ),
    Scenario(
        "GC storm",
        Constraint.GARBAGE_COLLECTOR,
        closed_loop(6, 3.0, 20, 20),
        fault=gc_storm,
    ),
    Scenario(
        "slow sampler",
        Constraint.SAMPLER,
        closed_loop(6, 2.5, 20, 20),
        toml='[stages.sample]\nuse = "tests.e2e.faults:SlowSample"\n',
    ),
    Scenario(
        "device compute saturated",
        Constraint.DEVICE_COMPUTE,
        open_loop(25, 2.0, 500, 4),
        device(Price(base=2, prefill=0.15, row=0.1), replace(ROOMY, max_num_batched_tokens=512)),
    ),
    Scenario(
        "device memory bandwidth",
        Constraint.DEVICE_BANDWIDTH,
        both(closed_loop(4, 2.0, 4000, 30), closed_loop(12, 2.0, 200, 20)),
        device(Price(base=2, prefill=0.002, row=0.05, kv=0.002)),
    ),
    Scenario("one stream, a device without rest", None, closed_loop(1, 1.5, 100, 30)),
    Scenario("idle server", None, nothing(1.2)),
    Scenario(
        "healthy, moderate load", None, open_loop(6, 3.0, 100, 20), device(Price(base=15, prefill=0.05))
    ),
)


async def observe(scenario: Scenario) -> Evidence:
    """Run it over real sockets; what the server knows of it."""
    async with serving(byte_card(), scenario.runner, scenario.toml) as server, scenario.fault(server):
        begin_s = perf_counter()
        await scenario.load(server.url)
        return server.pipeline.sampler.evidence(perf_counter() - begin_s)


async def judge(scenario: Scenario) -> Diagnosis:
    return diagnose(await observe(scenario))
