"""Tool calls through the whole server, with the official client: asked for, parsed, streamed, answered."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import jsonschema
import openai
from msgspec.structs import replace

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from tests.e2e.saying import SayingRunner
from tests.e2e.test_structured import card, random_runner
from tests.e2e.world import Server, serving

HERMES = """\
{% if tools %}<|turn|>system
<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools> Use <tool_call></tool_call>.<|over|>
{% endif %}{% for message in messages %}<|turn|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|over|>
{% endfor %}{% if add_generation_prompt %}<|turn|>assistant
{% endif %}"""
MESSAGES: Any = [{"role": "user", "content": "Weather in Ulm?"}]
PLACE = {"type": "object", "properties": {"at": {"$ref": "#/$defs/city"}}, "required": ["at"],
         "additionalProperties": False, "$defs": {"city": {"enum": ["Ulm", "Bonn"]}}}  # fmt: skip
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "It tells.", "parameters": PLACE}},
    {"type": "function", "function": {"name": "clock"}},
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"at": "Ulm"}}\n</tool_call>'
TEXTS = {
    1: f"I look.\n{CALL}\n{CALL}",
    2: "It rains.",
    3: '<tool_call>{"name": "weather", broken</tool_call>',
}


def hermes(model: ModelCard) -> ModelCard:
    return replace(model, chat_template=HERMES)


def run(talk: Callable[[openai.OpenAI], None], model: ModelCard, make_runner: Callable[[], Any]) -> None:
    async def main() -> None:
        async with serving(hermes(model), make_runner) as server:
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key="ann") as client:
                await asyncio.to_thread(talk, client)

    asyncio.run(main())


def test_calls_over_the_websocket() -> None:
    async def ask(session: aiohttp.ClientSession, url: str, **fields: Any) -> list[dict[str, Any]]:
        async with session.ws_connect(f"{url}/v1/stream") as ws:
            asked = {"messages": MESSAGES, "tools": TOOLS, "max_tokens": 200} | fields
            await ws.send_json({"type": "generate", "id": "a"} | asked)
            frames = [await ws.receive_json()]
            while frames[-1]["type"] not in ("done", "error"):
                frames.append(await ws.receive_json())
        return frames

    async def main() -> None:
        async with (
            serving(hermes(byte_card()), lambda: SayingRunner(TEXTS)) as server,
            aiohttp.ClientSession() as session,
        ):
            frames = await ask(session, server.url, seed=1)
            calls = [call for frame in frames for call in frame.get("tool_calls", ())]
            assert [call["function"]["name"] for call in calls] == ["weather", "weather"]
            assert [call["index"] for call in calls] == [0, 1] and len({call["id"] for call in calls}) == 2
            assert json.loads(calls[0]["function"]["arguments"]) == {"at": "Ulm"}
            assert "".join(frame.get("text", "") for frame in frames).strip() == "I look."
            assert frames[-1]["finish_reason"] == "tool_calls"
            assert (await ask(session, server.url, seed=2))[-1]["finish_reason"] == "stop"
            (refused,) = (await ask(session, server.url, tools=[{}]))[-1:]
            assert refused["error"]["param"].startswith("tools[0]")

    asyncio.run(main())


def test_calls_are_parsed_streamed_and_answered() -> None:
    def talk(client: openai.OpenAI) -> None:
        def ask(seed: int, messages: Any = MESSAGES, **more: Any) -> Any:
            return client.chat.completions.create(
                model="fake", messages=messages, tools=TOOLS, seed=seed, max_tokens=200, **more
            )

        (choice,) = ask(1).choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "I look."
        calls = choice.message.tool_calls
        assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
            ("weather", {"at": "Ulm"})
        ] * 2
        assert len({call.id for call in calls}) == 2
        assert len(ask(1, parallel_tool_calls=False).choices[0].message.tool_calls) == 1

        chunks = [chunk.choices[0] for chunk in ask(1, stream=True)]
        assert "".join(chunk.delta.content or "" for chunk in chunks) == "I look."
        told = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
        assert [(call.index, call.function.name) for call in told] == [(0, "weather"), (1, "weather")]
        assert chunks[-1].finish_reason == "tool_calls"

        result = {"role": "tool", "tool_call_id": calls[0].id, "content": "rain"}
        said = ask(2, [*MESSAGES, choice.message, result]).choices[0]
        assert (said.message.content, said.message.tool_calls, said.finish_reason) == (
            "It rains.",
            None,
            "stop",
        )
        assert ask(3).choices[0].message.content == TEXTS[3], "what is no call is text"
        assert ask(1, tool_choice="none").choices[0].message.content == TEXTS[1]

    run(talk, byte_card(), lambda: SayingRunner(TEXTS))


def test_a_required_call_is_as_its_schema_says() -> None:
    def talk(client: openai.OpenAI) -> None:
        for seed, choice in enumerate(
            ["required", {"type": "function", "function": {"name": "weather"}}] * 3
        ):
            answer = client.chat.completions.create(
                model="fake", messages=MESSAGES, tools=TOOLS, tool_choice=choice, seed=seed, temperature=1,
                max_tokens=300,
            )  # fmt: skip
            (said,) = answer.choices
            assert said.finish_reason in ("tool_calls", "length")
            for call in said.message.tool_calls or ():
                assert call.type == "function"
                arguments = json.loads(call.function.arguments)
                if call.function.name == "weather":
                    jsonschema.validate(arguments, PLACE)
            if choice != "required":
                assert said.message.tool_calls is not None and len(said.message.tool_calls) == 1
                assert said.message.tool_calls[0].function.name == "weather"

    run(talk, card(), random_runner)


async def refusal(server: Server, session: aiohttp.ClientSession, **fields: Any) -> tuple[int, str, str]:
    body = {"messages": MESSAGES, "max_tokens": 5} | fields
    async with session.post(f"{server.url}/v1/chat/completions", json=body) as answer:
        error = (await answer.json())["error"]
        return answer.status, error["param"], error["code"]


def test_a_model_without_tools_says_so() -> None:
    async def main() -> None:
        async with (
            serving(byte_card(), lambda: SayingRunner(TEXTS)) as server,
            aiohttp.ClientSession() as session,
        ):
            assert await refusal(server, session, tools=TOOLS) == (400, "tools", "tools_not_supported")
            tool: Any = [{"role": "tool", "content": "x", "tool_call_id": "a"}]
            assert (await refusal(server, session, messages=tool))[1] == "messages[0].role"

    asyncio.run(main())


WRONG: list[tuple[dict[str, Any], str]] = [
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
         "tools[0].function.parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "all"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
         "tool_choice.function.name"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "tools"),
        ({"tools": TOOLS, "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "x"}}}],
          "tool_choice": "required"}, "tools"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "messages[0].tool_calls[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function":
          {"name": "f", "arguments": "no"}}]}]}, "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"functions": [{"name": "a"}]}, "functions"),
]  # fmt: skip


def test_what_is_wrong_is_named() -> None:
    async def main() -> None:
        async with (
            serving(hermes(byte_card()), lambda: SayingRunner(TEXTS)) as server,
            aiohttp.ClientSession() as session,
        ):
            for fields, param in WRONG:
                assert (await refusal(server, session, **fields))[:2] == (400, param), fields

    asyncio.run(main())
