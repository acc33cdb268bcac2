"""Agent sessions as kv-cache-tester ("weka") writes them: one JSON object a session; a file or a folder.

`requests` is a chain: each follows the answer before it, after the agent's think time. A `subagent` in it
is a chain of its own that begins after the request before it; the agent is not recorded to wait for it,
so nothing follows its end. Times are in seconds from the session's (a subagent's) start. A hash id stands
for a whole block of `block_size` tokens, so that there are floor(in / block_size), and is known only
within its file (`hash_id_scope` local).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from loadgen.errors import TraceError
from loadgen.traces.blocks import uniform
from loadgen.traces.format import Format, ReadOptions, Source, json_object
from loadgen.traces.row import NS_PER_S, Dropped, Note, TraceRow, usable

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Seconds = Annotated[float, msgspec.Meta(ge=0)]


class _Request(msgspec.Struct, rename={"num_input": "in", "num_output": "out"}):
    t: _Seconds
    type: Literal["n", "s", "subagent"]
    num_input: _Count = 0
    num_output: _Count = 0
    hash_ids: tuple[int, ...] = ()
    api_time: _Seconds | None = None
    """How long the answer took; None where it was not recorded."""
    requests: list["_Request"] = []


class _Session(msgspec.Struct):
    block_size: Annotated[int, msgspec.Meta(ge=1)]
    hash_id_scope: Literal["local", "global"]
    requests: list[_Request]


class _Before(msgspec.Struct, frozen=True):
    """The request that the next one follows."""

    number: int
    ended_s: float


def matches(source: Source) -> bool:
    files = _files(source)
    keys = {"block_size", "hash_id_scope", "requests"}
    return bool(files) and json_object(source.text(files[0])).keys() >= keys


def read(source: Source, options: ReadOptions) -> Iterator[TraceRow | Dropped | Note]:
    """See Format.read."""
    files = _files(source)
    number, num_untimed = 0, 0
    for path in files:
        reading = _Reading(path, _decode(source, path), options, number)
        yield from reading.rows()
        number, num_untimed = reading.number, num_untimed + reading.num_untimed
    if len(files) > 1:
        yield Note(f"{len(files)} sessions whose clocks are their own: all begin at once")
    if num_untimed:
        yield Note(
            f"{num_untimed} requests have no api_time: the think time after them has their answer's in it"
        )


def _files(source: Source) -> list[Path]:
    """The sessions: the file, or a folder's JSON files."""
    return [file for file in source.files if file.suffix == ".json" or not source.is_folder]


def _decode(source: Source, path: Path) -> _Session:
    try:
        return msgspec.json.decode(source.text(path), type=_Session)
    except msgspec.DecodeError as error:
        raise TraceError(f"{path}: {error}") from error


class _Reading:
    """One file's rows. `number` is that of the next one."""

    def __init__(self, path: Path, session: _Session, options: ReadOptions, number: int) -> None:
        self.number = number
        self.num_untimed = 0
        self._path = path
        self._session = session
        self._scope = path.name if session.hash_id_scope == "local" else ""
        self._size = options.block_size or session.block_size

    def rows(self) -> Iterator[TraceRow | Dropped]:
        return self._chain(self._session.requests, 0.0, None, "requests")

    def _chain(
        self, requests: list[_Request], start_s: float, before: _Before | None, where: str
    ) -> Iterator[TraceRow | Dropped]:
        """The rows of an agent that began at `start_s`, after `before`."""
        for i, request in enumerate(requests):
            at_s, place = start_s + request.t, f"{where}[{i}]"
            if request.type == "subagent":
                yield from self._chain(request.requests, at_s, before, f"{place}.requests")
                continue
            yield usable(self._row(request, at_s, before, f"{self._path}: {place}"))
            before = _Before(self.number, at_s + (request.api_time or 0.0))
            self.number += 1
            self.num_untimed += request.api_time is None

    def _row(self, request: _Request, at_s: float, before: _Before | None, where: str) -> TraceRow:
        blocks = uniform(
            request.hash_ids, self._size, request.num_input, where, last_is_partial=False, scope=self._scope
        )
        return TraceRow(
            round(at_s * NS_PER_S),
            request.num_input,
            request.num_output,
            content=blocks,
            after=None if before is None else before.number,
            think_s=None if before is None else max(0.0, at_s - before.ended_s),
        )


FORMAT = Format(
    "weka",
    "JSON with block_size, hash_id_scope and requests, or a folder of such files",
    matches,
    read,
    has_blocks=True,
)
