"""What is fuzzed: each reader of bytes from outside, with the only exceptions that it may raise.

A target takes any bytes. What it returns is checked a little: what was let in must be within its limits.
"""

import math
import os
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from pipeline.checkpoint.gguf_header import read_header
from pipeline.checkpoint.json_file import read_json
from pipeline.checkpoint.safetensors_files import tensor_shapes
from pipeline.checkpoint.vision import Vision
from pipeline.core.framing import http_chunk, text_frame
from pipeline.core.keys import Key
from pipeline.core.trace_context import parse_traceparent
from pipeline.core.wire import (
    Frame,
    ImageLimits,
    Limits,
    Wanted,
    bearer_of,
    check_bare,
    error_body,
    parse_ack,
    parse_chat,
    parse_completion,
    parse_detokenize,
    parse_frame,
    parse_grant,
    parse_response,
    parse_resume,
    parse_tokenize,
    take_traceparent,
    tenant_of_key,
    wanted_of,
)
from pipeline.errors import ModelError, RequestError
from pipeline.images.header import ImageFault
from pipeline.images.pixels import pixels_of
from pipeline.runtime.frames import FrameReader
from pipeline.stages.ingress.about import window_s
from pipeline.stages.ingress.cors import host_in

LIMITS = Limits(model="m", max_model_len=2048, vocab_size=1000, images=ImageLimits(num_tokens=4))
VISION = Vision("clip", 28, 14, 8, 8, 1, 1, 1e-5, "gelu", 5, resize="shortest", resized=28)
FRAMES: dict[str, Callable[[Frame], object]] = {
    "cancel": check_bare,
    "ping": check_bare,
    "grant": parse_grant,
    "ack": parse_ack,
    "resume": parse_resume,
}
Target = Callable[[bytes], None]


def _check(all_wanted: Iterable[Wanted]) -> None:
    """What a request that was let in may be."""
    count = 0
    for wanted in all_wanted:
        count += 1
        sampling, terms = wanted.sampling, wanted.terms
        assert (wanted.prompt is None) != (wanted.chat is None)
        floats = (
            sampling.temperature,
            sampling.top_p,
            sampling.min_p,
            sampling.typical_p,
            sampling.presence_penalty,
            sampling.frequency_penalty,
            sampling.repetition_penalty,
            *(bias for _, bias in sampling.logit_bias),
            wanted.flush_ms,
            terms.ttft_target_ms or 0.0,
            terms.tpot_target_ms or 0.0,
            terms.patience_ms or 0.0,
        )
        assert all(map(math.isfinite, floats))
        assert 0 < sampling.top_p <= 1 and 0 <= sampling.temperature <= 2
        assert -(1 << 63) <= sampling.seed < 1 << 63
        assert wanted.credits is None or 1 <= wanted.credits <= 1 << 31
        assert sampling.max_tokens is None or 1 <= sampling.max_tokens <= LIMITS.max_model_len
        ids = wanted.prompt if isinstance(wanted.prompt, list) else []
        for each in (ids, sampling.stop_token_ids, sampling.allowed_token_ids):
            assert all(type(token_id) is int and 0 <= token_id < LIMITS.vocab_size for token_id in each)
    assert 1 <= count <= 64


def completion(data: bytes) -> None:
    with _declared():
        _check(parse_completion(data, LIMITS, 7))


def chat(data: bytes) -> None:
    with _declared():
        _check(parse_chat(data, LIMITS, 7))


def response(data: bytes) -> None:
    with _declared():
        _check(parse_response(data, LIMITS, 7))


def tokenize(data: bytes) -> None:
    with _declared():
        parse_tokenize(data, LIMITS)


def detokenize(data: bytes) -> None:
    with _declared():
        ids = parse_detokenize(data, LIMITS)
        assert all(0 <= token_id < LIMITS.vocab_size for token_id in ids)


def frame(data: bytes) -> None:
    """A frame of a websocket; aiohttp has seen to it that a text is UTF-8."""
    with suppress(UnicodeDecodeError), _declared():
        parsed = parse_frame(data.decode())
        assert 0 < len(parsed.id) <= 128
        if read := FRAMES.get(str(parsed.type)):
            read(parsed)
        else:
            take_traceparent(parsed)
            _check([wanted_of(parsed.fields, LIMITS, 7)])


def headers(data: bytes) -> None:
    """What is read of headers and queries; aiohttp decodes them so."""
    text = data.decode("utf-8", "surrogateescape")
    parse_traceparent(text)
    assert len(bearer_of(text)) <= len(text)
    tenant_of_key(text)
    host_in(text)
    with _declared():
        assert 0 < window_s(text) <= 3600


def framing(data: bytes) -> None:
    """What is written can be read again, by the letter of the RFCs."""
    payload_at = {126: 4, 127: 10}
    framed = text_frame(data)
    assert framed[0] == 0x81 and framed[payload_at.get(framed[1], 2) :] == data
    if data:
        size, _, rest = http_chunk(data).partition(b"\r\n")
        assert rest == data + b"\r\n" and int(size, 16) == len(data)


def worker_frames(data: bytes) -> None:
    """From the process of the device workers: ours, but it may be dying."""
    with suppress(msgspec.DecodeError, ValueError):
        list(FrameReader().feed(data))


def keys(data: bytes) -> None:
    with suppress(tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError):
        for table in tomllib.loads(data.decode()).values():
            msgspec.convert(table, Key)


def gguf(data: bytes) -> None:
    with suppress(ModelError):
        header = read_header(_written("model.gguf", data))
        assert all(tensor.offset + tensor.num_bytes <= len(data) for tensor in header.tensors.values())


def safetensors(data: bytes) -> None:
    with suppress(ModelError):
        shapes = tensor_shapes(_written("model.safetensors", data).parent)
        assert all(length >= 0 for shape in shapes.values() for length in shape)


def image(data: bytes) -> None:
    with suppress(ImageFault):
        assert len(pixels_of(data, VISION, max_pixels=1 << 16)) == VISION.num_bytes


def model_json(data: bytes) -> None:
    with suppress(ModelError):
        read_json(_written("config.json", data), dict[str, object])


@contextmanager
def _declared() -> Iterator[None]:
    """Lets a RequestError pass that is as it should be: JSON, and short."""
    try:
        yield
    except RequestError as error:
        _refusal(error)


def _refusal(error: RequestError) -> None:
    body = error_body(error)
    assert 400 <= error.status < 500
    assert len(body) < 2000 and msgspec.json.decode(body)["error"]["message"]


_FOLDERS: dict[int, tempfile.TemporaryDirectory[str]] = {}


def _written(name: str, data: bytes) -> Path:
    """A file of this process, alone in its folder."""
    folder = _FOLDERS.get(os.getpid())
    if folder is None:
        folder = _FOLDERS[os.getpid()] = tempfile.TemporaryDirectory()
    inside = Path(folder.name) / name.replace(".", "-")
    inside.mkdir(exist_ok=True)
    (inside / name).write_bytes(data)
    return inside / name


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        completion,
        chat,
        response,
        tokenize,
        detokenize,
        frame,
        headers,
        framing,
        worker_frames,
        keys,
        gguf,
        image,
        safetensors,
        model_json,
    )
}
