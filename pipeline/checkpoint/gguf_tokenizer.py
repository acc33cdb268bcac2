"""A `tokenizers.Tokenizer` built from the metadata of a GGUF file.

Two kinds: byte-level BPE (`tokenizer.ggml.model` = "gpt2") and SentencePiece BPE with byte fallback
("llama"). Ids are those of the Hugging Face tokenizer the file was made from, which tests compare.
"""

from enum import IntEnum
from typing import NamedTuple

import msgspec
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from pipeline.checkpoint.gguf_header import GgufHeader
from pipeline.errors import ModelError


class TokenType(IntEnum):
    """Values of tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary(msgspec.Struct, frozen=True):
    """The tokenizer part of the metadata, typed. Lists are indexed by token id."""

    tokens: list[str]
    token_type: list[int] = []
    scores: list[float] = []
    merges: list[str] = []
    model: str = ""
    pre: str = "default"
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    eot_token_id: int | None = None
    eom_token_id: int | None = None
    unknown_token_id: int | None = None
    add_bos_token: bool | None = None
    add_eos_token: bool = False
    add_space_prefix: bool = True

    def token(self, token_id: int | None) -> str | None:
        if token_id is None or not 0 <= token_id < len(self.tokens):
            return None
        return self.tokens[token_id]

    def types(self) -> list[int]:
        return self.token_type or [TokenType.NORMAL] * len(self.tokens)


class Split(NamedTuple):
    """How a byte-level vocabulary cuts text into words, and what its family does besides."""

    patterns: tuple[str, ...]
    adds_bos: bool = False
    ignores_merges: bool = False
    normalizes_nfc: bool = False


# Each pattern is the one in the tokenizer.json that its family publishes.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _REST
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _REST
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SPLITS = {
    "default": Split((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": Split((_GPT2,)),
    "smollm": Split((r"\p{N}", _GPT2)),
    "starcoder": Split((r"\p{N}", _GPT2)),
    "llama-bpe": Split((_LLAMA3,), adds_bos=True, ignores_merges=True),
    "tekken": Split((_TEKKEN,), adds_bos=True, ignores_merges=True),
    "qwen2": Split((_QWEN2,), normalizes_nfc=True),
}
"""By tokenizer.ggml.pre."""


def read_vocabulary(header: GgufHeader) -> Vocabulary:
    """The tokenizer metadata of `header`. Raises ModelError if there is none or it has wrong types."""
    prefix = "tokenizer.ggml."
    fields = {
        key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)
    }
    if "tokens" not in fields:
        raise ModelError(
            f"{header.path} holds no tokenizer (tokenizer.ggml.tokens). Use a complete GGUF file."
        )
    try:
        return msgspec.convert(fields, Vocabulary)
    except msgspec.ValidationError as error:
        raise ModelError(f"{header.path}: the tokenizer metadata is wrong: {error}") from error


def build_tokenizer(header: GgufHeader, vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer of a GGUF file. Raises ModelError, naming it, if its kind is not known."""
    _check_lengths(header, vocabulary)
    if vocabulary.model == "gpt2":
        tokenizer, adds_bos = _byte_level(header, vocabulary)
    elif vocabulary.model == "llama":
        tokenizer, adds_bos = _sentencepiece(vocabulary), True
    else:
        raise ModelError(
            f"{header.path} has a tokenizer of the kind {vocabulary.model!r}; 'gpt2' and 'llama' can be "
            "read. Use the model's folder in Hugging Face layout instead."
        )
    _add_tokens(tokenizer, vocabulary)
    _add_ends(
        tokenizer, vocabulary, adds_bos if vocabulary.add_bos_token is None else vocabulary.add_bos_token
    )
    return tokenizer


def _check_lengths(header: GgufHeader, vocabulary: Vocabulary) -> None:
    for name in ("token_type", "scores"):
        values = getattr(vocabulary, name)
        if values and len(values) != len(vocabulary.tokens):
            raise ModelError(
                f"{header.path} is damaged: tokenizer.ggml.{name} has {len(values)} entries "
                f"for {len(vocabulary.tokens)} tokens"
            )


def _byte_level(header: GgufHeader, vocabulary: Vocabulary) -> tuple[Tokenizer, bool]:
    split = SPLITS.get(vocabulary.pre)
    if split is None:
        raise ModelError(
            f"{header.path} splits text by the rule {vocabulary.pre!r} (tokenizer.ggml.pre); known are "
            f"{', '.join(sorted(SPLITS))}. Use the model's folder in Hugging Face layout instead."
        )
    tokenizer = Tokenizer(_byte_level_model(header, vocabulary, split))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    if split.normalizes_nfc:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer, split.adds_bos


def _byte_level_model(header: GgufHeader, vocabulary: Vocabulary, split: Split) -> BPE:
    merges = [_pair(header, merge) for merge in vocabulary.merges]
    try:
        return BPE(_ids(vocabulary), merges, ignore_merges=split.ignores_merges)
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelError(f"{header.path} is damaged: tokenizer.ggml.merges: {error}") from error


def _pair(header: GgufHeader, merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise ModelError(f"{header.path}: tokenizer.ggml.merges has {merge!r}, which is not a pair")
    return left, right


def _sentencepiece(vocabulary: Vocabulary) -> Tokenizer:
    """As Llama 2's tokenizer.json: spaces become U+2581, characters not in the vocabulary bytes."""
    unknown = vocabulary.token(vocabulary.unknown_token_id)
    model = BPE(_ids(vocabulary), _merges(vocabulary), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    prefix = [normalizers.Prepend("▁")] if vocabulary.add_space_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if vocabulary.add_space_prefix else []
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """SentencePiece joins the pair whose union scores highest; BPE needs that as a list in order."""
    ids = _ids(vocabulary)
    ranked = []
    for piece, score, kind in zip(vocabulary.tokens, vocabulary.scores, vocabulary.types(), strict=True):
        if kind != TokenType.NORMAL:
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                ranked.append((-score, ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(vocabulary.tokens)}


def _add_tokens(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Tokens that are cut out of the text before it is split; `special` ones are markers, never text."""
    kinds = vocabulary.types()
    special = (TokenType.CONTROL, TokenType.UNKNOWN)
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False, special=kind in special)
            for token, kind in zip(vocabulary.tokens, kinds, strict=True)
            if kind in special or kind == TokenType.USER_DEFINED
        ]
    )


def _add_ends(tokenizer: Tokenizer, vocabulary: Vocabulary, adds_bos: bool) -> None:
    bos = vocabulary.token(vocabulary.bos_token_id) if adds_bos else None
    eos = vocabulary.token(vocabulary.eos_token_id) if vocabulary.add_eos_token else None
    ends = [token for token in (bos, eos) if token is not None]
    if ends:
        single = [*([bos] if bos else []), "$A", *([eos] if eos else [])]
        ids = [(token, tokenizer.token_to_id(token)) for token in ends]
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=ids)
