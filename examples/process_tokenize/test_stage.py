"""ProcessTokenize against the built-in stage, and what becomes of a prompt that kills its process."""

import asyncio
import os
from typing import Any

import pytest
from msgspec.structs import replace

from examples.process_tokenize.stage import ProcessTokenize
from pipeline.messages import ChatMessage, GenerateRequest, Rejected, TokenCall, TokenizedRequest
from pipeline.stage_api import ConfigError, Inbox, ModelCard, RequestError, StageContext
from pipeline.stage_api.testing import Collect, byte_card, run_alone, sample_messages
from pipeline.stages.tokenize import Tokenize, TokenizeOptions

OPTIONS = TokenizeOptions(max_prompt_bytes=1500)
SCRIPT = sample_messages(GenerateRequest, 8)
"""Two of them are over max_prompt_bytes."""


class Reply:
    """Of a TokenCall: remembers, and can leave no process, for it holds a lock."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.lock = asyncio.Lock()

    def tokens(self, value: list[int] | str) -> None:
        self.told.append(value)

    def error(self, error: RequestError) -> None:
        self.told.append((error.status, error.message))


class Fragile(ProcessTokenize):
    """The prompt "die" ends its process."""

    async def _call(self, work: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(each, GenerateRequest) and each.prompt == "die" for each in args[0]):
            return await super()._call(os._exit, 1)
        return await super()._call(work, *args)


def test_it_answers_as_the_built_in_stage_does() -> None:
    chat = replace(SCRIPT[0], prompt=None, chat=[ChatMessage("user", "Naïve café?")])
    script = [*SCRIPT, chat, replace(SCRIPT[0], prompt=[7, 8]), replace(SCRIPT[0], prompt=[-1])]
    ours, builtin = (asyncio.run(run_alone(each, OPTIONS, script)) for each in (ProcessTokenize, Tokenize))
    assert ours == builtin
    assert len(ours[TokenizedRequest]) == 8 and len(ours[Rejected]) == 3


def test_it_answers_calls_and_keeps_their_replies_here() -> None:
    async def main() -> list[object]:
        reply = Reply()
        calls = [
            TokenCall(reply, prompt="ab"),
            TokenCall(reply, token_ids=[99]),
            TokenCall(reply, token_ids=[-1]),
        ]
        await run_alone(ProcessTokenize, OPTIONS, calls)
        return reply.told

    ids, text, fault = asyncio.run(main())
    assert (ids, text) == ([97, 98], "c")
    assert isinstance(fault, tuple) and fault[0] == 400 and "token id -1" in fault[1]


def test_a_prompt_that_kills_the_process_is_refused_alone() -> None:
    sinks: dict[type, Collect[Any]] = {kind: Collect() for kind in Fragile.gives}
    ctx = StageContext("tokenize", Inbox(1), sinks, {ModelCard: byte_card()})
    batch = [
        replace(SCRIPT[0], request_id=number, prompt=text) for number, text in enumerate(("a", "die", "b"))
    ]

    async def main() -> None:
        stage = Fragile(ctx, OPTIONS)
        await stage.start()
        try:
            await stage.handle(batch)
        finally:
            await stage.stop()

    asyncio.run(main())
    assert [each.request_id for each in sinks[TokenizedRequest].messages] == [0, 2]
    (refused,) = sinks[Rejected].messages
    assert (refused.request_id, refused.status) == (1, 500)


def test_options_that_do_not_suit_the_model_are_told_at_the_start() -> None:
    with pytest.raises(ConfigError, match="max_model_len is 99999, but fake was made for at most 8192"):
        asyncio.run(run_alone(ProcessTokenize, TokenizeOptions(max_model_len=99999), []))
