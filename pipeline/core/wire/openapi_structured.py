"""What the OpenAPI document says of structured output."""

from pipeline.core.wire.openapi_values import Schema, a_flag, an_object, or_null
from pipeline.core.wire.structured import MAX_CHOICES, MAX_GRAMMAR_BYTES

_GRAMMAR: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_GRAMMAR_BYTES}
_KINDS: Schema = {
    "json": {"type": "object", "description": "A JSON Schema"},
    "regex": _GRAMMAR,
    "choice": {
        "type": "array",
        "items": {"type": "string", "minLength": 1},
        "minItems": 1,
        "maxItems": MAX_CHOICES,
    },
    "grammar": _GRAMMAR | {"description": "In Lark's notation"},
}


def structured_fields() -> Schema:
    """Of every endpoint that generates."""
    kinds = [an_object({kind: value}, [kind]) for kind, value in _KINDS.items()]
    return {
        "response_format": or_null(_response_format()),
        "structured_outputs": or_null({"anyOf": kinds}),
    }


def _response_format() -> Schema:
    schema = {
        "name": {"type": ["string", "null"]},
        "description": {"type": ["string", "null"]},
        "schema": {"type": "object", "description": "A JSON Schema"},
        "strict": a_flag(),
    }
    asks = {"type": {"const": "json_schema"}, "json_schema": an_object(schema, ["schema"])}
    plain = an_object({"type": {"enum": ["text", "json_object"]}}, ["type"])
    return {"anyOf": [plain, an_object(asks, ["type", "json_schema"])]}
