"""A folder in Hugging Face layout -> ModelCard."""

from pathlib import Path
from typing import TypeVar

import msgspec
from tokenizers import Tokenizer

from pipeline.checkpoint.card import Architecture, ModelCard, RopeScaling
from pipeline.checkpoint.chat_end import eos_ids
from pipeline.checkpoint.safetensors_files import tensor_files
from pipeline.errors import ModelError

FAMILIES = {"mistral": "llama"}
"""model_type -> family where they differ; otherwise a model_type is its own family."""

T = TypeVar("T")


class _Rope(msgspec.Struct, frozen=True):
    """rope_scaling (transformers 4) or rope_parameters (transformers 5)."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    partial_rotary_factor: float = 1.0

    @property
    def kind(self) -> str:
        return self.rope_type or self.type or "default"


class _Config(msgspec.Struct, frozen=True):
    """config.json; defaults are those of transformers' LlamaConfig."""

    model_type: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    rope_theta: float = 10000.0
    rope_scaling: _Rope | None = None
    rope_parameters: _Rope | None = None
    partial_rotary_factor: float = 1.0
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    use_sliding_window: bool = True
    quantization_config: dict[str, object] | None = None
    eos_token_id: int | list[int] | None = None

    @property
    def rope(self) -> _Rope:
        return self.rope_parameters or self.rope_scaling or _Rope()


class _GenerationConfig(msgspec.Struct, frozen=True):
    eos_token_id: int | list[int] | None = None


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
    config = _read(path / "config.json", _Config)
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
    return ModelCard(
        name=name or path.resolve().name,
        reference=reference,
        path=path,
        format="folder",
        architecture=_architecture(path / "config.json", config),
        tokenizer_json=tokenizer.to_str(),
        chat_template=template,
        bos_token=_content(words.bos_token),
        eos_token=eos,
        eos_ids=eos_ids(named, template, tokenizer.token_to_id),
    )


def _architecture(file: Path, config: _Config) -> Architecture:
    _refuse_unsupported(file, config)
    return Architecture(
        family=FAMILIES.get(config.model_type, config.model_type),
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=config.head_dim or config.hidden_size // config.num_attention_heads,
        vocab_size=config.vocab_size,
        max_position=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope.rope_theta or config.rope_theta,
        rope_scaling=_rope_scaling(file, config.rope),
        tie_embeddings=config.tie_word_embeddings,
        attention_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
    )


def _refuse_unsupported(file: Path, config: _Config) -> None:
    window = (config.sliding_window or 0) if config.use_sliding_window else 0
    faults = {
        "quantization_config": config.quantization_config is not None,
        f"hidden_act = {config.hidden_act!r} (only 'silu')": config.hidden_act != "silu",
        f"sliding_window = {window} below max_position_embeddings": 0
        < window
        < config.max_position_embeddings,
        "partial_rotary_factor": config.partial_rotary_factor != 1.0
        or config.rope.partial_rotary_factor != 1.0,
        "hidden_size not a multiple of num_attention_heads": config.head_dim is None
        and config.hidden_size % config.num_attention_heads != 0,
    }
    for fault, is_present in faults.items():
        if is_present:
            raise ModelError(f"{file}: a model with {fault} cannot be served")


def _rope_scaling(file: Path, rope: _Rope) -> RopeScaling | None:
    if rope.kind == "default":
        return None
    if rope.kind == "linear":
        return RopeScaling(kind="linear", factor=rope.factor)
    if rope.kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=rope.factor,
            low_freq_factor=rope.low_freq_factor,
            high_freq_factor=rope.high_freq_factor,
            original_max_position=rope.original_max_position_embeddings,
        )
    raise ModelError(
        f"{file}: rope of type {rope.kind!r} cannot be served; 'default', 'linear' and 'llama3' can"
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
    return _read(file, kind) if file.is_file() else kind()


def _read(file: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except OSError as error:
        raise ModelError(
            f"{file} cannot be read: {error.strerror}. Is this a folder in Hugging Face layout?"
        ) from error
    except msgspec.ValidationError as error:
        raise ModelError(f"{file}: {error}") from error
    except msgspec.DecodeError as error:
        raise ModelError(f"{file} is not valid JSON: {error}. Fetch it again.") from error
