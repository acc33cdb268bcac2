"""Hugging Face generate behind the smallest server: what `loadgen versus` compares with (docs/peers.toml).

    python examples/hf_server.py MODEL_FOLDER --port 8000 [--dtype bfloat16] [--batch 8]

POST /v1/completions with `prompt` as token ids, `max_tokens`, `stream`: greedy, end of text ignored. What
waits is answered together, up to --batch requests padded on the left to the longest; such a batch ends when
the longest answer has, and only then does the next begin. That is what generate can do.
"""

import argparse
import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from aiohttp import web
from transformers import AutoModelForCausalLM, AutoTokenizer, StoppingCriteria, StoppingCriteriaList


@dataclass
class Request:
    prompt: list[int]
    max_tokens: int
    tokens: asyncio.Queue[int | None] = field(default_factory=asyncio.Queue)
    """Each as it comes; None: the answer has ended."""


class EachStep(StoppingCriteria):
    """Calls back with the last token of every row; never stops."""

    def __init__(self, seen: Callable[[list[int]], None]) -> None:
        self.seen = seen

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.seen(input_ids[:, -1].tolist())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class Server:
    def __init__(self, folder: str, dtype: str, batch: int) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        self.batch = batch
        self.waiting: asyncio.Queue[Request] = asyncio.Queue()

    async def completions(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        request = Request(body["prompt"], body["max_tokens"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        await self.waiting.put(request)
        num_tokens = 0
        while (token := await request.tokens.get()) is not None:
            num_tokens += 1
            reason = "length" if num_tokens == request.max_tokens else None
            text = self.tokenizer.decode([token]) or " "
            await send(response, {"choices": [{"index": 0, "text": text, "finish_reason": reason}]})
        usage = {"prompt_tokens": len(request.prompt), "completion_tokens": num_tokens}
        await send(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def work(self) -> None:
        """One batch after another."""
        loop = asyncio.get_running_loop()
        while True:
            requests = [await self.waiting.get()]
            while len(requests) < self.batch and not self.waiting.empty():
                requests.append(self.waiting.get_nowait())
            step = 0

            def seen(token_ids: list[int], requests: list[Request] = requests) -> None:
                nonlocal step
                step += 1
                for request, token_id in zip(requests, token_ids, strict=True):
                    if step <= request.max_tokens:
                        loop.call_soon_threadsafe(request.tokens.put_nowait, token_id)
                    if step == request.max_tokens:
                        loop.call_soon_threadsafe(request.tokens.put_nowait, None)

            await asyncio.to_thread(self.generate, requests, seen)

    @torch.inference_mode()
    def generate(self, requests: list[Request], seen: Callable[[list[int]], None]) -> None:
        longest = max(len(request.prompt) for request in requests)
        num_tokens = max(request.max_tokens for request in requests)
        ids = torch.full((len(requests), longest), self.tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(requests):
            ids[row, longest - len(request.prompt) :] = torch.tensor(request.prompt)
            mask[row, longest - len(request.prompt) :] = 1
        self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            stopping_criteria=StoppingCriteriaList([EachStep(seen)]),
            pad_token_id=self.tokenizer.pad_token_id,
        )


async def send(response: web.StreamResponse, content: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(content).encode() + b"\n\n")


async def health(_: web.Request) -> web.Response:
    return web.Response()


async def models(_: web.Request) -> web.Response:
    return web.json_response({"data": [{"id": "hf"}]})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--batch", type=int, default=8, help="requests answered together (default 8)")
    arguments = parser.parse_args()
    server, app = Server(arguments.folder, arguments.dtype, arguments.batch), web.Application()
    app.router.add_get("/health", health)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", server.completions)

    async def beside(_: web.Application) -> Any:
        working = asyncio.ensure_future(server.work())
        yield
        working.cancel()

    app.cleanup_ctx.append(beside)
    web.run_app(app, host="127.0.0.1", port=arguments.port, print=None)


if __name__ == "__main__":
    main()
