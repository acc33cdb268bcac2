"""The admin port beside a running pipeline: what it answers, and to whom."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest

from pipeline import admin, assemble
from pipeline import config as configuration
from pipeline.admin import AdminServer, api
from pipeline.checkpoint.fake import byte_card
from pipeline.doctor import Diagnosis
from pipeline.errors import ConfigError
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.testing import FakeRunner
from pipeline.telemetry import Evidence
from pipeline.topology import LINKS
from tests.e2e.world import Server, serving

Beside = tuple[Server, AdminServer, aiohttp.ClientSession]


@asynccontextmanager
async def beside(toml: str = "[admin]\nport = 0", door: str = "") -> AsyncIterator[Beside]:
    config = configuration.loads(toml, "test.toml")
    async with (
        serving(byte_card(), FakeRunner, door) as server,
        admin.beside(server.pipeline, config, byte_card()) as page,
    ):
        assert page is not None
        page.door_is_open()
        async with aiohttp.ClientSession(page.url) as session:
            yield server, page, session


async def event(stream: aiohttp.StreamReader, name: str) -> bytes:
    """The data of the next event of that name."""
    await stream.readuntil(b"event: %b\n" % name.encode())
    return (await stream.readline()).removeprefix(b"data: ")


def test_the_page_and_its_files() -> None:
    async def main() -> None:
        async with beside() as (server, _, session):
            async with session.get("/") as response:
                text = await response.text()
                assert response.status == 200 and response.content_type == "text/html"
                assert f"{server.url.replace('http', 'ws')};" in response.headers["Content-Security-Policy"]
                assert "Access-Control-Allow-Origin" not in response.headers
            assert "://" not in re.sub(r"<svg.*?>", "", text)  # nothing comes from elsewhere
            for name in re.findall(r"static/[\w.]+", text):
                async with session.get(f"/{name}") as response:
                    assert response.status == 200, name
                    assert response.headers["X-Content-Type-Options"] == "nosniff"
            for name in ("static/server.py", "static/..%2fserver.py", "static/", "nothing"):
                async with session.get(f"/{name}") as response:
                    assert response.status == 404, name

    asyncio.run(main())


def test_every_module_that_is_imported_is_there() -> None:
    async def main() -> None:
        async with beside() as (_, _, session):
            wanted, seen = {"main.js"}, set[str]()
            while wanted - seen:
                name = (wanted - seen).pop()
                seen.add(name)
                async with session.get(f"/static/{name}") as response:
                    assert response.status == 200 and response.content_type == "text/javascript", name
                    wanted |= set(re.findall(r'from "\./([\w.]+)"', await response.text()))
            assert len(seen) > 5

    asyncio.run(main())


def test_other_hosts_are_refused() -> None:
    async def main() -> None:
        async with beside() as (_, page, session):
            for path in ("/", "/api/live", "/api/evidence", "/metrics"):
                async with session.get(path, headers={"Host": f"evil.example:{page.port}"}) as response:
                    assert response.status == 403
                    assert (await response.json())["error"]["code"] == "wrong_host"
            async with session.get("/", headers={"Host": f"localhost:{page.port}"}) as response:
                assert response.status == 200

    asyncio.run(main())


def test_evidence_diagnosis_metrics_and_trace() -> None:
    async def main() -> None:
        async with beside() as (server, _, session):
            body = {"prompt": "hello", "max_tokens": 8}
            async with session.post(f"{server.url}/v1/completions", json=body) as response:
                assert response.status == 200
            async with session.get("/api/evidence?last_s=30") as response:
                evidence = msgspec.json.decode(await response.read(), type=Evidence)
                assert len(evidence.requests) == 1 and len(evidence.samples) >= 2
            async with session.get("/api/diagnosis") as response:
                assert msgspec.json.decode(await response.read(), type=Diagnosis).verdict
            async with session.get("/metrics") as response:
                assert "stageline_requests_total" in await response.text()
            async with session.get("/debug/trace?last_s=30") as response:
                assert (await response.json())["traceEvents"]
            for window in ("0", "-1", "x", "nan", "1e9"):
                async with session.get(f"/api/evidence?last_s={window}") as response:
                    assert response.status == 400, window
                    assert "last_s" in (await response.json())["error"]["message"]

    asyncio.run(main())


def test_the_feed_tells_what_was_and_what_is() -> None:
    async def main() -> None:
        async with beside() as (server, _, session):
            body = {"prompt": "hello", "max_tokens": 8, "ignore_eos": True}
            async with session.post(f"{server.url}/v1/completions", json=body) as response:
                assert response.status == 200
            async with session.get("/api/live") as response:
                assert response.content_type == "text/event-stream"
                about = msgspec.json.decode(await event(response.content, "about"))
                assert about["door"] == server.url.replace("http", "ws") and about["model"] == "fake"
                assert len(about["links"]) == len(LINKS)
                backlog = msgspec.json.decode(await event(response.content, "backlog"))
                assert len(backlog["requests"]) == 1 and len(backlog["moments"]) == 1
                assert sum(backlog["steps"]["decode"]) == 7
                async with session.post(f"{server.url}/v1/completions", json=body):
                    snapshot = msgspec.json.decode(await event(response.content, "snapshot"))
                assert snapshot["state"] == "ready" and len(snapshot["stages"]) == 7
                assert [request["id"] for request in snapshot["requests"]] == [1]
                assert snapshot["blocks"]["num_blocks"] == 4096
                following = msgspec.json.decode(await event(response.content, "snapshot"))
                assert following["requests"] == [] and following["blocks"] is None

    asyncio.run(main())


def test_pages_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MAX_PAGES", 1)

    async def main() -> None:
        async with beside() as (_, _, session):
            async with session.get("/api/live") as response:
                await event(response.content, "about")
                async with session.get("/api/live") as refused:
                    assert refused.status == 503
            async with asyncio.timeout(5):
                while True:  # the first one's end is heard of a little later
                    async with session.get("/api/live") as again:
                        if again.status == 200:
                            return

    asyncio.run(main())


def test_before_the_pipeline_is_ready() -> None:
    async def main() -> None:
        config = configuration.loads("[admin]\nport = 0", "test.toml")
        pipeline = assemble.build(assemble.check(config), byte_card(), RunnerFactory(FakeRunner))
        async with admin.beside(pipeline, config, byte_card()) as page, aiohttp.ClientSession() as session:
            assert page is not None
            async with session.get(f"{page.url}/api/live") as response:
                assert msgspec.json.decode(await event(response.content, "about"))["door"] == ""
                assert msgspec.json.decode(await event(response.content, "snapshot"))["state"] == "starting"
            for path in ("evidence", "diagnosis"):
                async with session.get(f"{page.url}/api/{path}") as response:
                    assert response.status == 503

    asyncio.run(main())


def test_a_door_on_every_address_is_reached_as_the_page_was() -> None:
    async def main() -> None:
        async with beside(door='[stages.ingress.options]\nhost = "0.0.0.0"') as (server, page, session):
            host = {"Host": f"localhost:{page.port}"}
            async with session.get("/api/live", headers=host) as response:
                about = msgspec.json.decode(await event(response.content, "about"))
                assert about["door"] == server.url.replace("http://127.0.0.1", "ws://localhost")

    asyncio.run(main())


def test_a_taken_port_is_a_fault_of_configuration() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ConfigError) as error:
                async with beside(f"[admin]\nport = {port}"):
                    pass
        message = str(error.value)
        assert f"admin.port = {port}" in message and "admin.host = '127.0.0.1'" in message
        assert "Is another Stageline running?" in message and "--admin-port" in message

    asyncio.run(main())


def test_off_is_off() -> None:
    async def main() -> None:
        config = configuration.loads("[admin]\nenabled = false", "test.toml")
        async with (
            serving(byte_card(), FakeRunner) as server,
            admin.beside(server.pipeline, config, byte_card()) as page,
        ):
            assert page is None

    asyncio.run(main())


@pytest.mark.parametrize(("door", "port"), [(8000, 8001), (0, 0), (65_535, 0)])
def test_by_default_the_port_is_the_one_after_the_doors(door: int, port: int) -> None:
    config = configuration.override(configuration.loads("", "test.toml"), port=door)
    pipeline = assemble.build(assemble.check(config), byte_card())
    assert AdminServer(pipeline, config.admin, byte_card()).wanted_port == port
