import asyncio

import msgspec

from tests.unit.stages.ingress_world import MODEL, events, world


def test_completion_whole() -> None:
    async def main() -> None:
        async with world() as w:
            answering = asyncio.ensure_future(w.engine.answer())
            async with w.post("/v1/completions", {"prompt": "Hi", "max_tokens": 5, "seed": 7}) as response:
                assert response.status == 200
                body = await response.json()
            request = await answering
            assert (request.prompt, request.chat, request.request_id) == ("Hi", None, 0)
            assert (request.sampling.max_tokens, request.sampling.seed) == (5, 7)
            assert body.pop("id").startswith("cmpl-")
            assert body.pop("created") > 1_700_000_000
            assert body == {
                "object": "text_completion",
                "model": MODEL,
                "choices": [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
            }

    asyncio.run(main())


def test_chat_stream() -> None:
    async def main() -> None:
        async with world() as w:
            answering = asyncio.ensure_future(w.engine.answer())
            body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
            async with w.post("/v1/chat/completions", body) as response:
                assert response.status == 200
                got = await events(response)
            await answering
            assert got.pop() == "[DONE]"
            chunks = [msgspec.json.decode(event) for event in got]
            assert len({chunk["id"] for chunk in chunks}) == 1
            assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
            assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
                {"role": "assistant", "content": ""},
                {"content": "Hel"},
                {"content": "lo"},
                {},
            ]
            assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
            assert not any("usage" in chunk for chunk in chunks)

    asyncio.run(main())
