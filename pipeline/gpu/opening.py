"""Opening: what a runner of the configuration is made of, in words, and how it is opened from them.

A thread of the server and a process of its own open the same; the process is told it as RunnerSpec.options.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.words import path_as_text, path_of_text
from pipeline.core.import_path import resolve
from pipeline.gpu.options import RunnerOptions

if TYPE_CHECKING:
    from pipeline.gpu.runner import Runner

OPENER = "pipeline.gpu.opening:from_words"


class RunnerWords(msgspec.Struct, frozen=True):
    """The model, how it is run, and what samples."""

    card: ModelCard
    options: RunnerOptions
    sample: str
    """Import path of the sample stage, which names its `device_op`."""
    sample_options: dict[str, Any]
    """That stage's."""

    def encoded(self) -> bytes:
        return msgspec.msgpack.encode(self, enc_hook=path_as_text)


def from_words(words: bytes, num_workers: int) -> "Callable[[], Runner]":
    """What opens the runners of so many workers, one a call, each on the thread that it is for."""
    read = msgspec.msgpack.decode(words, type=RunnerWords, dec_hook=path_of_text)
    stage = resolve("stages.sample.use", read.sample)
    sample_options = msgspec.convert(read.sample_options, stage.Options)
    return opener(read.card, read.options, stage, sample_options, num_workers)


def opener(
    card: ModelCard,
    options: RunnerOptions,
    sample: type[Any],
    sample_options: msgspec.Struct,
    num_workers: int,
) -> "Callable[[], Runner]":
    """The same, given the sample stage's class and options. The first runner loads, the others share."""
    opened: list[Runner] = []

    def open_runner() -> "Runner":
        from pipeline.gpu.runner import load_runner  # imports torch, which takes seconds

        if opened:
            opened.append(opened[0].fork())
            return opened[-1]
        origin = f"{sample.__module__}:{sample.__qualname__}.device_op"
        sampling_op = resolve(origin, getattr(sample, "device_op", ""))
        runner = load_runner(
            card, options, sampling_op=lambda: sampling_op(sample_options), num_workers=num_workers
        )
        opened.append(runner)
        return runner

    return open_runner
