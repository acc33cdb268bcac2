"""Image parts are refused by name: nothing is fetched, and no model here sees."""

from typing import Any

import pytest

from pipeline.core.wire.chat import parse_messages
from pipeline.errors import RequestError

PNG = "data:image/png;base64,iVBORw0KGgo="


def refusal(part: dict[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as raised:
        parse_messages([{"role": "user", "content": [{"type": "text", "text": "What is it?"}, part]}])
    return raised.value


def test_an_image_is_not_supported() -> None:
    for url in (PNG, PNG.replace("data", "DATA")):
        error = refusal({"type": "image_url", "image_url": {"url": url, "detail": "low"}})
        assert (error.status, error.code) == (400, "images_not_supported")
        assert error.param == "messages[0].content[1]"


@pytest.mark.parametrize(
    "url", ["https://example.com/a.png", "file:///etc/passwd", "http://169.254.169.254/", "", None, 7]
)
def test_an_address_is_never_fetched(url: object) -> None:
    error = refusal({"type": "image_url", "image_url": {"url": url}})
    assert (error.status, error.code) == (400, "image_url_not_allowed")
    assert error.param == "messages[0].content[1].image_url.url"
    assert "passwd" not in error.message and "169" not in error.message


@pytest.mark.parametrize("part", [{"image_url": PNG}, {}])
def test_an_image_without_its_object(part: dict[str, Any]) -> None:
    error = refusal({"type": "image_url"} | part)
    assert (error.code, error.param) == ("invalid_value", "messages[0].content[1].image_url")
    assert "iVBOR" not in error.message
