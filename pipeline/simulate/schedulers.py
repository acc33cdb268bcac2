"""Makes the scheduler that a cell runs: the server's, by the server's options."""

from collections.abc import Mapping

from pipeline.config import convert_options
from pipeline.core.policies import SchedulingOptions, make_policies
from pipeline.core.prefix import PrefixHash
from pipeline.core.prefix_cache import PrefixCache
from pipeline.core.scheduling import Scheduler
from pipeline.messages import DeviceReady
from pipeline.simulate.replica import EOS

SECRET = bytes(range(16))
"""There is nobody to hide from, and a run is to be the same again."""


def read_options(options: Mapping[str, object]) -> SchedulingOptions:
    """Those of [stages.schedule.options] that are the scheduler's. Raises ConfigError."""
    return convert_options("the command line", "stages.schedule.options", options, SchedulingOptions)


def make_scheduler(
    options: SchedulingOptions, ready: DeviceReady, *, shares_prefixes: bool = False
) -> Scheduler:
    """Raises ConfigError."""
    prefixes = PrefixCache(PrefixHash(ready.block_size, "simulated", SECRET)) if shares_prefixes else None
    policies = make_policies(options, ready)
    return Scheduler(ready, (EOS,), policies, prefixes=prefixes, allocation=options.allocation)
