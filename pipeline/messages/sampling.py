"""How one request's tokens are chosen, and what is told of how probable they were."""

from typing import Literal, NamedTuple

from pipeline.messages.parts import Message

MAX_LOGPROBS = 20
"""Alternatives of a token that can be asked for."""

MAX_BAD_WORD_IDS = 16
"""Token ids of a bad word."""


class Grammar(Message, frozen=True):
    """What the output must be."""

    kind: Literal["json", "regex", "choice", "lark"]
    text: str
    """A JSON Schema; a regular expression; a JSON list of texts; a grammar in Lark's notation."""


class SamplingParams(Message, frozen=True):
    """How one request's tokens are chosen. Checked at the door (core.wire), trusted from there on.

    What is done to a row's logits, in this order (that of vLLM's V1 sampler, vllm/v1/sample/sampler.py, with
    typical_p before the other filters as in llama.cpp): allowed_token_ids, bad words, min_tokens and
    logit_bias; repetition, then frequency and presence penalties; greedy rows take the best of that. Then
    temperature, typical_p, min_p, top_k, top_p, each of the distribution that the ones before it leave.
    """

    max_tokens: int | None = None
    """None until tokenize knows the prompt's length and fills it in."""
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    """(0, 1]; 1 is off. Nucleus sampling (Holtzman et al. 2020)."""
    seed: int = 0
    """The door draws one where the client gave none; noise is keyed by (seed, position)."""
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_p: float = 0.0
    """[0, 1]; 0 is off. A token needs this share of the best one's probability (Nguyen et al. 2024)."""
    typical_p: float = 1.0
    """(0, 1]; 1 is off. Of the tokens whose surprise is nearest to the mean one, those that have this mass
    (locally typical sampling, Meister et al. 2023)."""
    presence_penalty: float = 0.0
    """[-2, 2]; 0 is off. Taken once from the logit of each token of the output so far, and"""
    frequency_penalty: float = 0.0
    """[-2, 2]; 0 is off. this once for each time that it is there (OpenAI's API reference)."""
    repetition_penalty: float = 1.0
    """(0, 2]; 1 is off. What a positive logit of a token of prompt or output is divided by, a negative one
    multiplied (CTRL, Keskar et al. 2019)."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit: [-100, 100]), each id once."""
    allowed_token_ids: tuple[int, ...] = ()
    """No other token is chosen; empty: all are allowed."""
    bad_words: tuple[str, ...] = ()
    """What the output must not hold, as the client wrote it, and"""
    bad_token_ids: tuple[tuple[int, ...], ...] = ()
    """as token ids, filled in by tokenize: the last of each is not chosen after the others."""
    min_tokens: int = 0
    """Output tokens before which it does not end by itself: no id of `end_ids` is chosen, and stop strings
    are looked for in the text after them only."""
    stop_token_ids: tuple[int, ...] = ()
    """They end the output, as the model's own end does, and are not shown; also with ignore_eos."""
    end_ids: tuple[int, ...] = ()
    """Where min_tokens > 0, filled in by tokenize: stop_token_ids and the model's own ends."""
    include_stop_str_in_output: bool = False
    """The text ends after the stop string (or the text of the id of stop_token_ids), not before it."""
    skip_special_tokens: bool = True
    """Special tokens of the vocabulary have no text."""
    truncate_prompt_tokens: int | None = None
    """Only the last so many tokens of the prompt are read; -1: as many as leave room for the output."""
    unstopped: tuple[str, str, bool] | None = None
    """Tags between which no stop string is looked for: the text before the answer, in which a model reasons.
    Opening, closing, and whether the text begins inside."""
    grammar: Grammar | None = None
    """No token is chosen after which the output could not become what it says; the end only where it is. It
    goes before all that bans tokens, where that leaves none."""
    logprobs: int | None = None
    """Tell how probable each token was, and the so many most probable, up to MAX_LOGPROBS; None: do not."""
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens but the first, each given those before it."""

    @property
    def follows_tokens(self) -> bool:
        """The device must know which tokens came before."""
        return self.counts_tokens or self.grammar is not None

    @property
    def counts_tokens(self) -> bool:
        """Some of it depends on how often tokens came before."""
        return (
            self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.repetition_penalty != 1
            or any(len(each) > 1 for each in self.bad_token_ids)
        )


class Logprobs(Message, frozen=True):
    """Of the tokens of those rows that asked, columnar: natural logarithms of the probabilities that the
    model gave, before anything is done to its logits (vLLM's raw_logprobs).
    """

    request_ids: list[int]
    """A request is named once for each of its tokens, in their order."""
    token_ids: list[int]
    """Chosen, and"""
    values: list[float]
    """what they have."""
    top_ids: list[list[int]]
    """The most probable, falling, ties by id: as many as the request asked for, and"""
    top_values: list[list[float]]
    """what they have."""


NO_VALUE = 1.0
"""No logarithm of a probability: that of the first token of a prompt, which comes after nothing."""


class TokenLogprob(NamedTuple):
    """One token as a client is told of it."""

    piece: bytes
    """What it adds to the text, before anything is stripped; of a special token, its name."""
    value: float
    top: list[tuple[bytes, float]]
    """The same of the most probable ones."""


class SpelledLogprobs(Message, frozen=True):
    """The same as Logprobs, for the text side: entry j belongs to request_ids[j]."""

    request_ids: list[int]
    entries: list[TokenLogprob]
