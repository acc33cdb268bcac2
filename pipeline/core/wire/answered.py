"""The websocket's frames about one request."""

from collections.abc import Sequence

import msgspec

from pipeline.core.wire.choices import Parts
from pipeline.core.wire.faults import error_object
from pipeline.core.wire.logprobs import token_list
from pipeline.core.wire.requests import Wanted
from pipeline.core.wire.usage import timings_of, usage_of
from pipeline.errors import RequestError
from pipeline.messages import Completion, TokenLogprob

_encode = msgspec.json.Encoder().encode


class Answered:
    """Each method is a frame. `index`: of the frame, in a request that can be resumed; 0: it has none."""

    def __init__(self, client_id: str, wanted: Wanted) -> None:
        self._id = client_id
        self._timings = wanted.timings
        self._begin = b'{"type":"delta","id":%b' % _encode(client_id)
        self._parts = Parts(wanted, self._begin + b"%d" % wanted.sampling.seed)

    def accepted(self, traceparent: str = "") -> bytes:
        """`traceparent` is of the request's own span; empty: it has no trace."""
        frame = {"type": "accepted", "id": self._id}
        return _encode(frame | {"traceparent": traceparent} if traceparent else frame)

    def resumed(self, index: int) -> bytes:
        """What follows begins after the frame with that index."""
        return _encode({"type": "resumed", "id": self._id, "index": index})

    def delta(self, text: str, num_tokens: int, told: Sequence[TokenLogprob] = (), index: int = 0) -> bytes:
        """`told`: of its tokens, where the request asked for logprobs."""
        said = _text(text) if self._parts.is_plain else _said(self._parts.push(text))
        return self._delta(said, num_tokens, told, index)

    def rest(self, index: int = 0) -> bytes:
        """Of the text, what was held back for a tag that may have begun; empty: nothing."""
        parts = [] if self._parts.is_plain else self._parts.flush()
        return self._delta(_said(parts), 0, (), index) if parts else b""

    def done(self, completion: Completion, index: int = 0) -> bytes:
        frame: dict[str, object] = {
            "type": "done",
            "id": self._id,
            **_numbered(index),
            "finish_reason": self._parts.reason(completion),
            "usage": usage_of([completion]),
        }
        if self._timings:
            frame["timings"] = timings_of(completion.timings)
        return _encode(frame)

    def error(self, error: RequestError, index: int = 0) -> bytes:
        return _encode({"type": "error", "id": self._id, **_numbered(index), "error": error_object(error)})

    def _delta(self, said: bytes, num_tokens: int, told: Sequence[TokenLogprob], index: int) -> bytes:
        numbered = b',"index":%d' % index if index else b""
        logprobs = b',"logprobs":' + _encode(token_list(told)) if told else b""
        return b'%b%b%b,"tokens":%d%b}' % (self._begin, numbered, said, num_tokens, logprobs)


def _text(text: str) -> bytes:
    return b',"text":' + _encode(text)


def _said(parts: Sequence[tuple[str, str]]) -> bytes:
    """What is reasoned comes before what is said: only the beginning of an answer is reasoning."""
    reasoning = "".join(text for kind, text in parts if kind == "reasoning")
    content = "".join(text for kind, text in parts if kind == "content")
    calls = ",".join(text for kind, text in parts if kind == "call")
    return b"".join(
        (
            b',"reasoning":' + _encode(reasoning) if reasoning else b"",
            _text(content),
            b',"tool_calls":[' + calls.encode() + b"]" if calls else b"",
        )
    )


def _numbered(index: int) -> dict[str, object]:
    return {"index": index} if index else {}
