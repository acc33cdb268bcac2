"""The error tree.

* StagelineError
  - ConfigError         the configuration cannot be run; raised before start
  - ModelError          a model reference or model file cannot be used
  - RequestError        about one request; becomes its answer, the others go on
  - InboxClosed         sending to a stage that is draining or stopped
  - StageCrashed        an unhandled error in a stage; ends the pipeline
  - SwapRefused         a stage that runs is not replaced; it is as it was
"""


class StagelineError(Exception):
    """Base of every error raised on purpose."""


class ConfigError(StagelineError):
    """The configuration cannot be run. The message names file, key, value and what is allowed."""


class ModelError(StagelineError):
    """A model cannot be found, read or run. The message says which file and what to do."""


class RequestError(StagelineError):
    """Something is wrong with one request.

    Args:
        message: one sentence for the client; names the field and the limit.
        status: the HTTP status this error answers with (RFC 9110).
        param: the request field at fault, if one is.
        code: a stable word that programs can test.
        retry_after_s: when it is worth trying again, for a server that has too much to do (RFC 9110).
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s


class InboxClosed(StagelineError):
    """The receiving stage takes no more messages."""


class StageCrashed(StagelineError):
    """A stage failed; its state is lost. The cause is chained."""


class SwapRefused(StagelineError):
    """A stage of a running server is not replaced, and serves as before. Says why."""
