"""The error tree.

* LoadgenError
  - TraceError     a trace file cannot be read; names file, line and field
  - UsageError     the command line asks for something impossible
  - ServerError    the server cannot be reached, or is not what was asked for

What goes wrong with one request is no exception: it is that request's `Failure` in its record.
"""


class LoadgenError(Exception):
    """Base of every error that ends the command with one sentence and exit code 2."""


class TraceError(LoadgenError):
    """A trace file cannot be read. The message names file, line and field."""


class UsageError(LoadgenError):
    """The command line asks for something impossible."""


class ServerError(LoadgenError):
    """The server cannot be reached, or is not what was asked for. The message says what to do."""


def first(group: BaseExceptionGroup[LoadgenError]) -> BaseException:
    """The first error inside, however deep task groups have wrapped it."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
