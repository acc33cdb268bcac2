"""The OpenAPI document of the door (OpenAPI 3.1, JSON Schema 2020-12): what core.wire checks, as data.

It is written by hand beside the checks and held to them by fuzzing: what the schemas do not allow is a 400.
"""

from typing import Any

from pipeline.core.wire import sampling as bounds
from pipeline.core.wire.chat import MAX_PIECES, ROLES
from pipeline.core.wire.embeddings import FORMATS, MAX_INPUTS, POOLINGS
from pipeline.core.wire.fields import INT64_MAX, INT64_MIN
from pipeline.core.wire.limits import Limits
from pipeline.core.wire.openapi_answers import RESPONSES, SCHEMAS
from pipeline.core.wire.prompts import MAX_CHOICES, MAX_N
from pipeline.core.wire.requests import MAX_FLUSH_MS, MAX_FLUSH_TOKENS
from pipeline.core.wire.structured import MAX_CHOICES as MAX_TEXTS
from pipeline.core.wire.structured import MAX_GRAMMAR_BYTES
from pipeline.core.wire.terms import (
    KV_EVICTIONS,
    MAX_KV_TOKENS,
    MAX_PRIORITY,
    MAX_SALT_CHARS,
    MAX_USER_CHARS,
    MAX_WAIT_MS,
    MIN_PATIENCE_MS,
)
from pipeline.core.wire.tool_messages import MAX_CALLS
from pipeline.core.wire.tools import MAX_TOOLS
from pipeline.messages import MAX_LOGPROBS

Schema = dict[str, Any]


def document(limits: Limits, version: str) -> Schema:
    """Of this server: bounds that come from its model are in it."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Stageline",
            "version": version,
            "description": "LLM inference. The websocket at /v1/stream is in docs/websocket.md.",
        },
        "paths": _paths(),
        "components": {
            "schemas": SCHEMAS
            | {
                "CompletionRequest": _body(_completion(limits), ["prompt"]),
                "ChatRequest": _body(_chat(limits), ["messages"]),
                "ResponseRequest": _response(limits),
                "EmbeddingsRequest": _embeddings(limits),
                "TokenizeRequest": _tokenize(limits),
                "DetokenizeRequest": _body(
                    {"model": _model(limits), "tokens": _ids(limits, limits.max_model_len - 1)}, ["tokens"]
                ),
            },
            "responses": RESPONSES,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _paths() -> Schema:
    generates = ["400", "401", "403", "404", "408", "413", "415", "429", "500", "503"]
    return {
        "/v1/completions": {"post": _post("CompletionRequest", "Completion", generates, streams=True)},
        "/v1/chat/completions": {"post": _post("ChatRequest", "ChatCompletion", generates, streams=True)},
        "/v1/responses": {"post": _post("ResponseRequest", "Response", generates, streams=True)},
        "/v1/embeddings": {"post": _post("EmbeddingsRequest", "Embeddings", generates)},
        "/v1/models": {"get": _get("Models", [])},
        "/v1/models/{id}": {"get": _get("Model", ["404"], path="id")},
        "/v1/requests/{id}": {
            "get": _get("Request", ["404"], path="id"),
            "delete": _get("Request", ["404"], path="id"),
        },
        "/tokenize": {"post": _post("TokenizeRequest", "Tokens", generates)},
        "/detokenize": {"post": _post("DetokenizeRequest", "Text", generates)},
        "/health": {"get": _get("Status", ["503"])},
        "/ready": {"get": _get("Status", ["503"])},
    }


def _post(asks: str, answers: str, errors: list[str], *, streams: bool = False) -> Schema:
    content = {"application/json": {"schema": _ref(answers)}}
    if streams:
        content["text/event-stream"] = {"schema": {}}
    body = {"required": True, "content": {"application/json": {"schema": _ref(asks)}}}
    return {"requestBody": body, "responses": _responses(content, errors)}


def _get(answers: str, errors: list[str], path: str = "") -> Schema:
    operation: Schema = {
        "responses": _responses({"application/json": {"schema": _ref(answers)}}, ["401", *errors])
    }
    if path:
        text = {"type": "string", "minLength": 1}
        operation["parameters"] = [{"name": path, "in": "path", "required": True, "schema": text}]
    return operation


def _responses(content: Schema, errors: list[str]) -> Schema:
    responses: Schema = {"200": {"description": "OK", "content": content}}
    for status in errors:
        responses[status] = {"$ref": f"#/components/responses/{status}"}
    return responses


def _completion(limits: Limits) -> Schema:
    text = {"type": "string", "minLength": 1}
    ids = _ids(limits, limits.max_model_len - 1)
    several = {"type": "array", "items": {"anyOf": [text, ids]}, "minItems": 1, "maxItems": MAX_CHOICES}
    return _generate(limits) | {
        "prompt": {"anyOf": [text, ids, several]},
        "echo": _flag(),
        "suffix": _maybe({"const": ""}),
        "logprobs": {"anyOf": [_integer(0, MAX_LOGPROBS), {"const": False}]},
    }


def _chat(limits: Limits) -> Schema:
    part = _body({"type": {"const": "text"}, "text": {"type": "string"}}, ["type", "text"])
    parts = {"type": "array", "items": part, "minItems": 1}
    content = {"anyOf": [{"type": "string"}, parts]}
    said = _body({"role": {"enum": list(ROLES)}, "content": content}, ["role", "content"])
    called = _body(
        {
            "role": {"const": "assistant"},
            "content": {"anyOf": [content, {"type": "null"}]},
            "tool_calls": {"type": "array", "items": _CALL, "minItems": 1, "maxItems": MAX_CALLS},
        },
        ["role", "tool_calls"],
    )
    result = _body(
        {"role": {"const": "tool"}, "tool_call_id": _WORD, "content": content},
        ["role", "tool_call_id", "content"],
    )
    message = {"anyOf": [said] if limits.tool_syntax is None else [said, called, result]}
    return (
        _generate(limits)
        | _tool_fields(limits)
        | {
            "messages": {
                "type": "array",
                "items": message,
                "minItems": 1,
                "description": f"At most {MAX_PIECES} messages and parts together",
            },
            "separate_reasoning": _flag(),
            "max_completion_tokens": _integer(1, limits.max_model_len),
            "logprobs": _flag(),
            "top_logprobs": _integer(0, MAX_LOGPROBS),
        }
    )


def _tool_fields(limits: Limits) -> Schema:
    if limits.tool_syntax is None:
        return {"tools": _maybe({"type": "array", "maxItems": 0}), "tool_choice": _maybe({"const": "none"})}
    function = {
        "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
        "description": {"type": ["string", "null"]},
        "parameters": {"type": ["object", "null"], "description": "A JSON Schema"},
        "strict": _flag(),
    }
    tool = _body({"type": {"const": "function"}, "function": _body(function, ["name"])}, ["type", "function"])
    named = _body({"name": function["name"]}, ["name"])
    choice = _body({"type": {"const": "function"}, "function": named}, ["type", "function"])
    return {
        "tools": _maybe({"type": "array", "items": tool, "maxItems": MAX_TOOLS}),
        "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required", None]}, choice]},
        "parallel_tool_calls": _flag(),
    }


def _response(limits: Limits) -> Schema:
    fields = {name: schema for name, schema in _generate(limits).items() if name not in _NOT_OF_RESPONSES}
    kind = {"enum": ["input_text", "output_text", "text"]}
    part = _body({"type": kind, "text": {"type": "string"}}, ["type", "text"])
    content = {"anyOf": [{"type": "string"}, {"type": "array", "items": part, "minItems": 1}]}
    spoken = {"type": _maybe({"const": "message"}), "role": {"enum": list(ROLES)}, "content": content}
    message = _body(spoken, ["role", "content"])
    messages = {"type": "array", "items": message, "minItems": 1}
    mine = {
        "input": {"anyOf": [{"type": "string"}, messages]},
        "instructions": {"type": ["string", "null"]},
        "max_output_tokens": _integer(1, limits.max_model_len),
        "store": _maybe({"const": False}),
        "background": _maybe({"const": False}),
        "metadata": _maybe({"type": "object", "maxProperties": 0}),
        "tools": _maybe({"type": "array", "maxItems": 0}),
        "tool_choice": _maybe({"enum": ["none", "auto"]}),
        "parallel_tool_calls": _flag(),
        "truncation": _maybe({"const": "disabled"}),
    }
    return _body(fields | mine, ["input"])


_WORD: Schema = {"type": "string", "pattern": "^[a-zA-Z0-9_.-]{1,128}$"}
_CALL: Schema = {
    "type": "object",
    "properties": {
        "id": _WORD,
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {"name": _WORD, "arguments": {"type": "string", "description": "A JSON object"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        },
    },
    "required": ["id", "type", "function"],
    "additionalProperties": False,
}
_GRAMMAR: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_GRAMMAR_BYTES}
_KINDS: Schema = {
    "json": {"type": "object", "description": "A JSON Schema"},
    "regex": _GRAMMAR,
    "choice": {
        "type": "array",
        "items": {"type": "string", "minLength": 1},
        "minItems": 1,
        "maxItems": MAX_TEXTS,
    },
    "grammar": _GRAMMAR | {"description": "In Lark's notation"},
}


_NOT_OF_RESPONSES = ("max_tokens", "n", "best_of", "stream_options")


def _embeddings(limits: Limits) -> Schema:
    shared = ("model", "truncate_prompt_tokens", "timings", "priority", "patience_ms", "user", "cache_salt")
    text: Schema = {"type": "string", "minLength": 1}
    ids = _ids(limits, limits.max_model_len)
    several = {"type": "array", "items": {"anyOf": [text, ids]}, "minItems": 1, "maxItems": MAX_INPUTS}
    mine = {
        "input": {"anyOf": [text, ids, several]},
        "encoding_format": _maybe({"enum": list(FORMATS)}),
        "pooling": _maybe({"enum": list(POOLINGS)}),
        "dimensions": {"type": "null"},
        "normalize": _maybe({"const": True}),
    }
    generating = _generate(limits)
    return _body({name: generating[name] for name in shared} | mine, ["input"])


def _tokenize(limits: Limits) -> Schema:
    shared = {"model": _model(limits), "add_special_tokens": _flag()}
    text = _body(shared | {"prompt": {"type": "string"}}, ["prompt"])
    chat = _body(shared | {"messages": _chat(limits)["messages"]}, ["messages"])
    return {"anyOf": [text, chat]}


def _generate(limits: Limits) -> Schema:
    """What both endpoints know."""
    words = {"type": "string", "minLength": 1, "maxLength": bounds.MAX_STOP_CHARS}
    stop_list = {"type": "array", "items": words, "maxItems": bounds.MAX_STOPS}
    biases = _number(-bounds.MAX_BIAS, bounds.MAX_BIAS, nullable=False)
    return {
        "model": _model(limits),
        "max_tokens": _integer(1, limits.max_model_len),
        "min_tokens": _integer(0, limits.max_model_len),
        "truncate_prompt_tokens": {
            "anyOf": [{"const": bounds.ALL_THAT_FITS}, _integer(1, limits.max_model_len)]
        },
        "temperature": _number(0, 2),
        "top_p": _number(0, 1, above_low=True),
        "top_k": _integer(-1, bounds.MAX_TOP_K),
        "min_p": _number(0, 1),
        "typical_p": _number(0, 1, above_low=True),
        "presence_penalty": _number(-2, 2),
        "frequency_penalty": _number(-2, 2),
        "repetition_penalty": _number(0, 2, above_low=True),
        "logit_bias": _maybe(
            {
                "type": "object",
                "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"},
                "additionalProperties": biases,
                "maxProperties": bounds.MAX_BIASES,
            }
        ),
        "allowed_token_ids": _maybe(_ids(limits, limits.vocab_size)),
        "bad_words": _maybe({"type": "array", "items": words, "maxItems": bounds.MAX_BAD_WORDS}),
        "stop": {"anyOf": [words, stop_list, {"type": "null"}]},
        "stop_token_ids": _maybe(_ids(limits, bounds.MAX_STOP_IDS, at_least=0)),
        "include_stop_str_in_output": _flag(),
        "skip_special_tokens": _flag(),
        "ignore_eos": _flag(),
        "response_format": _maybe(_response_format()),
        "structured_outputs": _maybe(
            {"anyOf": [_body({name: each}, [name]) for name, each in _KINDS.items()]}
        ),
        "seed": _integer(INT64_MIN, INT64_MAX),
        "n": _integer(1, MAX_N),
        "best_of": _integer(1, MAX_N),
        "stream": _flag(),
        "stream_options": _maybe(
            _body({"include_usage": _flag(), "include_obfuscation": _maybe({"const": False})}, [])
        ),
        "timings": _flag(),
        "flush_tokens": _integer(1, MAX_FLUSH_TOKENS),
        "flush_ms": _number(0, MAX_FLUSH_MS),
        "priority": _integer(-MAX_PRIORITY, MAX_PRIORITY),
        "ttft_target_ms": _number(0, MAX_WAIT_MS, above_low=True),
        "tpot_target_ms": _number(0, MAX_WAIT_MS, above_low=True),
        "patience_ms": _number(MIN_PATIENCE_MS, MAX_WAIT_MS),
        "user": _maybe({"type": "string", "maxLength": MAX_USER_CHARS}),
        "cache_salt": _maybe({"type": "string", "maxLength": MAX_SALT_CHARS}),
        "cache_pin": _flag(),
        "kv_eviction": _maybe({"enum": list(KV_EVICTIONS)}),
        "kv_budget": _integer(1, MAX_KV_TOKENS),
        "kv_sinks": _integer(0, MAX_KV_TOKENS),
    }


def _body(properties: Schema, required: list[str]) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _model(limits: Limits) -> Schema:
    return _maybe({"const": limits.model})


def _ids(limits: Limits, most: int, at_least: int = 1) -> Schema:
    items = {"type": "integer", "minimum": 0, "maximum": limits.vocab_size - 1}
    return {"type": "array", "items": items, "minItems": at_least, "maxItems": most}


def _integer(low: int, high: int) -> Schema:
    return {"type": ["integer", "null"], "minimum": low, "maximum": high}


def _number(low: float, high: float, *, above_low: bool = False, nullable: bool = True) -> Schema:
    lowest = "exclusiveMinimum" if above_low else "minimum"
    return {"type": ["number", "null"] if nullable else "number", lowest: low, "maximum": high}


def _response_format() -> Schema:
    schema = {
        "name": {"type": ["string", "null"]},
        "description": {"type": ["string", "null"]},
        "schema": {"type": "object", "description": "A JSON Schema"},
        "strict": _flag(),
    }
    asks = {"type": {"const": "json_schema"}, "json_schema": _body(schema, ["schema"])}
    plain = _body({"type": {"enum": ["text", "json_object"]}}, ["type"])
    return {"anyOf": [plain, _body(asks, ["type", "json_schema"])]}


def _flag() -> Schema:
    return {"type": ["boolean", "null"]}


def _maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
