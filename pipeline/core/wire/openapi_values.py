"""JSON Schemas of the kinds of values that requests have."""

from typing import Any

from pipeline.core.wire.limits import Limits

Schema = dict[str, Any]


def an_object(properties: Schema, required: list[str]) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def token_ids(limits: Limits, most: int, at_least: int = 1) -> Schema:
    items = {"type": "integer", "minimum": 0, "maximum": limits.vocab_size - 1}
    return {"type": "array", "items": items, "minItems": at_least, "maxItems": most}


def an_integer(low: int, high: int) -> Schema:
    return {"type": ["integer", "null"], "minimum": low, "maximum": high}


def a_number(low: float, high: float, *, above_low: bool = False, nullable: bool = True) -> Schema:
    lowest = "exclusiveMinimum" if above_low else "minimum"
    return {"type": ["number", "null"] if nullable else "number", lowest: low, "maximum": high}


def a_flag() -> Schema:
    return {"type": ["boolean", "null"]}


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def a_ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
