"""Whole servers with other graphs, from config alone."""

import asyncio
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from pipeline import assemble
from pipeline import config as configuration
from pipeline.admin.live import Live
from pipeline.checkpoint.card import ModelCard
from pipeline.doctor.facts import Facts
from pipeline.doctor.laws import conservation
from pipeline.errors import ConfigError
from pipeline.runtime.swap import Ending
from pipeline.runtime.testing import DEFAULT_CAPACITY, FakeRunner
from pipeline.swapping import Order, Swapper
from pipeline.telemetry.perfetto import Recorded, chrome_trace
from tests.e2e.odd_graphs import LATE_S
from tests.e2e.saying import SayingRunner
from tests.e2e.scraped import Page
from tests.e2e.world import Server, serving

TWO_POOLS = Path("examples/two_pools/config.toml").read_text("utf-8")
HOUSE_RULES = Path("examples/house_rules/config.toml").read_text("utf-8")
BLOCKED = '[stages.tokenize]\nuse = "tests.e2e.blocked:BlockedTokenize"\nworkers = 1\n'


async def ask(session: aiohttp.ClientSession, url: str, **fields: Any) -> dict[str, Any]:
    body = {"prompt": "Say it", "max_tokens": 8, "seed": 1, "timings": True} | fields
    async with session.post(f"{url}/v1/completions", json=body) as response:
        answer: dict[str, Any] = await response.json()
        return answer


def inbox(server: Server, name: str) -> int:
    return server.pipeline.inboxes[name].stats().sent


def test_an_urgent_request_does_not_wait_for_a_blocked_batch_pool(fake_card: ModelCard) -> None:
    async def main() -> None:
        toml = TWO_POOLS + BLOCKED
        async with serving(fake_card, FakeRunner, toml) as server, aiohttp.ClientSession() as session:
            burst = [asyncio.create_task(ask(session, server.url, seed=seed)) for seed in range(20)]
            while inbox(server, "tokenize") < len(burst):  # noqa: ASYNC110 - the inbox signals nobody
                await asyncio.sleep(0.002)
            urgent = await asyncio.wait_for(ask(session, server.url, priority=1), 5)
            assert urgent["usage"]["completion_tokens"] == 8
            assert not any(each.done() for each in burst)
            blocked: Any = server.pipeline.stages["tokenize"][0]
            blocked.go_on.set()
            answers = await asyncio.gather(*burst)
            assert all(answer["usage"]["completion_tokens"] == 8 for answer in answers)
            assert (inbox(server, "tokenize"), inbox(server, "tokenize_urgent")) == (20, 1)

    asyncio.run(main())


def test_a_full_batch_pool_refuses_batch_requests_alone(fake_card: ModelCard) -> None:
    async def main() -> None:
        toml = TWO_POOLS + BLOCKED + "inbox = 1\n"
        async with serving(fake_card, FakeRunner, toml) as server, aiohttp.ClientSession() as session:
            held = [asyncio.create_task(ask(session, server.url))]
            stats = server.pipeline.inboxes["tokenize"].stats
            while stats().wakeups < 1 or stats().depth:  # noqa: ASYNC110 - until it is blocked by the first
                await asyncio.sleep(0.002)
            held.append(asyncio.create_task(ask(session, server.url)))
            while not stats().depth:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            refused = await ask(session, server.url)
            assert refused["error"]["code"] == "queue_full"
            assert (await ask(session, server.url, priority=2))["usage"]["completion_tokens"] == 8
            blocked: Any = server.pipeline.stages["tokenize"][0]
            blocked.go_on.set()
            await asyncio.gather(*held)

    asyncio.run(main())


def test_an_urgent_request_passes_a_burst_that_fills_everything(fake_card: ModelCard) -> None:
    """One sequence at a time, and more requests than schedule's inbox and its default queue would hold."""

    def slow() -> FakeRunner:
        return FakeRunner(replace(DEFAULT_CAPACITY, max_num_seqs=1), lambda _: time.sleep(0.001))

    async def main() -> None:
        toml = TWO_POOLS + "[stages.tokenize]\ninbox = 1024\n"
        many = aiohttp.TCPConnector(limit=0)
        async with serving(fake_card, slow, toml) as server, aiohttp.ClientSession(connector=many) as session:
            burst = [asyncio.create_task(ask(session, server.url)) for _ in range(400)]
            while server.scheduler.num_waiting < 330:  # noqa: ASYNC110 - the scheduler signals nobody
                await asyncio.sleep(0.002)
            before = sum(each.done() for each in burst)
            assert (await ask(session, server.url, priority=1))["usage"]["completion_tokens"] == 8
            assert sum(each.done() for each in burst) < before + 20
            for each in burst:
                each.cancel()
            await asyncio.gather(*burst, return_exceptions=True)

    asyncio.run(main())


def test_two_filters_in_a_row_each_by_its_own_rules(fake_card: ModelCard) -> None:
    pytest.importorskip("re2", reason="google-re2 is not installed (the extra `filter`)")
    texts = {1: "Call 12345678, or ask the rival. Or the " + "riv"}

    async def main() -> None:
        async with serving(fake_card, lambda: SayingRunner(texts), HOUSE_RULES) as server:
            async with aiohttp.ClientSession() as session:
                answer = await ask(session, server.url, max_tokens=100)
            assert answer["choices"][0]["text"] == "Call [number], or ask another company. Or the riv"
            timings = answer["timings"]
            assert sum(timings["segments_ms"].values()) == pytest.approx(timings["e2e_ms"], abs=0.02)
            await server.rest()
            filters: list[Any] = [server.pipeline.stages[name][0] for name in ("filter", "house_rules")]
            assert [each.num_live for each in filters] == [0, 0]

    asyncio.run(main())


def test_a_filter_that_is_left_out_leaves_the_other_in_its_place(fake_card: ModelCard) -> None:
    toml = '[topology]\nuse = "examples.house_rules.graph:HOUSE_RULES"\n'

    async def main() -> None:
        async with serving(fake_card, FakeRunner, toml) as server, aiohttp.ClientSession() as session:
            assert (await ask(session, server.url))["usage"]["completion_tokens"] == 8
            assert server.pipeline.graph.names[-3:] == ("detokenize", "house_rules", "stream")

    asyncio.run(main())


def test_time_in_a_further_stage_is_in_the_wait_of_the_next_of_the_seven(fake_card: ModelCard) -> None:
    async def main() -> None:
        toml = '[topology]\nuse = "tests.e2e.odd_graphs:LATE"\n'
        async with serving(fake_card, FakeRunner, toml) as server, aiohttp.ClientSession() as session:
            timings = (await ask(session, server.url, max_tokens=1))["timings"]
        segments = timings["segments_ms"]
        assert sum(segments.values()) == pytest.approx(timings["e2e_ms"], abs=0.02)
        late = {name for name, ms in segments.items() if ms >= LATE_S * 1e3}
        assert late == {"tokenize.wait", "schedule.wait", "execute.wait", "stream.wait"}

    asyncio.run(main())


def test_everything_that_is_seen_knows_the_further_stages(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with serving(fake_card, FakeRunner, TWO_POOLS) as server:
            pipeline = server.pipeline
            live = Live(pipeline)
            live.tick()
            async with aiohttp.ClientSession() as session:
                for priority in (0, 1, 1):
                    await ask(session, server.url, priority=priority)
            await server.rest()
            seen = Page(pipeline.telemetry.render().decode())
            assert seen.total("stageline_stage_messages_total", stage="tokenize_urgent") == 2
            link = "tokenize+tokenize_urgent->schedule"
            assert seen.total("stageline_link_messages_total", link=link) == 3
            views = {view.name: view for view in live.tick().stages}
            assert views["tokenize_urgent"].per_s > views["tokenize"].per_s > 0
            assert views["ingress"].per_s > views["tokenize_urgent"].per_s
            evidence = pipeline.sampler.evidence(60)
            assert evidence.samples[-1].num_received == 3
            facts = Facts(evidence)
            assert [stage.name for stage in facts.encoding_stages] == ["tokenize", "tokenize_urgent"]
            assert facts.num_taken == 3 and conservation(facts).holds
            trace = chrome_trace(Recorded.of(pipeline.trace, pipeline.telemetry.journal, 0))
            assert b'"tokenize_urgent"' in trace

    asyncio.run(main())


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("toml", "name", "use"),
    [
        (TWO_POOLS, "tokenize_urgent", "pipeline.stages.tokenize:Tokenize"),
        (HOUSE_RULES, "house_rules", "pipeline.stages.filter:Filter"),
    ],
)
def test_a_further_stage_is_swapped_under_load(fake_card: ModelCard, toml: str, name: str, use: str) -> None:
    async def main() -> None:
        async with serving(fake_card, FakeRunner, toml) as server:
            async with aiohttp.ClientSession() as session:
                asked = [
                    asyncio.create_task(ask(session, server.url, priority=1, max_tokens=2000))
                    for _ in range(4)
                ]
                before = server.pipeline.stages[name][0]
                swapped = await Swapper(server.pipeline).swap(name, Order(use))
                assert swapped.ending is Ending.SWAPPED, swapped
                asked.append(asyncio.create_task(ask(session, server.url, priority=1, max_tokens=2000)))
                texts = {(await each)["choices"][0]["text"] for each in asked}
                assert len(texts) == 1 and server.pipeline.stages[name][0] is not before
            await server.rest()

    asyncio.run(main())


def test_a_stage_of_no_node_is_refused_with_the_names_of_the_graph() -> None:
    with pytest.raises(
        ConfigError, match=r"stages\.tokenize_urgnt: no such stage\. Did you mean tokenize_urgent\?"
    ):
        configuration.loads(TWO_POOLS + "[stages.tokenize_urgnt]\n", "my.toml")
    with pytest.raises(
        ConfigError, match=r"stages\.tokenize_urgent: no such stage\. Did you mean tokenize\?"
    ):
        configuration.loads("[stages.tokenize_urgent]\n", "my.toml")


@pytest.mark.parametrize(
    ("use", "fault"),
    [
        ("my_lab.none:X", r"cannot be imported: No module named 'my_lab'"),
        ("pipeline.topology:Lane", r"must be a pipeline\.topology\.Graph, not EnumType"),
        ("tests.e2e.odd_graphs:BROKEN", r"it has no node detokenize; there must be ingress, "),
    ],
)
def test_a_graph_that_cannot_run_is_refused_before_start(use: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=rf"^my\.toml: topology\.use = '{use}': {fault}"):
        configuration.loads(f'[topology]\nuse = "{use}"\n', "my.toml")


def test_what_a_class_gives_needs_a_link() -> None:
    """Two filters, the second without its way to the scheduler."""
    config = configuration.loads('[topology]\nuse = "tests.e2e.odd_graphs:MUTE"\n', "my.toml")
    with pytest.raises(
        ConfigError, match=r"stages\.mute\.use = .*: gives Cancel, which no link from mute carries"
    ):
        assemble.check(config)
