"""What clients send and get is in no log, no error, no metric, no trace: words that mark it are looked for.

Every way to fail is taken, on every door, at log level debug and with the access log on.
"""

import asyncio
import io
import json
import logging
import socket
import struct
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import pytest
import structlog

from pipeline import admin, logs
from pipeline import config as configuration
from pipeline.admin import AdminServer
from pipeline.checkpoint.card import ModelCard
from pipeline.core.keys import fingerprint
from pipeline.core.prompts import PromptEncoder
from pipeline.errors import StageCrashed
from pipeline.messages import StepPlan
from pipeline.stages.ingress.intake import Intake
from tests.e2e.saying import SayingRunner
from tests.e2e.world import Server, serving

SECRETS = {
    name: f"zq{name}wolframite"
    for name in (
        "prompt",
        "output",
        "key",
        "wrongkey",
        "salt",
        "user",
        "tool",
        "stop",
        "path",
        "frame",
        "header",
        "garbage",
        "grammar",
    )
}
"""Each is found although it is cut after 40 characters."""
MAX_ERROR_CHARS = 1200
KEY = SECRETS["key"] * 3
POOR = SECRETS["key"] + "-poor"
AUTH = {"Authorization": f"Bearer {KEY}"}
TEXT = f"{SECRETS['prompt']}, and then "
OUT = f"{SECRETS['output']} was said. "
ASK: dict[str, Any] = {
    "prompt": TEXT,
    "seed": 1,
    "max_tokens": 60,
    "user": SECRETS["user"],
    "cache_salt": SECRETS["salt"],
    "stop": [SECRETS["stop"]],
}
CHAT: dict[str, Any] = {k: v for k, v in ASK.items() if k != "prompt"} | {
    "messages": [
        {"role": "system", "content": TEXT},
        {"role": "user", "content": [{"type": "text", "text": TEXT}]},
    ]
}
FIELDS = (
    "model", "n", "best_of", "echo", "max_tokens", "max_completion_tokens", "temperature", "top_p",
    "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "logit_bias", "allowed_token_ids", "bad_words", "seed", "stop", "stop_token_ids",
    "include_stop_str_in_output", "min_tokens", "ignore_eos", "skip_special_tokens",
    "truncate_prompt_tokens", "logprobs", "top_logprobs", "stream", "stream_options", "timings",
    "priority", "ttft_target_ms", "tpot_target_ms", "patience_ms", "user", "cache_salt", "cache_pin",
    "kv_eviction", "kv_budget", "kv_sinks", "suffix", "use_beam_search", "prompt_logprobs",
    "separate_reasoning", "function_call", "unheard_of",
)  # fmt: skip
PROMPTS: list[Any] = [
    "",
    7,
    {SECRETS["prompt"]: 1},
    [1, SECRETS["prompt"]],
    [SECRETS["prompt"], 1],
    [SECRETS["prompt"], ""],
    [[1, SECRETS["prompt"]]],
    [SECRETS["prompt"]] * 65,
    SECRETS["prompt"] * 1000,
]
MESSAGES: list[Any] = [
    [],
    SECRETS["prompt"],
    [SECRETS["prompt"]],
    [{"role": "user"}],
    [{"role": "user", "content": {SECRETS["prompt"]: 1}}],
    [{"role": "user", "content": [SECRETS["prompt"]]}],
    [{"role": "user", "content": [{"type": "text", "text": [SECRETS["prompt"]]}]}],
    [{"role": "user", "content": [{"type": "text", "text": SECRETS["prompt"], "more": SECRETS["prompt"]}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": SECRETS["prompt"]}}]}],
    [{"role": "user", "content": SECRETS["prompt"], "tool_calls": [SECRETS["prompt"]]}],
    [{"role": "user", "content": SECRETS["prompt"] * 1000}],
]
TOOLS: list[dict[str, Any]] = [
    {
        "tools": [
            {"type": "function", "function": {"name": SECRETS["tool"], "parameters": {SECRETS["tool"]: 1}}}
        ]
    },
    {"tools": [{"type": "function", "function": {"name": "a", "description": SECRETS["tool"], "x": 1}}]},
    {"tool_choice": {"function": {"name": SECRETS["tool"]}}},
    *(
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}
        for schema in (
            {SECRETS["grammar"]: 1},
            {"type": "object", "properties": {SECRETS["grammar"]: {"type": "nothing"}}},
            {"$ref": f"#/{SECRETS['grammar']}"},
            {"enum": [SECRETS["grammar"]], "minLength": -1},
            {"type": "string", "pattern": f"({SECRETS['grammar']}"},
        )
    ),
    *(
        {"structured_outputs": {kind: value}}
        for kind, value in (
            ("regex", f"({SECRETS['grammar']}"),
            ("grammar", f"start: {SECRETS['grammar']}"),
            ("choice", [SECRETS["grammar"], 1]),
            ("json", f'{{"{SECRETS["grammar"]}": '),
            ("json", f'"{SECRETS["grammar"]}"'),
        )
    ),
]
INPUTS: list[Any] = [
    [SECRETS["prompt"]],
    {SECRETS["prompt"]: 1},
    [{"role": "user", "content": [SECRETS["prompt"]]}],
    [{"role": "user", "content": [{"type": "input_image", "image_url": SECRETS["prompt"]}]}],
    [{"type": "function_call_output", "call_id": "a", "output": SECRETS["prompt"]}],
    SECRETS["prompt"] * 1000,
]


def toml(folder: Path) -> str:
    keys = folder / "keys.toml"
    keys.write_text(
        f'[ann]\nsha256 = "{fingerprint(KEY)}"\n'
        f'[poor]\nsha256 = "{fingerprint(POOR)}"\nrequests_per_min = 1\nmax_concurrent = 1\n'
    )
    return f"""
[server]
slow_request_ms = 0
slow_ttft_ms = 0
[stages.ingress.options]
keys_file = "{keys}"
access_log = true
max_live_requests = 8
max_body_bytes = 65536
max_frame_bytes = 65536
body_timeout_s = 0.3
keepalive_s = 1
write_timeout_s = 0.3
cors_origins = ["https://ours.example"]
[stages.tokenize.options]
max_prompt_bytes = 10000
[stages.stream.options]
flush_tokens = 1
client_buffer_bytes = 4096
slow_client_s = 0.3
[stages.filter.options]
rules = [{{ terms = ["{SECRETS["output"]} that is not"], action = "stop" }}]
"""


class Seen:
    """All that the server let out, but answers."""

    def __init__(self, log: io.StringIO) -> None:
        self.log = log
        self.errors: list[str] = []
        """Bodies of those that are no answers."""
        self.pages: dict[str, str] = {}

    def check(self, *expected: str) -> None:
        """No mark is anywhere, though much was said, of each of `expected` among it."""
        log = self.log.getvalue()
        for place, text in {"the log": log, **self.pages, "an error": "\n".join(self.errors)}.items():
            assert len(text) > 20, place
            for name, secret in SECRETS.items():
                if (place, name) == ("an error", "grammar"):
                    continue  # what is wrong with a schema is said to whoever sent it, in a few of its words
                at = text.find(secret)
                assert at < 0, f"{name} is in {place}: {text[max(0, at - 300) : at + 100]}"
        assert all(len(error) < MAX_ERROR_CHARS for error in self.errors)
        assert [each for each in expected if each not in log] == []


@pytest.fixture(params=["text", pytest.param("json", marks=pytest.mark.nightly)])
def seen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """Everything that would come to a terminal, from structlog, logging, and asyncio's own complaints."""
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    handler = logging.StreamHandler(written)
    before = structlog.get_config()
    logging.getLogger().addHandler(handler)
    logs.configure("debug", request.param)
    try:
        yield Seen(written)
    finally:
        structlog.configure(**before)
        logging.getLogger().removeHandler(handler)


@asynccontextmanager
async def world(
    card: ModelCard, folder: Path, seen: Seen, runner: SayingRunner
) -> AsyncIterator[tuple[Server, AdminServer, aiohttp.ClientSession]]:
    pytest.importorskip("re2", reason="google-re2 is not installed (the extra `filter`)")
    text = toml(folder)
    config = configuration.loads(text + "\n[admin]\nport = 0", "test.toml")
    async with (
        serving(card, lambda: runner, text) as server,
        admin.beside(server.pipeline, config, card) as page,
        aiohttp.ClientSession() as session,
    ):
        assert page is not None
        yield server, page, session
        await look(server, page, session, seen)


async def look(server: Server, page: AdminServer, session: aiohttp.ClientSession, seen: Seen) -> None:
    """At every page that says something of what happened."""
    for url in (
        *(server.url + path for path in ("/metrics", "/debug/trace", "/v1/models", "/openapi.json")),
        *(page.url + path for path in ("/metrics", "/debug/trace", "/api/evidence", "/api/diagnosis")),
    ):
        async with session.get(url, headers=AUTH) as response:
            seen.pages[url.partition("//")[2]] = await response.text()
            assert response.status == 200, url
    async with session.get(page.url + "/api/live") as response:
        parts = [await response.content.readuntil(b"\n\n") for _ in range(3)]
        seen.pages["/api/live"] = b"".join(parts).decode()


class Says(SayingRunner):
    """The marked words by seed; whatever seed it does not know gets the first of them."""

    def __init__(self) -> None:
        filtered = f"{OUT} {SECRETS['output']} that is not said."
        super().__init__({1: OUT * 2, 2: filtered, 3: OUT * 4000})
        self._texts = defaultdict(lambda: (OUT * 2).encode(), self._texts)


async def post(
    session: aiohttp.ClientSession,
    seen: Seen,
    url: str,
    body: Any,
    *,
    status: int | None = None,
    **headers: str,
) -> int:
    """The status of the answer, which is kept if it is an error."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with session.post(url, data=data, headers=AUTH | headers) as response:
        text = await response.text()
        if response.status != 200:
            seen.errors.append(text + repr(response.headers))
        elif '{"error":' in text:
            seen.errors.append(text[text.index('{"error":') :])
        assert status in (None, response.status), (status, text)
        return response.status


async def wrong_fields(session: aiohttp.ClientSession, seen: Seen, url: str) -> None:
    """Each field is wrong once, and beside it what must not be told."""
    refused = 0
    for path, ask in (("/v1/completions", ASK), ("/v1/chat/completions", CHAT)):
        for field in FIELDS:
            for value in ({"a": 1}, -3000.5):
                refused += await post(session, seen, url + path, ask | {field: value}) == 400
    assert refused > 150
    for prompt in PROMPTS:
        for path in ("/v1/completions", "/tokenize"):
            await post(session, seen, url + path, {"prompt": prompt, "max_tokens": 1, "seed": 1, "echo": 3})
            await post(session, seen, url + path, {"prompt": prompt, "max_tokens": 1, "seed": 1} | {})
    for messages in MESSAGES:
        for path in ("/v1/chat/completions", "/tokenize"):
            assert await post(session, seen, url + path, {"messages": messages}) in (400, 413)
    for more in TOOLS:
        await post(session, seen, url + "/v1/chat/completions", CHAT | more)
        await post(session, seen, url + "/v1/completions", ASK | more)
    for given in INPUTS:
        await post(session, seen, url + "/v1/responses", {"input": given, "instructions": TEXT})
    for tokens in ([SECRETS["prompt"]], SECRETS["prompt"] + "x" * 50, [1, SECRETS["prompt"]]):
        await post(session, seen, url + "/detokenize", {"tokens": tokens}, status=400)


async def wrong_requests(session: aiohttp.ClientSession, seen: Seen, url: str) -> None:
    """Bodies, keys, paths and headers that are no good."""
    to = url + "/v1/completions"
    whole = json.dumps(ASK).encode()
    for body in (
        whole[:-1],
        b"[" + whole,
        whole + whole,
        b'"%b"' % TEXT.encode(),
        whole.replace(b"zq", b"\xff", 1),
    ):
        await post(session, seen, to, body, status=400)
    await post(session, seen, to, {"prompt": TEXT * 10_000}, status=413)
    await post(session, seen, to, {"prompt": TEXT * 500}, status=413)
    await post(session, seen, to, ASK, status=401, Authorization=f"Bearer {SECRETS['wrongkey']}")
    await post(session, seen, to, ASK, status=401, Authorization=f"{SECRETS['wrongkey']} x")
    encoded = {"Content-Encoding": SECRETS["header"]}
    await post(session, seen, to, ASK, status=415, **encoded)
    poor = {"Authorization": f"Bearer {POOR}"}
    await post(session, seen, to, ASK, status=200, **poor)
    await post(session, seen, to, ASK, status=429, **poor)
    told = {
        "User-Agent": SECRETS["header"],
        "Origin": f"https://{SECRETS['header']}.example",
        "traceparent": TEXT,
    }
    await post(session, seen, to, ASK, status=200, **told)
    for method in ("GET", "POST", "DELETE", "OPTIONS", "PATCH"):
        for path in ("/", "/v1/models/", "/v1/requests/", "/v1/requests/cmpl-"):
            address = f"{url}{path}{SECRETS['path']}?api_key={SECRETS['wrongkey']}"
            async with session.request(method, address, headers=AUTH) as response:
                seen.errors.append(await response.text())
                assert response.status in (404, 405)


async def wrong_frames(session: aiohttp.ClientSession, seen: Seen, url: str) -> None:
    refused = {"Origin": f"https://{SECRETS['header']}.example"} | AUTH
    with pytest.raises(aiohttp.WSServerHandshakeError):
        await session.ws_connect(url + "/v1/stream", headers=refused)
    async with session.ws_connect(url + "/v1/stream", headers=AUTH) as ws:
        bad: list[Any] = [
            f'{{"{SECRETS["frame"]}": 1',
            json.dumps([SECRETS["frame"]]),
            {"type": [SECRETS["frame"]], "id": "a"},
            {"type": "generate", "id": {SECRETS["frame"]: 1}},
            *({"type": "generate", "id": "a", **ASK, field: {"a": 1}} for field in FIELDS),
            *({"type": "generate", "id": "a", "prompt": prompt, "echo": 3} for prompt in PROMPTS),
            *({"type": "generate", "id": "a", "messages": messages, "echo": 3} for messages in MESSAGES),
            *({"type": "generate", "id": "a", **CHAT, **more, "seed": 1.5} for more in TOOLS),
            {"type": "generate", "id": "a", **ASK, "traceparent": TEXT, "top_p": 9},
        ]
        for frame in bad:
            await ws.send_str(frame if isinstance(frame, str) else json.dumps(frame))
            answer = await ws.receive_json(timeout=10)
            assert answer["type"] == "error"
            seen.errors.append(json.dumps(answer))
        await ws.send_bytes(SECRETS["frame"].encode())
        seen.errors.append(json.dumps(await ws.receive_json(timeout=10)))
        await ws.send_str(SECRETS["frame"] * 10_000)
        closed = await ws.receive(timeout=10)
        assert ws.close_code == 1009
        seen.errors.append(repr(closed))


async def wrong_bytes(seen: Seen, port: int) -> None:
    """What is not HTTP, or only the beginning of it."""
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    garbage = SECRETS["garbage"]
    for data in (
        f"{garbage}\r\n\r\n",
        f"GET /{garbage} HTTP/7.7\r\n\r\n",
        f"GET /{garbage}\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
        f"GET / HTTP/1.1\r\n{garbage}\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: x\r\n{garbage} : x\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: x\r\nX: {garbage * 1000}\r\n\r\n",
        f"{head}Content-Length: {garbage}\r\n\r\n",
        f"{head}Transfer-Encoding: {garbage}\r\n\r\n",
        f"{head}Transfer-Encoding: chunked\r\n\r\n{garbage}\r\n",
        f"{head}Content-Length: 1000\r\n\r\n{TEXT}",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data.encode())
        async with asyncio.timeout(5):
            with suppress(ConnectionError):
                seen.errors.append((await reader.read()).decode())
        writer.close()


async def wrong_clients(session: aiohttp.ClientSession, seen: Seen, server: Server) -> None:
    """Those that leave, do not read, or are too many; and an answer that the filter ends."""
    url, port = server.url, int(server.url.rpartition(":")[2])
    await post(session, seen, url + "/v1/completions", ASK | {"seed": 2, "max_tokens": 200}, status=200)
    for stream in (True, False):
        body = json.dumps(ASK | {"seed": 3, "max_tokens": 4000, "stream": stream}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
        reset, slow = socket.socket(), socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        for each in (reset, slow):
            each.connect(("127.0.0.1", port))
            each.sendall(request)
        await asyncio.sleep(0.05)
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reset.close()
        await asyncio.sleep(1.0 if stream else 0.1)
        slow.close()
    await post(session, seen, url + "/v1/completions", ASK | {"prompt": [TEXT] * 9}, status=429)


async def faults(
    session: aiohttp.ClientSession, seen: Seen, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is ours fails, and quotes what it was working on."""

    def broken(self: Any, texts: Any, *_: Any, **__: Any) -> NoReturn:
        raise ValueError(f"cannot work on {texts!r}")

    def broken_at_last(self: Any, wanted: Any, *_: Any, **__: Any) -> NoReturn:
        try:
            {}[wanted[0].prompt or "chat"]
        except KeyError as error:
            raise RuntimeError(f"cannot take {wanted!r}") from error

    asks = (
        ("/v1/completions", ASK),
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", ASK | {"stream": True}),
    )
    with monkeypatch.context() as patch:
        patch.setattr(PromptEncoder, "encode", broken)
        for path, body in (*asks, ("/tokenize", {"prompt": TEXT})):
            await post(session, seen, url + path, body, status=500)
    with monkeypatch.context() as patch:
        patch.setattr(Intake, "submit_all", broken_at_last)
        for path, body in asks:
            await post(session, seen, url + path, body, status=500)


def test_of_all_that_goes_wrong_nothing_is_told(
    fake_card: ModelCard, tmp_path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with world(fake_card, tmp_path, seen, Says()) as (server, page, session):
            url = server.url
            await post(session, seen, url + "/v1/completions", ASK, status=200)
            await post(session, seen, url + "/v1/chat/completions", CHAT | {"stream": True}, status=200)
            await post(session, seen, url + "/v1/responses", {"input": TEXT, "instructions": TEXT})
            await wrong_fields(session, seen, url)
            await wrong_requests(session, seen, url)
            await wrong_frames(session, seen, url)
            for port in (url.rpartition(":")[2], page.port):
                await wrong_bytes(seen, int(port))
            await wrong_clients(session, seen, server)
            await faults(session, seen, url, monkeypatch)

    asyncio.run(main())
    assert len(seen.errors) > 300
    seen.check("access", "request_failed", "cannot tokenize", "slow_request", "http_fault")


def test_of_a_crash_nothing_is_told(fake_card: ModelCard, tmp_path: Path, seen: Seen) -> None:
    """The device is lost again and again, then for ever."""
    runner = Says()
    num_steps = 0

    def crash(plan: StepPlan) -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps > 3:
            raise RuntimeError("an illegal memory access was encountered")

    runner._before_step = crash

    async def main() -> None:
        async with (
            serving(fake_card, lambda: runner, toml(tmp_path)) as server,
            aiohttp.ClientSession() as session,
        ):
            url = server.url
            bodies = [ASK, ASK | {"stream": True}] * 2
            answers = (post(session, seen, f"{url}/v1/completions", body) for body in bodies)
            await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), 30)

    with pytest.raises(StageCrashed) as crashed:
        asyncio.run(main())
    structlog.get_logger().error(
        "the pipeline ended", reason=str(crashed.value), exc_info=crashed.value.__cause__
    )
    assert len(seen.errors) == 4
    seen.check("access", "the device is lost", "illegal memory access", "the pipeline ended")
