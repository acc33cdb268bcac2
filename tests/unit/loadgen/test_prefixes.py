"""Recorded sharing is sent: equal hash ids are equal token ids, in blocks, over the wire."""

import asyncio
import json
from io import StringIO
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadgen.clients.connect import target
from loadgen.content import Contents
from loadgen.prefixes import Prefixes, TokenRange
from loadgen.replay import Options, replay
from loadgen.traces.row import Blocks, Message
from loadgen.workload import Job, Limits
from tests.unit.loadgen.fake_llm_server import DONE, FakeServer, Script, delta, done, serve, text, usage

WHOLE = Limits()
MADE = Prefixes(0, TokenRange())


def num_shared(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def test_prompts_share_exactly_what_their_ids_share() -> None:
    one = MADE.prompt(Blocks("", (0, 1, 2), 512), 1300, 0)
    other = MADE.prompt(Blocks("", (0, 1, 5, 2), 512), 2048, 1)
    assert (len(one), len(other)) == (1300, 2048)
    assert num_shared(one, other) == 1024
    assert one[1024:] == other[1536 : 1536 + 276]  # the same id, cut short, at another place


def test_a_clamped_prompt_is_the_beginning_of_the_whole_one() -> None:
    blocks = Blocks("", (3, 4, 5), 64)
    assert MADE.prompt(blocks, 100, 0) == MADE.prompt(blocks, 192, 0)[:100]


def test_what_no_block_covers_is_the_prompts_own() -> None:
    blocks = Blocks("a", (3, 4), 64)
    one, same, other = (MADE.prompt(blocks, 190, index) for index in (0, 0, 1))
    assert one == same and num_shared(one, other) == 128 and one[128:] != other[128:]


def test_blocks_of_their_own_sizes() -> None:
    assert MADE.prompt(Blocks("", (9, 8), (10, 7)), 20, 0)[10:17] == MADE.prompt(Blocks("", (8,), 7), 7, 0)


def test_scope_seed_and_range_decide_the_ids() -> None:
    def first(seed: int, scope: str, tokens: TokenRange) -> list[int]:
        return Prefixes(seed, tokens).prompt(Blocks(scope, (1,), 64), 64, 0)

    wide, narrow = TokenRange(), TokenRange(7, 9)
    made = [first(0, "", wide), first(1, "", wide), first(0, "a.json", wide), first(0, "", narrow)]
    assert all(num_shared(made[0], other) < 3 for other in made[1:])
    assert set(made[3]) == {7, 8, 9}


def test_the_ids_are_these_on_every_machine() -> None:
    assert MADE.prompt(Blocks("", (1,), 4), 4, 0) == [2165, 2172, 16712, 14610]
    many = MADE.prompt(Blocks("", tuple(range(100)), 512), 51_200, 0)
    assert min(many) >= 1000 and max(many) <= 20_000 and len(set(many)) > 17_000


def test_given_texts_and_chats_are_sent_as_they_are() -> None:
    contents = Contents(None, MADE)
    chat = (Message("user", "hi"),)
    assert contents.prompt(Job(0, 0.0, None, 5, "once")) == "once"
    assert contents.prompt(Job(0, 0.0, None, 5, chat)) is chat
    with pytest.raises(ValueError, match="needs text"):
        contents.prompt(Job(0, 0.0, 9, 5))


def sse_answer(body: dict[str, Any]) -> Script:
    return [text("x", "length"), usage(len(body.get("prompt", "x")), body["max_tokens"]), DONE]


def ws_answer(frame: dict[str, Any]) -> Script:
    return [delta("x", frame["max_tokens"]), done(len(frame["prompt"]), frame["max_tokens"])]


def run(server: FakeServer, trace: Path, protocol: str, limits: Limits = WHOLE) -> Any:
    return replay(
        Options(trace, target(server.url, protocol, None, 2), limits), Console(file=StringIO(), width=200)
    )


@pytest.mark.parametrize(("protocol", "answer"), [("sse", sse_answer), ("ws", ws_answer)])
def test_a_replay_sends_the_shared_ids_and_asks_for_nothing_else(
    tmp_path: Path, protocol: str, answer: Any
) -> None:
    rows = [
        {
            "timestamp": 10 * i,
            "input_length": 1100 + i,
            "output_length": 1,
            "hash_ids": [0, i % 2 + 1, 10 + i],
        }
        for i in range(4)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, rows)))

    async def main() -> None:
        async with serve(answer) as server:
            assert await run(server, trace, protocol, Limits(max_input=1102)) == 0
            prompts = [request["prompt"] for request in server.requests]  # no request measures any text
            assert [len(prompt) for prompt in prompts] == [1100, 1101, 1102, 1102]
            assert num_shared(prompts[0], prompts[2]) == 1024 and num_shared(prompts[0], prompts[1]) == 512

    asyncio.run(main())


def test_chats_go_to_the_chat_door(tmp_path: Path) -> None:
    trace = tmp_path / "chat.jsonl"
    trace.write_text(
        '{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}\n{"prompt": "once"}\n'
    )

    async def main() -> None:
        async with serve(sse_answer) as server:
            assert await run(server, trace, "sse") == 0
            asked = zip(server.doors, server.requests, strict=True)
            assert {(door, "messages" in body) for door, body in asked} == {
                ("/v1/chat/completions", True),
                ("/v1/completions", False),
            }
        async with serve(lambda frame: [delta("x"), done(3, 1)]) as server:
            assert await run(server, trace, "ws") == 0
            chat = next(request for request in server.requests if "messages" in request)
            assert chat["messages"] == [{"role": "user", "content": "hi"}] and "prompt" not in chat

    asyncio.run(main())
