"""A headless Chromium, driven over its own protocol (Chrome DevTools Protocol) with nothing but aiohttp.

async with browsing() as browser:
    page = await browser.open(url, width=1280, height=900)
    await page.until("document.title")
    await page.press("Tab")
"""

import asyncio
import base64
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
    ),
    *("--remote-debugging-port=0", "--remote-allow-origins=*"),
)
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowUp": 38, "ArrowDown": 40}
Json = dict[str, Any]


def find_browser() -> str:
    """Its path. Skips the test where there is none, and fails it in CI."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        if "CI" in os.environ:
            pytest.fail(f"CI has none of {', '.join(BROWSERS)}; .ci/run installs one")
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    return found


class Page:
    """One tab. `faults` collects what its console and its scripts complain of."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser = browser
        self._session = session
        self.faults: list[str] = []

    async def call(self, method: str, **params: Any) -> Json:
        return await self._browser.call(method, params, self._session)

    async def run(self, script: str) -> Any:
        """The value of an expression, promises awaited."""
        answer = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, (script, answer["exceptionDetails"])
        return answer["result"].get("value")

    async def until(self, script: str, within_s: float = 10) -> Any:
        """Wait for an expression to be true; its value. What it reads need not be there yet."""
        value, tried = None, f"(() => {{ try {{ return {script} }} catch {{ return false }} }})()"
        try:
            async with asyncio.timeout(within_s):
                while not (value := await self.run(tried)):  # noqa: ASYNC110 - the page signals nobody
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"not within {within_s:g} s: {script}; faults: {self.faults}")
        return value

    async def press(self, key: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            code = KEYS[key]
            text = {"text": "\r"} if key == "Enter" and kind == "rawKeyDown" else {}
            kind = "keyDown" if text else kind
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text
            )

    async def type(self, text: str) -> None:
        await self.call("Input.insertText", text=text)

    async def resize(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def prefer(self, **features: str) -> None:
        """Media features, such as prefers_color_scheme="dark"."""
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        await self.call("Emulation.setEmulatedMedia", features=wanted)

    async def shot(self, *, whole: bool = True) -> bytes:
        """A PNG of the page, or of the part of it that the window shows."""
        answer = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])

    def hear(self, method: str, params: Json) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.faults.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.faults.append(" ".join(str(arg.get("value", arg)) for arg in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.faults.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")


class Browser:
    """The process, spoken to over one websocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = count(1)
        self._waiting: dict[int, asyncio.Future[Json]] = {}
        self._pages: dict[str, Page] = {}

    async def open(self, url: str, width: int = 1280, height: int = 900) -> Page:
        target = await self.call("Target.createTarget", {"url": "about:blank"})
        attached = await self.call("Target.attachToTarget", {"targetId": target["targetId"], "flatten": True})
        session = attached["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Runtime", "Log", "Page"):
            await page.call(f"{domain}.enable")
        await page.resize(width, height)
        await page.call("Page.navigate", url=url)
        return page

    async def call(self, method: str, params: Json, session: str | None = None) -> Json:
        number = next(self._ids)
        answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        message = {"id": number, "method": method, "params": params}
        await self._socket.send_str(json.dumps(message | ({"sessionId": session} if session else {})))
        return await asyncio.wait_for(answer, 20)

    async def listen(self) -> None:
        async for message in self._socket:
            body = json.loads(message.data)
            if waiting := self._waiting.pop(body.get("id", 0), None):
                if waiting.done():
                    continue
                if "error" in body:
                    waiting.set_exception(RuntimeError(str(body["error"])))
                else:
                    waiting.set_result(body["result"])
            elif page := self._pages.get(body.get("sessionId", "")):
                page.hear(body["method"], body["params"])


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    """A browser with a profile of its own, ended at the end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            find_browser(),
            *FLAGS,
            f"--user-data-dir={profile}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port, path = await _address(Path(profile) / "DevToolsActivePort")
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(f"ws://127.0.0.1:{port}{path}", max_msg_size=1 << 28) as socket,
            ):
                browser = Browser(socket)
                listening = asyncio.create_task(browser.listen())
                yield browser
                await socket.close()
                await listening
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _address(file: Path) -> tuple[str, str]:
    """Port and path, once the browser has written them."""
    async with asyncio.timeout(30):
        while (lines := _lines(file)) is None:  # noqa: ASYNC110 - a file signals nobody
            await asyncio.sleep(0.05)
    return lines[0], lines[1]


def _lines(file: Path) -> list[str] | None:
    text = file.read_text() if file.exists() else ""
    return text.splitlines() if text.count("\n") else None
