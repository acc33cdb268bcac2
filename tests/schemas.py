"""A hundred schemas, one or more for each keyword of the JSON Schema Test Suite that answers can be held
to. Sizes are bounded, so that a model that says anything comes to an end.
"""

from typing import Any

Schema = dict[str, Any]

WORD: Schema = {"type": "string", "maxLength": 6}
DIGIT: Schema = {"type": "integer", "minimum": 0, "maximum": 9}


def record(**properties: Schema) -> Schema:
    """All of them required, and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def several(items: Schema, most: int, **more: Any) -> Schema:
    return {"type": "array", "items": items, "maxItems": most, **more}


TYPES: list[Schema] = [
    {"type": "null"},
    {"type": "boolean"},
    {"type": "integer", "minimum": -999, "maximum": 999},
    {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.01},
    WORD,
    several(DIGIT, 3),
    record(),
    {"type": ["boolean", "null"]},
    {"type": ["integer", "boolean"], "minimum": 0, "maximum": 50},
    several({"type": ["null", "boolean"]}, 4),
]
VALUES: list[Schema] = [
    {"enum": ["red", "green", "blue"]},
    {"enum": [1, 2, 3]},
    {"enum": [None, True, "true", 0, 0.5]},
    {"enum": [[1, 2], {"a": "b"}, "c"]},
    {"enum": ["", " ", '"', "\\", "\n", "\u00e9", "\U0001f600"]},
    {"enum": [f"entry-{number}" for number in range(200)]},
    {"const": "always"},
    {"const": 42},
    {"const": None},
    {"const": {"nested": [1, {"deep": True}]}},
    record(kind={"const": "circle"}, unit={"enum": ["cm", "in"]}),
    several({"enum": ["a", "b"]}, 5),
]
NUMBERS: list[Schema] = [
    DIGIT,
    {"type": "integer", "minimum": 1, "maximum": 1},
    {"type": "integer", "minimum": -5, "maximum": 5},
    {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
    {"type": "integer", "minimum": 1995, "maximum": 2030},
    {"type": "integer", "minimum": 100, "maximum": 100_000},
    {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
    {"type": "number", "minimum": -1.5, "maximum": 1.5, "multipleOf": 0.25},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 3.25, "multipleOf": 0.05},
    {"type": "number", "minimum": 0.001, "maximum": 0.002, "multipleOf": 0.0001},
]
STRINGS: list[Schema] = [
    {"type": "string", "maxLength": 0},
    {"type": "string", "minLength": 3, "maxLength": 3},
    {"type": "string", "minLength": 2, "maxLength": 8},
    {"type": "string", "pattern": "^[0-9]{3}-[0-9]{4}$"},
    {"type": "string", "pattern": "^(yes|no|perhaps)$"},
    {"type": "string", "pattern": "^[a-z]{1,5}(_[a-z]{1,5}){0,2}$"},
    {"type": "string", "pattern": "^#[0-9A-F]{6}$"},
    {"type": "string", "pattern": '^["\\\\]{1,3}$'},
    {"type": "string", "pattern": "^\\d{1,3}(\\.\\d{1,3}){3}$"},
    {"type": "string", "pattern": "^[\u00e0-\u00ff]{1,4}$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "time"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
]
ARRAYS: list[Schema] = [
    several(DIGIT, 0),
    several(DIGIT, 1, minItems=1),
    several(DIGIT, 4, minItems=2),
    several(WORD, 3),
    several(several(DIGIT, 2), 2),
    several(record(x=DIGIT, y=DIGIT), 3, minItems=1),
    {"type": "array", "prefixItems": [DIGIT, {"type": "boolean"}], "items": False, "minItems": 2},
    {"type": "array", "prefixItems": [{"const": "head"}], "items": DIGIT, "minItems": 1, "maxItems": 4},
    several({"anyOf": [DIGIT, {"type": "null"}]}, 4),
    several({"type": "boolean"}, 8, minItems=8),
]
OBJECTS: list[Schema] = [
    record(name=WORD, age=DIGIT),
    record(a=record(b=record(c=record(d={"type": "null"})))),
    {"type": "object", "properties": {"a": DIGIT, "b": DIGIT}, "additionalProperties": False},
    {
        "type": "object",
        "properties": {"a": DIGIT, "b": WORD},
        "required": ["b"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {"only": {"type": "boolean"}},
        "required": ["only"],
        "additionalProperties": False,
    },
    record(**{f"field_{number}": DIGIT for number in range(12)}),
    record(**{"with space": DIGIT, 'with"quote': DIGIT, "\u00fc": DIGIT}),
    record(**{"": {"type": "null"}, "$ref": DIGIT, "type": {"const": "t"}}),
    record(tags=several(WORD, 2), point=record(x=DIGIT, y=DIGIT)),
    {
        "type": "object",
        "properties": {f"p{number}": {"type": "boolean"} for number in range(8)},
        "additionalProperties": False,
    },
    {
        "type": "object",
        "patternProperties": {"^x[0-9]$": DIGIT},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    {
        "type": "object",
        "properties": {"id": DIGIT},
        "required": ["id"],
        "additionalProperties": False,
        "title": "Thing",
        "description": "With annotations",
        "$schema": "https://json-schema.org/draft/2020-12/schema",
    },
]
COMBINED: list[Schema] = [
    {"anyOf": [DIGIT, WORD]},
    {"anyOf": [record(a=DIGIT), record(b=WORD)]},
    {"anyOf": [{"type": "null"}, several(DIGIT, 2)]},
    {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "boolean"}]},
    {"oneOf": [record(kind={"const": "a"}, x=DIGIT), record(kind={"const": "b"}, y=DIGIT)]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 7}]},
    {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 4}]},
    {
        "allOf": [
            {"type": "object", "properties": {"a": DIGIT}, "required": ["a"]},
            {"properties": {"b": DIGIT}, "required": ["b"]},
        ],
        "properties": {"a": True, "b": True},
        "additionalProperties": False,
    },
    record(either={"anyOf": [{"const": 1}, {"const": "one"}]}, both={"allOf": [DIGIT, {"maximum": 4}]}),
    {
        "type": "object",
        "properties": {"v": {"anyOf": [DIGIT, {"type": "null"}]}},
        "required": ["v"],
        "additionalProperties": False,
    },
]
REFERENCES: list[Schema] = [
    {"$ref": "#/$defs/digit", "$defs": {"digit": DIGIT}},
    {"$defs": {"point": record(x=DIGIT, y=DIGIT)}, **record(at={"$ref": "#/$defs/point"})},
    {"definitions": {"word": WORD}, **several({"$ref": "#/definitions/word"}, 3)},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "boolean"}}, "$ref": "#/$defs/a"},
    {
        "$defs": {
            "leaf": DIGIT,
            "pair": record(a={"$ref": "#/$defs/leaf"}, b={"$ref": "#/$defs/leaf"}),
        },
        **several({"$ref": "#/$defs/pair"}, 2),
    },
    {
        "$defs": {"tree": record(leaf=DIGIT, kids=several({"$ref": "#/$defs/tree"}, 1))},
        "$ref": "#/$defs/tree",
    },
    {"$defs": {"a/b": DIGIT, "c~d": WORD}, **record(x={"$ref": "#/$defs/a~1b"}, y={"$ref": "#/$defs/c~0d"})},
    {**record(name=WORD, boss=several({"$ref": "#"}, 1))},
]
WHOLE: list[Schema] = [
    record(
        city=WORD, temperature={"type": "integer", "minimum": -60, "maximum": 60}, unit={"enum": ["C", "F"]}
    ),
    record(title=WORD, year={"type": "integer", "minimum": 1900, "maximum": 2100}, genres=several(WORD, 2)),
    record(steps=several(record(text=WORD, done={"type": "boolean"}), 2), answer=WORD),
    record(
        sentiment={"enum": ["good", "bad", "mixed"]},
        score={"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.1},
    ),
    record(
        email={"type": "string", "pattern": "^[a-z]{1,8}@[a-z]{1,8}\\.(com|org)$"},
        id={"type": "string", "format": "uuid"},
    ),
    record(items=several(record(sku={"type": "string", "pattern": "^[A-Z]{2}[0-9]{3}$"}, count=DIGIT), 3)),
    record(user=record(id=DIGIT, name=WORD), roles=several({"enum": ["admin", "guest"]}, 2)),
    record(
        box=record(
            min={"type": "array", "items": DIGIT, "minItems": 2, "maxItems": 2},
            max={"type": "array", "items": DIGIT, "minItems": 2, "maxItems": 2},
        )
    ),
    record(when={"type": "string", "format": "date"}, what={"anyOf": [record(call=WORD), record(mail=WORD)]}),
    record(
        query={"type": "string", "minLength": 1, "maxLength": 10},
        limit={"type": ["integer", "null"], "minimum": 1, "maximum": 50},
    ),
    record(language={"enum": ["py", "rs", "c"]}, lines=several(WORD, 3), ok={"const": True}),
    record(matrix=several(several(DIGIT, 2, minItems=2), 2, minItems=2)),
    record(
        a={"type": "null"}, b={"type": "boolean"}, c=DIGIT, d=WORD, e=several(DIGIT, 2), f=record(g=DIGIT)
    ),
]

SCHEMAS = TYPES + VALUES + NUMBERS + STRINGS + ARRAYS + OBJECTS + COMBINED + REFERENCES + WHOLE
