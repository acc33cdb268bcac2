"""Prompts: real text, as long as the trace says in the server's own tokens, and different from each other."""

import asyncio
import statistics
from itertools import combinations
from pathlib import Path

import pytest

from loadgen.calibrate import by_rate, calibrated
from loadgen.clients import connect
from loadgen.clients.connect import target
from loadgen.clock import RunClock
from loadgen.errors import ServerError, UsageError
from loadgen.prompts import MIN_WORDS, Prompts, Text, load_text
from tests.unit.loadgen.fake_llm_server import DONE, Script, delta, done, num_tokens, serve, text, usage


def prompts_measured(protocol: str, seed: int = 0) -> Prompts:
    def script(frame: dict[str, object]) -> Script:
        count = num_tokens(str(frame["prompt"]))
        if protocol == "ws":
            return [delta("x"), done(count, 1)]
        return [text("x", "length"), usage(count, 1), DONE]

    async def main() -> Prompts:
        async with (
            serve(script) as server,
            connect(target(server.url, protocol, None, 2), RunClock()) as (client, _),
        ):
            prompts = await calibrated(load_text(None), client, seed, timeout_s=5)
            assert 20 <= len(server.requests) <= 30
            assert all(request["max_tokens"] == 1 for request in server.requests)
            return prompts

    return asyncio.run(main())


@pytest.mark.parametrize("protocol", ["sse", "ws"])
def test_prompts_are_as_long_as_asked_in_the_servers_tokens(protocol: str) -> None:
    prompts = prompts_measured(protocol)
    for wanted in (64, 374, 1020, 5000, 20_000):
        actual = [num_tokens(prompts.prompt(i, wanted)) for i in range(40)]
        assert statistics.mean(actual) == pytest.approx(wanted, rel=0.02)
        assert all(abs(count - wanted) <= 10 + wanted * 0.01 for count in actual)


@pytest.mark.parametrize("wanted", [1, 2, 3, 5, 8])
def test_short_prompts_hold_at_least_one_word(wanted: int) -> None:
    prompts = by_rate(load_text(None), 1.0, seed=0)
    counts = [len(prompts.prompt(i, wanted).split()) for i in range(200)]
    assert min(counts) >= 1 and statistics.mean(counts) == pytest.approx(wanted, abs=0.1)


def test_no_two_prompts_share_a_prefix_of_a_cache_block() -> None:
    prompts = by_rate(load_text(None), 1.3, seed=3)
    made = [prompts.prompt(i, 300) for i in range(400)]
    assert len(set(made)) == len(made)
    heads = [tuple(prompt.split()[:16]) for prompt in made]
    assert all(one != other for one, other in combinations(heads, 2))


def test_more_prompts_than_words_still_differ() -> None:
    words = Text(" ".join(f"w{i}" for i in range(MIN_WORDS)))
    prompts = by_rate(words, 1.0, seed=0)
    made = {prompts.prompt(i, 50) for i in range(5 * MIN_WORDS)}
    assert len(made) > 4.8 * MIN_WORDS  # a word may follow the same opening twice, by chance


def test_the_seed_decides_the_prompts() -> None:
    text = load_text(None)
    one, same, other = (by_rate(text, 1.3, seed).prompt(5, 100) for seed in (1, 1, 2))
    assert one == same != other


def test_a_slice_is_the_text_as_written_and_goes_round() -> None:
    text = Text("one  two\nthree\n\nfour")
    assert text.slice(0, 3) == "one  two\nthree"
    assert text.slice(3, 6) == "four\n\none  two"


def test_own_text_is_read_and_checked(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too few words")
    with pytest.raises(UsageError, match=r"3 words; at least 100"):
        load_text(tmp_path / "short.txt")
    with pytest.raises(UsageError, match="cannot be read"):
        load_text(tmp_path / "absent.txt")
    (tmp_path / "enough.txt").write_text("wörd " * MIN_WORDS, encoding="utf-8")
    assert by_rate(load_text(tmp_path / "enough.txt"), 1.0, 0).prompt(0, 3) == "wörd wörd wörd"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ([text("x", "length"), DONE], r"no usage.prompt_tokens.*--tokens-per-word"),
        ([text("x")], "unterminated"),
        ([1.0], "--timeout-s"),
    ],
)
def test_a_server_that_cannot_be_measured_is_told(script: Script, message: str) -> None:
    async def main() -> None:
        async with (
            serve(lambda _: script) as server,
            connect(target(server.url, "sse", None, 1), RunClock()) as (client, _),
        ):
            await calibrated(load_text(None), client, 0, timeout_s=0.2)

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(main())
    assert caught.group_contains(ServerError, match=message)
