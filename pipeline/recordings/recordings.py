"""Recordings: begins and ends them while the pipeline runs, and knows where their files are."""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any, TypeVar

import msgspec
import structlog

from pipeline import __version__
from pipeline.checkpoint.card import ModelCard
from pipeline.errors import ConfigError, RequestError, StagelineError
from pipeline.messages import NO_TOKEN, DeviceReady, StepHandle
from pipeline.messages import recorded as codec
from pipeline.messages.prose import TEXT, Prose
from pipeline.messages.redaction import Redactor
from pipeline.recordings.places import Place, place_named
from pipeline.recordings.wanted import Bounds, Rules, State, Wanted
from pipeline.runtime.recorder import Recorder, Writing
from pipeline.runtime.recording import Header
from pipeline.runtime.recording_file import RecordingFile
from pipeline.runtime.supervisor import AnyStage
from pipeline.topology import Graph

N = TypeVar("N", int, float)
MAX_FILES = 32
"""That are known at the same time: whoever begins another one must remove one."""


class _Kept:
    """One recording, under way or ended."""

    def __init__(self, place: Place, header: Header, bounds: Bounds, recorder: Recorder) -> None:
        self.place, self.header, self.bounds, self.recorder = place, header, bounds, recorder
        self.ended_ns: int | None = None

    @property
    def state(self) -> State:
        recorder, file = self.recorder, self.recorder.file
        until_ns = perf_counter_ns() if self.ended_ns is None else self.ended_ns
        return State(
            id=file.path.name,
            link=self.place.name,
            is_redacted=self.header.is_redacted,
            begun_at=self.header.begun_at,
            seconds=(until_ns - self.header.begin_ns) / 1e9,
            num_bytes=file.num_bytes,
            num_messages=file.num_messages,
            num_lost=recorder.num_lost,
            bounds=self.bounds,
            ended=file.fault or recorder.reason,
        )


class Recordings:
    """Implements runtime.supervisor.Companion. Single loop.

    Args:
        stages: each stage's instances, changed in place when others take over.
        device: what it holds, once that is known.
    """

    def __init__(
        self,
        stages: Mapping[str, Sequence[AnyStage]],
        graph: Graph,
        card: ModelCard,
        device: Callable[[], DeviceReady | None],
        rules: Rules,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self.rules = rules
        self._stages, self._graph, self._card, self._device, self._log = stages, graph, card, device, log
        self._kept: dict[str, _Kept] = {}
        self._beginning = asyncio.Lock()
        self._words: tuple[list[int], frozenset[int]] | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Begin those of the configuration. Raises ConfigError."""
        for link in self.rules.from_start:
            try:
                await self.begin(Wanted(link, is_redacted=self.rules.is_redacted))
            except RequestError as error:
                raise ConfigError(f"trace.record: {error}") from error

    async def stop(self) -> None:
        async with self._beginning:
            self._is_closed = True
        for kept in self._kept.values():
            await kept.recorder.stop("the server ended")

    def states(self) -> list[State]:
        return [kept.state for kept in self._kept.values()]

    async def begin(self, wanted: Wanted) -> State:
        """Raises RequestError."""
        async with self._beginning:
            place, bounds = self._checked(wanted)
            redactor = await asyncio.to_thread(self._redactor) if wanted.is_redacted else None
            kept = self._begun(place, bounds, redactor)
            self._kept[kept.state.id] = kept
            return kept.state

    async def end(self, name: str) -> State:
        """Its file is whole when this returns. Idempotent. Raises RequestError."""
        kept = self._named(name)
        await kept.recorder.stop("it was stopped")
        return kept.state

    async def file_of(self, name: str) -> Path:
        """The whole file of one that has ended. Raises RequestError."""
        kept = self._named(name)
        if not kept.recorder.reason:
            raise RequestError(f"{name} is not ended yet: stop it first.", status=409, code="not_ended")
        await kept.recorder.stop("")
        path = kept.recorder.file.path
        if not path.exists():
            raise RequestError(f"The file of {name} has been removed.", status=404, code="file_removed")
        return path

    async def remove(self, name: str) -> None:
        """End it, and delete its file. Raises RequestError."""
        await self.end(name)
        kept = self._kept.pop(name, None)
        if kept is not None:
            await asyncio.to_thread(kept.recorder.file.path.unlink, missing_ok=True)

    def _checked(self, wanted: Wanted) -> tuple[Place, Bounds]:
        if self._is_closed:
            raise RequestError("The server is ending.", status=503, code="draining")
        try:
            place = place_named(self._graph, wanted.link)
        except ValueError as error:
            raise RequestError(f"{error}.", param="link", code="unknown_link") from error
        if any(kept.place == place and not kept.recorder.reason for kept in self._kept.values()):
            raise RequestError(f"{place.name} is being recorded.", status=409, code="already_recorded")
        if len(self._kept) >= MAX_FILES:
            raise RequestError(
                f"There are {MAX_FILES} recordings: remove one.", status=409, code="too_many_recordings"
            )
        if self.rules.is_redacted and not wanted.is_redacted:
            raise RequestError(
                "Prompts are not recorded here: trace.record_redacted is true in the server's configuration.",
                status=403,
                param="is_redacted",
                code="prompts_not_recorded",
            )
        most = self.rules.bounds
        return place, Bounds(
            _within("max_bytes", wanted.max_bytes, most.max_bytes, at_least=4096),
            _within("max_s", wanted.max_s, most.max_s, at_least=0.1),
        )

    def _begun(self, place: Place, bounds: Bounds, redactor: Redactor | None) -> _Kept:
        now = datetime.now(UTC)
        header = self._header(place, now, is_redacted=redactor is not None)
        name = f"{place.name.replace('->', '-to-').lstrip('-')}.{now:%Y%m%d-%H%M%S-%f}.rec"
        try:
            self.rules.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = RecordingFile(self.rules.folder / name, header, bounds.max_bytes)
        except (OSError, StagelineError) as error:
            raise RequestError(f"trace.record_dir: {error}", status=500, code="cannot_record") from error
        recorder = Recorder(
            self._stages[place.stage][0].ctx.inbox,
            file,
            partial(_writing, redactor),
            header.begin_ns,
            bounds.max_s,
            place.kinds,
            lambda: self._has_ended(kept),
        )
        kept = _Kept(place, header, bounds, recorder)
        recorder.start()
        self._log.info("recording", link=place.name, file=str(file.path), is_redacted=header.is_redacted)
        return kept

    def _header(self, place: Place, now: datetime, *, is_redacted: bool) -> Header:
        stage = self._stages[place.stage][0]
        device = self._device()
        return Header(
            schema=codec.SCHEMA,
            stage=place.stage,
            links=place.links,
            use=f"{type(stage).__module__}:{type(stage).__qualname__}",
            options=msgspec.to_builtins(stage.options),
            model=self._card.name,
            is_redacted=is_redacted,
            begun_at=now.isoformat(timespec="milliseconds"),
            begin_ns=perf_counter_ns(),
            stageline=__version__,
            device=b"" if device is None else codec.encode(device),
        )

    def _has_ended(self, kept: _Kept) -> None:
        kept.ended_ns = perf_counter_ns()
        state = kept.state
        self._log.info("recorded", file=state.id, num_bytes=state.num_bytes, why=state.ended)

    def _named(self, name: str) -> _Kept:
        kept = self._kept.get(name)
        if kept is None:
            raise RequestError(f"There is no recording {name!r}.", status=404, code="no_such_recording")
        return kept

    def _redactor(self) -> Redactor:
        """With a key of its own. Slow the first time: it makes a tokenizer."""
        if self._words is None:
            self._words = _words(self._card)
        return Redactor(Prose(*self._words, secrets.token_bytes(32)))


def _words(card: ModelCard) -> tuple[list[int], frozenset[int]]:
    """The ids of the prose, and those that are kept."""
    tokenizer = card.new_tokenizer()
    special = (number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    ids: list[int] = tokenizer.encode(TEXT, add_special_tokens=False).ids
    return ids, frozenset((*special, *card.eos_ids, NO_TOKEN))


def _writing(redactor: Redactor | None, kind: type) -> Writing:
    name = codec.kind_of_type(kind)
    is_ready = codec.is_ready if name == StepHandle.__name__ else None
    written = codec.written_of(name)
    if redactor is None:
        return Writing(name, written, is_ready)
    return Writing(name, _redacted(redactor.redacted, written), is_ready)


def _redacted(redacted: Callable[[Any], Any], written: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    if written is None:
        return redacted
    return lambda message: written(redacted(codec.data_of(message)))


def _within(field: str, asked: N | None, most: N, at_least: float) -> N:
    if asked is None:
        return most
    if not at_least <= asked <= most:
        raise RequestError(
            f"{field} = {asked}: must be from {at_least} to {most} (trace.record_{field}).",
            param=field,
            code="out_of_range",
        )
    return asked
