"""Image parts of chat messages. No model family here sees: each is refused, and says why.

Nothing is fetched for a client, so an address is wrong whatever the model.
"""

from pipeline.core.wire.fields import Fields, wrong_content
from pipeline.errors import RequestError

SCHEME = "data:"


def refusal_of(name: str, part: Fields) -> RequestError:
    """Why the part `name`, whose type is image_url, is not taken. Its fields are read from `part`."""
    value = part.take("image_url")
    if not isinstance(value, dict):
        return wrong_content(name + ".image_url", 'an object {"url": "data:image/png;base64,..."}', value)
    url = value.get("url")
    if not isinstance(url, str) or url[: len(SCHEME)].lower() != SCHEME:
        return RequestError(
            f"'{name}.image_url.url' must be a {SCHEME} URL: this server fetches nothing.",
            param=name + ".image_url.url",
            code="image_url_not_allowed",
        )
    return RequestError(
        f"'{name}' is an image, and this model reads text only.", param=name, code="images_not_supported"
    )
