"""Tokenize: GenerateRequest -> TokenizedRequest, or Rejected; and answers what clients ask of token ids.

A pool: its instances share one inbox. Each has a tokenizer and a thread of its own, in which it encodes
all that waits, up to `max_batch` requests, in one round trip; encoding releases the GIL, so the loop and
the other instances go on meanwhile.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, NamedTuple, TypeVar, cast

import msgspec
from msgspec.structs import replace
from tokenizers import Encoding

from pipeline.checkpoint.card import ModelCard
from pipeline.core.admission import fit, fit_whole, num_kept
from pipeline.core.chat import ChatTemplate, check_messages
from pipeline.core.completed_sampling import complete
from pipeline.core.image_tokens import check_read, with_images
from pipeline.core.prompts import PromptEncoder
from pipeline.errors import ConfigError, RequestError
from pipeline.messages import (
    ChatMessage,
    GenerateRequest,
    PromptImage,
    Rejected,
    SamplingParams,
    TokenCall,
    TokenizedRequest,
)
from pipeline.runtime.equivalence import BY_REQUEST
from pipeline.runtime.shelf import Shelf
from pipeline.runtime.stage import NoState, Stage, StageContext
from pipeline.runtime.trace import Point

R = TypeVar("R")

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class TokenizeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    max_batch: AtLeastOne = 16
    """Requests that one instance encodes at once."""
    max_prompt_bytes: AtLeastOne = 1 << 20
    """Bound of a prompt's UTF-8, checked before it is tokenized; of messages, roles and contents together."""
    max_rendered_chars: AtLeastOne = 1 << 22
    """Bound of what the chat template may make of the messages."""
    max_model_len: AtLeastOne | None = None
    """Bound of prompt and output together, in tokens; None is the model's own."""
    default_max_tokens: AtLeastOne = 512
    """For requests that name no max_tokens, as far as the model's length allows."""


class Tokenize(Stage[GenerateRequest | TokenCall, TokenizeOptions]):
    """Answers every request with exactly one message; what is wrong with one never touches another.

    One that encodes elsewhere overrides start(), stop(), encode() and answer().
    """

    Options = TokenizeOptions
    takes = (GenerateRequest, TokenCall)
    gives = (TokenizedRequest, Rejected)
    equivalence = BY_REQUEST
    State = NoState
    is_revocable = True

    def __init__(self, ctx: StageContext, options: TokenizeOptions) -> None:
        super().__init__(ctx, options)
        self._thread: ThreadPoolExecutor | None = None
        self._shelf = cast(Shelf, ctx.resources.get(Shelf) or Shelf())
        self._prompts: PromptEncoder | None = None
        self._encoder: BatchEncoder

    async def start(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=self.ctx.name)
        card = self.ctx.resource(ModelCard)
        if self.ctx.is_successor:
            self._prompts = self._shelf.share(PromptEncoder)
        if self._prompts is None:
            self._prompts = await self._in_thread(lambda: PromptEncoder(card.new_tokenizer()))
            self._shelf.keep(self._prompts)
        prompts = self._prompts
        self._encoder = await self._in_thread(lambda: BatchEncoder(card, self.options, prompts))

    async def encode(self, requests: Sequence[GenerateRequest]) -> list["Encoded | Exception"]:
        """See BatchEncoder."""
        return await self._in_thread(lambda: self._encoder.encode(requests))

    async def answer(self, call: TokenCall) -> list[int] | str | Exception:
        """See BatchEncoder; what that raises is returned."""
        return await self._in_thread(lambda: attempt(self._encoder.answer, call))

    async def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.shutdown, cancel_futures=True)
        prompts, self._prompts = self._prompts, None
        self._shelf.leave(prompts)

    def limit(self) -> int:
        return self.options.max_batch

    async def handle(self, batch: Sequence[GenerateRequest | TokenCall]) -> None:
        requests = [each for each in batch if isinstance(each, GenerateRequest)]
        if requests:
            await self._encode(requests)
        for call in batch:
            if isinstance(call, TokenCall):
                await self._answer(call)

    async def _encode(self, batch: Sequence[GenerateRequest]) -> None:
        taken_ns = self.ctx.clock()
        outcomes = await self.encode(batch)
        for request, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Exception):
                self._reject(request.request_id, outcome)
            else:
                await self._send(request, outcome, taken_ns)

    async def _send(self, request: GenerateRequest, encoded: "Encoded", taken_ns: int) -> None:
        now_ns = self.ctx.clock()
        point = (Point.TOKENIZED, self.ctx.name, request.request_id, len(encoded.token_ids), now_ns)
        self.ctx.do(self.ctx.trace.record, *point)
        message = TokenizedRequest(
            request.request_id,
            encoded.token_ids,
            encoded.sampling,
            request.arrived_ns,
            now_ns,
            (request.sent_ns - request.arrived_ns, taken_ns - request.sent_ns, now_ns - taken_ns),
            request.terms,
            request.pooling,
            encoded.images,
        )
        await self.ctx.outlet(TokenizedRequest).send(message)

    async def _answer(self, call: TokenCall) -> None:
        outcome = await self.answer(call)
        if isinstance(outcome, Exception):
            self.ctx.do(call.reply.error, self._told(outcome, None))
        else:
            self.ctx.do(call.reply.tokens, outcome)

    def _reject(self, request_id: int, error: Exception) -> None:
        self.ctx.outlet(Rejected).post(Rejected.of(request_id, self._told(error, request_id)))

    def _told(self, error: Exception, request_id: int | None) -> RequestError:
        """What the client gets to know."""
        self.service.num_errors += 1
        if isinstance(error, RequestError):
            return error
        # the error's text may quote the prompt, so it is not logged
        self.ctx.log.error("cannot tokenize", request_id=request_id, error=type(error).__name__)
        return RequestError("The server could not tokenize this request.", status=500, code="internal_error")

    async def _in_thread(self, work: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


Prompt = str | Encoding | list[int] | Exception
"""A request's prompt on its way: text, then an encoding, or token ids from the start, or what is wrong."""


class Encoded(NamedTuple):
    token_ids: list[int]
    sampling: SamplingParams
    """The request's, with what tokenize fills in."""
    images: tuple[PromptImage, ...] = ()
    """With their places among the token ids."""


class BatchEncoder:
    """What one instance does in its thread: requests to token ids. No I/O, and no asyncio.

    ConfigError if the options do not suit the model.

    Args:
        prompts: of this model, used by nobody else at the same time; None: one is made.
    """

    def __init__(
        self, card: ModelCard, options: TokenizeOptions, prompts: PromptEncoder | None = None
    ) -> None:
        self._options = options
        self._model = card.name
        self._eos_ids = card.eos_ids
        self._vocab_size = card.architecture.vocab_size
        self._max_model_len = options.max_model_len or card.architecture.max_position
        if self._max_model_len > card.architecture.max_position:
            raise ConfigError(
                f"stages.tokenize.options.max_model_len is {self._max_model_len}, but {card.name} was made "
                f"for at most {card.architecture.max_position}"
            )
        self._encoder = prompts or PromptEncoder(card.new_tokenizer())
        self._vision = card.architecture.vision
        self._template = _template(card, options.max_rendered_chars, self._image_marker())

    def encode(self, requests: Sequence[GenerateRequest]) -> list[Encoded | Exception]:
        """One outcome per request: what is sent on, or why the request is refused."""
        prompts: list[Prompt] = [attempt(self._read, request) for request in requests]
        for is_chat in (False, True):
            indices = [i for i, request in enumerate(requests) if (request.chat is not None) == is_chat]
            self._encode_texts(prompts, indices, is_chat)
        return [
            prompt if isinstance(prompt, Exception) else attempt(self._admit, request, prompt)
            for request, prompt in zip(requests, prompts, strict=True)
        ]

    def answer(self, call: TokenCall) -> list[int] | str:
        """Token ids of a prompt or a chat, or the text of token ids. Raises RequestError."""
        if call.token_ids is not None:
            self._check_ids(call.token_ids)
            return self._encoder.decode(call.token_ids)
        is_rendered = call.chat is not None or not call.adds_special
        text = self._read_chat(call.chat) if call.chat is not None else self._read_prompt(call.prompt or "")
        (encoding,) = self._encoder.encode([text], is_rendered=is_rendered)
        return self._encoder.ids_of(encoding, is_rendered=is_rendered)

    def _read(self, request: GenerateRequest) -> str | list[int]:
        """The request's text, checked and with the template applied, or its token ids."""
        if request.chat is not None:
            check_read(request)
            return self._read_chat(request.chat, request.tools)
        if isinstance(request.prompt, str):
            return self._read_prompt(request.prompt)
        token_ids = request.prompt or []
        self._check_ids(token_ids)
        return token_ids

    def _read_prompt(self, text: str) -> str:
        _check_bytes([text], self._options.max_prompt_bytes, "prompt")
        return text

    def _check_ids(self, token_ids: list[int]) -> None:
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < self._vocab_size):
            wrong = next(token_id for token_id in token_ids if not 0 <= token_id < self._vocab_size)
            raise RequestError(
                f"prompt holds the token id {wrong}; ids of this model are 0 to {self._vocab_size - 1}.",
                param="prompt",
            )

    def _read_chat(self, messages: list[ChatMessage], tools: str = "") -> str:
        if self._template is None:
            raise RequestError(
                f"The model {self._model} has no chat template; use the completions endpoint.",
                param="messages",
                code="no_chat_template",
            )
        check_messages(messages)
        texts = [text for message in messages for text in (message.role, message.content)]
        texts += [tools, *(call.arguments for message in messages for call in message.tool_calls)]
        _check_bytes(texts, self._options.max_prompt_bytes, "messages")
        return self._encoder.render(self._template, messages, tools)

    def _encode_texts(self, prompts: list[Prompt], indices: list[int], is_rendered: bool) -> None:
        """Replace the texts among prompts[indices] by their encodings, or by what is wrong with each."""
        texts = {i: text for i in indices if isinstance(text := prompts[i], str)}
        if not texts:
            return
        encode = partial(self._encoder.encode, is_rendered=is_rendered)
        encodings = attempt(encode, list(texts.values()))
        if isinstance(encodings, Exception):  # find out whose fault it is
            for i, text in texts.items():
                single = attempt(encode, [text])
                prompts[i] = single if isinstance(single, Exception) else single[0]
        else:
            for i, encoding in zip(texts, encodings, strict=True):
                prompts[i] = encoding

    def _image_marker(self) -> str:
        return self._encoder.decode([self._vision.image_token_id]) if self._vision else ""

    def _admit(self, request: GenerateRequest, prompt: Encoding | list[int]) -> Encoded:
        if request.pooling:
            return self._admit_whole(request, prompt)
        is_chat, sampling = request.chat is not None, request.sampling
        more = self._vision.num_tokens - 1 if self._vision else 0  # each image has its marker already
        num_tokens = num_kept(len(prompt) + len(request.images) * more, sampling, self._max_model_len)
        max_tokens = fit(  # first, for the ids of a text that is far too long would take a while to make
            num_tokens,
            sampling.max_tokens,
            self._max_model_len,
            self._options.default_max_tokens,
            param="messages" if is_chat else "prompt",
        )
        if isinstance(prompt, Encoding):
            prompt = self._encoder.ids_of(prompt, is_rendered=is_chat)
        filled = complete(sampling, max_tokens, self._eos_ids, self._encoder)
        if self._vision and request.images:
            vision = self._vision
            prompt, images = with_images(prompt, request.images, vision.image_token_id, vision.num_tokens)
            return Encoded(prompt, filled, images)
        return Encoded(prompt[len(prompt) - num_tokens :], filled)

    def _admit_whole(self, request: GenerateRequest, prompt: Encoding | list[int]) -> Encoded:
        """Of an embedding: nothing comes after the prompt."""
        sampling = replace(request.sampling, max_tokens=1)
        num_tokens = num_kept(len(prompt), sampling, self._max_model_len + 1)
        fit_whole(num_tokens, self._max_model_len)
        if isinstance(prompt, Encoding):
            prompt = self._encoder.ids_of(prompt, is_rendered=False)
        return Encoded(prompt[len(prompt) - num_tokens :], sampling)


def _template(card: ModelCard, max_chars: int, image_marker: str) -> ChatTemplate | None:
    if card.chat_template is None:
        return None
    tokens = {"bos_token": card.bos_token, "eos_token": card.eos_token}
    variables = {name: token for name, token in tokens.items() if token is not None}
    return ChatTemplate(card.chat_template, variables, time.strftime, max_chars, image_marker)


def _check_bytes(texts: Sequence[str], limit: int, param: str) -> None:
    """RequestError if the texts are no Unicode, or more than `limit` bytes of UTF-8 together."""
    size = sum(map(len, texts))  # at least: so a huge text is not even encoded
    if size <= limit:
        try:
            size = sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
        except UnicodeEncodeError as error:
            message = f"{param} is no Unicode text: it holds a lone surrogate."
            raise RequestError(message, param=param) from error
    if size > limit:
        raise RequestError(
            f"{param} has {size} bytes or more; this server takes at most {limit}.",
            status=413,
            param=param,
            code="prompt_too_large",
        )


def attempt(work: Callable[..., R], *args: object) -> R | Exception:
    """What it returns, or raises. Only in a thread or a process that computes, where nobody is cancelled."""
    try:
        return work(*args)
    except Exception as error:
        return error
    except BaseException as error:  # a panic of tokenizers; this thread gets no KeyboardInterrupt
        return RuntimeError(repr(error))
