"""Logging: structlog, written to stderr as text or as JSON lines. Set up once by `stageline serve`.

Prompts, answers and keys never reach a log; a token never makes a line.
"""

import logging
import sys
from typing import Literal

import msgspec
import structlog


def configure(level: str, form: Literal["text", "json"]) -> None:
    """Make `structlog.get_logger()` write lines of at least `level` to stderr."""
    renderer: structlog.typing.Processor
    if form == "json":
        renderer = structlog.processors.JSONRenderer(serializer=_encode)
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            exception_formatter=structlog.dev.plain_traceback,  # the default one shows local variables
        )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([structlog.processors.format_exc_info] if form == "json" else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _encode(event: object, **_: object) -> str:
    return msgspec.json.encode(event, enc_hook=repr).decode()
