"""Request bodies: what a client may ask, checked here and trusted from here on."""

import msgspec
from msgspec.structs import replace

from pipeline.core.wire.chat import parse_messages
from pipeline.core.wire.fields import Fields, decode_object, wrong
from pipeline.core.wire.limits import Limits
from pipeline.core.wire.sampling import parse_sampling
from pipeline.core.wire.terms import parse_terms
from pipeline.errors import RequestError
from pipeline.messages import ChatMessage, SamplingParams, Terms

NEUTRAL: dict[str, tuple[object, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "length_penalty": (1,),
    "n": (1,),
    "prompt_logprobs": (),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "use_beam_search": (False,),
}
"""Fields of OpenAI's API and its relatives that are not built, and the values that ask for nothing."""


class Wanted(msgspec.Struct, frozen=True):
    """One checked request. Exactly one of `prompt` and `chat` is set."""

    prompt: str | list[int] | None
    chat: list[ChatMessage] | None
    sampling: SamplingParams
    stream: bool = False
    include_usage: bool = False
    timings: bool = False
    terms: Terms = Terms()

    def under(self, tenant: str, max_priority: int | None = None) -> "Wanted":
        """The same request as that of `tenant`; an empty one leaves it to whom its `user` field says.

        Raises RequestError where its priority is over what he may ask for.
        """
        if max_priority is not None and self.terms.priority > max_priority:
            raise RequestError(
                f"'priority' may be at most {max_priority} with this key, but is {self.terms.priority}.",
                param="priority",
                code="priority_not_allowed",
            )
        return replace(self, terms=replace(self.terms, tenant=tenant)) if tenant else self


def parse_completion(body: bytes, limits: Limits, fresh_seed: int) -> Wanted:
    """The body of POST /v1/completions. `fresh_seed` is used where the client gives none."""
    fields = Fields(decode_object(body))
    return _wanted(fields, limits, fresh_seed, prompt=fields.take("prompt"))


def parse_chat(body: bytes, limits: Limits, fresh_seed: int) -> Wanted:
    """The body of POST /v1/chat/completions."""
    fields = Fields(decode_object(body))
    return _wanted(fields, limits, fresh_seed, chat=parse_messages(fields.take("messages")))


def wanted_of(values: dict[str, object], limits: Limits, fresh_seed: int) -> Wanted:
    """The fields of a websocket `generate` frame: either door's, with exactly one of prompt and messages."""
    fields = Fields(values)
    prompt, messages = fields.take("prompt"), fields.take("messages")
    if (prompt is None) == (messages is None):
        raise RequestError(
            "Exactly one of 'prompt' and 'messages' must be given.", param="prompt", code="invalid_value"
        )
    if fields.take("stream") not in (None, True):
        raise RequestError("A websocket always streams.", param="stream", code="unsupported_value")
    if prompt is not None:
        return _wanted(fields, limits, fresh_seed, prompt=prompt)
    return _wanted(fields, limits, fresh_seed, chat=parse_messages(messages))


def _wanted(
    fields: Fields,
    limits: Limits,
    fresh_seed: int,
    *,
    prompt: object = None,
    chat: list[ChatMessage] | None = None,
) -> Wanted:
    """`prompt` is not checked yet."""
    _check_model(fields.text("model"), limits)
    sampling = parse_sampling(fields, limits, fresh_seed, is_chat=chat is not None)
    stream = fields.flag("stream")
    include_usage = _include_usage(fields.take("stream_options"), stream=stream)
    timings = fields.flag("timings")
    terms = parse_terms(fields)
    fields.finish(NEUTRAL)
    is_truncated = sampling.truncate_prompt_tokens is not None
    checked = _prompt(prompt, limits, is_truncated=is_truncated) if chat is None else None
    return Wanted(checked, chat, sampling, stream, include_usage, timings, terms)


def _check_model(name: str | None, limits: Limits) -> None:
    if name is not None and name != limits.model:
        raise RequestError(
            f"The model {name[:80]!r} does not exist here; this server has {limits.model!r}.",
            status=404,
            param="model",
            code="model_not_found",
        )


def _include_usage(value: object, *, stream: bool) -> bool:
    if value is None:
        return False
    if not isinstance(value, dict):
        raise wrong("stream_options", "an object", value)
    if not stream:
        raise RequestError(
            "'stream_options' is only allowed with 'stream': true.",
            param="stream_options",
            code="invalid_value",
        )
    options = Fields(value, "stream_options.")
    include_usage = options.flag("include_usage")
    options.finish({"include_obfuscation": (False,)})
    return include_usage


def _prompt(value: object, limits: Limits, *, is_truncated: bool) -> str | list[int]:
    if isinstance(value, str):
        if not value:
            raise RequestError("'prompt' is empty.", param="prompt", code="empty_prompt")
        return value
    if not isinstance(value, list):
        raise wrong("prompt", "a string or a list of token ids", value)
    return _token_ids(value, limits, is_truncated=is_truncated)


def _token_ids(value: list[object], limits: Limits, *, is_truncated: bool) -> list[int]:
    if not value:
        raise RequestError("'prompt' is empty.", param="prompt", code="empty_prompt")
    if isinstance(value[0], str | list):
        raise RequestError(
            "'prompt' holds several prompts; only one prompt per request is supported.",
            param="prompt",
            code="unsupported_value",
        )
    if len(value) >= limits.max_model_len and not is_truncated:
        raise RequestError(
            f"'prompt' has {len(value)} tokens, but the model's length is {limits.max_model_len} tokens, "
            "prompt and output together.",
            param="prompt",
            code="context_length_exceeded",
        )
    last = limits.vocab_size - 1
    ids: list[int] = []
    for item in value:
        if type(item) is not int or not 0 <= item <= last:
            raise wrong("prompt", f"a list of token ids from 0 to {last}", item)
        ids.append(item)
    return ids
