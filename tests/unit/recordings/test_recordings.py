"""What stands for texts is of the model's own tokenizer."""

import pytest

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.messages import NO_TOKEN
from pipeline.messages.prose import TEXT, Prose
from pipeline.recordings.recordings import _words


def check(card: ModelCard) -> None:
    token_ids, kept = _words(card)
    assert card.new_tokenizer().decode(token_ids) == TEXT
    assert {NO_TOKEN, *card.eos_ids} <= kept and not kept & set(token_ids)
    prompt = [*sorted(kept - {NO_TOKEN})[:2], *range(300, 320)]
    redacted = Prose(token_ids, kept, b"key").prompt(prompt)
    assert redacted[:2] == prompt[:2] and set(redacted[2:]) <= set(token_ids)


def test_of_bytes() -> None:
    check(byte_card())


@pytest.mark.model
def test_of_a_real_model(model_card: ModelCard) -> None:
    check(model_card)
