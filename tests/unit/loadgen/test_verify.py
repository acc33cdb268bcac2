"""Answers given under load against the same prompts alone."""

import asyncio
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadgen.behaviours import Behaviours
from loadgen.clients.connect import target
from loadgen.content import Contents
from loadgen.prefixes import Prefixes, TokenRange
from loadgen.record import Record
from loadgen.replay import Options, replay
from loadgen.traces.row import Message
from loadgen.verify import compare, distinct
from loadgen.workload import Job, Limits
from tests.unit.loadgen.fake_llm_server import DONE, Script, delta, done, num_tokens, serve, text, usage


def words(body: dict[str, Any]) -> list[str]:
    """An answer that depends on the prompt, and on nothing else."""
    return [f"{body['prompt'][:8]}-{i} " for i in range(body["max_tokens"])]


def sse(body: dict[str, Any], answer: list[str]) -> Script:
    chunks = [text(word, "length" if i + 1 == len(answer) else None) for i, word in enumerate(answer)]
    return [*chunks, usage(num_tokens(body["prompt"]), len(answer)), DONE]


def ws(body: dict[str, Any], answer: list[str]) -> Script:
    return [*(delta(word) for word in answer), done(num_tokens(body["prompt"]), len(answer))]


def write_trace(folder: Path, count: int) -> Path:
    path = folder / "prompts.jsonl"
    prompts = [f"{'same' if i % 3 == 0 else f'other {i}'} prompt" for i in range(count)]
    path.write_text("".join(json.dumps({"prompt": prompt, "max_tokens": 4}) + "\n" for prompt in prompts))
    return path


async def run(trace: Path, url: str, protocol: str, **more: Any) -> tuple[int, str]:
    out = StringIO()
    options = Options(trace, target(url, protocol, None, 2), Limits(), verify=True, **more)
    code = await replay(options, Console(file=out, width=200))
    return code, out.getvalue()


@pytest.mark.parametrize(("protocol", "answer"), [("sse", sse), ("ws", ws)])
def test_a_server_that_answers_the_same_is_verified(tmp_path: Path, protocol: str, answer: Any) -> None:
    async def body() -> None:
        async with serve(lambda request: answer(request, words(request))) as server:
            code, out = await run(write_trace(tmp_path, 9), server.url, protocol)
            assert code == 0 and len(server.requests) == 9 + 7  # "same prompt" is replayed once
            assert "verified: 9 whole and 0 partial answers against 7 prompts replayed alone" in out
            assert "verified 7/7 prompts alone" in out

    asyncio.run(body())


@pytest.mark.parametrize(("protocol", "answer"), [("sse", sse), ("ws", ws)])
def test_another_answer_under_load_is_found(tmp_path: Path, protocol: str, answer: Any) -> None:
    """The second request, under load, gets one letter wrong."""
    num_asked = 0

    def script(request: dict[str, Any]) -> Script:
        nonlocal num_asked
        num_asked += 1
        said = words(request)
        if num_asked == 2:
            said[2] = said[2].replace("-2", "-7")
        return answer(request, said)

    async def body() -> tuple[int, str]:
        async with serve(script) as server:
            return await run(write_trace(tmp_path, 6), server.url, protocol, out=tmp_path / "out")

    code, out = asyncio.run(body())
    assert code == 1 and "NOT VERIFIED: 6 whole and 0 partial answers" in out and "1 differ" in out
    found = json.loads((tmp_path / "out" / "result.json").read_text())["verification"]["mismatches"]
    assert len(found) == 1
    assert found[0]["under_load"].replace("-7", "-2") == found[0]["alone"]
    excerpt_begins = max(0, found[0]["at"] - 30)
    assert excerpt_begins + found[0]["alone"][1:-1].index("-2") + 1 == found[0]["at"]
    assert f"request {found[0]['index']}, character {found[0]['at']}" in out


def test_partial_answers_must_be_how_the_whole_begins(tmp_path: Path) -> None:
    """Half of the clients cancel; of one prompt the load run gets another beginning."""
    num_asked = 0

    def script(request: dict[str, Any]) -> Script:
        nonlocal num_asked
        num_asked += 1
        said = words(request)
        if num_asked == 1:
            said[0] = "wrong "
        return [step for word in said for step in (delta(word), 0.005)] + [done(3, len(said))]

    async def body() -> tuple[int, str]:
        async with serve(script) as server:
            options: dict[str, Any] = {"behaviours": Behaviours(cancel=1.0)}
            return await run(write_trace(tmp_path, 5), server.url, "ws", **options)

    code, out = asyncio.run(body())
    assert code == 1 and "5 cancelled by the client" in out and "0 failed" in out
    assert "0 whole and 5 partial answers" in out and "1 differ" in out and "under load 'wrong" in out


def test_a_prompt_that_gets_no_answer_alone_is_not_verified(tmp_path: Path) -> None:
    num_asked = 0

    def script(request: dict[str, Any]) -> Script:
        nonlocal num_asked
        num_asked += 1
        return sse(request, words(request)) if num_asked <= 3 else [text("cut")]

    async def body() -> tuple[int, str]:
        async with serve(script) as server:
            return await run(write_trace(tmp_path, 3), server.url, "sse")

    code, out = asyncio.run(body())
    assert code == 1 and "0 differ, 3 prompts got no answer alone" in out and "alone: unterminated" in out


def answered(said: str, *, is_whole: bool = True) -> Record:
    record = Record(0, 0.0, 3, 4, text=said)
    if not is_whole:
        record.ended_by = "client"
    return record


@pytest.mark.parametrize(
    ("record", "alone", "at"),
    [
        (answered("one two"), "one two", None),
        (answered("one two"), "one", 3),
        (answered("one"), "one two", 3),
        (answered("one two"), "one Two", 4),
        (answered("one", is_whole=False), "one two", None),
        (answered("one two three", is_whole=False), "one two", 7),
        (answered("two", is_whole=False), "one two", 0),
        (answered("", is_whole=True), "one", 0),
    ],
)
def test_the_first_differing_character(record: Record, alone: str, at: int | None) -> None:
    found = compare(record, alone)
    assert (None if found is None else found.at) == at


def test_a_later_turn_is_asked_with_the_answers_that_came_before_it() -> None:
    jobs = [
        Job(0, 0.0, None, 4, (Message("user", "hello"),)),
        Job(1, 0.0, None, 4, (Message("user", "and then?"),), after=0, adds_turn=True),
        Job(2, 0.0, None, 4, (Message("user", "never sent"),), after=1, adds_turn=True),
    ]
    records = [answered("hi"), answered("more"), Record(2, 0.0, None, 4)]
    for index, record in enumerate(records):
        record.index = index
    records[2].fail("predecessor_failed", "it did")
    asked = distinct(records, jobs, Contents(None, Prefixes(0, TokenRange())))
    assert [one.prompt for one in asked] == [
        (Message("user", "hello"),),
        (Message("user", "hello"), Message("assistant", "hi"), Message("user", "and then?")),
    ]
