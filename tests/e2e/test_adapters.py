"""What programs are written with beside the official client: LangChain's and LlamaIndex's OpenAI adapters.

They are large, so they are no part of `dev`: pip install -e '.[adapters]' to have these tests run.
"""

import asyncio
from collections.abc import Callable

import pytest

from pipeline.checkpoint.card import ModelCard
from tests.e2e.saying import SayingRunner
from tests.e2e.world import serving

pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours to mend
TEXT = "All queues are bounded."


def run(card: ModelCard, talk: Callable[[str], None]) -> None:
    """`talk` is told the address, and runs in a thread, as the program would."""

    async def main() -> None:
        async with serving(card, lambda: SayingRunner({1: TEXT, 2: "Two."})) as server:
            await asyncio.to_thread(talk, f"{server.url}/v1")
            async with asyncio.timeout(5):
                while server.num_live:  # noqa: ASYNC110 - their connections stay open
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_langchain_streams_and_answers(fake_card: ModelCard) -> None:
    adapter = pytest.importorskip("langchain_openai", reason="pip install -e '.[adapters]'")

    def talk(url: str) -> None:
        with_seed = {"seed": 1, "max_tokens": 60}
        model = adapter.ChatOpenAI(base_url=url, api_key="ann", model="fake", stream_usage=True, **with_seed)
        chunks = list(model.stream("Say it"))
        assert "".join(chunk.content for chunk in chunks) == TEXT and len(chunks) > 3
        told = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
        whole = model.invoke([("system", "Be short."), ("user", "Say it")])
        assert whole.content == TEXT and whole.response_metadata["finish_reason"] == "stop"
        assert told[-1]["output_tokens"] == whole.usage_metadata["output_tokens"] > 0
        completion = adapter.OpenAI(base_url=url, api_key="ann", model="fake", **with_seed)
        assert "".join(completion.stream("Say it")) == TEXT

    run(fake_card, talk)


def test_llamaindex_streams_and_answers(fake_card: ModelCard) -> None:
    adapter = pytest.importorskip("llama_index.llms.openai_like", reason="pip install -e '.[adapters]'")
    from llama_index.core.llms import ChatMessage

    def talk(url: str) -> None:
        model = adapter.OpenAILike(
            api_base=url, api_key="ann", model="fake", is_chat_model=True, context_window=512,
            max_tokens=60, additional_kwargs={"seed": 1},
        )  # fmt: skip
        asked = [ChatMessage(role="user", content="Say it")]
        parts = [part.delta for part in model.stream_chat(asked)]
        assert "".join(parts) == TEXT and len(parts) > 3
        assert model.chat(asked).message.content == TEXT
        model.is_chat_model = False
        assert "".join(part.delta for part in model.stream_complete("Say it")) == TEXT

    run(fake_card, talk)
