"""What the door answers, as schemas: the other half of core.wire.openapi."""

from typing import Any

Schema = dict[str, Any]


def _object(required: Schema, **optional: Schema) -> Schema:
    return {"type": "object", "properties": required | optional, "required": list(required)}


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT: Schema = {"type": "string"}
_MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_MS: Schema = {"type": "number", "minimum": 0}
_MAYBE_MS: Schema = {"type": ["number", "null"], "minimum": 0}
_SEGMENTS: Schema = {"type": "object", "additionalProperties": {"type": "number"}}
_LOGPROBS: Schema = {"type": ["object", "null"]}

_USAGE = _object(
    {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "prompt_tokens_details": _object({"cached_tokens": _COUNT}),
    },
    kv_dropped_tokens=_COUNT,
)
_TIMINGS = _object(
    {"e2e_ms": _MS, "ttft_ms": _MAYBE_MS, "segments_ms": _SEGMENTS, "ttft_segments_ms": _SEGMENTS}
)
_HEAD: Schema = {"id": _TEXT, "object": _TEXT, "created": _COUNT, "model": _TEXT}
_FINISH: Schema = {"enum": ["stop", "length", "cancelled", "content_filter", "tool_calls"]}
_CALL = _object(
    {"id": _TEXT, "type": {"const": "function"}, "function": _object({"name": _TEXT, "arguments": _TEXT})}
)
_MESSAGE = _object(
    {"role": {"const": "assistant"}, "content": _MAYBE_TEXT, "refusal": {"type": "null"}},
    reasoning_content=_MAYBE_TEXT,
    tool_calls=_array(_CALL),
)
_ENDED = _object({"status": {"enum": ["live", "cancelling", "ended"]}, "completion_tokens": _COUNT})

_EMBEDDING = _object(
    {
        "object": {"const": "embedding"},
        "index": _COUNT,
        "embedding": {"anyOf": [_array({"type": "number"}), _TEXT]},
    }
)

SCHEMAS: Schema = {
    "Usage": _USAGE,
    "Timings": _TIMINGS,
    "Completion": _object(
        _HEAD
        | {
            "choices": _array(
                _object({"index": _COUNT, "text": _TEXT, "logprobs": _LOGPROBS, "finish_reason": _FINISH})
            ),
            "usage": _ref("Usage"),
        },
        timings=_ref("Timings"),
    ),
    "ChatCompletion": _object(
        _HEAD
        | {
            "choices": _array(
                _object(
                    {"index": _COUNT, "message": _MESSAGE, "logprobs": _LOGPROBS, "finish_reason": _FINISH}
                )
            ),
            "usage": _ref("Usage"),
        },
        timings=_ref("Timings"),
    ),
    "Response": _object(
        {
            "id": _TEXT,
            "object": {"const": "response"},
            "created_at": _COUNT,
            "model": _TEXT,
            "status": {"enum": ["in_progress", "completed", "incomplete", "failed"]},
            "output": _array({"type": "object"}),
            "usage": {"type": ["object", "null"]},
        }
    ),
    "Embeddings": _object(
        {
            "object": {"const": "list"},
            "data": _array(_EMBEDDING),
            "model": _TEXT,
            "usage": _object({"prompt_tokens": _COUNT, "total_tokens": _COUNT}),
        },
        timings=_ref("Timings"),
    ),
    "Model": _object(
        {"id": _TEXT, "object": _TEXT, "created": _COUNT, "owned_by": _TEXT, "max_model_len": _COUNT}
    ),
    "Models": _object({"object": {"const": "list"}, "data": _array(_ref("Model"))}),
    "Request": _object({"id": _TEXT, "object": {"const": "request"}, "choices": _array(_ENDED)}),
    "Tokens": _object({"count": _COUNT, "max_model_len": _COUNT, "tokens": _array(_COUNT)}),
    "Text": _object({"prompt": _TEXT}),
    "Status": _object({"status": _TEXT}),
    "Error": _object(
        {
            "error": _object(
                {"message": _TEXT, "type": _TEXT, "param": _MAYBE_TEXT, "code": _MAYBE_TEXT},
                retry_after_s=_COUNT,
            )
        }
    ),
}

_STATUSES = {
    "400": "A field is wrong, or unknown: param names it",
    "401": "No key, or one that is not known",
    "403": "Not allowed to this key, or from this page",
    "404": "There is no such thing here",
    "408": "The body did not arrive in time, or its reader is too slow",
    "413": "Too large",
    "415": "The body is compressed",
    "429": "Too much to do, or the key has used what it may: Retry-After says when to come back",
    "500": "The server failed",
    "503": "Draining, unhealthy, or waited for too long",
}
RESPONSES: Schema = {
    status: {"description": words, "content": {"application/json": {"schema": _ref("Error")}}}
    for status, words in _STATUSES.items()
}
