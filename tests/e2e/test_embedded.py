"""The pipeline in a program of one's own."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pipeline import admin
from pipeline import config as configuration
from pipeline.checkpoint.card import ModelCard
from pipeline.embedded import Engine, in_process
from pipeline.errors import ConfigError, RequestError, StageCrashed
from pipeline.messages import StepPlan
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.testing import FakeRunner
from tests.e2e.scraped import Page
from tests.e2e.world import Server

THREAD = '[device]\nplacement = "thread"\n'
WHOLE = {"max_tokens": 40, "ignore_eos": True}


def engine_of(card: ModelCard, toml: str = "", make_runner: Callable[[], Any] = FakeRunner) -> Engine:
    return Engine(configuration.loads(THREAD + toml, "my.toml"), card, RunnerFactory(make_runner))


def slow() -> FakeRunner:
    return FakeRunner(before_step=lambda _: time.sleep(0.002))


async def at_rest(engine: Engine) -> None:
    """Nothing of any request is left."""
    server: Any = Server(engine.pipeline, asyncio.Event())
    async with asyncio.timeout(5):
        while engine.pipeline.telemetry.num_live or not server.scheduler.is_idle:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    pool = server.scheduler.pool
    assert pool.num_free == pool.num_blocks
    detokenize: Any = engine.pipeline.stages["detokenize"][0]
    assert detokenize.num_live == 0


def test_many_calls_share_it_and_each_gets_its_own(fake_card: ModelCard) -> None:
    async def alone(seed: int) -> str:
        async with engine_of(fake_card) as engine:
            return (await engine.generate("Hello", seed=seed, **WHOLE)).text

    async def main() -> None:
        async with engine_of(fake_card, "[stages.ingress.options]\nmax_live_requests = 3\n") as engine:
            calls = [engine.generate("Hello", seed=seed, **WHOLE) for seed in range(20)]
            answers = await asyncio.gather(*calls)
            await at_rest(engine)
        assert len({answer.text for answer in answers}) == 20
        assert [answers[seed].text for seed in (0, 7)] == [await alone(seed) for seed in (0, 7)]
        one = answers[0]
        assert (one.finish_reason, one.num_prompt_tokens, one.num_output_tokens) == ("length", 5, 40)

    asyncio.run(main())


def test_a_stream_is_the_same_text_piece_by_piece(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with engine_of(fake_card, make_runner=slow) as engine:
            messages = [{"role": "user", "content": "Hello!"}]
            pieces = [text async for text in engine.stream(messages=messages, seed=4, **WHOLE)]
            whole = await engine.generate(messages=messages, seed=4, **WHOLE)
        assert len(pieces) > 1 and "".join(pieces) == whole.text

    asyncio.run(main())


def test_whoever_stops_reading_cancels(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with engine_of(fake_card, make_runner=slow) as engine:
            async with aclosing(engine.stream("Hi", max_tokens=5000, ignore_eos=True)) as texts:
                async for _ in texts:
                    break
            call = asyncio.ensure_future(engine.generate("Hi", max_tokens=5000, ignore_eos=True))
            await asyncio.sleep(0.05)
            call.cancel()
            await asyncio.wait([call])
            await at_rest(engine)
            assert engine.is_open

    asyncio.run(main())


def test_a_slow_reader_is_waited_for_and_loses_nothing(fake_card: ModelCard) -> None:
    toml = "[stages.stream.options]\nclient_buffer_bytes = 1024\nslow_client_s = 0.05\nflush_tokens = 1\n"

    async def main() -> None:
        async with engine_of(fake_card, toml) as engine:
            texts = []
            async for text in engine.stream("Hi", max_tokens=2000, ignore_eos=True, seed=2):
                if not texts:
                    await asyncio.sleep(0.3)  # six times what a client of the server gets
                    assert engine.pipeline.telemetry.num_live > 0
                texts.append(text)
            whole = await engine.generate("Hi", max_tokens=2000, ignore_eos=True, seed=2)
            assert "".join(texts) == whole.text and whole.num_output_tokens == 2000

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "Hi", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "Hi" * 9000}, "prompt"),
        ({}, "prompt"),
        ({"prompt": "Hi", "messages": []}, "prompt"),
        ({"prompt": "Hi", "n": 2}, "n"),
        ({"prompt": "Hi", "echo": True}, "echo"),
        ({"prompt": "Hi", "logprobs": 1}, "logprobs"),
        ({"prompt": "Hi", "prompt_logprobs": 0}, "prompt_logprobs"),
        ({"prompt": "Hi", "structured_outputs": {"regex": "a("}}, "structured_outputs.regex"),
        ({"prompt": "Hi", "temprature": 1}, "temprature"),
    ],
)
def test_what_is_wrong_with_a_request_is_raised(
    fake_card: ModelCard, fields: dict[str, Any], param: str
) -> None:
    async def main() -> None:
        async with engine_of(fake_card) as engine:
            with pytest.raises(RequestError) as caught:
                await engine.generate(**fields)
            assert caught.value.param == param and caught.value.status == 400
            assert (await engine.generate("Hi", max_tokens=2)).num_output_tokens == 2

    asyncio.run(main())


def test_leaving_it_cancels_what_is_live(fake_card: ModelCard) -> None:
    async def main() -> None:
        engine = engine_of(fake_card, make_runner=slow)
        async with engine:
            call = asyncio.ensure_future(engine.generate("Hi", max_tokens=5000, ignore_eos=True))
            await asyncio.sleep(0.05)
            left = time.perf_counter()
        assert time.perf_counter() - left < 2 and not engine.is_open
        for late in (call, engine.generate("Hi")):
            with pytest.raises(RequestError, match="has been closed"):
                await late
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_crash_is_told_to_callers_and_raised_at_the_end(fake_card: ModelCard) -> None:
    def fail(plan: StepPlan) -> None:
        raise RuntimeError("the device burns")

    toml = "[stages.execute.options]\nmax_restarts = 0\n"

    async def main() -> None:
        async with engine_of(fake_card, toml, lambda: FakeRunner(before_step=fail)) as engine:
            with pytest.raises(RequestError) as told:
                await engine.generate("Hi")
            assert told.value.status == 500 and not engine.is_open

    with pytest.raises(StageCrashed) as caught:
        asyncio.run(main())
    assert "device" in repr(caught.value.__cause__)


def test_a_servers_file_serves_without_its_door() -> None:
    config = configuration.load()
    assert config.origin == "config.toml", "the whole file, every setting said"
    engine = in_process(config)
    ingress = engine.stages["ingress"]
    assert (ingress.use, ingress.options) == (
        "pipeline.stages.embedded:Embedded",
        {"max_live_requests": 1024, "grammar_timeout_s": 2.0},
    )
    assert engine.stages["schedule"].options["max_wait_ms"] == 0 and not engine.admin.enabled
    assert engine.stages["stream"] == config.stages["stream"]


def test_another_class_in_the_doors_place_must_be_of_its_kind(fake_card: ModelCard) -> None:
    toml = '[stages.ingress]\nuse = "tests.e2e.odd_graphs:SilentDoor"\n'

    async def main() -> None:
        with pytest.raises(ConfigError, match=r"stages\.ingress\.use = .*must be pipeline\.stages\.embedded"):
            async with engine_of(fake_card, toml):
                pass

    asyncio.run(main())


def test_other_graphs_run_in_it(fake_card: ModelCard) -> None:
    async def main() -> None:
        toml = '[topology]\nuse = "examples.two_pools.graph:TWO_POOLS"\n'
        async with engine_of(fake_card, toml) as engine:
            await asyncio.gather(*(engine.generate("Hi", priority=each, max_tokens=2) for each in (0, 1, 2)))
            assert engine.pipeline.inboxes["tokenize_urgent"].stats().sent == 2

    asyncio.run(main())


def test_urgent_calls_do_not_wait_behind_batch_calls_that_wait(fake_card: ModelCard) -> None:
    blocked = '[stages.tokenize]\nuse = "tests.e2e.blocked:BlockedTokenize"\nworkers = 1\ninbox = 1\n'
    graph = '[topology]\nuse = "examples.two_pools.graph:TWO_POOLS"\n'
    toml = f"{graph}{blocked}[stages.tokenize_urgent]\ninbox = 1\n"

    async def main() -> None:
        async with engine_of(fake_card, toml) as engine:
            batch = [asyncio.ensure_future(engine.generate("Hi", max_tokens=2)) for _ in range(9)]
            await asyncio.sleep(0.02)
            urgent = (engine.generate("Hi", priority=1, max_tokens=2) for _ in range(20))
            answers = await asyncio.wait_for(asyncio.gather(*urgent), 5)
            assert [answer.num_output_tokens for answer in answers] == [2] * 20
            assert not any(each.done() for each in batch)
            stage: Any = engine.pipeline.stages["tokenize"][0]
            stage.go_on.set()
            assert [each.num_output_tokens for each in await asyncio.gather(*batch)] == [2] * 9

    asyncio.run(main())


def test_the_admin_port_beside_it(fake_card: ModelCard) -> None:
    """Only where it is asked for."""

    async def main() -> None:
        config = configuration.loads(THREAD + "[admin]\nport = 0\n", "my.toml")
        async with (
            Engine(config, fake_card, RunnerFactory(FakeRunner)) as engine,
            admin.beside(engine.pipeline, config, fake_card) as page,
            aiohttp.ClientSession() as session,
        ):
            assert page is not None
            page.door_is_open()
            await engine.generate("Hi", max_tokens=4)
            async with session.get(f"{page.url}/metrics") as answer:
                assert Page(await answer.text()).total("stageline_requests_total") == 1
            async with session.get(f"{page.url}/api/kv/root") as answer:
                assert answer.status == 404  # no events are told; it does not fail for want of keys

    asyncio.run(main())


def test_it_needs_no_http() -> None:
    """Nor the device's libraries, with a runner that has none."""
    program = """
import asyncio, sys
from pipeline.checkpoint.fake import byte_card
from pipeline.embedded import Engine
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.testing import FakeRunner

async def main():
    async with Engine(card=byte_card(), runner=RunnerFactory(FakeRunner)) as engine:
        assert (await engine.generate("Hi", max_tokens=3)).num_output_tokens == 3
asyncio.run(main())
print(sorted({"aiohttp", "torch", "uvloop"} & set(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.stdout.strip(), ran.returncode) == ("[]", 0), ran.stderr


@pytest.mark.model
@pytest.mark.nightly
def test_the_example_of_its_page() -> None:
    page = Path("docs/embedded.md").read_text("utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "Paris" in ran.stdout and " length 8" in ran.stdout
