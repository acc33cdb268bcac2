"""Logprobs in OpenAI's two shapes, and in websocket frames.

A token's text is what it adds by itself: U+FFFD for a part of a character; its bytes are exact. So offsets
count characters of these texts, one token after the other.
"""

from collections.abc import Iterable, Sequence

from pipeline.messages import NO_VALUE, TokenLogprob

LEAST = -9999.0
"""What stands for minus infinity, which JSON does not have."""


def chat_logprobs(entries: Iterable[TokenLogprob]) -> dict[str, object]:
    """`logprobs` of a chat choice."""
    return {"content": token_list(entries), "refusal": None}


def token_list(entries: Iterable[TokenLogprob]) -> list[dict[str, object]]:
    """Each token with its bytes, its logprob and its alternatives."""
    return [
        _token(entry.piece, entry.value) | {"top_logprobs": [_token(*each) for each in entry.top]}
        for entry in entries
    ]


def prompt_logprobs(scores: Sequence[TokenLogprob]) -> list[dict[str, object] | None]:
    """Each of a prompt's tokens, as in `token_list`, but the first, of which there is nothing to tell."""
    return [None, *token_list(scores[1:])]


def completion_logprobs(entries: Sequence[TokenLogprob], offset: int) -> tuple[dict[str, object], int]:
    """`logprobs` of a completion's choice from character `offset` on, and the offset after it.

    `top_logprobs` holds the token chosen as well, where it is none of the most probable.
    """
    tokens, offsets, tops = [], [], []
    values = [None if entry.value == NO_VALUE else _finite(entry.value) for entry in entries]
    for entry, value in zip(entries, values, strict=True):
        tokens.append(_text(entry.piece))
        offsets.append(offset)
        offset += len(tokens[-1])
        tops.append(None if value is None else _by_text([*entry.top, (entry.piece, value)]))
    told = {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}
    return told, offset


def _by_text(pairs: list[tuple[bytes, float]]) -> dict[str, float]:
    """Of tokens that read the same, the first."""
    by_text: dict[str, float] = {}
    for piece, value in pairs:
        by_text.setdefault(_text(piece), _finite(value))
    return by_text


def _token(piece: bytes, value: float) -> dict[str, object]:
    return {"token": _text(piece), "logprob": _finite(value), "bytes": list(piece)}


def _text(piece: bytes) -> str:
    return piece.decode(errors="replace")


def _finite(value: float) -> float:
    return max(value, LEAST)
