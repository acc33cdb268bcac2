"""The OpenAPI document of the door (OpenAPI 3.1, JSON Schema 2020-12): what core.wire checks, as data.

It is written by hand beside the checks and held to them by fuzzing: what the schemas do not allow is a 400.
"""

from msgspec.structs import replace

from pipeline.core.wire import sampling as bounds
from pipeline.core.wire.chat import MAX_PIECES, ROLES
from pipeline.core.wire.embeddings import FORMATS, MAX_INPUTS, POOLINGS
from pipeline.core.wire.fields import INT64_MAX, INT64_MIN
from pipeline.core.wire.limits import Limits
from pipeline.core.wire.openapi_answers import RESPONSES, SCHEMAS
from pipeline.core.wire.openapi_images import a_part
from pipeline.core.wire.openapi_structured import structured_fields
from pipeline.core.wire.openapi_tools import a_message, tool_fields
from pipeline.core.wire.openapi_values import (
    Schema,
    a_flag,
    a_number,
    a_ref,
    an_integer,
    an_object,
    or_null,
    token_ids,
)
from pipeline.core.wire.prompts import MAX_CHOICES, MAX_N
from pipeline.core.wire.requests import MAX_FLUSH_MS, MAX_FLUSH_TOKENS
from pipeline.core.wire.terms import (
    KV_EVICTIONS,
    MAX_KV_TOKENS,
    MAX_PRIORITY,
    MAX_SALT_CHARS,
    MAX_USER_CHARS,
    MAX_WAIT_MS,
    MIN_PATIENCE_MS,
)
from pipeline.messages import MAX_LOGPROBS


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
                "CompletionRequest": an_object(_completion(limits), ["prompt"]),
                "ChatRequest": an_object(_chat(limits), ["messages"]),
                "ResponseRequest": _response(limits),
                "EmbeddingsRequest": _embeddings(limits),
                "TokenizeRequest": _tokenize(limits),
                "DetokenizeRequest": an_object(
                    {"model": _model(limits), "tokens": token_ids(limits, limits.max_model_len - 1)},
                    ["tokens"],
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
    content = {"application/json": {"schema": a_ref(answers)}}
    if streams:
        content["text/event-stream"] = {"schema": {}}
    body = {"required": True, "content": {"application/json": {"schema": a_ref(asks)}}}
    return {"requestBody": body, "responses": _responses(content, errors)}


def _get(answers: str, errors: list[str], path: str = "") -> Schema:
    operation: Schema = {
        "responses": _responses({"application/json": {"schema": a_ref(answers)}}, ["401", *errors])
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
    ids = token_ids(limits, limits.max_model_len - 1)
    several = {"type": "array", "items": {"anyOf": [text, ids]}, "minItems": 1, "maxItems": MAX_CHOICES}
    return _generate(limits) | {
        "prompt": {"anyOf": [text, ids, several]},
        "echo": a_flag(),
        "suffix": or_null({"const": ""}),
        "logprobs": {"anyOf": [an_integer(0, MAX_LOGPROBS), {"const": False}]},
        "prompt_logprobs": an_integer(0, MAX_LOGPROBS),
    }


def _chat(limits: Limits) -> Schema:
    text = an_object({"type": {"const": "text"}, "text": {"type": "string"}}, ["type", "text"])
    parts = {"type": "array", "items": a_part(text, "image_url", limits), "minItems": 1}
    content = {"anyOf": [{"type": "string"}, parts]}
    return (
        _generate(limits)
        | tool_fields(limits)
        | {
            "messages": {
                "type": "array",
                "items": a_message(limits, content),
                "minItems": 1,
                "description": f"At most {MAX_PIECES} messages and parts together",
            },
            "separate_reasoning": a_flag(),
            "max_completion_tokens": an_integer(1, limits.max_model_len),
            "logprobs": a_flag(),
            "top_logprobs": an_integer(0, MAX_LOGPROBS),
            "prompt_logprobs": an_integer(0, MAX_LOGPROBS),
        }
    )


def _response(limits: Limits) -> Schema:
    fields = {name: schema for name, schema in _generate(limits).items() if name not in _NOT_OF_RESPONSES}
    kind = {"enum": ["input_text", "output_text", "text"]}
    part = an_object({"type": kind, "text": {"type": "string"}}, ["type", "text"])
    parts = {"type": "array", "items": a_part(part, "input_image", limits), "minItems": 1}
    content = {"anyOf": [{"type": "string"}, parts]}
    spoken = {"type": or_null({"const": "message"}), "role": {"enum": list(ROLES)}, "content": content}
    message = an_object(spoken, ["role", "content"])
    messages = {"type": "array", "items": message, "minItems": 1}
    mine = {
        "input": {"anyOf": [{"type": "string"}, messages]},
        "instructions": {"type": ["string", "null"]},
        "max_output_tokens": an_integer(1, limits.max_model_len),
        "store": or_null({"const": False}),
        "background": or_null({"const": False}),
        "metadata": or_null({"type": "object", "maxProperties": 0}),
        "tools": or_null({"type": "array", "maxItems": 0}),
        "tool_choice": or_null({"enum": ["none", "auto"]}),
        "parallel_tool_calls": a_flag(),
        "truncation": or_null({"const": "disabled"}),
    }
    return an_object(fields | mine, ["input"])


_NOT_OF_RESPONSES = ("max_tokens", "n", "best_of", "stream_options")


def _embeddings(limits: Limits) -> Schema:
    shared = ("model", "truncate_prompt_tokens", "timings", "priority", "patience_ms", "user", "cache_salt")
    text: Schema = {"type": "string", "minLength": 1}
    ids = token_ids(limits, limits.max_model_len)
    several = {"type": "array", "items": {"anyOf": [text, ids]}, "minItems": 1, "maxItems": MAX_INPUTS}
    mine = {
        "input": {"anyOf": [text, ids, several]},
        "encoding_format": or_null({"enum": list(FORMATS)}),
        "pooling": or_null({"enum": list(POOLINGS)}),
        "dimensions": {"type": "null"},
        "normalize": or_null({"const": True}),
    }
    generating = _generate(limits)
    return an_object({name: generating[name] for name in shared} | mine, ["input"])


def _tokenize(limits: Limits) -> Schema:
    shared = {"model": _model(limits), "add_special_tokens": a_flag()}
    text = an_object(shared | {"prompt": {"type": "string"}}, ["prompt"])
    text_only = replace(limits, images=None)
    chat = an_object(shared | {"messages": _chat(text_only)["messages"]}, ["messages"])
    return {"anyOf": [text, chat]}


def _generate(limits: Limits) -> Schema:
    """What both endpoints know."""
    words = {"type": "string", "minLength": 1, "maxLength": bounds.MAX_STOP_CHARS}
    stop_list = {"type": "array", "items": words, "maxItems": bounds.MAX_STOPS}
    biases = a_number(-bounds.MAX_BIAS, bounds.MAX_BIAS, nullable=False)
    return structured_fields() | {
        "model": _model(limits),
        "max_tokens": an_integer(1, limits.max_model_len),
        "min_tokens": an_integer(0, limits.max_model_len),
        "truncate_prompt_tokens": {
            "anyOf": [{"const": bounds.ALL_THAT_FITS}, an_integer(1, limits.max_model_len)]
        },
        "temperature": a_number(0, 2),
        "top_p": a_number(0, 1, above_low=True),
        "top_k": an_integer(-1, bounds.MAX_TOP_K),
        "min_p": a_number(0, 1),
        "typical_p": a_number(0, 1, above_low=True),
        "presence_penalty": a_number(-2, 2),
        "frequency_penalty": a_number(-2, 2),
        "repetition_penalty": a_number(0, 2, above_low=True),
        "logit_bias": or_null(
            {
                "type": "object",
                "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"},
                "additionalProperties": biases,
                "maxProperties": bounds.MAX_BIASES,
            }
        ),
        "allowed_token_ids": or_null(token_ids(limits, limits.vocab_size)),
        "bad_words": or_null({"type": "array", "items": words, "maxItems": bounds.MAX_BAD_WORDS}),
        "stop": {"anyOf": [words, stop_list, {"type": "null"}]},
        "stop_token_ids": or_null(token_ids(limits, bounds.MAX_STOP_IDS, at_least=0)),
        "include_stop_str_in_output": a_flag(),
        "skip_special_tokens": a_flag(),
        "ignore_eos": a_flag(),
        "seed": an_integer(INT64_MIN, INT64_MAX),
        "n": an_integer(1, MAX_N),
        "best_of": an_integer(1, MAX_N),
        "stream": a_flag(),
        "stream_options": or_null(
            an_object({"include_usage": a_flag(), "include_obfuscation": or_null({"const": False})}, [])
        ),
        "timings": a_flag(),
        "flush_tokens": an_integer(1, MAX_FLUSH_TOKENS),
        "flush_ms": a_number(0, MAX_FLUSH_MS),
        "priority": an_integer(-MAX_PRIORITY, MAX_PRIORITY),
        "ttft_target_ms": a_number(0, MAX_WAIT_MS, above_low=True),
        "tpot_target_ms": a_number(0, MAX_WAIT_MS, above_low=True),
        "patience_ms": a_number(MIN_PATIENCE_MS, MAX_WAIT_MS),
        "user": or_null({"type": "string", "maxLength": MAX_USER_CHARS}),
        "cache_salt": or_null({"type": "string", "maxLength": MAX_SALT_CHARS}),
        "cache_pin": a_flag(),
        "kv_eviction": or_null({"enum": list(KV_EVICTIONS)}),
        "kv_budget": an_integer(1, MAX_KV_TOKENS),
        "kv_sinks": an_integer(0, MAX_KV_TOKENS),
    }


def _model(limits: Limits) -> Schema:
    return or_null({"const": limits.model})
