"""KvEvents: what the prefix cache holds on the device, told to whoever asks, as it changes.

For routers that send a request where its prefix is cached. Events are numbered from 1; the latest are kept in
a ring, so that a subscriber that was away for a while goes on where it was. One that was away for too long is
given all that is held: the sum of all events. No task, no queue: who subscribes is called, and reads.
"""

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from struct import unpack
from typing import Literal, NamedTuple

from pipeline.core.prefix import Link, PrefixHash

Kind = Literal["stored", "removed", "cleared"]
ROOT_BYTES = 16


class Event(NamedTuple):
    """A block was filled, or taken to be written anew. `cleared`: forget all that was told before."""

    seq: int
    kind: Kind
    link: Link | None = None
    """None where all is cleared."""
    is_first: bool = False
    """Of its chain: link.parent is then whose it is, not a key."""


class KvEvents:
    """Single loop. A block stored or removed costs an append and an entry of a dict.

    Args:
        capacity: events that are kept.
        secret: of this start; names what must not be read: whose a chain is.
    """

    def __init__(self, capacity: int, secret: bytes) -> None:
        self.last_seq = 0
        self._secret = secret
        self._ring: deque[Event] = deque(maxlen=capacity)
        self._held: dict[bytes, Event] = {}
        """`stored`, by key; a parent's before its children's: it is stored before, and removed after them."""
        self._listeners: list[Callable[[], None]] = []
        self._append("cleared")

    @property
    def first_seq(self) -> int:
        """The oldest event that is kept."""
        return self._ring[0].seq

    def stored(self, link: Link) -> None:
        self._held[link.key] = self._append("stored", link, link.parent not in self._held)

    def removed(self, link: Link) -> None:
        del self._held[link.key]
        self._append("removed", link)

    def cleared(self) -> None:
        """Nothing is held any more."""
        self._held.clear()
        self._append("cleared")

    def since(self, seq: int) -> list[Event] | None:
        """Those from number `seq` on; None if that one is no longer kept, or was never told."""
        if not self.first_seq <= seq <= self.last_seq + 1:
            return None
        return list(self._ring)[seq - self.first_seq :]

    def snapshot(self) -> list[Event]:
        """All that is held, parents first, behind a `cleared`; as of number `last_seq`, which all bear."""
        seq = self.last_seq
        return [Event(seq, "cleared"), *(each._replace(seq=seq) for each in self._held.values())]

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every event, until `unsubscribe`. It must return at once."""
        self._listeners.append(listener)

    def unsubscribe(self, listener: Callable[[], None]) -> None:
        self._listeners.remove(listener)

    def parent_of(self, stored: Event) -> str:
        """The key of the block before it, or the root that its chain begins at."""
        assert stored.link is not None, "only what is stored has a parent"
        parent = stored.link.parent
        return self._root(parent) if stored.is_first else parent.hex()

    def root(self, prefix_hash: PrefixHash, tenant: str, salt: str) -> str:
        """What the first blocks of a tenant's requests with this salt name as their parent."""
        no_tokens = [0] * prefix_hash.block_size
        return self._root(prefix_hash.first(tenant, salt, no_tokens).parent)

    def gauges(self) -> dict[str, float]:
        return {"kv_events_total": self.last_seq, "kv_events_subscribers": len(self._listeners)}

    def _root(self, whose: bytes) -> str:
        return "root-" + blake2b(whose, digest_size=ROOT_BYTES, key=self._secret, person=b"root").hexdigest()

    def _append(self, kind: Kind, link: Link | None = None, is_first: bool = False) -> Event:
        self.last_seq += 1
        event = Event(self.last_seq, kind, link, is_first)
        self._ring.append(event)
        for listener in self._listeners:
            listener()
        return event


def token_ids_of(link: Link) -> tuple[int, ...]:
    """Of its block."""
    return unpack(f"<{len(link.tokens) // 4}I", link.tokens)
