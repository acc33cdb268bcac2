"""Image parts: taken as data URLs where the model sees, else refused by name; nothing is ever fetched."""

from typing import Any

import msgspec
import pytest
from openapi_spec_validator import validate

from pipeline.core.wire import ImageLimits, Limits, parse_chat, parse_response, parse_tokenize
from pipeline.core.wire.chat import parse_messages
from pipeline.core.wire.openapi import document
from pipeline.errors import RequestError
from pipeline.messages import ImagePart

PNG = "data:image/png;base64,iVBORw0KGgo="
TEXT_ONLY = Limits("m", 100, 50)
SEES = msgspec.structs.replace(TEXT_ONLY, images=ImageLimits(num_tokens=10, max_images=3))
HELLO = {"type": "text", "text": "What is it?"}


def an_image(url: object = PNG, **more: object) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url} | more}


def chat(*parts: dict[str, Any], limits: Limits = SEES, role: str = "user", **fields: Any) -> Any:
    body = {"messages": [{"role": role, "content": list(parts)}]} | fields
    (wanted,) = parse_chat(msgspec.json.encode(body), limits, 1)
    return wanted


def refusal(*parts: dict[str, Any], **rest: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        chat(*parts, **rest)
    assert "iVBOR" not in raised.value.message
    return raised.value


def test_an_image_keeps_its_place_among_the_texts() -> None:
    wanted = chat(HELLO, an_image(), an_image(PNG.replace("data", "DATA"), detail="auto"), HELLO)
    (message,) = wanted.chat
    field = "messages[0].content[{}].image_url.url"
    assert message.content == "What is it?" * 2
    assert message.images == (
        ImagePart(11, field.format(1), "iVBORw0KGgo="),
        ImagePart(11, field.format(2), "iVBORw0KGgo="),
    )
    assert (wanted.num_images, wanted.num_image_tokens) == (2, 20)


def test_a_text_has_none() -> None:
    wanted = chat(HELLO)
    assert (wanted.num_images, wanted.num_image_tokens) == (0, 0)


def test_a_response_calls_it_otherwise() -> None:
    body = {
        "instructions": "Look.",
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": PNG, "detail": "low"}]}],
    }
    (wanted,) = parse_response(msgspec.json.encode(body), SEES, 1)
    assert wanted.chat is not None and [each.role for each in wanted.chat] == ["system", "user"]
    assert wanted.chat[1].images == (ImagePart(0, "input[0].content[0].image_url", "iVBORw0KGgo="),)


@pytest.mark.parametrize(
    ("part", "code", "param"),
    [
        ({"image_url": "https://example.com/a.png"}, "image_url_not_allowed", "image_url"),
        ({"file_id": "file-1"}, "image_url_not_allowed", "image_url"),
        ({"image_url": PNG, "detail": "high"}, "invalid_value", "detail"),
        ({"image_url": PNG, "file_id": "file-1"}, "unsupported_field", "file_id"),
    ],
)
def test_a_response_has_the_same_rules(part: dict[str, Any], code: str, param: str) -> None:
    body = {"input": [{"role": "user", "content": [{"type": "input_image"} | part]}]}
    with pytest.raises(RequestError) as raised:
        parse_response(msgspec.json.encode(body), SEES, 1)
    assert (raised.value.code, raised.value.param) == (code, f"input[0].content[0].{param}")


@pytest.mark.parametrize("limits", [SEES, TEXT_ONLY])
@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/a.png",
        "file:///etc/passwd",
        "http://169.254.169.254/",
        "ftp://a",
        "//a/b.png",
        "",
        " data:image/png;base64,",
        None,
        7,
    ],
)
def test_an_address_is_never_fetched(url: object, limits: Limits) -> None:
    error = refusal(HELLO, an_image(url), limits=limits)
    assert (error.status, error.code) == (400, "image_url_not_allowed")
    assert error.param == "messages[0].content[1].image_url.url"
    assert "passwd" not in error.message and "169" not in error.message


@pytest.mark.parametrize(
    "url",
    [
        "data:,hello",
        "data:image/png,iVBORw0KGgo=",
        "data:image/svg+xml;base64,PHN2Zz4=",
        "data:image/gif;base64,R0lGODlh",
        "data:text/html;base64,PGI+",
        "data:image/png;charset=utf-8;base64,iVBORw0KGgo=",
    ],
)
def test_other_data_is_refused(url: str) -> None:
    error = refusal(an_image(url))
    assert (error.code, error.param) == ("invalid_image", "messages[0].content[0].image_url.url")
    assert "image/png, image/jpeg, image/webp" in error.message


def test_a_model_that_reads_text_only_says_so() -> None:
    error = refusal(HELLO, an_image(detail="low"), limits=TEXT_ONLY)
    assert (error.status, error.code) == (400, "images_not_supported")
    assert error.param == "messages[0].content[1]"


@pytest.mark.parametrize("part", [{"image_url": PNG}, {}])
def test_an_image_without_its_object(part: dict[str, Any]) -> None:
    error = refusal({"type": "image_url"} | part)
    assert (error.code, error.param) == ("invalid_value", "messages[0].content[0].image_url")


@pytest.mark.parametrize(
    ("part", "param"),
    [
        (an_image(detail="high"), "messages[0].content[0].image_url.detail"),
        (an_image(detail=3), "messages[0].content[0].image_url.detail"),
        (an_image(more=1), "messages[0].content[0].image_url.more"),
        (an_image() | {"more": 1}, "messages[0].content[0].more"),
        ({"type": "input_image", "image_url": PNG}, "messages[0].content[0].type"),
    ],
)
def test_no_field_is_ignored(part: dict[str, Any], param: str) -> None:
    assert refusal(part).param == param


def test_bounds_name_the_image_that_is_one_too_many() -> None:
    assert chat(*[an_image()] * 3).num_images == 3
    error = refusal(*[an_image()] * 4)
    assert (error.code, error.param) == ("too_many_images", "messages[0].content[3].image_url.url")
    assert "may hold 3 images, and this one holds 4" in error.message
    large = msgspec.structs.replace(SEES, images=ImageLimits(num_tokens=50))
    error = refusal(*[an_image()] * 2, limits=large)
    assert error.code == "context_length_exceeded" and "2 images come to 100 tokens" in error.message


def test_what_does_not_go_with_images() -> None:
    assert refusal(an_image(), truncate_prompt_tokens=5).param == "truncate_prompt_tokens"
    assert refusal(an_image(), role="assistant").message.endswith("must be text.")
    assert refusal(an_image(), role="system").code == "invalid_value"


def test_token_ids_of_an_image_cannot_be_asked_for() -> None:
    body = {"messages": [{"role": "user", "content": [an_image()]}]}
    with pytest.raises(RequestError) as raised:
        parse_tokenize(msgspec.json.encode(body), SEES)
    assert raised.value.code == "images_not_supported"


def test_a_tool_answers_in_text() -> None:
    message = {"role": "tool", "tool_call_id": "a", "content": [an_image()]}
    with pytest.raises(RequestError, match="tool's result"):
        parse_messages([message], has_tools=True, images=SEES.images)


def test_the_document_has_images_where_the_model_sees() -> None:
    for limits, is_there in ((TEXT_ONLY, False), (SEES, True)):
        schemas = document(limits, "1")["components"]["schemas"]
        for name, kind in (("ChatRequest", "image_url"), ("ResponseRequest", "input_image")):
            assert (kind in msgspec.json.encode(schemas[name]).decode()) is is_there
        assert "image_url" not in msgspec.json.encode(schemas["TokenizeRequest"]).decode()


def test_the_document_with_images_is_valid() -> None:
    validate(document(SEES, "1"))
