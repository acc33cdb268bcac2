"""Faults as clients see them: OpenAI's error object, alone, as an SSE event, or inside a frame."""

import msgspec

from pipeline.errors import RequestError

SERVER_ERROR = RequestError(
    "The server failed while working on this request.", status=500, code="server_error"
)
"""Fixed text: what went wrong inside is for the log, never for a client."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "overloaded_error",
    503: "service_unavailable_error",
}


def error_object(error: RequestError) -> dict[str, str | int | None]:
    """{"message", "type", "param", "code"}; the type follows from the status.

    And `retry_after_s` where there is one, since a frame has no header that could say it.
    """
    kind = _TYPES.get(error.status) or ("server_error" if error.status >= 500 else "invalid_request_error")
    body: dict[str, str | int | None] = {
        "message": error.message,
        "type": kind,
        "param": error.param,
        "code": error.code,
    }
    return body if error.retry_after_s is None else body | {"retry_after_s": error.retry_after_s}


def error_body(error: RequestError) -> bytes:
    """The JSON body of an error response."""
    return msgspec.json.encode({"error": error_object(error)})


def error_event(error: RequestError) -> bytes:
    """How a stream ends whose status was sent before the fault: one error event, then [DONE]."""
    return b"data: %b\n\ndata: [DONE]\n\n" % error_body(error)
