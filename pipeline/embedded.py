"""The pipeline inside of a program of your own: no HTTP, no sockets, the same stages.

    async with Engine(config) as engine:
        answer = await engine.generate("Once upon a time", max_tokens=32)
        async for text in engine.stream(messages=[{"role": "user", "content": "Hello!"}]):
            print(text, end="")

What a request may ask has the names and limits of OpenAI's API, as at the server's door. Where the pipeline
is full a call waits: nobody is refused. More: docs/embedded.md.
"""

import asyncio
import gc
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from pipeline import assemble
from pipeline import config as configuration
from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.model import load_card, rename
from pipeline.config import Config, StageConfig
from pipeline.core.wire import Limits, Wanted, parse_chat, parse_completion
from pipeline.core.wire.usage import finish_word
from pipeline.errors import ConfigError, RequestError
from pipeline.messages import Completion
from pipeline.runtime.bridge import RunnerFactory
from pipeline.stages.embedded import Embedded, Reply
from pipeline.topology import WHOLE

EMBEDDED = f"{Embedded.__module__}:{Embedded.__name__}"
_BUILT_IN = {node.name: node.use for node in WHOLE.nodes}
_OPTIONS = Embedded.Options.__struct_fields__
_encode = msgspec.json.Encoder().encode


class Answer(msgspec.Struct, frozen=True):
    text: str
    finish_reason: str
    """stop, length, or content_filter: OpenAI's words."""
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    """Of the prompt, that were not computed."""
    e2e_s: float


class Engine:
    """An async context manager; the pipeline runs on the loop that enters it, until it is left.

    Left, it cancels what is live. Calls may be made by any number of tasks at the same time.

    Args:
        config: of config.toml; what it says of the door does not count (`in_process`). None: the defaults.
        card: the model, where it is not the one that config names.
        runner: stands in for the one that config describes (tests).
    """

    def __init__(
        self, config: Config | None = None, card: ModelCard | None = None, runner: RunnerFactory | None = None
    ) -> None:
        self._config = in_process(config or configuration.loads("", "the defaults"))
        self.card = card
        """Once entered: the model's."""
        self._runner = runner
        self._until = asyncio.Event()
        self.pipeline: assemble.Pipeline
        """Once entered: its telemetry, trace and stages, to look at."""
        self._stage: Embedded
        self._limits: Limits
        self._running: asyncio.Future[None]

    async def __aenter__(self) -> Self:
        """Load the model and start all stages. Raises ConfigError, ModelError."""
        blueprint = assemble.check(self._config)
        card = self.card if self.card is not None else await asyncio.to_thread(_load, self._config)
        self.card = card
        self.pipeline = assemble.build(blueprint, card, self._runner)
        self._stage = _embedded(self._config, self.pipeline)
        max_model_len = self._stage.options.max_model_len or card.architecture.max_position
        self._limits = Limits(card.name, max_model_len, card.architecture.vocab_size, card.generation)
        ready = asyncio.Event()
        self._running = asyncio.ensure_future(self.pipeline.supervisor.run(self._until, ready.set))
        self._running.add_done_callback(lambda _: ready.set())
        try:
            await ready.wait()
        except asyncio.CancelledError:
            await self._end()
            raise
        if self._running.done():
            await self._running
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises StageCrashed, with its cause, if a stage has failed."""
        await self._end()

    @property
    def is_open(self) -> bool:
        """It takes requests: it has been entered, not left, and no stage has failed."""
        return not self._stage.is_closed

    async def generate(self, prompt: str | list[int] | None = None, **fields: Any) -> Answer:
        """The whole answer to a `prompt`, or to the `messages` of a chat.

        Args:
            prompt: text, or token ids.
            fields: as in OpenAI's API, those of ours included: max_tokens, temperature, seed, priority, ...

        Raises RequestError. Cancelling the call cancels the request.
        """
        async with self._submitted(prompt, fields) as reply:
            texts: list[str] = []
            while text := await reply.read():
                texts.append(text)
            return _answer("".join(texts), reply.completion)

    async def stream(self, prompt: str | list[int] | None = None, **fields: Any) -> AsyncGenerator[str]:
        """The same, piece by piece as it comes; whoever stops reading cancels the request."""
        async with self._submitted(prompt, fields) as reply:
            while text := await reply.read():
                yield text

    @asynccontextmanager
    async def _submitted(
        self, prompt: str | list[int] | None, fields: dict[str, Any]
    ) -> AsyncIterator[Reply]:
        reply = await self._stage.submit(self._wanted(prompt, fields))
        try:
            yield reply
        finally:
            reply.leave()

    def _wanted(self, prompt: str | list[int] | None, fields: dict[str, Any]) -> Wanted:
        """What the door would make of it. Raises RequestError."""
        body = fields if prompt is None else {"prompt": prompt, **fields}
        if ("prompt" in body) == ("messages" in body):
            raise RequestError(
                "Exactly one of 'prompt' and 'messages' must be given.", param="prompt", code="invalid_value"
            )
        parse = parse_chat if "messages" in body else parse_completion
        wanted, *more = parse(_encode(body), self._limits, secrets.randbits(63))
        return _checked(wanted, len(more) + 1)

    async def _end(self) -> None:
        self._stage.close()
        self._until.set()
        try:
            await self._running
        finally:
            gc.unfreeze()  # the supervisor has frozen what was there when it began


def in_process(config: Config) -> Config:
    """The same without a door: `Embedded` in ingress's place, unless config names another class there, no
    admin port, and no bound of how long a request may wait for the device.
    """
    stages = dict(config.stages)
    ingress, schedule = stages["ingress"], stages["schedule"]
    if ingress.use == _BUILT_IN["ingress"]:
        options = {name: value for name, value in ingress.options.items() if name in _OPTIONS}
        stages["ingress"] = StageConfig(EMBEDDED, inbox=1, workers=1, options=options)
    if schedule.use == _BUILT_IN["schedule"]:
        stages["schedule"] = replace(schedule, options=schedule.options | {"max_wait_ms": 0.0})
    return replace(config, stages=stages, admin=replace(config.admin, enabled=False))


def _embedded(config: Config, pipeline: assemble.Pipeline) -> Embedded:
    stage = pipeline.stages["ingress"][0]
    if not isinstance(stage, Embedded):
        use = config.stages["ingress"].use
        raise ConfigError(
            f"{config.origin}: stages.ingress.use = {use!r}: must be {EMBEDDED}, or of its kind"
        )
    return stage


def _load(config: Config) -> ModelCard:
    card = load_card(config.model.reference)
    return rename(card, config.model.name) if config.model.name else card


def _checked(wanted: Wanted, num_choices: int) -> Wanted:
    """Refuse what an embedded pipeline does not give. Raises RequestError."""
    absent = {
        "n": num_choices > 1,
        "echo": bool(wanted.echo),
        "logprobs": wanted.sampling.logprobs is not None,
        "prompt_logprobs": wanted.tells_prompt,
        "tools": wanted.toolset is not None,
    }
    for name, is_asked in absent.items():
        if is_asked:
            raise RequestError(
                f"'{name}' is not built for the embedded pipeline.", param=name, code="unsupported_value"
            )
    return wanted


def _answer(text: str, completion: Completion | None) -> Answer:
    assert completion is not None, "read() gives an empty text only at the end"
    return Answer(
        text=text,
        finish_reason=finish_word(completion.finish_reason),
        num_prompt_tokens=completion.num_prompt_tokens,
        num_output_tokens=completion.num_output_tokens,
        num_cached_tokens=completion.num_cached_tokens,
        e2e_s=completion.timings.e2e_ns / 1e9,
    )
