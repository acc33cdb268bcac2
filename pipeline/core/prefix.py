"""Prefix: the identity of a sequence's full blocks, each by all that comes before it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from pipeline.messages import PromptImage

KEY_BYTES = 32


class Link(NamedTuple):
    """One full block of a chain."""

    parent: bytes
    """The key of the block before it; of the first, whose it is."""
    tokens: bytes
    """Its token ids, 4 bytes each."""
    key: bytes


NOWHERE = -1


@dataclass(slots=True, eq=False)
class Entry:
    """The content of one full block, and where it can be read: in any of three tiers, or in several."""

    link: Link
    parent: "Entry | None"
    """The block before it. It is found only through this very one; None: it is the first of its chain."""
    depth: int = 0
    """Blocks before it."""
    block: int = NOWHERE
    """On the device,"""
    place: int = NOWHERE
    """in host memory, and"""
    shelf: int = NOWHERE
    """on disk."""
    is_from_disk: bool = False
    """It has been brought to host memory from there, and was not asked for since."""
    images: bytes = b""
    """Which have tokens in it: see images_in. Not known of what was found on disk."""

    def is_behind(self, parent: "Entry | None", link: Link, images: bytes = b"") -> bool:
        """It is the one block of that content which was computed behind `parent`."""
        return self.parent is parent and self.link == link and self.images == images

    @property
    def is_lost(self) -> bool:
        return self.block == self.place == self.shelf == NOWHERE


@dataclass(slots=True, eq=False)
class Prefix:
    """What the prefix cache remembers of one sequence."""

    links: list[Link] = field(default_factory=list)
    """Of its first blocks, as far as somebody has asked."""
    found: list[int] = field(default_factory=list)
    """The cached blocks that hold its first tokens, as of the latest look,"""
    found_at: int = 0
    """which was when so many blocks had been forgotten."""
    num_stored: int = 0
    """So many of the blocks it holds, from the first on, are those of the cache:"""
    entries: list[Entry] = field(default_factory=list)
    """these, and while it is being admitted those that are to be loaded behind them."""


class PrefixHash:
    """Keyed BLAKE2b (RFC 7693) over fields of fixed or stated length: a key stands for one chain of tokens.

    Nobody who does not know `secret` can make two chains meet, or tell from a key what it stands for.

    Args:
        model: its name: the blocks of another one are of no use.
        secret: 16 to 64 bytes, new at each start.
    """

    def __init__(self, block_size: int, model: str, secret: bytes) -> None:
        self.block_size = block_size
        self._model = model
        self._secret = secret
        self._pack: Callable[..., bytes] = Struct(f"<{block_size}I").pack

    def first(self, tenant: str, salt: str, token_ids: Iterable[int], images: bytes = b"") -> Link:
        """Of a chain that belongs to a tenant under a salt. `token_ids`: block_size of them.

        Args:
            images: what `images_in` says of the block.
        """
        return self._link(b"first", _framed(self._model, tenant, salt), token_ids, images)

    def after(self, link: Link, token_ids: Iterable[int], images: bytes = b"") -> Link:
        """The next one of its chain."""
        return self._link(b"after", link.key, token_ids, images)

    def _link(self, kind: bytes, parent: bytes, token_ids: Iterable[int], images: bytes) -> Link:
        tokens = self._pack(*token_ids)
        return Link(parent, tokens, self._hash(kind, parent + tokens + images))

    def _hash(self, kind: bytes, data: bytes) -> bytes:
        return blake2b(data, digest_size=KEY_BYTES, key=self._secret, person=kind).digest()


def images_in(images: Iterable[PromptImage], start: int, end: int) -> bytes:
    """Which images have tokens among start ... end - 1 of a prompt, and where: their token ids are all alike.

    A digest and its place, of fixed lengths, for each; empty where no image has.
    """
    return b"".join(
        image.start.to_bytes(8, "little") + image.digest
        for image in images
        if image.start < end and start < image.end
    )


def _framed(*fields: str) -> bytes:
    """Each with its length before it, so that no two lists of fields read the same."""
    parts: list[bytes] = []
    for each in fields:
        data = each.encode("utf-8", "surrogatepass")
        parts += (len(data).to_bytes(8, "little"), data)
    return b"".join(parts)
