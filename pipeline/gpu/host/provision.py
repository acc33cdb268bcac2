"""Packed weights for a start: mapped from the cache, or packed and kept there."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from pipeline.checkpoint.card import Architecture
from pipeline.errors import ConfigError
from pipeline.gpu.host.formats import BLOCK_FORMATS
from pipeline.gpu.host.layout import Choice, plan_layout
from pipeline.gpu.host.library import HostLibrary
from pipeline.gpu.host.packed_file import MAX_BYTES, map_packed, packed_path, save_packed
from pipeline.gpu.host.packing import fill
from pipeline.gpu.host.weights import PackedWeights
from pipeline.gpu.memory.pages import huge_zeros
from pipeline.gpu.weights.source import WeightSource
from pipeline.gpu.weights.tensors import Shapes

NO_BLOCKS = (
    'weights = "int4" runs the quantised blocks of a GGUF as they are, and this model has none that can. '
    "Rounding it to 4 bits here would cost a model of this kind a great deal (SmolLM2-135M: 40 % more "
    'perplexity). Use "int8", or a GGUF of the model in Q4_1, Q4_K_M or the like.'
)


def provide_weights(
    weights: WeightSource,
    architecture: Architecture,
    expected: Shapes,
    choice: Choice,
    library: HostLibrary,
    num_threads: int,
) -> PackedWeights:
    """Raises ModelError naming the tensor at fault, and ConfigError if there are no blocks for int4."""
    identity = weights.identity
    path = None if identity is None else packed_path(identity, choice, library.isa_name)
    if path is not None and (found := map_packed(path)) is not None:
        return PackedWeights(*found, library)
    kinds = weights.kinds()
    if choice == "int4" and not any(kind in BLOCK_FORMATS for kind in kinds.values()):
        raise ConfigError(NO_BLOCKS)
    layout = plan_layout(architecture, expected, kinds, choice, library)
    memory = huge_zeros(layout.num_bytes)
    packed = PackedWeights(layout, memory, library)
    with _progress(len(expected)) as on_tensor:
        fill(packed, weights, architecture, expected, library, num_threads, on_tensor)
    if path is not None and layout.num_bytes <= MAX_BYTES:
        try:
            save_packed(path, layout, memory)
        except OSError as error:
            _log().warning("the packed weights cannot be kept; the next start packs again", reason=str(error))
    return packed


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal; a log line with the time it took anywhere."""
    started = time.monotonic()
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("Packing the weights", total=total)
            yield lambda: bar.advance(task)
    else:
        yield lambda: None
    _log().info("weights packed", tensors=total, seconds=round(time.monotonic() - started, 2))


def _log() -> structlog.typing.FilteringBoundLogger:
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return log
