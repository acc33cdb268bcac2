"""What tokenize fills in."""

import pytest

from pipeline.core.completed_sampling import complete
from pipeline.core.prompts import PromptEncoder
from pipeline.errors import RequestError
from pipeline.messages import SamplingParams
from tests.text_world import byte_fallback_tokenizer
from tests.tiny_models import TOKENS, byte_level_tokenizer


def completed(sampling: SamplingParams, max_tokens: int = 9) -> SamplingParams:
    return complete(sampling, max_tokens, (2, 0), PromptEncoder(byte_level_tokenizer()))


def test_a_request_without_any_of_it_gets_its_max_tokens() -> None:
    assert completed(SamplingParams(top_k=3)) == SamplingParams(top_k=3, max_tokens=9)


def test_min_tokens_bans_every_end() -> None:  # trap 26
    got = completed(SamplingParams(min_tokens=2, stop_token_ids=(5, 2), ignore_eos=True))
    assert got.end_ids == (2, 0, 5)
    with pytest.raises(RequestError, match="'min_tokens' is 10, but at most 9"):
        completed(SamplingParams(min_tokens=10))


def test_bad_words_as_first_words_and_as_later_ones() -> None:
    ids = {token: token_id for token_id, token in enumerate(TOKENS)}
    got = completed(SamplingParams(bad_words=("w", "hello")))
    assert got.bad_token_ids == ((ids["w"],), (ids["Ġw"],), (ids["hello"],), (ids["Ġ"], ids["hello"]))
    sentencepiece = PromptEncoder(byte_fallback_tokenizer(prepends=False))
    (bare, spaced) = complete(SamplingParams(bad_words=("Hi",)), 9, (), sentencepiece).bad_token_ids
    assert len(bare) == len(spaced) == 1 and bare != spaced


def test_a_bad_word_of_too_many_tokens() -> None:
    with pytest.raises(RequestError, match="1 to 16 tokens, but 'xyxyxyxyxyxyxyxyx' is 18"):
        completed(SamplingParams(bad_words=("xy" * 8 + "x",)))
