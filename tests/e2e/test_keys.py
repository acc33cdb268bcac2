"""API keys, limits, TLS, CORS and the access log, over real sockets."""

import asyncio
import json
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from pipeline.__main__ import main
from pipeline.checkpoint.card import ModelCard
from pipeline.errors import ConfigError
from pipeline.messages import DeviceReady
from pipeline.runtime.testing import FakeRunner
from tests.e2e.raw_http import certificate as new_certificate
from tests.e2e.world import Server, serving

ASK: dict[str, Any] = {"prompt": "Hello", "max_tokens": 4, "ignore_eos": True}


@pytest.fixture
def add(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Makes a key as its user would; the key."""

    def add_key(name: str, *limits: str) -> str:
        assert main(["keys", "add", name, "--file", str(tmp_path / "keys.toml"), *limits]) == 0
        return capsys.readouterr().out.strip()

    return add_key


def ingress(tmp_path: Path, more: str = "") -> str:
    return f'[stages.ingress.options]\nkeys_file = "{tmp_path / "keys.toml"}"\n{more}\n'


def run(
    card: ModelCard, toml: str, visit: Callable[[Server, aiohttp.ClientSession], Awaitable[None]]
) -> None:
    async def visited() -> None:
        runner = FakeRunner(DeviceReady(200, 16, 16, 256))
        async with serving(card, lambda: runner, toml) as server, aiohttp.ClientSession() as session:
            await visit(server, session)

    asyncio.run(visited())


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def post(session: aiohttp.ClientSession, url: str, key: str, **more: Any) -> tuple[int, Any, Any]:
    headers = bearer(key) if key else {}
    async with session.post(f"{url}/v1/completions", json=ASK | more, headers=headers) as answer:
        return answer.status, await answer.json(), answer.headers


def test_every_path_needs_a_key_but_those_that_say_so(
    fake_card: ModelCard, tmp_path: Path, add: Callable[..., str]
) -> None:
    key, old = add("ann"), add("old", "--expires", "2020-01-01")

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        for path in ("/", "/v1/models", "/metrics", "/debug/trace", "/v1/stream", "/nothing/here"):
            async with session.get(server.url + path) as answer:
                assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer"), path
                error = (await answer.json())["error"]
                assert (error["code"], error["type"]) == ("no_api_key", "authentication_error")
        for path in ("/health", "/ready"):
            async with session.get(server.url + path) as answer:
                assert answer.status == 200
        for wrong in ("sk-stageline-", key[:-1], key + "x", old):
            status, body, _ = await post(session, server.url, wrong)
            assert (status, body["error"]["code"]) == (401, "invalid_api_key")
            assert wrong not in json.dumps(body)
        assert (await post(session, server.url, key))[0] == 200
        async with session.get(server.url + "/nothing/here", headers=bearer(key)) as answer:
            assert answer.status == 404

    run(fake_card, ingress(tmp_path), visit)


def test_limits_of_a_key(fake_card: ModelCard, tmp_path: Path, add: Callable[..., str]) -> None:
    few, small = add("few", "--requests-per-min", "2"), add("small", "--tokens-per-min", "40")
    other = add("other", "--max-priority", "3")

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        url = server.url
        statuses = [await post(session, url, few) for _ in range(3)]
        assert [status for status, _, _ in statuses] == [200, 200, 429]
        _, body, headers = statuses[-1]
        assert body["error"]["code"] == "rate_limit_exceeded" and 25 <= int(headers["Retry-After"]) <= 30
        for _ in range(3):  # 5 of the prompt and 4 of the answer each: what is not used comes back
            assert (await post(session, url, small, max_tokens=4))[0] == 200
        status, body, _ = await post(session, url, small, max_tokens=30)
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        assert (await post(session, url, other, priority=3))[0] == 200
        status, body, _ = await post(session, url, other, priority=4)
        assert (status, body["error"]["param"]) == (400, "priority") and "at most 3" in body["error"][
            "message"
        ]

    run(fake_card, ingress(tmp_path), visit)


def test_live_requests_of_a_key_on_a_socket(
    fake_card: ModelCard, tmp_path: Path, add: Callable[..., str]
) -> None:
    key = add("ann", "--max-concurrent", "2")

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(f"{server.url}/v1/stream")
        assert refused.value.status == 401
        async with session.ws_connect(f"{server.url}/v1/stream", headers=bearer(key)) as ws:
            for name in ("a", "b", "c"):
                await ws.send_json({"type": "generate", "id": name, **ASK, "max_tokens": 50})
            ended: dict[str, str] = {}
            while len(ended) < 3:
                frame = await ws.receive_json(timeout=10)
                if frame["type"] in ("done", "error"):
                    ended[frame["id"]] = frame.get("error", {}).get("code", "done")
            assert ended == {"a": "done", "b": "done", "c": "too_many_requests_of_key"}
            await ws.send_json({"type": "generate", "id": "d", **ASK})
            while (frame := await ws.receive_json(timeout=10))["type"] != "done":
                assert frame["type"] in ("accepted", "delta")

    run(fake_card, ingress(tmp_path), visit)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('[ann]\nsha256 = "abc"', r"key 'ann': .*sha256"),
        ("[ann]\nname = 1", r"key 'ann'"),
        ("[ann", r"is not TOML"),
        (None, r"cannot be read: No such file"),
    ],
)
def test_a_file_that_cannot_be_used(
    fake_card: ModelCard, tmp_path: Path, text: str | None, fault: str
) -> None:
    if text is not None:
        (tmp_path / "keys.toml").write_text(text)

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        raise AssertionError("it must not start")

    with pytest.raises(ConfigError, match=fault):
        run(fake_card, ingress(tmp_path), visit)


PAGE = "https://chat.example"


def test_pages_of_other_sites(fake_card: ModelCard) -> None:
    toml = f'[stages.ingress.options]\ncors_origins = ["{PAGE}"]\n'

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
        for origin, is_ours in ((PAGE, True), ("https://evil.example", False)):
            url, headers = f"{server.url}/v1/completions", {"Origin": origin}
            async with session.options(url, headers=headers | asks) as answer:
                assert (answer.status == 204) == is_ours
                assert ("Access-Control-Allow-Methods" in answer.headers) == is_ours
            for body in (ASK, ASK | {"stream": True}, {"prompt": 3}):
                async with session.post(url, json=body, headers=headers) as answer:
                    await answer.read()
                    assert answer.headers["Vary"] == "Origin"
                    allowed = answer.headers.get("Access-Control-Allow-Origin")
                    assert allowed == (PAGE if is_ours else None)
        for origin in (PAGE, server.url, "http://localhost:8001"):
            async with session.ws_connect(f"{server.url}/v1/stream", origin=origin) as ws:
                await ws.close()
        for origin in ("https://evil.example", "null", f"http://127.0.0.1.evil.example:{8000}", "http://[::"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(f"{server.url}/v1/stream", origin=origin)
            assert refused.value.status == 403

    run(fake_card, toml, visit)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return new_certificate(tmp_path_factory.mktemp("tls"))


def test_tls(fake_card: ModelCard, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    toml = f'[stages.ingress.options]\ntls_cert = "{cert}"\ntls_key = "{key}"\n'

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        trusting = ssl.create_default_context(cafile=str(cert))
        url = server.url.replace("http:", "https:")
        async with session.post(f"{url}/v1/completions", json=ASK | {"stream": True}, ssl=trusting) as answer:
            assert (await answer.text()).endswith("data: [DONE]\n\n")
        async with session.ws_connect(f"{url}/v1/stream", ssl=trusting) as ws:
            await ws.send_json({"type": "generate", "id": "a", **ASK})
            while (frame := await ws.receive_json(timeout=10))["type"] != "done":
                assert frame["type"] in ("accepted", "delta")
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(f"{server.url}/ready")

    run(fake_card, toml, visit)


def test_tls_needs_both_files(fake_card: ModelCard, certificate: tuple[Path, Path]) -> None:
    for toml, fault in (
        (f'tls_cert = "{certificate[0]}"', "tls_key must be set as well"),
        (f'tls_cert = "{certificate[1]}"\ntls_key = "{certificate[1]}"', "cannot be used"),
    ):
        with pytest.raises(ConfigError, match=fault):
            run(fake_card, f"[stages.ingress.options]\n{toml}\n", lambda server, session: asyncio.sleep(0))


def test_one_connection_too_many(fake_card: ModelCard) -> None:
    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        held = [socket.create_connection(address) for _ in range(3)]
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection(*address)
        with suppress(ConnectionResetError):  # or an end of file
            assert await asyncio.wait_for(reader.read(1), 5) == b""
        writer.close()
        held.pop().close()
        await asyncio.sleep(0.1)
        async with session.get(f"{server.url}/ready") as answer:
            assert answer.status == 200
        for each in held:
            each.close()

    run(fake_card, "[stages.ingress.options]\nmax_connections = 3\n", visit)


def test_the_access_log_says_who_and_what_and_no_more(
    fake_card: ModelCard, tmp_path: Path, add: Callable[..., str]
) -> None:
    key = add("ann")

    async def visit(server: Server, session: aiohttp.ClientSession) -> None:
        await post(session, server.url, key, prompt="a canary of a prompt")
        await post(session, server.url, "a-canary-of-a-key")
        async with session.get(f"{server.url}/v1/models/canary?canary=1", headers=bearer(key)) as answer:
            assert answer.status == 404
        async with session.get(f"{server.url}/canary", headers=bearer(key)) as answer:
            assert answer.status == 404

    with structlog.testing.capture_logs() as logs:
        run(fake_card, ingress(tmp_path, "access_log = true"), visit)
    lines = [line for line in logs if line["event"] == "access"]
    assert [(line["path"], line["status"], line["tenant"]) for line in lines] == [
        ("/v1/completions", 200, "ann"),
        ("/v1/completions", 401, ""),
        ("/v1/models/{id}", 404, "ann"),
        ("?", 404, "ann"),
    ]
    assert all(line["method"] in ("GET", "POST") and line["ms"] >= 0 and line["bytes"] > 0 for line in lines)
    assert "canary" not in repr(lines) and key not in repr(logs)
