"""KvFeed: the events of the prefix cache with what a subscriber must know to read them."""

from typing import NamedTuple

from pipeline.core.kv_events import KvEvents
from pipeline.core.prefix import PrefixHash


class KvFeed(NamedTuple):
    events: KvEvents
    prefix_hash: PrefixHash
    model: str
    start: str
    """Of this start of the server: numbers of another mean nothing."""

    def root(self, tenant: str, salt: str) -> str:
        """What the chains of a tenant's requests with this salt begin at."""
        return self.events.root(self.prefix_hash, tenant, salt)
