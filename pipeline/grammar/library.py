"""llguidance: the only module that imports it, and it does so where it is called.

What the library is told of a vocabulary are the bytes that detokenization itself goes by, so that a text that
the grammar takes is the text that the client gets.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from tokenizers import Tokenizer

from pipeline.core.detok import Vocabulary
from pipeline.messages import Grammar

if TYPE_CHECKING:
    import llguidance

MAX_MESSAGE_CHARS = 120
MAX_LEXER_STATES = 5000
"""Of one grammar, over all sequences that follow it: 1 to 2 KB each."""

SPACE = r"(\x20?|\x0A[\x20\x09]{0,16})"
"""Between the parts of JSON: a space, or a line and its indent, so that it cannot go on for ever."""


class TokenizerSpec(msgspec.Struct, frozen=True):
    """What grammars must know of a model."""

    tokenizer_json: str
    vocab_size: int
    eos_ids: tuple[int, ...]


class GrammarFault(ValueError):
    """A grammar that cannot be used; the text says why."""


def new_tokenizer(spec: TokenizerSpec) -> "llguidance.LLTokenizer":
    """A fifth of a second for 49 thousand tokens."""
    import llguidance

    words = _Words(spec)
    eos_ids = list(spec.eos_ids)
    tokenizer = llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(words), n_vocab=len(words.tokens), eos_token=eos_ids
    )
    words.cut = tokenizer.greedy_tokenize
    return tokenizer


def compile_grammar(tokenizer: "llguidance.LLTokenizer", grammar: Grammar) -> "llguidance.LLMatcher":
    """A matcher at the grammar's beginning. Raises GrammarFault. Lets go of the GIL meanwhile."""
    import llguidance

    matcher = llguidance.LLMatcher(tokenizer, _source(grammar), log_level=0, limits=_limits())
    if matcher.is_error():
        raise GrammarFault(message_of(matcher.get_error()))
    return matcher


def message_of(error: str) -> str:
    """The library's own words, without what it adds for its developers."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    text = lines[0].rstrip(".:") if lines else "it cannot be compiled"
    if text.startswith("NoExtension"):
        return "no text fulfils it"
    return text if len(text) <= MAX_MESSAGE_CHARS else text[:MAX_MESSAGE_CHARS] + "..."


def _source(grammar: Grammar) -> str:
    from llguidance import LLMatcher

    if grammar.kind == "json":
        try:
            return LLMatcher.grammar_from_json_schema(
                grammar.text, overrides={"whitespace_pattern": SPACE, "lenient": False}
            )
        except ValueError as error:
            raise GrammarFault(message_of(str(error))) from error
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "choice":
        choices: list[str] = json.loads(grammar.text)
        return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, choices)))
    return LLMatcher.grammar_from_lark(grammar.text)


def _limits() -> "llguidance.LLParserLimits":
    """Below the library's own where a step is concerned: 14 thousand units of fuel, or 20 thousand items, are
    a millisecond.
    """
    import llguidance

    return llguidance.LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        step_max_items=20_000,
        max_lexer_states=MAX_LEXER_STATES,
        max_grammar_size=250_000,
        verbose_errors=False,
    )


class _Words:
    """What llguidance asks of a tokenizer."""

    def __init__(self, spec: TokenizerSpec) -> None:
        self._tokenizer = Tokenizer.from_str(spec.tokenizer_json)
        vocabulary = Vocabulary(self._tokenizer, spec.vocab_size)
        self._pieces = [_as_bytes(piece) for piece in vocabulary.pieces]
        self.tokens = [_as_bytes(piece) for piece in vocabulary.all_pieces]
        self.special_token_ids = [
            token_id for token_id, piece in enumerate(self._pieces) if not piece and self.tokens[token_id]
        ]
        self.bos_token_id = None
        self.eos_token_id = spec.eos_ids[0]
        self.cut: Callable[[str], list[int]] = lambda _: []

    def __call__(self, text: bytes) -> list[int]:
        """As the model's tokenizer has it, if those tokens are that text; else the longest tokens there are.

        Where only one text can come next, the model may say it in these tokens alone.
        """
        words = text.decode(errors="replace")
        ids: list[int] = self._tokenizer.encode(words, add_special_tokens=False).ids
        return ids if b"".join(self._pieces[each] for each in ids) == text else self.cut(words)


def _as_bytes(piece: Any) -> bytes:
    return piece.encode() if isinstance(piece, str) else bytes(piece)
