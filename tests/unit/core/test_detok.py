import pytest
from tokenizers import Tokenizer, decoders, models

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.core.detok import Detokenizer, Vocabulary
from pipeline.errors import ModelError
from tests.text_world import byte_fallback_tokenizer
from tests.tiny_models import byte_level_tokenizer

TEXTS = [
    "d with caron: ď",
    "漢字かな交じり文、 한국어, ไทย",
    "👩‍👩‍👧‍👦 and 🇩🇪 and ✨",
    "cafe\u0301 \u200d 𐍈 𝄞",
    "a real \ufffd stays \ufffd",
    "  two spaces, a tab\t and\n\nlines  ",
]


def pieces(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(Vocabulary(tokenizer, tokenizer.get_vocab_size()))
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


def byte_tokenizer() -> Tokenizer:
    return byte_card().new_tokenizer()


@pytest.mark.parametrize("make", [byte_tokenizer, byte_level_tokenizer, byte_fallback_tokenizer])
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_text(make: type[Tokenizer], text: str) -> None:
    tokenizer = make()
    token_ids = tokenizer.encode(text).ids
    assert "".join(pieces(tokenizer, token_ids)) == tokenizer.decode(token_ids) == text


def test_a_character_of_two_byte_tokens_comes_whole() -> None:  # trap 2
    assert pieces(byte_tokenizer(), [0xC4, 0x8F]) == ["", "ď", ""]


def test_an_incomplete_character_is_flushed_as_a_replacement() -> None:
    tokenizer = byte_tokenizer()
    assert pieces(tokenizer, [0x61, 0xE6, 0xBC]) == ["a", "", "", "\ufffd"]
    assert tokenizer.decode([0x61, 0xE6, 0xBC]) == "a\ufffd"


def test_a_bad_byte_shows_at_once_and_holds_nothing_back() -> None:
    assert pieces(byte_tokenizer(), [0xFF, 0xC4, 0x61, 0x62]) == ["\ufffd", "", "\ufffda", "b", ""]


def test_a_bad_byte_after_good_ones_is_no_error_in_byte_fallback() -> None:
    """tokenizers.DecodeStream raises "Invalid prefix" here."""
    tokenizer = byte_fallback_tokenizer()
    token_ids = [3 + byte for byte in (0xE6, 0xBC, 0xA2, 0xFF)] + [tokenizer.token_to_id("a")]
    assert "".join(pieces(tokenizer, token_ids)) == "漢\ufffda"


def test_only_the_first_space_of_a_sentencepiece_text_goes() -> None:
    tokenizer = byte_fallback_tokenizer()
    space, word = tokenizer.token_to_id("▁▁"), tokenizer.token_to_id("▁Hi")
    assert pieces(tokenizer, [word, word]) == ["Hi", " Hi", ""]
    assert pieces(tokenizer, [1, space, word]) == ["", " ", " Hi", ""]
    assert tokenizer.decode([1, space, word]) == "  Hi"


def test_special_tokens_have_no_text_and_other_added_tokens_do() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<think>"])
    think = tokenizer.token_to_id("<think>")
    assert pieces(tokenizer, [256, think, 0x61, 258]) == ["", "<think>", "a", "", ""]


def test_ids_that_are_no_token_have_no_text() -> None:
    """A model's embedding is often padded past its vocabulary."""
    vocabulary = Vocabulary(byte_tokenizer(), 300)
    detokenizer = Detokenizer(vocabulary)
    assert [detokenizer.push(token_id) for token_id in (0x61, 299)] == ["a", ""]


@pytest.mark.parametrize(
    "decoder", [None, decoders.WordPiece(), decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)])]
)
def test_a_decoder_that_cannot_be_streamed_is_refused(decoder: object) -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    if decoder is not None:
        tokenizer.decoder = decoder  # type: ignore[assignment]
    with pytest.raises(ModelError, match="decoder"):
        Vocabulary(tokenizer, 1)


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_the_default_model_s_tokenizer(model_card: ModelCard, text: str) -> None:
    tokenizer = model_card.new_tokenizer()
    token_ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert "".join(pieces(tokenizer, token_ids)) == tokenizer.decode(token_ids) == text
