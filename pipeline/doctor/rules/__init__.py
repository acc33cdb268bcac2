"""The rules: each is one function from Facts to a Finding, or to None where its constraint does not bind.

To add one: write the function in the file of its place in the pipeline, and name it in RULES.
"""

from collections.abc import Callable

from pipeline.doctor.diagnosis import Finding
from pipeline.doctor.facts import Facts
from pipeline.doctor.rules.device import device_bandwidth, device_compute
from pipeline.doctor.rules.door import admission, tokenizer
from pipeline.doctor.rules.host import host_gap, sampler
from pipeline.doctor.rules.process import event_loop, garbage_collector
from pipeline.doctor.rules.queue import batch_cap, kv_capacity, token_budget
from pipeline.doctor.rules.text import detokenizer, slow_clients

Rule = Callable[[Facts], Finding | None]

RULES: tuple[Rule, ...] = (
    admission,
    tokenizer,
    batch_cap,
    kv_capacity,
    token_budget,
    device_compute,
    device_bandwidth,
    host_gap,
    sampler,
    detokenizer,
    slow_clients,
    event_loop,
    garbage_collector,
)
"""In the order of the data, then of the process; which of two equal findings is first."""
