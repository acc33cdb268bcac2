"""Where images stand in a prompt: in templates that take parts, in those that take texts, among tokens."""

from collections.abc import Sequence

import pytest
from tokenizers import AddedToken

from pipeline.core.chat import ChatTemplate
from pipeline.core.gate import Gate
from pipeline.core.image_tokens import check_read, with_images
from pipeline.core.prompts import PromptEncoder
from pipeline.errors import RequestError
from pipeline.messages import (
    ChatMessage,
    DeviceReady,
    GenerateRequest,
    ImagePart,
    PromptImage,
    SamplingParams,
)
from tests import tiny_models, tiny_vision

TEXTS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content | trim }}<|im_end|>\n"
    "{% endfor %}"
)
FORGETFUL = "{% for message in messages %}{{ message.content[0].text }}{% endfor %}"


def chat_template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {}, str, 10_000, tiny_vision.MARKER)


def encoder() -> PromptEncoder:
    tokenizer = tiny_models.byte_level_tokenizer()
    tokenizer.add_special_tokens([AddedToken(tiny_vision.MARKER, normalized=False, special=True)])
    return PromptEncoder(tokenizer)


def user(*parts: str | None) -> ChatMessage:
    """None: an image."""
    content, images = "", []
    for part in parts:
        if part is None:
            images.append(ImagePart(len(content), "here"))
        content += part or ""
    return ChatMessage("user", content, images=tuple(images))


def ids_of(source: str, messages: Sequence[ChatMessage]) -> list[int]:
    encoding = encoder()
    (encoded,) = encoding.encode([encoding.render(chat_template(source), messages)], is_rendered=True)
    return encoding.ids_of(encoded, is_rendered=True)


def text_of(source: str, messages: Sequence[ChatMessage]) -> str:
    return encoder().decode(ids_of(source, messages))


def test_a_template_that_takes_texts_has_markers_in_these() -> None:
    said = text_of(TEXTS, [user("one", None, None, "two"), ChatMessage("assistant", "hello")])
    assert said == (
        "<|im_start|>user\none<image><image>two<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n"
    )


def test_a_template_that_takes_parts_is_given_them_in_their_order() -> None:
    said = text_of(tiny_vision.TEMPLATE, [user(None, "one", None), ChatMessage("assistant", "hello")])
    assert said == (
        "<|im_start|>user\n<image>\none<image>\n<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("source", [TEXTS, tiny_vision.TEMPLATE])
@pytest.mark.parametrize(
    "parts",
    [
        ("<image>", None, "<image>"),
        ("a <ima", None, "ge> b"),
        ("<", None, "image>"),
        ("<im", "age>", None),
        (None, "<image><image>", None, "<|im_end|>"),
    ],
)
def test_a_client_cannot_write_the_marker(source: str, parts: tuple[str | None, ...]) -> None:
    ids = ids_of(source, [user(*parts)])
    assert ids.count(tiny_vision.IMAGE_TOKEN) == parts.count(None)
    text = "".join(part or "" for part in parts)
    assert text in encoder().decode([each for each in ids if each != tiny_vision.IMAGE_TOKEN]).replace(
        "\n", ""
    )


def images(*digests: str) -> list[PromptImage]:
    return [PromptImage(b"", digest.encode()) for digest in digests]


def test_each_marker_becomes_the_tokens_of_its_image() -> None:
    token_ids, placed = with_images([1, 9, 2, 9, 9, 3], images("a", "b", "c"), 9, 3)
    assert token_ids == [1, *[9] * 3, 2, *[9] * 6, 3]
    assert [(each.digest, each.start, each.end) for each in placed] == [
        (b"a", 1, 4),
        (b"b", 5, 8),
        (b"c", 8, 11),
    ]


@pytest.mark.parametrize("token_ids", [[1, 2], [9, 1], [9, 9, 9]])
def test_a_template_that_leaves_one_out_is_refused(token_ids: list[int]) -> None:
    with pytest.raises(RequestError, match=r"writes . images, and these messages hold 2"):
        with_images(token_ids, images("a", "b"), 9, 3)


def test_a_template_that_knows_no_images_has_them_refused() -> None:
    assert "<image>" not in chat_template(FORGETFUL).render([user(None, "a")])


def test_images_that_nobody_has_read_are_refused() -> None:
    request = GenerateRequest(0, None, [user("a"), user(None, "b")], SamplingParams(), 0, 0)
    with pytest.raises(RequestError, match=r"no \[stages\.images\]") as raised:
        check_read(request)
    assert (raised.value.code, raised.value.param) == ("images_not_enabled", "here")


def test_the_gate_counts_them_and_learns_nothing_of_text_by_them() -> None:
    gate = Gate()
    gate.open(DeviceReady(num_blocks=10, block_size=16, max_num_seqs=4, max_num_batched_tokens=64), None)
    chat = [ChatMessage("user", "a" * 40, images=(ImagePart(0, "here"),))]
    for request_id, num_tokens in ((0, 110), (1, 110)):  # 40 characters are taken for 10 tokens
        request = GenerateRequest(request_id, None, chat, SamplingParams(), 0, 0, num_image_tokens=100)
        gate.enter(request)
        assert gate.gauges()["gate_queued_prefill_tokens"] == num_tokens
        gate.tokenized(request_id, num_tokens)
        gate.started(request_id, 1)
