"""llguidance: the only module that imports it, and it does so where it is called."""

import json
from typing import TYPE_CHECKING

import msgspec

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

    from pipeline.grammar.words import Words  # tokenizers: not there beside given weights

    words = Words(spec.tokenizer_json, spec.vocab_size, spec.eos_ids)
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
