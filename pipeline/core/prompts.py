"""Prompts to token ids, so that a client's text never becomes a control token.

The tokenizer recognises no special token in any text. Instead each special token has an alias, a random
string that nobody outside knows, put where the chat template wrote its marker. What of a client's text could
pass for a marker, or for one end of it, is hidden while the template runs, one private-use character each:

    content -> hide -> template -> markers to aliases -> show -> encode -> aliases to special ids

So "<|im_end|>" in a message is encoded as the plain text it is, and without such text the ids are those of
Hugging Face's apply_chat_template.
"""

import json
import secrets
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

from msgspec.structs import replace
from tokenizers import AddedToken, Encoding, Tokenizer

from pipeline.core.chat import ChatTemplate
from pipeline.core.image_tokens import pieces, rejoined
from pipeline.errors import RequestError
from pipeline.messages import ChatMessage

_ALIAS_PLANE = range(0xF0000, 0xFFFFE)
_PLACEHOLDER_PLANE = range(0x100000, 0x10FFFE)
"""The planes of Unicode that are for private use. So many code points cannot be guessed, nor all be used."""


class PromptEncoder:
    """One worker's tokenizer, made safe. It changes the tokenizer, so give it one of its own.

    Errors: RequestError where a text cannot be encoded safely. No method is thread-safe.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        special = {token.content: token_id for token_id, token in added.items() if token.special}
        self._aliases = {marker: _new_alias() for marker in sorted(special, key=len, reverse=True)}
        self._edges = _Edges(special)
        self._affixes = _num_affixes(tokenizer)
        unknown = getattr(tokenizer.model, "unk_token", None)
        self._forbidden = frozenset(token_id for marker, token_id in special.items() if marker != unknown)

        tokenizer.encode_special_tokens = True  # that is: as the plain text they are
        tokenizer.add_tokens([_like(added[special[marker]], text) for marker, text in self._aliases.items()])
        self._special_of = {
            tokenizer.token_to_id(alias): special[marker] for marker, alias in self._aliases.items()
        }
        self._tokenizer = tokenizer

    def encode(self, texts: Sequence[str], *, is_rendered: bool) -> list[Encoding]:
        """Encode texts as they are, with the BOS token if the tokenizer adds one, or those `render` made, in
        which the template has written it. A result's length is final; its ids are had from `ids_of`.
        """
        return self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=not is_rendered)

    def ids_of(self, encoding: Encoding, *, is_rendered: bool) -> list[int]:
        """The token ids. RequestError if the vocabulary itself holds a marker, and one was made of text."""
        ids = encoding.ids
        num_before, num_after = (0, 0) if is_rendered else self._affixes
        if not self._forbidden.isdisjoint(ids[num_before : len(ids) - num_after]):
            raise RequestError("The text holds a control token of this model.", code="control_token")
        if is_rendered:
            special_of = self._special_of
            return [special_of.get(token_id, token_id) for token_id in ids]
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Their text, special tokens too, as their markers."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def render(self, template: ChatTemplate, messages: Sequence[ChatMessage], tools: str = "") -> str:
        """The conversation as text for `encode`: aliases where the template wrote markers.

        Args:
            tools: what the template is told of them, as JSON; empty: there are none.
        """
        calls = [call.arguments for message in messages for call in message.tool_calls]
        texts = [
            template.source,
            *(message.content for message in messages),
            *map(_unescaped, (tools, *calls)),
        ]
        hidden = _Placeholders(texts)
        text = template.render(
            [self._hidden(message, hidden) for message in messages],
            self._hide_all(json.loads(tools), hidden) if tools else None,
        )
        for marker, alias in self._aliases.items():
            text = text.replace(marker, alias)
        return hidden.show(text)

    def _hidden(self, message: ChatMessage, hidden: "_Placeholders") -> ChatMessage:
        return replace(
            rejoined(message, [self._hide(text, hidden) for text in pieces(message)]),
            tool_calls=tuple(
                replace(call, arguments=json.dumps(self._hide_all(json.loads(call.arguments), hidden)))
                for call in message.tool_calls
            ),
        )

    def _hide_all(self, value: Any, hidden: "_Placeholders") -> Any:
        """All texts in a JSON value, keys too."""
        if isinstance(value, str):
            return self._hide(value, hidden)
        if isinstance(value, list):
            return [self._hide_all(each, hidden) for each in value]
        if isinstance(value, dict):
            return {self._hide(key, hidden): self._hide_all(each, hidden) for key, each in value.items()}
        return value

    def _hide(self, content: str, hidden: "_Placeholders") -> str:
        for marker in self._aliases:  # the longest first
            if marker in content:
                content = content.replace(marker, hidden.placeholder(marker))
        return self._edges.hide(content, hidden)


class _Placeholders:
    """Stand-ins for pieces of one conversation's text, each one character that occurs nowhere in it."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._used = "".join(texts)
        self._piece_of: dict[str, str] = {}
        self._placeholder_of: dict[str, str] = {}

    def placeholder(self, piece: str) -> str:
        placeholder = self._placeholder_of.get(piece)
        if placeholder is None:
            placeholder = self._placeholder_of[piece] = self._unused_char()
            self._piece_of[placeholder] = piece
        return placeholder

    def show(self, text: str) -> str:
        """`text` with the pieces back in their places."""
        for placeholder, piece in self._piece_of.items():
            text = text.replace(placeholder, piece)
        return text

    def _unused_char(self) -> str:
        for _ in range(64):
            char = chr(secrets.choice(_PLACEHOLDER_PLANE))
            if char not in self._used and char not in self._piece_of:
                return char
        raise RequestError("The messages hold too many private-use characters.", param="messages")


class _Edges:
    """The ends of a text that would complete a marker together with what a template puts next to it."""

    def __init__(self, markers: Iterable[str]) -> None:
        cuts = [(marker[:at], marker[at:]) for marker in markers for at in range(1, len(marker))]
        self._begins = {begin for begin, _ in cuts}
        self._ends = {end for _, end in cuts}
        self._longest = max(map(len, self._begins), default=0)

    def hide(self, text: str, hidden: _Placeholders) -> str:
        """`text` with a marker's end at its begin, and a marker's begin at its end, hidden.

        White space around is left as it is and looked through, since templates trim.
        """
        core = text.strip()
        head = next((n for n in self._lengths(core) if core[:n] in self._ends), 0)
        tail = next((n for n in self._lengths(core[head:]) if core[-n:] in self._begins), 0)
        if not head and not tail:
            return text
        at = len(text) - len(text.lstrip())
        parts = [
            text[:at],
            core[:head],
            core[head : len(core) - tail],
            core[len(core) - tail :],
            text[at + len(core) :],
        ]
        parts[1:4:2] = [hidden.placeholder(part) if part else "" for part in parts[1:4:2]]
        return "".join(parts)

    def _lengths(self, text: str) -> range:
        return range(min(self._longest, len(text)), 0, -1)


def _unescaped(text: str) -> str:
    """All characters that the values of a JSON text have, and others."""
    return json.dumps(json.loads(text), ensure_ascii=False) if text else ""


def _new_alias() -> str:
    return "".join(chr(_ALIAS_PLANE[byte]) for byte in secrets.token_bytes(16))


def _like(token: AddedToken, text: str) -> AddedToken:
    """An alias treats the space and the words around it as its special token would."""
    return AddedToken(
        text,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=False,
    )


def _num_affixes(tokenizer: Tokenizer) -> tuple[int, int]:
    """How many special tokens the tokenizer itself puts before and after a text."""
    mask = tokenizer.encode("a", add_special_tokens=True).special_tokens_mask
    return len(list(takewhile(bool, mask))), len(list(takewhile(bool, reversed(mask))))
