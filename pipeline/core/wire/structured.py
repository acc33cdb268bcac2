"""Structured output: the fields that say what an answer must be. Whether it can be is not known here."""

import msgspec
from msgspec.structs import replace

from pipeline.core.wire.fields import Fields, decode_object, wrong, wrong_content
from pipeline.errors import RequestError
from pipeline.messages import Grammar, SamplingParams

MAX_GRAMMAR_BYTES = 64 << 10
MAX_CHOICES = 1000
ANY_OBJECT = Grammar("json", '{"type":"object"}')
NO_GRAMMAR: tuple[Grammar | None, str] = (None, "")
KINDS = ("json", "regex", "choice", "grammar")

_encode = msgspec.json.Encoder().encode


def parse_structured(fields: Fields) -> tuple[Grammar | None, str]:
    """The grammar of `response_format` (OpenAI's) or `structured_outputs` (vLLM's), and which field it is."""
    response_format, structured = fields.take("response_format"), fields.take("structured_outputs")
    of_format = NO_GRAMMAR if response_format is None else _of_format(response_format)
    if structured is None:
        return of_format
    if of_format[0] is not None:
        raise RequestError(
            "'structured_outputs' and 'response_format' both say what the answer must be; give one.",
            param="structured_outputs",
            code="invalid_value",
        )
    return _of_structured(structured)


def under_grammar(sampling: SamplingParams, grammar: Grammar | None, field: str) -> SamplingParams:
    """With the grammar. Raises RequestError for what does not go with one."""
    if grammar is None:
        return sampling
    for name, value in (
        ("ignore_eos", sampling.ignore_eos),
        ("allowed_token_ids", bool(sampling.allowed_token_ids)),
    ):
        if value:
            raise RequestError(
                f"'{name}' does not go with '{field}': which tokens may come, and where the answer ends, is "
                "said by the grammar.",
                param=name,
                code="unsupported_value",
            )
    return replace(sampling, grammar=grammar)


def schema_grammar(schema: object, name: str) -> Grammar:
    """Of a JSON Schema, in field `name`."""
    if not isinstance(schema, dict):
        raise wrong_content(name, "a JSON Schema, which is an object", schema)
    try:
        return _bounded("json", _encode(schema).decode(), name)
    except RecursionError:
        raise RequestError(f"'{name}' is nested too deeply.", param=name, code="invalid_value") from None


def _of_format(value: object) -> tuple[Grammar | None, str]:
    if not isinstance(value, dict):
        raise wrong("response_format", 'an object such as {"type": "json_object"}', value)
    fields = Fields(dict(value), "response_format.")
    kind = fields.take("type")
    if kind == "json_schema":
        found = _of_schema(fields.take("json_schema"))
    elif kind in ("text", "json_object"):
        found = NO_GRAMMAR if kind == "text" else (ANY_OBJECT, "response_format")
    else:
        raise wrong("response_format.type", '"text", "json_object" or "json_schema"', kind)
    fields.finish({})
    return found


def _of_schema(value: object) -> tuple[Grammar | None, str]:
    path = "response_format.json_schema"
    if not isinstance(value, dict):
        raise wrong(path, "an object with a schema", value)
    fields = Fields(dict(value), path + ".")
    grammar = schema_grammar(fields.take("schema"), path + ".schema")
    fields.text("name")
    fields.text("description")
    fields.maybe_flag("strict")  # the answer is as the schema says, either way
    fields.finish({})
    return grammar, path + ".schema"


def _of_structured(value: object) -> tuple[Grammar, str]:
    if not isinstance(value, dict):
        raise wrong("structured_outputs", f"an object with one of {', '.join(KINDS)}", value)
    fields = Fields(dict(value), "structured_outputs.")
    given = {kind: found for kind in KINDS if (found := fields.take(kind)) is not None}
    fields.finish({})
    if len(given) != 1:
        raise RequestError(
            f"'structured_outputs' must hold exactly one of {', '.join(KINDS)}, but holds {len(given)}.",
            param="structured_outputs",
            code="invalid_value",
        )
    ((kind, found),) = given.items()
    name = f"structured_outputs.{kind}"
    return _grammar(kind, found, name), name


def _grammar(kind: str, value: object, name: str) -> Grammar:
    if kind == "json":
        return schema_grammar(decode_object(value) if isinstance(value, str) else value, name)
    if kind == "choice":
        return _choice(value, name)
    if not isinstance(value, str) or not value:
        raise wrong(name, "a string that is not empty", value)
    return _bounded("regex" if kind == "regex" else "lark", value, name)


def _choice(value: object, name: str) -> Grammar:
    expected = f"a list of 1 to {MAX_CHOICES} strings, none of them empty"
    if not isinstance(value, list) or not 0 < len(value) <= MAX_CHOICES:
        raise wrong(name, expected, value)
    for text in value:
        if not isinstance(text, str) or not text:
            raise wrong(name, expected, text)
    return _bounded("choice", _encode(value).decode(), name)


def _bounded(kind: str, text: str, name: str) -> Grammar:
    size = len(text) if text.isascii() else len(text.encode())
    if size > MAX_GRAMMAR_BYTES:
        raise RequestError(
            f"'{name}' has {size} bytes; at most {MAX_GRAMMAR_BYTES} are taken.",
            param=name,
            code="grammar_too_large",
        )
    return msgspec.convert({"kind": kind, "text": text}, Grammar)
