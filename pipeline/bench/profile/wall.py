"""Where the loop's thread spends its time, waiting included: pyinstrument's page."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError

INTERVAL_S = 0.0005
_FONTS = re.compile(r"https://fonts\.googleapis\.com/[^\"']*")
"""The page would load them; without, it is shown in those that there are."""


def wall(path: Path) -> AbstractContextManager[None]:
    """Only of the thread that opens it; what other threads do shows as waiting. Raises ConfigError."""
    try:
        from pyinstrument import Profiler
    except ImportError as error:
        raise ConfigError(
            f"--profile wall needs pyinstrument ({error}); install it with: pip install 'stageline[profile]'"
        ) from error
    return _watching(Profiler(interval=INTERVAL_S, async_mode="disabled"), path)


@contextmanager
def _watching(profiler: Any, path: Path) -> Iterator[None]:
    with profiler:
        yield
    path.write_text(_FONTS.sub("data:text/css,", profiler.output_html()), "utf-8")
