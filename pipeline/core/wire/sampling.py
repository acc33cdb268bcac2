"""The fields of a request that say how its tokens are chosen, and what is told of them."""

from pipeline.core.wire.fields import INT64_MAX, INT64_MIN, Fields, wrong
from pipeline.core.wire.limits import Limits
from pipeline.errors import RequestError
from pipeline.messages import MAX_LOGPROBS, SamplingParams

MAX_STOPS = 4
MAX_STOP_CHARS = 64
MAX_TOP_K = 1 << 20
MAX_BIASES = 1024
MAX_BIAS = 100
MAX_BAD_WORDS = 100
MAX_STOP_IDS = 64
ALL_THAT_FITS = -1


def parse_sampling(fields: Fields, limits: Limits, fresh_seed: int, *, is_chat: bool) -> SamplingParams:
    """All that is in SamplingParams but what tokenize fills in. What is not said is as in `limits.defaults`.

    Raises RequestError that names the field and its limit.
    """
    defaults = limits.defaults
    max_tokens = _max_tokens(fields, limits, is_chat=is_chat)
    seed = fields.integer("seed", INT64_MIN, INT64_MAX)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=fields.number("temperature", defaults.temperature, 0, 2),
        top_k=_top_k(fields, defaults.top_k),
        top_p=fields.number("top_p", defaults.top_p, 0, 1, above_low=True),
        seed=fresh_seed if seed is None else seed,
        stop=_texts(fields, "stop", MAX_STOPS, alone=True),
        ignore_eos=fields.flag("ignore_eos"),
        min_p=fields.number("min_p", defaults.min_p, 0, 1),
        typical_p=fields.number("typical_p", defaults.typical_p, 0, 1, above_low=True),
        presence_penalty=fields.number("presence_penalty", 0, -2, 2),
        frequency_penalty=fields.number("frequency_penalty", 0, -2, 2),
        repetition_penalty=fields.number(
            "repetition_penalty", defaults.repetition_penalty, 0, 2, above_low=True
        ),
        logit_bias=_logit_bias(fields.take("logit_bias"), limits.vocab_size),
        allowed_token_ids=_allowed_ids(fields, limits.vocab_size),
        bad_words=_texts(fields, "bad_words", MAX_BAD_WORDS),
        min_tokens=_min_tokens(fields, limits, max_tokens),
        stop_token_ids=_ids(fields, "stop_token_ids", MAX_STOP_IDS, limits.vocab_size),
        include_stop_str_in_output=fields.flag("include_stop_str_in_output"),
        skip_special_tokens=fields.maybe_flag("skip_special_tokens") is not False,
        truncate_prompt_tokens=parse_truncation(fields, limits),
        logprobs=_chat_logprobs(fields) if is_chat else _completion_logprobs(fields),
        prompt_logprobs=fields.integer("prompt_logprobs", 0, MAX_LOGPROBS),
    )


def _max_tokens(fields: Fields, limits: Limits, *, is_chat: bool) -> int | None:
    given = fields.integer("max_tokens", 1, limits.max_model_len)
    if is_chat:
        newer = fields.integer("max_completion_tokens", 1, limits.max_model_len)
        if given is not None and newer is not None and given != newer:
            raise RequestError(
                f"'max_tokens' ({given}) and 'max_completion_tokens' ({newer}) say the same thing; give one.",
                param="max_tokens",
                code="invalid_value",
            )
        given = newer if given is None else given
    return given


def _min_tokens(fields: Fields, limits: Limits, max_tokens: int | None) -> int:
    most = limits.max_model_len if max_tokens is None else max_tokens
    return fields.integer("min_tokens", 0, most) or 0


def _top_k(fields: Fields, default: int) -> int:
    given = fields.integer("top_k", -1, MAX_TOP_K)
    return default if given is None else max(0, given)  # -1 and 0 both mean off


def parse_truncation(fields: Fields, limits: Limits) -> int | None:
    """The field `truncate_prompt_tokens`."""
    given = fields.integer("truncate_prompt_tokens", ALL_THAT_FITS, limits.max_model_len)
    if given == 0:
        raise wrong("truncate_prompt_tokens", f"{ALL_THAT_FITS} or from 1 to {limits.max_model_len}", given)
    return given


def _texts(fields: Fields, name: str, most: int, *, alone: bool = False) -> tuple[str, ...]:
    """A list of strings, each once; with `alone` a single string will do."""
    value = fields.take(name)
    if value is None:
        return ()
    texts = [value] if alone and isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) > most:
        raise wrong(name, f"{'a string or ' if alone else ''}a list of at most {most} strings", value)
    for text in texts:
        if not isinstance(text, str) or not 0 < len(text) <= MAX_STOP_CHARS:
            raise wrong(name, f"made of strings of 1 to {MAX_STOP_CHARS} characters", text)
    return tuple(dict.fromkeys(texts))


def _ids(fields: Fields, name: str, most: int, vocab_size: int) -> tuple[int, ...]:
    """A list of token ids, each once."""
    value = fields.take(name)
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > most:
        raise wrong(name, f"a list of at most {most} token ids", value)
    for token_id in value:
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise wrong(name, f"a list of token ids from 0 to {vocab_size - 1}", token_id)
    return tuple(dict.fromkeys(value))


def _allowed_ids(fields: Fields, vocab_size: int) -> tuple[int, ...]:
    value = fields.take("allowed_token_ids")
    if value == []:
        raise wrong("allowed_token_ids", "a list of at least one token id", value)
    return _ids(Fields({"allowed_token_ids": value}), "allowed_token_ids", vocab_size, vocab_size)


def _logit_bias(value: object, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """{"token id": bias}, as JSON has it: keys are strings."""
    if value is None:
        return ()
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        raise wrong("logit_bias", f"an object of at most {MAX_BIASES} token ids and their biases", value)
    return tuple((_bias_id(key, vocab_size), _bias(key, bias)) for key, bias in value.items())


def _bias_id(key: str, vocab_size: int) -> int:
    if not (key.isascii() and key.isdigit() and key == str(int(key[:20])) and int(key) < vocab_size):
        raise wrong("logit_bias", f"an object whose keys are token ids from 0 to {vocab_size - 1}", key)
    return int(key)


def _bias(key: str, value: object) -> float:
    bias = Fields({key: value}, "logit_bias.").maybe_number(key, -MAX_BIAS, MAX_BIAS)
    if bias is None:
        raise wrong(f"logit_bias.{key}", f"a number from {-MAX_BIAS} to {MAX_BIAS}", value)
    return bias


def _completion_logprobs(fields: Fields) -> int | None:
    """OpenAI's older API: a number of alternatives."""
    value = fields.take("logprobs")
    if value is False:
        return None
    return Fields({"logprobs": value}).integer("logprobs", 0, MAX_LOGPROBS)


def _chat_logprobs(fields: Fields) -> int | None:
    """OpenAI's newer one: whether, and how many alternatives."""
    is_asked = fields.flag("logprobs")
    num = fields.integer("top_logprobs", 0, MAX_LOGPROBS)
    if num and not is_asked:
        raise RequestError(
            "'top_logprobs' needs 'logprobs': true.", param="top_logprobs", code="invalid_value"
        )
    return (num or 0) if is_asked else None
