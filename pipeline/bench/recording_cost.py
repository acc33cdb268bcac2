"""RecordingCost: what it costs a server to record a link, in turns on and off (bench.turns)."""

from pathlib import Path
from typing import Any

import structlog

from pipeline.assemble import Pipeline
from pipeline.bench.turns import Mode
from pipeline.checkpoint.card import ModelCard
from pipeline.recordings.places import place_named
from pipeline.recordings.recordings import Recordings
from pipeline.recordings.wanted import Bounds, Rules, Wanted

_BOUNDS = Bounds(max_bytes=4 << 30, max_s=3600.0)


class RecordingCost:
    """Of one link, with texts replaced and as they are. The recordings' files grow in their turns alone.

    Args:
        folder: a temporary one.
    """

    def __init__(self, pipeline: Pipeline, card: ModelCard, link: str, folder: Path) -> None:
        """Raises ValueError where there is no such link."""
        self.link = link
        self._inbox = pipeline.inboxes[place_named(pipeline.graph, link).stage]
        rules = Rules(folder, _BOUNDS, is_redacted=False)
        log = structlog.get_logger()
        self._both = [
            Recordings(pipeline.stages, pipeline.graph, card, lambda: None, rules, log) for _ in range(2)
        ]

    async def begin(self) -> list[Mode]:
        """Nothing is recorded yet; each mode says what is from then on."""
        redacted, plain = [
            await self._taps(recordings, is_redacted=is_redacted)
            for recordings, is_redacted in zip(self._both, (True, False), strict=True)
        ]
        return [
            Mode("recorded, texts replaced", lambda: self._tap(redacted)),
            Mode("recorded as it is", lambda: self._tap(plain)),
            Mode("not recorded", lambda: self._tap(())),
        ]

    async def end(self) -> str:
        """What was recorded, or why it was not to its end."""
        states = [recordings.states()[0] for recordings in self._both]
        for recordings in self._both:
            await recordings.stop()
        if early := [state.ended for state in states if state.ended]:
            return f"recording {self.link}: ended too early: {early[0]}"
        written = ", ".join(f"{state.num_messages:,} messages, {state.num_bytes:,} bytes" for state in states)
        return f"recording {self.link}: {written}"

    async def _taps(self, recordings: Recordings, *, is_redacted: bool) -> Any:
        await recordings.begin(Wanted(self.link, is_redacted=is_redacted))
        taps, self._inbox.taps = self._inbox.taps, ()
        return taps

    def _tap(self, taps: Any) -> None:
        self._inbox.taps = taps
