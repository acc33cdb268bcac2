"""Image parts of messages: `image_url` of a chat, `input_image` of a response. Data URLs (RFC 2397) only.

Nothing is fetched for a client, so an address is wrong whatever the model (server-side request forgery). Here
a part is checked as far as costs nothing; what its file holds is the stage `images`' matter.
"""

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from pipeline.core.wire.fields import Fields, wrong, wrong_content
from pipeline.errors import RequestError
from pipeline.messages import ChatMessage, ImagePart, SamplingParams

ImageKind = Literal["image_url", "input_image"]
"""How the endpoints call the part's type."""

SCHEME = "data:"
MEDIA_TYPES = ("image/png", "image/jpeg", "image/webp")
DETAILS = ("auto", "low")
"""All images become as many tokens, so there is no higher detail."""
_HEAD = re.compile(rf"data:(?:{'|'.join(MEDIA_TYPES)});base64,", re.IGNORECASE)
_MAX_HEAD = 64


class ImageLimits(msgspec.Struct, frozen=True):
    """Of a model that reads images."""

    num_tokens: int
    """Of each in a prompt."""
    max_images: int = 8
    """Of a request."""


def parse_image(name: str, kind: ImageKind, part: Fields, limits: ImageLimits | None, at: int) -> ImagePart:
    """The part `name`, whose other fields are read from `part`. Raises RequestError.

    Args:
        limits: None: no image is read here.
        at: characters of its message before it.
    """
    field, url = _url(name, kind, part)
    if not isinstance(url, str) or url[: len(SCHEME)].lower() != SCHEME:
        raise RequestError(
            f"'{field}' must be a {SCHEME} URL: this server fetches nothing.",
            param=field,
            code="image_url_not_allowed",
        )
    if limits is None:
        raise RequestError(
            f"'{name}' is an image, and only text is read here.", param=name, code="images_not_supported"
        )
    head = _HEAD.match(url, 0, _MAX_HEAD)
    if head is None:
        raise RequestError(
            f"'{field}' must begin with data:TYPE;base64, and TYPE must be {', '.join(MEDIA_TYPES)}.",
            param=field,
            code="invalid_image",
        )
    part.finish({})
    return ImagePart(at, field, url[head.end() :])


def _url(name: str, kind: ImageKind, part: Fields) -> tuple[str, object]:
    """Where it is written, and what is there."""
    field, value = f"{name}.image_url", part.take("image_url")
    if kind == "input_image":
        _check_detail(f"{name}.detail", part.take("detail"))
        return field, value
    if not isinstance(value, dict):
        raise wrong_content(field, 'an object {"url": "data:image/png;base64,..."}', value)
    fields = Fields(dict(value), field + ".")
    url = fields.take("url")
    _check_detail(f"{field}.detail", fields.take("detail"))
    fields.finish({})
    return f"{field}.url", url


def _check_detail(name: str, value: object) -> None:
    if value is not None and value not in DETAILS:
        raise wrong(name, f"one of {', '.join(DETAILS)}", value)


def check_images(
    messages: Sequence[ChatMessage], limits: ImageLimits | None, sampling: SamplingParams, max_model_len: int
) -> int:
    """The tokens that the images of a request come to. Raises RequestError."""
    images = [image for message in messages for image in message.images]
    if not images or limits is None:
        return 0
    if len(images) > limits.max_images:
        raise RequestError(
            f"A request may hold {limits.max_images} images, and this one holds {len(images)}.",
            param=images[limits.max_images].field,
            code="too_many_images",
        )
    if sampling.truncate_prompt_tokens is not None:
        raise RequestError(
            "'truncate_prompt_tokens' does not go with images, which cannot be cut.",
            param="truncate_prompt_tokens",
            code="unsupported_value",
        )
    num_tokens = len(images) * limits.num_tokens
    if num_tokens >= max_model_len:
        raise RequestError(
            f"{len(images)} images come to {num_tokens} tokens, but the model's length is {max_model_len} "
            "tokens, prompt and output together.",
            param=images[0].field,
            code="context_length_exceeded",
        )
    return num_tokens
