"""Wire: the OpenAI shapes and the websocket protocol, as bytes in and bytes out (docs/api.md).

Knows no sockets, no clock and no model: what it must know of the server comes as `Limits`.
"""

from pipeline.core.wire.answered import Answered
from pipeline.core.wire.answers import AnswerShape, ChatAnswer, CompletionAnswer
from pipeline.core.wire.choices import Result, StreamShape
from pipeline.core.wire.embeddings import EmbeddingsAnswer, parse_embeddings
from pipeline.core.wire.faults import (
    SERVER_ERROR,
    error_body,
    error_event,
    error_object,
)
from pipeline.core.wire.frames import (
    Frame,
    Resumption,
    check_bare,
    error_frame,
    hello_frame,
    parse_ack,
    parse_frame,
    parse_grant,
    parse_resume,
    pong_frame,
    take_traceparent,
)
from pipeline.core.wire.images import ImageLimits
from pipeline.core.wire.limits import Limits
from pipeline.core.wire.replay import Replay
from pipeline.core.wire.requests import Wanted, parse_chat, parse_completion, wanted_of
from pipeline.core.wire.responses import ResponseAnswer, parse_response
from pipeline.core.wire.terms import bearer_of, tenant_of_key
from pipeline.core.wire.tokens import parse_detokenize, parse_tokenize

__all__ = [
    "SERVER_ERROR",
    "AnswerShape",
    "Answered",
    "ChatAnswer",
    "CompletionAnswer",
    "EmbeddingsAnswer",
    "Frame",
    "ImageLimits",
    "Limits",
    "Replay",
    "ResponseAnswer",
    "Result",
    "Resumption",
    "StreamShape",
    "Wanted",
    "bearer_of",
    "check_bare",
    "error_body",
    "error_event",
    "error_frame",
    "error_object",
    "hello_frame",
    "parse_ack",
    "parse_chat",
    "parse_completion",
    "parse_detokenize",
    "parse_embeddings",
    "parse_frame",
    "parse_grant",
    "parse_response",
    "parse_resume",
    "parse_tokenize",
    "pong_frame",
    "take_traceparent",
    "tenant_of_key",
    "wanted_of",
]
