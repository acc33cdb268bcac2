"""The field `prompt` of a completion, which may hold several, and how many answers each gets."""

from pipeline.core.wire.fields import Fields, wrong, wrong_content
from pipeline.core.wire.limits import Limits
from pipeline.errors import RequestError

MAX_N = 8
MAX_CHOICES = 64
"""All prompts of a request together."""


def split_prompts(value: object) -> list[object]:
    """One or several, unchecked."""
    is_several = isinstance(value, list) and bool(value) and isinstance(value[0], str | list)
    return list(value) if is_several and isinstance(value, list) else [value]


def parse_n(fields: Fields, num_prompts: int = 1) -> int:
    """`n`, answers to each prompt; and `best_of`, which has to be the same."""
    n = fields.integer("n", 1, MAX_N) or 1
    best_of = fields.integer("best_of", 1, MAX_N)
    if best_of not in (None, n):
        raise RequestError(
            f"'best_of' ({best_of}) must be the same as 'n' ({n}): all that is sampled is answered.",
            param="best_of",
            code="unsupported_value",
        )
    if n * num_prompts > MAX_CHOICES:
        raise RequestError(
            f"'prompt' holds {num_prompts} prompts, with n = {n}: {MAX_CHOICES} answers are the most.",
            param="prompt",
            code="too_many_choices",
        )
    return n


def echo_of(prompt: str | list[int]) -> str:
    """What `echo` says before the answer. Raises RequestError for token ids: the door has no tokenizer."""
    if isinstance(prompt, str):
        return prompt
    raise RequestError(
        "'echo' needs a prompt that is text; POST /detokenize makes text of token ids.",
        param="echo",
        code="unsupported_value",
    )


def check_prompt(
    value: object, limits: Limits, *, is_truncated: bool, name: str = "prompt"
) -> str | list[int]:
    """Text, or token ids of this model, in field `name`."""
    if isinstance(value, str):
        if not value:
            raise RequestError(f"'{name}' is empty.", param=name, code="empty_prompt")
        return value
    if not isinstance(value, list):
        raise wrong(name, "a string or a list of token ids", value)
    return _token_ids(value, limits, name, is_truncated=is_truncated)


def _token_ids(value: list[object], limits: Limits, name: str, *, is_truncated: bool) -> list[int]:
    if not value:
        raise RequestError(f"'{name}' is empty.", param=name, code="empty_prompt")
    if len(value) >= limits.max_model_len and not is_truncated:
        raise RequestError(
            f"'{name}' has {len(value)} tokens, but the model's length is {limits.max_model_len} tokens, "
            "prompt and output together.",
            param=name,
            code="context_length_exceeded",
        )
    last = limits.vocab_size - 1
    ids: list[int] = []
    for item in value:
        if type(item) is not int or not 0 <= item <= last:
            raise wrong_content(name, f"a list of token ids from 0 to {last}", item)
        ids.append(item)
    return ids
