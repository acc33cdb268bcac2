"""What the OpenAPI document says of images, which depends on whether the model reads any."""

from pipeline.core.wire.images import DETAILS, MEDIA_TYPES, ImageKind
from pipeline.core.wire.limits import Limits
from pipeline.core.wire.openapi_values import Schema, an_object, or_null


def a_part(text: Schema, kind: ImageKind, limits: Limits) -> Schema:
    """Of a message's content: a text, or an image too."""
    if limits.images is None:
        return text
    types = "|".join(each.removeprefix("image/") for each in MEDIA_TYPES)
    url = {
        "type": "string",
        "pattern": f"^data:image/({types});base64,",
        "description": "A file in a data URL: nothing is fetched",
    }
    detail = or_null({"enum": list(DETAILS)})
    if kind == "input_image":
        fields: Schema = {"image_url": url, "detail": detail}
    else:
        fields = {"image_url": an_object({"url": url, "detail": detail}, ["url"])}
    image = an_object({"type": {"const": kind}} | fields, ["type", "image_url"])
    most = f"At most {limits.images.max_images} images in a request, in messages of the user"
    return {"anyOf": [text, image | {"description": most}]}
