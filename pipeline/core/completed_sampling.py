"""What only tokenize can fill in of SamplingParams: it knows the model's ends, and its tokenizer."""

from msgspec.structs import replace

from pipeline.core.prompts import PromptEncoder
from pipeline.errors import RequestError
from pipeline.messages import MAX_BAD_WORD_IDS, SamplingParams


def complete(
    sampling: SamplingParams, max_tokens: int, eos_ids: tuple[int, ...], encoder: PromptEncoder
) -> SamplingParams:
    """With max_tokens, end_ids and bad_token_ids. Raises RequestError that names the field at fault."""
    if not (sampling.min_tokens or sampling.bad_words):
        return replace(sampling, max_tokens=max_tokens)
    if sampling.min_tokens > max_tokens:
        raise RequestError(
            f"'min_tokens' is {sampling.min_tokens}, but at most {max_tokens} tokens are generated.",
            param="min_tokens",
            code="invalid_value",
        )
    ends = tuple(dict.fromkeys((*eos_ids, *sampling.stop_token_ids))) if sampling.min_tokens else ()
    bad_ids = dict.fromkeys(ids for word in sampling.bad_words for ids in _spellings(word, encoder))
    return replace(sampling, max_tokens=max_tokens, end_ids=ends, bad_token_ids=tuple(bad_ids))


def _spellings(word: str, encoder: PromptEncoder) -> list[tuple[int, ...]]:
    """As a text's first word, and as a later one. vLLM leaves the second out where it is of more or fewer
    tokens (SamplingParams.update_from_tokenizer), so that most words of several tokens still come.
    """
    bare = word.lstrip(" ")
    texts = [bare, " " + bare] if bare else [word]
    encodings = encoder.encode(texts, is_rendered=True)  # no BOS before it
    spellings = [tuple(encoder.ids_of(each, is_rendered=True)) for each in encodings]
    longest = max(map(len, spellings))
    if longest > MAX_BAD_WORD_IDS or not all(spellings):
        raise RequestError(
            f"Each of 'bad_words' must be 1 to {MAX_BAD_WORD_IDS} tokens, but {word[:40]!r} is {longest}.",
            param="bad_words",
            code="invalid_value",
        )
    return spellings
