"""The stage images alone: one answer to each request, faults that name the part, files let go once read."""

import asyncio
import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.checkpoint.folder import describe_folder
from pipeline.errors import ConfigError
from pipeline.images import ImageReader
from pipeline.messages import ChatMessage, GenerateRequest, ImagePart, Rejected, SamplingParams
from pipeline.stages import images as stage
from pipeline.stages.images import Images, ImagesOptions
from tests import tiny_vision
from tests.text_world import World


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> ModelCard:
    return describe_folder(tiny_vision.write_folder(tmp_path_factory.mktemp("llava")), "llava")


def request(request_id: int, *files: bytes | str) -> GenerateRequest:
    """A message of text, then one with these files."""
    texts = [file if isinstance(file, str) else base64.b64encode(file).decode() for file in files]
    parts = tuple(
        ImagePart(0, f"messages[1].content[{at}].image_url.url", text) for at, text in enumerate(texts)
    )
    chat = [ChatMessage("user", "hello"), ChatMessage("user", "see", images=parts)]
    return GenerateRequest(
        request_id, None, chat, SamplingParams(), arrived_ns=100, sent_ns=150, num_image_tokens=4 * len(files)
    )


def answers(
    card: ModelCard, requests: Sequence[GenerateRequest], **options: Any
) -> dict[int, GenerateRequest | Rejected]:
    async def main() -> dict[int, GenerateRequest | Rejected]:
        world = World(Images, ImagesOptions(**options), card=card)
        for each in requests:
            await world.inbox.send(each)
        world.inbox.close()
        try:
            await world.stage.start()
            await world.stage.run()
        finally:
            await world.stage.stop()
        sent = [*await world.sent(GenerateRequest), *await world.sent(Rejected)]
        assert len(sent) == len(requests), "one answer each"
        return {message.request_id: message for message in sent}

    return asyncio.run(main())


def test_files_become_pixels_in_their_order_and_are_let_go(card: ModelCard) -> None:
    first, second = tiny_vision.picture(1), tiny_vision.picture(2)
    answer = answers(card, [request(0, first, second, first)])[0]
    assert isinstance(answer, GenerateRequest) and answer.chat is not None
    digests = [image.digest for image in answer.images]
    assert digests[0] == digests[2] != digests[1]
    assert [part.data for part in answer.chat[1].images] == ["", "", ""]
    assert answer.num_image_tokens == 12 and (answer.arrived_ns, answer.sent_ns) == (100, 150)


def test_the_choices_of_an_answer_share_what_was_read(
    card: ModelCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    see = ImageReader.read
    monkeypatch.setattr(ImageReader, "read", lambda self, text: read.append(text) or see(self, text))
    file, other = tiny_vision.picture(1), tiny_vision.picture(2)
    found = answers(card, [request(0, file), request(1, file), request(2, other), request(3, file)])
    assert len(read) == 3
    kept = [found[each].images[0] for each in (0, 1)]  # type: ignore[union-attr]
    assert kept[0] is kept[1]


@pytest.mark.parametrize(
    ("file", "status", "code", "what"),
    [
        (b"GIF89a....", 400, "invalid_image", "must be PNG, JPEG or WebP"),
        ("%%%%", 400, "invalid_image", "no base64"),
        (tiny_vision.picture(size=(200, 101)), 400, "invalid_image", "200 x 101 pixels; 20000 are the most"),
        (bytes(3001), 413, "image_too_large", "about 3003 bytes; 3000 are the most"),
    ],
)
def test_a_fault_names_the_part_and_the_next_request_is_served(
    card: ModelCard, file: bytes | str, status: int, code: str, what: str
) -> None:
    sound = tiny_vision.picture(size=(30, 20))
    found = answers(
        card, [request(0, sound, file), request(1, sound)], max_pixels=20_000, max_image_bytes=3000
    )
    rejected = found[0]
    assert isinstance(rejected, Rejected) and isinstance(found[1], GenerateRequest)
    assert (rejected.status, rejected.code) == (status, code)
    assert rejected.param == "messages[1].content[1].image_url.url" and what in rejected.message
    assert rejected.message.startswith(f"'{rejected.param}'")


def test_a_model_that_reads_text_only_starts_no_process() -> None:
    async def main() -> None:
        world = World(Images, ImagesOptions(), card=byte_card())
        await world.stage.start()
        assert world.stage._reader is None
        await world.stage.stop()

    asyncio.run(main())


def test_without_pillow_the_extra_is_named(card: ModelCard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "is_installed", lambda: False)
    with pytest.raises(ConfigError, match=r"pip install 'stageline\[images\]'"):
        World(Images, ImagesOptions(), card=card)


def test_a_card_whose_image_token_a_client_could_write_is_refused(tmp_path: Path) -> None:
    from pipeline.errors import ModelError

    folder = tiny_vision.write_folder(tmp_path)
    tiny_vision.write_json(folder / "config.json", tiny_vision.CONFIG | {"image_token_index": 7})
    with pytest.raises(ModelError, match="the image token, 7, must be one of its special tokens"):
        describe_folder(folder, "llava")
