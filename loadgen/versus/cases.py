"""What every server is asked: one stream, one long prompt, and many requests of long-tailed lengths."""

import hashlib
import random
from pathlib import Path

import msgspec

from loadgen.errors import UsageError
from loadgen.prefixes import Prefixes, TokenRange
from loadgen.traces.row import Blocks

KINDS = ("decode", "prefill", "load")


class Ask(msgspec.Struct, frozen=True):
    """One request. It is answered with exactly `max_tokens` tokens: greedy, the end of text ignored."""

    kind: str
    prompt_ids: list[int]
    max_tokens: int


class Case(msgspec.Struct, frozen=True):
    """Requests that are measured together."""

    name: str
    asks: list[Ask]
    num_users: int
    """So many are live at a time; each begins the next request when its last has ended."""
    is_beside_busy: bool = False
    """Another process keeps one core busy meanwhile."""

    def prompts(self, turn: int) -> list[list[int]]:
        """Rotated by an amount that `turn` decides, so that none begins as an earlier turn's did."""
        return [_rotated(ask.prompt_ids, turn * 37 + 11) for ask in self.asks]


class Workload(msgspec.Struct, frozen=True):
    """All requests, by kind."""

    asks: list[Ask]
    sha256: str

    def cases(self, num_users: int, *, beside_busy: bool) -> list[Case]:
        """In the order in which they are run."""
        found = []
        for kind in KINDS:
            asks = [ask for ask in self.asks if ask.kind == kind]
            if asks:
                found.append(Case(kind, asks, num_users if kind == "load" else 1))
        busy = [
            Case(f"{case.name} beside a busy process", case.asks, case.num_users, True)
            for case in found
            if case.name != "prefill"
        ]
        return found + (busy if beside_busy else [])


def made(seed: int, tokens: TokenRange, num_requests: int) -> Workload:
    """Decode 32 -> 128, prefill of 1,024, and `num_requests` whose lengths are log-normal.

    Prompts of 23 to 795 tokens with a mean near 190, answers of 11 to 231 with a mean near 75: as chats
    are. The same seed gives the same requests on every machine.
    """
    rng, prefixes = random.Random(f"versus:{seed}"), Prefixes(seed, tokens)

    def ask(kind: str, num_input: int, num_output: int, index: int) -> Ask:
        return Ask(kind, prefixes.prompt(Blocks("", (), 1), num_input, index), num_output)

    asks = [ask("decode", 32, 128, 0), ask("prefill", 1024, 2, 1)]
    for index in range(num_requests):
        num_input = _long_tailed(rng, 140, 0.8, 23, 795)
        asks.append(ask("load", num_input, _long_tailed(rng, 62, 0.65, 11, 231), index + 2))
    return _workload(asks)


def read(path: Path) -> Workload:
    """JSONL of objects with `kind` (decode, prefill, load), `prompt_ids` and `max_tokens`.

    Raises:
        UsageError: the file cannot be read, or a line is wrong.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"--workload {path}: cannot be read: {error.strerror}") from error
    asks = []
    for number, line in enumerate(lines, 1):
        try:
            asks.append(msgspec.json.decode(line, type=Ask))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"--workload {path}, line {number}: {error}") from error
        if asks[-1].kind not in KINDS or not asks[-1].prompt_ids or asks[-1].max_tokens < 1:
            raise UsageError(
                f"--workload {path}, line {number}: kind must be one of {', '.join(KINDS)}, prompt_ids not "
                "empty and max_tokens at least 1"
            )
    if not asks:
        raise UsageError(f"--workload {path}: holds no request")
    return _workload(asks)


def _workload(asks: list[Ask]) -> Workload:
    return Workload(asks, hashlib.sha256(msgspec.json.encode(asks)).hexdigest())


def _long_tailed(rng: random.Random, median: float, sigma: float, least: int, most: int) -> int:
    return min(max(round(rng.lognormvariate(0.0, sigma) * median), least), most)


def _rotated(ids: list[int], by: int) -> list[int]:
    return ids[by % len(ids) :] + ids[: by % len(ids)]
