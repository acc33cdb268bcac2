"""Images: GenerateRequest -> GenerateRequest, where config.toml has [stages.images]: files become pixels.

Sits between ingress and tokenize, for requests that hold images only: all others pass it by, so a text never
waits behind an image. A pool: each instance has a thread, and a process in which files are read, within
limits. A request's time here is part of its tokenize.wait.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, TypeVar

import msgspec
from msgspec.structs import replace

from pipeline.checkpoint.card import ModelCard
from pipeline.errors import ConfigError, RequestError
from pipeline.images import ImageReader, ImageRefused, is_installed
from pipeline.messages import GenerateRequest, ImagePart, PromptImage, Rejected
from pipeline.runtime.equivalence import BY_REQUEST
from pipeline.runtime.stage import NoState, Stage, StageContext

R = TypeVar("R")


class ImagesOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    max_image_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)] = 8 << 20
    """Of one file; the body or frame that it comes in has a bound of its own."""
    max_pixels: Annotated[int, msgspec.Meta(ge=1, le=1 << 28)] = 1 << 24
    """Of one image, width times height, whatever its file says."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=60)] = 10.0
    """An image that takes longer to read is refused."""


class Images(Stage[GenerateRequest, ImagesOptions]):
    """Answers every request with exactly one message. Where the model reads no images nothing comes here."""

    Options = ImagesOptions
    takes = (GenerateRequest,)
    gives = (GenerateRequest, Rejected)
    equivalence = BY_REQUEST
    State = NoState
    is_revocable = True

    def __init__(self, ctx: StageContext, options: ImagesOptions) -> None:
        super().__init__(ctx, options)
        vision = ctx.resource(ModelCard).architecture.vision
        if vision is not None and not is_installed():
            raise ConfigError("stages.images: needs Pillow; install it with: pip install 'stageline[images]'")
        self._reader: ImageReader | None = None
        if vision is not None:
            self._reader = ImageReader(vision, options.max_pixels, options.timeout_s)
        self._thread: ThreadPoolExecutor | None = None
        self._latest: dict[str, PromptImage] = {}
        """By file: the choices of one answer follow one another, and have the same."""

    async def start(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=self.ctx.name)
        if self._reader is not None:
            await self._in_thread(self._reader.start)

    async def stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.shutdown, cancel_futures=True)
        if self._reader is not None:
            await asyncio.to_thread(self._reader.close)

    def limit(self) -> int:
        """The others are for another instance."""
        return 1

    async def handle(self, batch: Sequence[GenerateRequest]) -> None:
        for request in batch:
            try:
                images = await self._in_thread(partial(self._read, request))
            except RequestError as error:
                self.service.num_errors += 1
                self.ctx.outlet(Rejected).post(Rejected.of(request.request_id, error))
                continue
            await self.ctx.outlet(GenerateRequest).send(_with(request, images))

    def _read(self, request: GenerateRequest) -> tuple[PromptImage, ...]:
        """In the thread. Raises RequestError."""
        latest = self._latest
        self._latest = {}
        for part in (part for message in request.chat or () for part in message.images):
            image = self._latest.get(part.data) or latest.get(part.data)
            self._latest[part.data] = image or self._read_one(part)
        return tuple(self._latest[part.data] for message in request.chat or () for part in message.images)

    def _read_one(self, part: ImagePart) -> PromptImage:
        most = self.options.max_image_bytes
        if len(part.data) * 3 // 4 > most + 2:
            raise RequestError(
                f"'{part.field}' holds a file of about {len(part.data) * 3 // 4} bytes; {most} are the most.",
                status=413,
                param=part.field,
                code="image_too_large",
            )
        assert self._reader is not None, "the door refuses images for a model that reads none"
        try:
            return self._reader.read(part.data)
        except ImageRefused as refused:
            raise RequestError(
                f"'{part.field}' cannot be read: {refused}.", param=part.field, code="invalid_image"
            ) from None

    async def _in_thread(self, work: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _with(request: GenerateRequest, images: tuple[PromptImage, ...]) -> GenerateRequest:
    """Its images as pixels; their files are let go."""
    chat = [
        replace(message, images=tuple(replace(part, data="") for part in message.images))
        if message.images
        else message
        for message in request.chat or ()
    ]
    return replace(request, chat=chat, images=images)
