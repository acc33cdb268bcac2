"""Makes the scheduler that a cell runs."""

from pipeline.core.scheduling import Scheduler
from pipeline.errors import ConfigError
from pipeline.messages import DeviceReady


def make_scheduler(options: dict[str, object], ready: DeviceReady) -> Scheduler:
    """`options` as [stages.schedule.options] has them. Raises ConfigError."""
    if options.get("policy", "fcfs") != "fcfs":
        raise ConfigError(f"--policy {options['policy']}: unknown; known: fcfs")
    return Scheduler(ready, eos_ids=())
