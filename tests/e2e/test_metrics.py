"""/metrics over real sockets: what must hold at every scrape, and that the page is what the documents say."""

import asyncio
import json
import random
import re
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import promql_parser
import pytest
from msgspec.structs import replace

from pipeline.checkpoint.card import ModelCard
from pipeline.messages import DeviceReady, DiskReady, StepPlan
from pipeline.runtime.testing import FakeRunner
from tests.e2e.scraped import Page, scrape
from tests.e2e.world import Server, serving
from tests.fake_nvml import FakeNvml

DOCS = Path(__file__).parents[2] / "docs"
DEVICE = DeviceReady(num_blocks=48, block_size=4, max_num_seqs=6, max_num_batched_tokens=128)
"""Small: sequences wait for a place, and are preempted."""
FEW_LIVE = "[stages.ingress.options]\nmax_live_requests = 16\n"
ALL_OF_KV = "[stages.schedule.options]\nmax_pinned_blocks = 4\nkv_events = 100\n"
NUM_REQUESTS = 60
ROW = re.compile(r"^\| `(?P<name>[a-z0-9_:]+)` \| (?P<kind>\w+) \| (?P<unit>[\w/-]+) \| (?P<labels>[^|]*)\|")
SHARED_LABELS = {
    "vllm:": {"model_name", "engine"},
    "gen_ai_": {
        *("gen_ai_operation_name", "gen_ai_provider_name"),
        *("gen_ai_request_model", "gen_ai_response_model"),
    },
}
"""Those that the text names once for all of a kind."""


def slow_runner(device: DeviceReady = DEVICE) -> FakeRunner:
    def pause(_: StepPlan) -> None:
        time.sleep(0.001)

    return FakeRunner(device, pause)


# What must hold ----------------------------------------------------------------------------------


def check_conservation(page: Page) -> None:
    """Nobody is lost or counted twice, at whatever moment."""
    assert page.total("stageline_requests_received_total") == (
        page.total("stageline_requests_total")
        + page.total("stageline_rejected_total")
        + page.total("stageline_live_requests")
        + page.total("stageline_cut_off_requests")
    )
    assert 0 <= page.total("stageline_kv_fragmentation_ratio") < 1
    num_ended = page.total("stageline_requests_total")
    assert page.total("stageline_e2e_seconds_count") == num_ended
    assert page.total("stageline_segment_seconds_count", segment="execute.service") == num_ended
    segments, e2e = page.total("stageline_segment_seconds_sum"), page.total("stageline_e2e_seconds_sum")
    assert segments == pytest.approx(e2e, rel=1e-9, abs=1e-9)
    assert page.total("vllm:e2e_request_latency_seconds_count") == num_ended
    assert page.total("gen_ai_server_request_duration_seconds_count") == (
        num_ended + page.total("stageline_rejected_total")
    )


async def one_client(session: aiohttp.ClientSession, url: str, kind: str, dice: random.Random) -> str:
    """What became of it: the first token seen (`answered`), an error (`refused`, `rejected`), or neither."""
    body: dict[str, Any] = {
        "prompt": "x" * dice.randint(1, 40),
        "max_tokens": dice.randint(1, 60),
        "stream": True,
        "ignore_eos": True,
    }
    if kind == "too long":
        body["prompt"] = "x" * 9000
    async with session.post(f"{url}/v1/completions", json=body) as response:
        if response.status != 200:
            return "refused" if response.status == 429 else "rejected"
        if kind == "leaves at once":
            return "gone"
        num_lines = 0
        async for line in response.content:
            num_lines += line.startswith(b"data: ")
            if kind == "leaves" and num_lines == 3:
                return "answered"
    return "answered"


async def crowd(server: Server, session: aiohttp.ClientSession, seed: int) -> list[str]:
    dice = random.Random(seed)
    kinds = dice.choices(["stays", "leaves", "leaves at once", "too long"], [6, 2, 1, 1], k=NUM_REQUESTS)

    async def late(kind: str) -> str:
        await asyncio.sleep(dice.random() * 0.4)
        return await one_client(session, server.url, kind, dice)

    return list(await asyncio.gather(*map(late, kinds)))


@pytest.mark.parametrize("seed", [1, 2])
def test_the_books_balance_at_every_scrape(fake_card: ModelCard, seed: int) -> None:
    async def main() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            serving(fake_card, slow_runner, FEW_LIVE) as server,
        ):
            running = asyncio.create_task(crowd(server, session, seed))
            num_scrapes = 0
            seen_live = 0.0
            while not running.done():
                page = await scrape(session, server)
                check_conservation(page)
                num_scrapes += 1
                seen_live = max(seen_live, page.total("stageline_live_requests"))
            assert num_scrapes > 5 and seen_live > 3, "the page was read while there was something to see"
            fates = await running
            await session.close()
            await server.rest()
            check_at_rest(Page(server.pipeline.telemetry.render().decode()), fates)

    asyncio.run(main())


def check_at_rest(page: Page, fates: list[str]) -> None:
    check_conservation(page)
    assert page.total("stageline_live_requests") == page.total("stageline_cut_off_requests") == 0
    assert page.total("stageline_refused_total") == fates.count("refused") > 0
    assert page.total("stageline_rejected_total") == fates.count("rejected") > 0
    assert page.total("stageline_requests_received_total") == len(fates) - fates.count("refused")
    assert page.total("stageline_stage_errors_total") == page.total("stageline_rejected_total")
    num_first_tokens = page.total("stageline_ttft_seconds_count")
    assert fates.count("answered") <= num_first_tokens <= fates.count("answered") + fates.count("gone")
    assert page.total("vllm:request_queue_time_seconds_count") == num_first_tokens
    assert page.total("stageline_kv_blocks_used") == page.total("stageline_requests_running") == 0
    assert page.total("stageline_kv_fragmentation_ratio") == 0
    tokens = page.total("stageline_itl_seconds_count")
    assert 0 < tokens <= page.total("stageline_tokens_total", kind="output") - num_first_tokens


def test_first_tokens_are_counted_once_a_request_that_has_one(fake_card: ModelCard) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as session, serving(fake_card, slow_runner) as server:
            body = {"prompt": "x", "max_tokens": 8, "ignore_eos": True}
            for _ in range(5):
                async with session.post(f"{server.url}/v1/completions", json=body) as response:
                    assert response.status == 200
            page = await scrape(session, server)
            assert page.total("stageline_ttft_seconds_count") == 5
            assert page.total("stageline_tpot_seconds_count") == 5
            assert page.total("stageline_itl_seconds_count") == 5 * 7, "a token after the first is one gap"
            itl, whole = page.total("stageline_itl_seconds_sum"), page.total("stageline_e2e_seconds_sum")
            assert itl == pytest.approx(whole - page.total("stageline_ttft_seconds_sum"), abs=0.1)

    asyncio.run(main())


def test_a_stage_that_costs_nothing_shows_as_such(fake_card: ModelCard) -> None:
    """Buckets begin low enough: most services of the text side are in the first ones."""

    async def main() -> None:
        async with aiohttp.ClientSession() as session, serving(fake_card, slow_runner) as server:
            assert len(await crowd(server, session, seed=3)) == NUM_REQUESTS
            page = await scrape(session, server)
            for stage in ("execute", "sample", "detokenize", "stream"):
                count = page.total("stageline_stage_service_seconds_count", stage=stage)
                quick = page.total("stageline_stage_service_seconds_bucket", stage=stage, le="0.0025")
                assert count > 0 and quick / count > 0.5, stage
                waits = page.total("stageline_stage_wait_seconds_count", stage=stage, lane="data")
                assert waits == page.total("stageline_inbox_sent_total", stage=stage)
            for stage in ("tokenize", "schedule", "execute", "sample", "detokenize", "stream"):
                assert 0 <= page.total("stageline_stage_utilization_ratio", stage=stage) <= 1

    asyncio.run(main())


# What the documents say --------------------------------------------------------------------------


def full_page(card: ModelCard, monkeypatch: pytest.MonkeyPatch) -> Page:
    """Of a server on a GPU, with tiers for KV, that has answered, rejected and refused: all is there.

    The gate shows what it has measured; where one crowd was too quick for that, another comes.
    """
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    device = replace(DEVICE, device="cuda", num_host_blocks=1 << 14, disk=DiskReady(16))  # nothing gets there

    async def main() -> Page:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
            serving(card, lambda: slow_runner(device), FEW_LIVE + ALL_OF_KV) as server,
        ):
            for seed in (1, 2, 3):
                await crowd(server, session, seed)
                page = await scrape(session, server)
                if documented().keys() <= page.kinds.keys():
                    break
            return page

    return asyncio.run(main())


def documented() -> dict[str, tuple[str, str, set[str]]]:
    """Type, unit and labels of each metric of docs/metrics.md."""
    rows = map(ROW.match, (DOCS / "metrics.md").read_text("utf-8").splitlines())
    return {
        row["name"]: (row["kind"], row["unit"], set(re.findall(r"`(\w+)`", row["labels"])))
        for row in rows
        if row
    }


def unit_of(name: str) -> str | None:
    """What the name itself says."""
    for word, unit in {
        "seconds": "s",
        "bytes": "bytes",
        "ratio": "ratio",
        "perc": "ratio",
        "tokens": "tokens",
    }.items():
        if word in name.split("_"):
            return unit
    return None


def test_the_page_and_its_document_name_the_same_metrics(
    fake_card: ModelCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, rows = full_page(fake_card, monkeypatch), documented()
    assert page.kinds == {name: kind for name, (kind, _, _) in rows.items()}
    for name, (_, unit, labels) in rows.items():
        assert unit_of(name) in (unit, None), name
        shared = next((own for prefix, own in SHARED_LABELS.items() if name.startswith(prefix)), set())
        for own in page.labels(name):
            assert set(own) - shared <= labels, name


def test_every_metric_of_the_dashboard_is_on_the_page(
    fake_card: ModelCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = full_page(fake_card, monkeypatch)
    series = {sample.name for sample in page.samples} | set(page.kinds)
    dashboard = json.loads((DOCS / "grafana.json").read_text("utf-8"))
    queries = [target["expr"] for panel in panels(dashboard) for target in panel.get("targets", [])]
    assert len(queries) > 30
    used = {name for query in queries for name in re.findall(r"\bstageline_\w+", query)}
    assert used - series == set()
    for query in queries:
        assert re.search(r"\bstageline_\w+", query), query
        promql_parser.parse(query.replace("$__rate_interval", "1m"))


def test_a_dashboard_made_for_vllm_finds_its_metrics(fake_card: ModelCard) -> None:
    """Those of the board in vLLM's examples/observability/prometheus_grafana."""
    histograms = {
        *("e2e_request_latency_seconds", "inter_token_latency_seconds", "time_to_first_token_seconds"),
        *("request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens"),
        *("request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"),
    }
    singles = {
        *("prompt_tokens_total", "generation_tokens_total", "request_success_total"),
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
    }

    async def main() -> None:
        async with serving(fake_card, FakeRunner) as server:
            page = Page(server.pipeline.telemetry.render().decode())
            wanted = {
                f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")
            } | singles
            model = {sample.name: sample.labels.get("model_name") for sample in page.samples}
            assert {model.get(f"vllm:{name}") for name in wanted} == {fake_card.name}

    asyncio.run(main())


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for panel in dashboard["panels"] for each in (panel, *panel.get("panels", []))]


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    dashboard = json.loads((DOCS / "grafana.json").read_text("utf-8"))
    assert dashboard["schemaVersion"] >= 39 and dashboard["title"] and dashboard["uid"]
    shown = panels(dashboard)
    ids = [panel["id"] for panel in shown]
    assert len(set(ids)) == len(ids)
    for panel in shown:
        place = panel["gridPos"]
        assert 0 < place["w"] <= 24 - place["x"] and place["h"] > 0
        for target in panel.get("targets", []):
            assert target["datasource"] == {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
    overlaps = [
        (one["title"], other["title"])
        for one in shown
        for other in shown
        if one["id"] < other["id"] and overlap(one["gridPos"], other["gridPos"])
    ]
    assert overlaps == []
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    names = {
        name
        for panel in shown
        for target in panel.get("targets", [])
        for name in re.findall(r"\$(\w+)", target["expr"])
    }
    assert names - variables - {"__rate_interval"} == set()


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    across = one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
    return across and one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]


@pytest.mark.parametrize(("setting", "prefix"), [("vllm_names", "vllm:"), ("gen_ai_names", "gen_ai_")])
def test_the_names_of_others_are_a_setting(fake_card: ModelCard, setting: str, prefix: str) -> None:
    async def names(toml: str) -> set[str]:
        async with serving(fake_card, FakeRunner, toml) as server:
            return set(Page(server.pipeline.telemetry.render().decode()).kinds)

    async def main() -> None:
        assert any(name.startswith(prefix) for name in await names(""))
        assert not any(name.startswith(prefix) for name in await names(f"[metrics]\n{setting} = false\n"))

    asyncio.run(main())
