"""Makes the scheduler that a cell runs: the server's, by the server's options."""

from collections.abc import Mapping

from pipeline.config import convert_options
from pipeline.core.policies import SchedulingOptions, make_policies
from pipeline.core.scheduling import Scheduler
from pipeline.messages import DeviceReady
from pipeline.simulate.replica import EOS


def make_scheduler(options: Mapping[str, object], ready: DeviceReady) -> Scheduler:
    """`options` as [stages.schedule.options] has them. Raises ConfigError."""
    table = convert_options("the command line", "stages.schedule.options", options, SchedulingOptions)
    return Scheduler(ready, (EOS,), make_policies(table, ready))
