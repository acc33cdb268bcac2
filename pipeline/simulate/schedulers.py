"""Makes the scheduler that a cell runs: the server's, by the server's options."""

from collections.abc import Mapping
from dataclasses import replace

from pipeline.config import convert_options
from pipeline.core.policies import SchedulingOptions, make_policies
from pipeline.core.scheduling import Scheduler
from pipeline.messages import DeviceReady
from pipeline.simulate.fast_forward import Unlearned, learns_from_steps
from pipeline.simulate.replica import EOS


def make_scheduler(options: Mapping[str, object], ready: DeviceReady) -> Scheduler:
    """`options` as [stages.schedule.options] has them. Raises ConfigError."""
    table = convert_options("the command line", "stages.schedule.options", options, SchedulingOptions)
    policies = make_policies(table, ready)
    if not learns_from_steps(policies):
        policies = replace(policies, cost=Unlearned())
    return Scheduler(ready, (EOS,), policies)
