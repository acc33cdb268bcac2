"""Incremental detokenization: token ids in, whole characters out.

A text is the UTF-8 of its tokens' bytes, one after the other. That holds for byte-level BPE (GPT-2, Llama 3,
Qwen, SmolLM) and for SentencePiece with byte fallback (Llama 2, Mistral, Gemma), so a table of bytes per
token replaces the decoder, and a token costs one look-up.

`tokenizers.DecodeStream` is not used: it raises when a bad byte follows good ones in byte fallback, keeps
the remains of a text to itself, and holds back everything from the first U+FFFD on.
"""

import codecs
import json
import re
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer

from pipeline.errors import ModelError

Piece = str | bytes
"""A token's text; bytes where they are no whole characters."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class Vocabulary:
    """What every token id adds to a text. Immutable; shared by all sequences of a model.

    Args:
        tokenizer: its decoder must be a concatenation of tokens; ModelError if it is another.
        vocab_size: the model's, at least the tokenizer's; ids that are no token have no text.
    """

    __slots__ = ("_all_pieces", "_special", "pieces", "strip")

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        to_piece, self.strip = _read_decoder(tokenizer)
        vocab = tokenizer.get_vocab(with_added_tokens=True)
        added = tokenizer.get_added_tokens_decoder().items()
        special = {token_id: token.content for token_id, token in added if token.special}
        self._special = special
        self._all_pieces: list[Piece] | None = None
        self.pieces: list[Piece] = [""] * max(vocab_size, max(vocab.values(), default=-1) + 1)
        for token, token_id in vocab.items():
            if token_id not in special:
                self.pieces[token_id] = _as_text(to_piece(token))

    @property
    def all_pieces(self) -> list[Piece]:
        """As `pieces`, with the names of special tokens as their text."""
        if self._all_pieces is None:
            pieces = self.pieces.copy()
            for token_id, name in self._special.items():
                pieces[token_id] = name
            self._all_pieces = pieces
        return self._all_pieces

    def spell(self, token_id: int) -> bytes:
        """One token by itself; a special one by its name."""
        piece = self._special.get(token_id) or self.pieces[token_id]
        return piece.encode() if isinstance(piece, str) else piece


class Detokenizer:
    """The text of one sequence. `"".join(pushes) + flush()` is the decoding of all its ids.

    Bytes that are no UTF-8 become U+FFFD, one per maximal part of a character (Unicode 15, section 3.9),
    as the byte-level decoder of Hugging Face does. Its byte fallback differs for them alone: it blanks the
    whole run of bytes, also the good ones before, which a stream has shown already.

    Args:
        held: of tokens before, the beginning of a character.
        has_text: those tokens have yielded text.
    """

    __slots__ = ("_held", "_is_direct", "_pieces", "_strip")

    def __init__(
        self, vocabulary: Vocabulary, *, skips_special: bool = True, held: bytes = b"", has_text: bool = False
    ) -> None:
        self._pieces = vocabulary.pieces if skips_special else vocabulary.all_pieces
        self._held = held
        self._strip = 0 if has_text else vocabulary.strip
        self._is_direct = not self._held and not self._strip  # a whole piece can go out as it is

    @property
    def held(self) -> bytes:
        """Of the tokens so far, the beginning of a character that is not complete."""
        return self._held

    @property
    def has_text(self) -> bool:
        """There was text, or none of it would be stripped: what comes is shown with its leading spaces."""
        return self._strip == 0

    def push(self, token_id: int) -> str:
        """The text that is complete with this token; "" while a character is not."""
        piece = self._pieces[token_id]
        if self._is_direct and piece.__class__ is str:
            return piece
        return self._join(piece)

    def flush(self) -> str:
        """What is still held, at the end: the bytes of an incomplete character, as U+FFFD."""
        held, self._held = self._held, b""
        return held.decode(errors="replace")

    def _join(self, piece: Piece) -> str:
        data = self._held + (piece.encode() if isinstance(piece, str) else piece)
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._held = data[used:]
        if self._strip and text:
            text = _strip_left(text, self._strip)
            self._strip = 0
        self._is_direct = not self._held and not self._strip
        return text


def _strip_left(text: str, most: int) -> str:
    head = text[:most]
    return head.lstrip(" ") + text[most:]


def _as_text(piece: Piece) -> Piece:
    try:
        return piece if isinstance(piece, str) else piece.decode()
    except UnicodeDecodeError:
        return piece


def _read_decoder(tokenizer: Tokenizer) -> tuple[Callable[[str], Piece], int]:
    """How a token becomes its piece, and how many leading spaces a text loses."""
    steps: list[Callable[[str], Piece]] = []
    strip, is_fused = 0, False
    for decoder in _flatten(tokenizer):
        match decoder:
            case {"type": "ByteLevel"}:
                steps.append(_byte_level())
            case {"type": "Replace", "pattern": {"String": old}, "content": new} if not is_fused:
                steps.append(_replace(old, new))
            case {"type": "ByteFallback"}:
                steps.append(_byte_fallback)
            case {"type": "Fuse"}:
                is_fused = True
            case {"type": "Strip", "content": " ", "start": start, "stop": 0} if is_fused:
                strip = start
            case _:
                raise ModelError(
                    f"the tokenizer's decoder {json.dumps(decoder)} cannot be streamed; known are byte-level "
                    "decoders and sequences of Replace, ByteFallback, Fuse and a leading Strip"
                )
    return _chain(steps), strip


def _flatten(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    if tokenizer.decoder is None:
        raise ModelError("the tokenizer has no decoder")
    root = json.loads(tokenizer.decoder.__getstate__())
    return list(root["decoders"]) if root["type"] == "Sequence" else [root]


def _chain(steps: list[Callable[[str], Piece]]) -> Callable[[str], Piece]:
    def to_piece(token: str) -> Piece:
        piece: Piece = token
        for step in steps:
            if isinstance(piece, str):  # bytes are final
                piece = step(piece)
        return piece

    return to_piece


def _replace(old: str, new: str) -> Callable[[str], Piece]:
    return lambda token: token.replace(old, new)


def _byte_fallback(token: str) -> Piece:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes((int(match[1], 16),)) if match else token


def _byte_level() -> Callable[[str], Piece]:
    """GPT-2's alphabet: a byte that prints stands for itself, the others follow from U+0100 on."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printed]
    byte_of = {chr(byte): byte for byte in printed} | {chr(0x100 + n): byte for n, byte in enumerate(others)}

    def to_piece(token: str) -> Piece:
        try:
            return bytes(map(byte_of.__getitem__, token))
        except KeyError:  # an added token outside the alphabet is plain text
            return token

    return to_piece
