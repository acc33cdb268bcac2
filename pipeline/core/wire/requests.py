"""Request bodies: what a client may ask, checked here and trusted from here on."""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from pipeline.core.reasoning import ReasoningTags
from pipeline.core.wire.chat import parse_messages
from pipeline.core.wire.fields import INT64_MIN, Fields, decode_object, wrong
from pipeline.core.wire.images import check_images
from pipeline.core.wire.limits import Limits
from pipeline.core.wire.prompts import check_prompt, echo_of, parse_n, split_prompts
from pipeline.core.wire.sampling import parse_sampling
from pipeline.core.wire.structured import parse_structured, under_grammar
from pipeline.core.wire.terms import parse_terms
from pipeline.core.wire.tools import Toolset, parse_tools
from pipeline.errors import RequestError
from pipeline.messages import ChatMessage, Pooling, SamplingParams, Terms

NEUTRAL: dict[str, tuple[object, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "length_penalty": (1,),
    "n": (1,),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "use_beam_search": (False,),
}
"""Fields of OpenAI's API and its relatives that are not built, and the values that ask for nothing."""


MAX_CREDITS = 1 << 31
"""Of one grant."""
MAX_FLUSH_TOKENS = 4096
MAX_FLUSH_MS = 1000


class Wanted(msgspec.Struct, frozen=True):
    """One checked request. Exactly one of `prompt` and `chat` is set."""

    prompt: str | list[int] | None
    chat: list[ChatMessage] | None
    sampling: SamplingParams
    stream: bool = False
    include_usage: bool = False
    timings: bool = False
    terms: Terms = Terms()
    num_alike: int = 1
    """How many choices of its answer have the same prompt."""
    echo: str = ""
    """What its text begins with."""
    reasoning: ReasoningTags | None = None
    """Between which tags the model reasons, if that is to be split off."""
    pooling: Pooling = ""
    grammar_field: str = ""
    """Which field sampling.grammar is from."""
    toolset: Toolset | None = None
    """What its answer may call."""
    flush_tokens: int = 0
    flush_ms: float = 0.0
    """How its text may be merged on its way, where that is coarser than the server's rule."""
    credits: int | None = None
    """Tokens that its client takes before it grants more; None: all."""
    tells_prompt: bool = False
    """Its answer has a field `prompt_logprobs`."""
    is_resumable: bool = False
    """It is to survive its socket for a while."""
    num_image_tokens: int = 0
    """Of its prompt, those that its images come to."""

    @property
    def num_images(self) -> int:
        return sum(len(message.images) for message in self.chat or ())

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


def parse_completion(body: bytes, limits: Limits, fresh_seed: int) -> list[Wanted]:
    """The body of POST /v1/completions: its choices, n to a prompt.

    `fresh_seed` is used where the client gives none.
    """
    fields = Fields(decode_object(body))
    prompts, echoes = split_prompts(fields.take("prompt")), fields.flag("echo")
    n = parse_n(fields, len(prompts))
    first = _wanted(fields, limits, fresh_seed, prompt=prompts[0])
    if echoes and not first.stream:
        first = _with_echoed_logprobs(first)
    is_truncated = first.sampling.truncate_prompt_tokens is not None
    rest = [check_prompt(prompt, limits, is_truncated=is_truncated) for prompt in prompts[1:]]
    return [
        replace(each, echo=echo_of(prompt) if echoes else "")
        for prompt in (first.prompt or "", *rest)
        for each in _choices(replace(first, prompt=prompt), n)
    ]


def _with_echoed_logprobs(wanted: Wanted) -> Wanted:
    """OpenAI's `logprobs` of a text that begins with its prompt are of the prompt's tokens too."""
    sampling = wanted.sampling
    if sampling.logprobs is None:
        return wanted
    num_top = max(sampling.logprobs, sampling.prompt_logprobs or 0)
    return replace(wanted, sampling=replace(sampling, prompt_logprobs=num_top))


def parse_chat(body: bytes, limits: Limits, fresh_seed: int) -> list[Wanted]:
    """The body of POST /v1/chat/completions: its n choices."""
    fields = Fields(decode_object(body))
    n = parse_n(fields)
    return _choices(_chat_with_tools(fields, limits, fresh_seed, fields.take("messages")), n)


def _chat_with_tools(fields: Fields, limits: Limits, fresh_seed: int, messages: object) -> Wanted:
    toolset = parse_tools(fields, limits)
    wanted = _chat(fields, limits, fresh_seed, messages, has_tools=limits.tool_syntax is not None)
    return wanted if toolset is None else _with_tools(wanted, toolset)


def _with_tools(wanted: Wanted, toolset: Toolset) -> Wanted:
    if wanted.sampling.grammar is not None:
        raise RequestError(
            f"'tools' does not go with '{wanted.grammar_field}': an answer that must be that calls nothing.",
            param="tools",
            code="unsupported_value",
        )
    sampling = under_grammar(wanted.sampling, toolset.grammar, "tools")
    return replace(wanted, toolset=toolset, sampling=sampling, grammar_field="tools")


def _chat(
    fields: Fields, limits: Limits, fresh_seed: int, messages: object, *, has_tools: bool = False
) -> Wanted:
    splits = fields.maybe_flag("separate_reasoning")
    chat = parse_messages(messages, has_tools=has_tools, images=limits.images)
    wanted = _wanted(fields, limits, fresh_seed, chat=chat)
    if limits.reasoning is None or splits is False:
        return wanted
    tags = limits.reasoning
    unstopped = None if tags.stops_inside else (tags.opening, tags.closing, tags.starts_open)
    return replace(wanted, sampling=replace(wanted.sampling, unstopped=unstopped), reasoning=tags)


def wanted_chat(
    fields: Fields,
    limits: Limits,
    fresh_seed: int,
    chat: list[ChatMessage],
    neutral: Mapping[str, tuple[object, ...]],
) -> Wanted:
    """For another endpoint's chat, which has taken its own fields: those that all know, and `neutral`."""
    return _wanted(fields, limits, fresh_seed, chat=chat, neutral=neutral)


def _choices(wanted: Wanted, n: int) -> list[Wanted]:
    """The same n times, each with a seed of its own (trap 32)."""
    seeds = [(wanted.sampling.seed - INT64_MIN + k) % (1 << 64) + INT64_MIN for k in range(n)]
    return [replace(wanted, sampling=replace(wanted.sampling, seed=seed), num_alike=n) for seed in seeds]


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
    if fields.take("prompt_logprobs") is not None:
        raise RequestError(
            "'prompt_logprobs' is told with a whole answer, and a websocket always streams.",
            param="prompt_logprobs",
            code="unsupported_value",
        )
    credits, is_resumable = fields.integer("credits", 1, MAX_CREDITS), fields.flag("resumable")
    if prompt is not None:
        wanted = _wanted(fields, limits, fresh_seed, prompt=prompt)
    else:
        wanted = _chat_with_tools(fields, limits, fresh_seed, messages)
    return replace(wanted, credits=credits, is_resumable=is_resumable)


def _wanted(
    fields: Fields,
    limits: Limits,
    fresh_seed: int,
    *,
    prompt: object = None,
    chat: list[ChatMessage] | None = None,
    neutral: Mapping[str, tuple[object, ...]] = NEUTRAL,
) -> Wanted:
    """`prompt` is not checked yet."""
    check_model(fields.text("model"), limits)
    sampling = parse_sampling(fields, limits, fresh_seed, is_chat=chat is not None)
    grammar, grammar_field = parse_structured(fields)
    stream = fields.flag("stream")
    if stream and sampling.prompt_logprobs is not None:
        raise RequestError(
            "'prompt_logprobs' does not go with 'stream': they are told with the whole answer.",
            param="prompt_logprobs",
            code="unsupported_value",
        )
    include_usage = _include_usage(fields.take("stream_options"), stream=stream)
    timings = fields.flag("timings")
    terms = parse_terms(fields)
    flush_tokens = fields.integer("flush_tokens", 1, MAX_FLUSH_TOKENS) or 0
    flush_ms = fields.maybe_number("flush_ms", 0, MAX_FLUSH_MS) or 0.0
    fields.finish(neutral)
    is_truncated = sampling.truncate_prompt_tokens is not None
    checked = check_prompt(prompt, limits, is_truncated=is_truncated) if chat is None else None
    num_image_tokens = check_images(chat or (), limits.images, sampling, limits.max_model_len)
    sampling = under_grammar(sampling, grammar, grammar_field)
    return Wanted(
        checked,
        chat,
        sampling,
        stream,
        include_usage,
        timings,
        terms,
        grammar_field=grammar_field,
        flush_tokens=flush_tokens,
        flush_ms=flush_ms,
        tells_prompt=sampling.prompt_logprobs is not None,
        num_image_tokens=num_image_tokens,
    )


def check_model(name: str | None, limits: Limits) -> None:
    """Raises RequestError 404 for the name of another model."""
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
