"""A folder in Hugging Face layout -> ModelCard."""

from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from tokenizers import Tokenizer

from pipeline.checkpoint.card import Architecture, ModelCard
from pipeline.checkpoint.chat_end import eos_ids
from pipeline.checkpoint.hf_config import architecture_of, read_config
from pipeline.checkpoint.json_file import read_json
from pipeline.checkpoint.safetensors_files import tensor_files
from pipeline.errors import ModelError
from pipeline.messages import SamplingParams

T = TypeVar("T")


_Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class _GenerationConfig(msgspec.Struct, frozen=True):
    eos_token_id: int | list[int] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    top_p: _Share | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    typical_p: _Share | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=2)] | None = None

    def sampling(self) -> SamplingParams:
        """The same as the defaults of requests."""
        given = {
            "temperature": self.temperature,
            "top_k": None if self.top_k is None else max(self.top_k, 0),
            "top_p": self.top_p,
            "min_p": self.min_p,
            "typical_p": self.typical_p,
            "repetition_penalty": self.repetition_penalty,
        }
        return msgspec.convert(
            {name: each for name, each in given.items() if each is not None}, SamplingParams
        )


class _NamedTemplate(msgspec.Struct, frozen=True):
    name: str
    template: str


class _SpecialToken(msgspec.Struct, frozen=True):
    content: str


class _TokenizerConfig(msgspec.Struct, frozen=True):
    chat_template: str | list[_NamedTemplate] | None = None
    bos_token: str | _SpecialToken | None = None
    eos_token: str | _SpecialToken | None = None


def describe_folder(path: Path, reference: str, name: str | None = None) -> ModelCard:
    """The card of the model in the folder `path`.

    Raises ModelError, naming file and field, if a file is missing or damaged or the model cannot be served.
    """
    config = read_config(path / "config.json")
    tensor_files(path)
    tokenizer = _tokenizer(path / "tokenizer.json")
    words = _read_optional(path / "tokenizer_config.json", _TokenizerConfig)
    generation = _read_optional(path / "generation_config.json", _GenerationConfig)
    template = _template(path, words)
    eos = _content(words.eos_token)
    named = [
        *_ids(config.eos_token_id),
        *_ids(generation.eos_token_id),
        tokenizer.token_to_id(eos) if eos else None,
    ]
    architecture = architecture_of(path / "config.json", config)
    _check_image_token(path / "tokenizer.json", architecture, tokenizer)
    return ModelCard(
        name=name or path.resolve().name,
        reference=reference,
        path=path,
        format="folder",
        architecture=architecture,
        tokenizer_json=tokenizer.to_str(),
        chat_template=template,
        bos_token=_content(words.bos_token),
        eos_token=eos,
        eos_ids=eos_ids(named, template, tokenizer.token_to_id),
        generation=generation.sampling(),
    )


def _tokenizer(file: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_str(file.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ModelError(
            f"{file} does not exist: the model needs a tokenizer in this form. Save it with transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        ) from error
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelError(f"{file} is not a tokenizer definition: {error}. Fetch it again.") from error
    tokenizer.no_truncation()  # the door bounds prompts, in the open
    tokenizer.no_padding()
    return tokenizer


def _check_image_token(file: Path, architecture: Architecture, tokenizer: Tokenizer) -> None:
    """A client must not be able to write it."""
    if architecture.vision is None:
        return
    token_id = architecture.vision.image_token_id
    token = tokenizer.get_added_tokens_decoder().get(token_id)
    if token is None or not token.special or token_id >= architecture.vocab_size:
        raise ModelError(f"{file}: the image token, {token_id}, must be one of its special tokens")


def _template(folder: Path, words: _TokenizerConfig) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    if not isinstance(words.chat_template, list):
        return words.chat_template
    named = {entry.name: entry.template for entry in words.chat_template}
    return named.get("default", next(iter(named.values()), None))


def _content(token: str | _SpecialToken | None) -> str | None:
    return token.content if isinstance(token, _SpecialToken) else token


def _ids(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _read_optional(file: Path, kind: type[T]) -> T:
    return read_json(file, kind) if file.is_file() else kind()
