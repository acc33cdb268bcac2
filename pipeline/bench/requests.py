"""Requests as a client sends them: HTTP bodies that the door makes the same GenerateRequests of."""

from typing import Any

import msgspec
from msgspec.structs import asdict

from pipeline.messages import ChatMessage, GenerateRequest, SamplingParams

_UNASKED = asdict(SamplingParams())
_FILLED_IN = ("bad_token_ids", "end_ids", "unstopped", "grammar", "logprobs", "logit_bias")
"""By the server; or said otherwise on the wire, or (grammars) checked by another process."""


def http_of(request: GenerateRequest, host: str) -> bytes | None:
    """The request as a whole, answered at once and not streamed; None: it is one for an embedding.

    Tools, images and grammars are left out, and so is who asked.
    """
    if request.pooling:
        return None
    path = "/v1/completions" if request.chat is None else "/v1/chat/completions"
    body = msgspec.json.encode(_body(request))
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _body(request: GenerateRequest) -> dict[str, Any]:
    body = _sampling(request.sampling, is_chat=request.chat is not None)
    if request.chat is None:
        return {"prompt": request.prompt, **body}
    return {"messages": [_message(message) for message in request.chat], **body}


def _message(message: ChatMessage) -> dict[str, Any]:
    """A tool's result is shown as a user's text: without tools there are none."""
    return {"role": "user" if message.role == "tool" else message.role, "content": message.content}


def _sampling(sampling: SamplingParams, *, is_chat: bool) -> dict[str, Any]:
    body = {
        name: value
        for name, value in asdict(sampling).items()
        if name not in _FILLED_IN and value != _UNASKED[name]
    }
    if sampling.logit_bias:
        body["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias}
    if sampling.logprobs is not None:
        asked = {"logprobs": True, "top_logprobs": sampling.logprobs} if is_chat else {}
        body |= asked or {"logprobs": sampling.logprobs}
    return body
