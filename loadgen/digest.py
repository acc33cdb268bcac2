"""What a run sends, in a few hashes: equal digests are equal requests at equal times."""

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from loadgen.content import Contents
from loadgen.traces.row import Blocks
from loadgen.workload import Job

_encode = msgspec.json.Encoder().encode


class Digest(msgspec.Struct, frozen=True):
    """SHA-256 over every job in order, field by field, so that a difference can be named."""

    due: str
    """When each is sent."""
    lengths: str
    """Tokens in and out."""
    content: str
    """Prompts as they are sent; of those made from hash ids, all that they are made from."""
    sessions: str
    """Which answer each follows, and the think times."""
    clients: str
    """What the clients do beside reading: patience, cancels and so on."""
    sha256: str
    """Of the five."""

    def differing(self, other: "Digest") -> list[str]:
        """Names of the fields that are not the same."""
        names = [name for name in self.__struct_fields__ if name != "sha256"]
        return [name for name in names if getattr(self, name) != getattr(other, name)]


def digest(jobs: list[Job], contents: Contents, made_from: object, clients: object) -> Digest:
    """Of a workload, before or after its run. Makes every prompt of text once more.

    Args:
        made_from: what, beside the jobs, the prompts from hash ids are a function of: seed and range.
        clients: whatever decides what the clients do, as plain data.
    """
    fields = (
        _sha256(job.due_s for job in jobs),
        _sha256((job.num_input, job.num_output) for job in jobs),
        _sha256(_content(job, contents, made_from) for job in jobs),
        _sha256((job.after, job.think_s, job.adds_turn) for job in jobs),
        _sha256([clients]),
    )
    return Digest(*fields, sha256=_sha256(fields))


def _content(job: Job, contents: Contents, made_from: object) -> Any:
    if isinstance(job.content, Blocks):  # a pure function of these; making 10,000 long prompts takes minutes
        return (made_from, job.content, job.num_input, job.index)
    return contents.prompt(job)


def _sha256(values: Iterable[object]) -> str:
    """One JSON value a line."""
    total = hashlib.sha256()
    for value in values:
        total.update(_encode(value) + b"\n")
    return total.hexdigest()
