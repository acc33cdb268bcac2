"""Where the time of the device's steps goes: torch's profiler, in a worker of this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.assemble import runner_factory
from pipeline.bench.alone import Alone

if TYPE_CHECKING:
    from pipeline.gpu.profiled import ProfiledRunner


def device(alone: Alone, path: Path) -> "tuple[Alone, Any]":
    """The same stage with a runner that can be watched, and what watches it; the file is there when the stage
    has stopped."""
    factory = runner_factory(alone.blueprint, alone.card)
    opened: list[ProfiledRunner] = []

    def open_runner() -> Any:
        from pipeline.gpu.profiled import ProfiledRunner  # imports torch, which takes seconds

        opened.append(ProfiledRunner(factory.open(), path))
        return opened[-1]

    @contextmanager
    def watching() -> Iterator[None]:
        opened[0].watch()
        try:
            yield
        finally:
            opened[0].leave()

    return replace(alone, runner=replace(factory, open=open_runner, process=None)), watching()
