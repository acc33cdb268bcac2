"""The tokens of images in a prompt: where the template wrote a marker, as many as the encoder makes."""

from collections.abc import Sequence

from msgspec.structs import replace

from pipeline.errors import RequestError
from pipeline.messages import ChatMessage, GenerateRequest, PromptImage


def pieces(message: ChatMessage) -> list[str]:
    """The text before the first of its images, between them, and after the last."""
    ends = [image.at for image in message.images]
    return [message.content[start:end] for start, end in zip([0, *ends], [*ends, None], strict=True)]


def rejoined(message: ChatMessage, texts: Sequence[str]) -> ChatMessage:
    """The message with other texts in the place of its pieces."""
    images = []
    at = 0
    for text, image in zip(texts, message.images, strict=False):
        at += len(text)
        images.append(replace(image, at=at))
    return replace(message, content="".join(texts), images=tuple(images))


def check_read(request: GenerateRequest) -> None:
    """Raises RequestError for images that no stage has read."""
    images = [image for message in request.chat or () for image in message.images]
    if len(images) > len(request.images):
        raise RequestError(
            "This server reads no images: its configuration has no [stages.images].",
            param=images[0].field,
            code="images_not_enabled",
        )


def with_images(
    token_ids: list[int], images: Sequence[PromptImage], image_token_id: int, num_tokens: int
) -> tuple[list[int], tuple[PromptImage, ...]]:
    """The prompt with `num_tokens` in the place of each marker, and the images with their places in it.

    Raises RequestError if the template has left some out.
    """
    num_markers = token_ids.count(image_token_id)
    if num_markers != len(images):
        raise RequestError(
            f"The model's chat template writes {num_markers} images, and these messages hold {len(images)}.",
            param="messages",
            code="chat_template",
        )
    placed: list[PromptImage] = []
    longer: list[int] = []
    done = 0
    for image in images:
        at = token_ids.index(image_token_id, done)
        longer += token_ids[done:at]
        placed.append(replace(image, start=len(longer), num_tokens=num_tokens))
        longer += [image_token_id] * num_tokens
        done = at + 1
    return longer + token_ids[done:], tuple(placed)
