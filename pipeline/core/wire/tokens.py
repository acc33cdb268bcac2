"""Bodies of POST /tokenize and /detokenize, in the shapes of vLLM's."""

from typing import NamedTuple

from pipeline.core.wire.chat import parse_messages
from pipeline.core.wire.fields import Fields, decode_object, wrong, wrong_content
from pipeline.core.wire.limits import Limits
from pipeline.core.wire.prompts import check_prompt
from pipeline.core.wire.requests import check_model
from pipeline.errors import RequestError
from pipeline.messages import ChatMessage


class Encodable(NamedTuple):
    """Exactly one of the first two."""

    prompt: str | None
    chat: list[ChatMessage] | None
    adds_special: bool


def parse_tokenize(body: bytes, limits: Limits) -> Encodable:
    """`prompt`, a text, or `messages`; with a prompt, `add_special_tokens` (true)."""
    fields = Fields(decode_object(body))
    check_model(fields.text("model"), limits)
    prompt, messages = fields.take("prompt"), fields.take("messages")
    if (prompt is None) == (messages is None):
        raise RequestError(
            "Exactly one of 'prompt' and 'messages' must be given.", param="prompt", code="invalid_value"
        )
    adds_special = fields.maybe_flag("add_special_tokens")
    fields.finish({"add_generation_prompt": (True,), "return_token_strs": (False,)})
    if messages is not None:
        return Encodable(None, parse_messages(messages), adds_special=True)
    if not isinstance(prompt, str):
        raise wrong("prompt", "a string", prompt)
    return Encodable(prompt, None, adds_special is not False)


def parse_detokenize(body: bytes, limits: Limits) -> list[int]:
    """`tokens`, at most as many as the model's length."""
    fields = Fields(decode_object(body))
    check_model(fields.text("model"), limits)
    tokens = fields.take("tokens")
    fields.finish({})
    if not isinstance(tokens, list):
        raise wrong_content("tokens", "a list of token ids", tokens)
    ids = check_prompt(tokens, limits, is_truncated=False, name="tokens")
    return ids if isinstance(ids, list) else []
