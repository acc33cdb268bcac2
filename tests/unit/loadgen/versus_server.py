"""A server to be compared, run as a program: each token takes --token-s, a prompt's token a tenth of that.

    python versus_server.py --port PORT --pids FOLDER [--token-s S] [--dies-at N] [--never-ready] [--short]

It writes its process id into FOLDER.
"""

import argparse
import asyncio
import json
import os
from pathlib import Path

from aiohttp import web


class Program:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.num_requests = 0
        self.prompts: list[tuple[int, ...]] = []

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.arguments.never_ready else 200)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake"}]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        self.num_requests += 1
        if self.num_requests == self.arguments.dies_at:
            print("out of memory", flush=True)
            os._exit(7)
        body = await request.json()
        prompt = tuple(body["prompt"])
        if prompt in self.prompts:
            print("seen before", flush=True)
        self.prompts.append(prompt)
        return await self._answer(request, prompt, body["max_tokens"] - self.arguments.short)

    async def _answer(self, request: web.Request, prompt: tuple[int, ...], count: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(len(prompt) * self.arguments.token_s / 10)
        for i in range(count):
            await asyncio.sleep(self.arguments.token_s)
            reason = "length" if i + 1 == count else None
            await _event(response, {"choices": [{"text": "x", "finish_reason": reason}]})
        usage = {"prompt_tokens": len(prompt), "completion_tokens": count}
        await _event(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response


async def _event(response: web.StreamResponse, content: dict[str, object]) -> None:
    await response.write(b"data: " + json.dumps(content).encode() + b"\n\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pids", type=Path, required=True)
    parser.add_argument("--token-s", type=float, default=0.001)
    parser.add_argument("--dies-at", type=int, default=0)
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--short", action="store_true")
    arguments = parser.parse_args()
    (arguments.pids / f"{os.getpid()}.pid").touch()
    print("loading", flush=True)
    program, app = Program(arguments), web.Application()
    app.router.add_get("/health", program.health)
    app.router.add_get("/v1/models", program.models)
    app.router.add_post("/v1/completions", program.completions)
    web.run_app(app, host="127.0.0.1", port=arguments.port, print=None, shutdown_timeout=0.2)


if __name__ == "__main__":
    main()
