"""Whether a request fits the model: pure, with the numbers in the message."""

from pipeline.errors import RequestError
from pipeline.messages import SamplingParams


def fit(
    num_prompt_tokens: int,
    max_tokens: int | None,
    max_model_len: int,
    default_max_tokens: int,
    *,
    param: str = "prompt",
) -> int:
    """The request's max_tokens: as asked, or the default as far as there is room.

    Prompt and output together may fill the model's length exactly.

    Args:
        param: the field that holds the prompt, for the error.

    Raises:
        RequestError: nothing to compute, or more than the model's length.
    """
    if num_prompt_tokens == 0:
        raise RequestError("The prompt is empty: it must hold at least one token.", param=param)
    if max_tokens is not None and max_tokens < 1:
        raise RequestError(f"max_tokens must be at least 1, not {max_tokens}.", param="max_tokens")
    room = max_model_len - num_prompt_tokens
    wanted = min(default_max_tokens, max(room, 1)) if max_tokens is None else max_tokens
    if wanted > room:
        raise RequestError(
            f"This model's length is {max_model_len} tokens, but {num_prompt_tokens} in the prompt and "
            f"{wanted} to generate (max_tokens) make {num_prompt_tokens + wanted}.",
            param=param if room < 1 else "max_tokens",
            code="context_length_exceeded",
        )
    return wanted


def fit_whole(num_prompt_tokens: int, max_model_len: int) -> None:
    """Of a prompt that nothing is generated after, which may fill the model's length. Raises RequestError."""
    if num_prompt_tokens == 0:
        raise RequestError("The input is empty: it must hold at least one token.", param="input")
    if num_prompt_tokens > max_model_len:
        raise RequestError(
            f"This model's length is {max_model_len} tokens, but the input has {num_prompt_tokens}.",
            param="input",
            code="context_length_exceeded",
        )


def num_kept(num_prompt_tokens: int, sampling: SamplingParams, max_model_len: int) -> int:
    """Of a prompt, what `truncate_prompt_tokens` leaves; these are its last tokens."""
    most = sampling.truncate_prompt_tokens
    if most is None:
        return num_prompt_tokens
    if most < 0:
        most = max(max_model_len - (sampling.max_tokens or 1), 1)
    return min(num_prompt_tokens, most)
