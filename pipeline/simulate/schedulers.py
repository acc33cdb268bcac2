"""Makes the scheduler that a cell runs: the server's, by the server's options."""

from collections.abc import Mapping

from pipeline.config import convert_options
from pipeline.core.policies import SchedulingOptions, make_policies
from pipeline.core.scheduling import Scheduler
from pipeline.messages import DeviceReady
from pipeline.simulate.replica import EOS


def read_options(options: Mapping[str, object]) -> SchedulingOptions:
    """Those of [stages.schedule.options] that are the scheduler's. Raises ConfigError."""
    return convert_options("the command line", "stages.schedule.options", options, SchedulingOptions)


def make_scheduler(options: SchedulingOptions, ready: DeviceReady) -> Scheduler:
    """Raises ConfigError."""
    return Scheduler(ready, (EOS,), make_policies(options, ready), allocation=options.allocation)
