"""Prompts of real text, cut to a number of tokens without a tokenizer.

The text's words are given a length in tokens by `calibrate` (from the server's own usage), so that a
prompt is a slice of the text: cheap enough to be made when it is sent. Every prompt opens with a few
words from one place and goes on from another, so that no prefix cache helps by accident.
"""

import random
import re
from bisect import bisect_left
from importlib.resources import files
from itertools import accumulate
from pathlib import Path

from loadgen.errors import UsageError

MIN_WORDS = 100
_OPENING_WORDS = 4
"""Well under the smallest prefix-cache block (16 tokens)."""


class Text:
    """A text and where its words begin."""

    def __init__(self, text: str) -> None:
        self.text = text.strip() + "\n\n"
        self.starts = [found.start() for found in re.finditer(r"\S+", self.text)]

    def __len__(self) -> int:
        """Number of words."""
        return len(self.starts)

    def pieces(self) -> list[int]:
        """Of each word, how many runs of letters or of punctuation it has: tokenizers cut between them."""
        return [len(re.findall(r"\w+|[^\w\s]+", word)) for word in self.text.split()]

    def slice(self, first: int, last: int) -> str:
        """Words first..last-1 as written, without the space behind them. The text repeats for ever."""
        lap, end = divmod(last, len(self))
        stop = lap * len(self.text) + self.starts[end]
        return (self.text * (lap + 1))[self.starts[first] : stop].rstrip()


def load_text(path: Path | None) -> Text:
    """The text in `path`, or the one that comes with the package (public domain English).

    Raises:
        UsageError: no such file, not UTF-8, or under MIN_WORDS words.
    """
    try:
        content = (path or files("loadgen").joinpath("corpus.txt")).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--prompts {path}: cannot be read as UTF-8 text: {error}") from error
    text = Text(content)
    if len(text) < MIN_WORDS:
        raise UsageError(f"--prompts {path}: has {len(text)} words; at least {MIN_WORDS} are needed")
    return text


class Prompts:
    """Prompts by number: the same text, rates and seed give the same prompts.

    Args:
        text: what to cut from.
        word_tokens: tokens of each word of `text`, fractions allowed.
        overhead: tokens the server adds to every prompt (a BOS token).
        seed: where the prompts begin.
    """

    def __init__(self, text: Text, word_tokens: list[float], overhead: int, seed: int) -> None:
        self._text = text
        self._before = list(accumulate(word_tokens, initial=0.0))
        self._overhead = overhead
        self._seed = seed
        self._openings = list(range(len(text) - _OPENING_WORDS))
        random.Random(seed).shuffle(self._openings)

    def prompt(self, index: int, num_tokens: int) -> str:
        """Text of about `num_tokens` tokens, at least one word. Prompts of different index differ."""
        opening = self._openings[index % len(self._openings)]
        body = random.Random(f"{self._seed}:{index}").randrange(len(self._text))
        wanted = num_tokens - self._overhead
        opening_tokens = self._before[opening + _OPENING_WORDS] - self._before[opening]
        if wanted <= opening_tokens + 1:
            return self._text.slice(opening, self._end(opening, wanted))
        tail = self._text.slice(body, self._end(body, wanted - opening_tokens))
        return f"{self._text.slice(opening, opening + _OPENING_WORDS)} {tail}"

    def _end(self, first: int, num_tokens: float) -> int:
        """The word before which `num_tokens` tokens from word `first` on have passed, to the nearest word."""
        laps, rest = divmod(self._before[first] + num_tokens, self._before[-1])
        end = bisect_left(self._before, rest)
        if end and rest - self._before[end - 1] < self._before[end] - rest:
            end -= 1
        return max(int(laps) * len(self._text) + end, first + 1)
