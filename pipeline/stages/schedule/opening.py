"""Opening: a scheduler for a device that says what it holds."""

import secrets

from pipeline.checkpoint.card import ModelCard
from pipeline.core.kv_events import KvEvents
from pipeline.core.policies import Policies, make_policies
from pipeline.core.prefix import PrefixHash
from pipeline.core.prefix_cache import NoSharing, PrefixCache, SharedPrefixes
from pipeline.core.roles import SEPARATIONS
from pipeline.core.scheduling import Scheduler
from pipeline.core.tiers import Tiers
from pipeline.messages import DeviceReady
from pipeline.stages.schedule.options import ScheduleOptions
from pipeline.telemetry import KvFeed, Telemetry


def open_scheduler(
    options: ScheduleOptions, ready: DeviceReady, card: ModelCard, telemetry: Telemetry
) -> Scheduler:
    """Empty. Raises ConfigError if the options do not suit the device."""
    policies = make_policies(options, ready)
    policies.retentions.check()
    return Scheduler(
        ready,
        card.eos_ids,
        policies,
        SEPARATIONS[options.separation],
        _prefixes(options, ready, card.name, policies, telemetry),
        options.allocation,
        options.max_pinned_blocks,
    )


def rekey(scheduler: Scheduler, ready: DeviceReady, card: ModelCard, telemetry: Telemetry) -> None:
    """The device is open again. A file that was begun anew has keys of its own."""
    prefixes = scheduler.residents.prefixes
    if ready.disk is None or not isinstance(prefixes, PrefixCache):
        return
    prefix_hash = PrefixHash(ready.block_size, card.name, ready.disk.secret)
    prefixes.rekey(prefix_hash)
    if telemetry.kv_events is not None:
        telemetry.kv_events = telemetry.kv_events._replace(prefix_hash=prefix_hash)


def _prefixes(
    options: ScheduleOptions, ready: DeviceReady, model: str, policies: Policies, telemetry: Telemetry
) -> SharedPrefixes:
    if not options.prefix_cache:
        return NoSharing()
    secret = ready.disk.secret if ready.disk else secrets.token_bytes(32)
    prefix_hash = PrefixHash(ready.block_size, model, secret)
    cost = policies.cost if ready.num_host_blocks else None
    tiers = Tiers(ready, policies.host, cost) if cost else None
    if not options.kv_events:
        return PrefixCache(prefix_hash, None, tiers)
    events = KvEvents(options.kv_events, secrets.token_bytes(32))
    telemetry.kv_events = KvFeed(events, prefix_hash, model, secrets.token_hex(4))
    return PrefixCache(prefix_hash, events, tiers)
