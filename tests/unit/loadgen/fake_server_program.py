"""A server to be tuned, run as a program: `max_num_seqs` requests at a time, of which eight go fast.

    python fake_server_program.py --config FILE --port PORT

It writes its process id into the folder of the configuration. `[fake]` says what goes wrong:
fails_to_start, never_ready, stubborn (ignores SIGTERM, has a child), dies_at (the number of a request).
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from aiohttp import web

SERVICE_S = 0.04
FAST_SLOTS = 8
METRICS = """\
# TYPE stageline_tokens_total counter
stageline_tokens_total{{kind="prompt"}} {prompt}
stageline_tokens_total{{kind="output"}} {output}
stageline_steps_total {output}
stageline_preemptions_total 0.0
stageline_kv_blocks 100.0
stageline_kv_blocks_used {used}
stageline_device_busy_seconds_total {busy}
# TYPE stageline_segment_seconds histogram
stageline_segment_seconds_bucket{{le="+Inf",segment="schedule.wait"}} {output}
stageline_segment_seconds_count{{segment="schedule.wait"}} {output}
stageline_segment_seconds_sum{{segment="schedule.wait"}} {busy}
"""


class Program:
    def __init__(self, device: dict[str, Any], fake: dict[str, Any]) -> None:
        self.fake = fake
        self.num_requests = self.num_live = self.most_live = 0
        self.slots = asyncio.Semaphore(min(device["max_num_seqs"], FAST_SLOTS))

    async def ready(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.fake.get("never_ready") else 200)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake"}]})

    async def metrics(self, request: web.Request) -> web.Response:
        done = float(self.num_requests)
        return web.Response(
            text=METRICS.format(prompt=4 * done, output=done, used=self.most_live, busy=SERVICE_S * done)
        )

    async def completions(self, request: web.Request) -> web.Response:
        self.num_requests += 1
        if self.num_requests == self.fake.get("dies_at"):
            print("out of memory", flush=True)
            os._exit(7)
        async with self.slots:
            self.num_live += 1
            self.most_live = max(self.most_live, self.num_live)
            await asyncio.sleep(SERVICE_S)
            self.num_live -= 1
        chunk = '{"choices": [{"text": "x", "finish_reason": "length"}]}'
        usage = '{"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 1}}'
        text = f"data: {chunk}\n\ndata: {usage}\n\ndata: [DONE]\n\n"
        return web.Response(text=text, content_type="text/event-stream")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path)
    parser.add_argument("--port", type=int)
    arguments = parser.parse_args()
    config = tomllib.loads(arguments.config.read_text())
    fake = config.get("fake", {})
    note(arguments.config, os.getpid())
    print("loading", flush=True)
    if fake.get("fails_to_start"):
        sys.exit("no such device: quantum")
    program = Program(config["device"], fake)
    app = web.Application()
    app.router.add_get("/ready", program.ready)
    app.router.add_get("/v1/models", program.models)
    app.router.add_get("/metrics", program.metrics)
    app.router.add_post("/v1/completions", program.completions)
    if fake.get("stubborn"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        note(arguments.config, child.pid)
        asyncio.run(stay(app, arguments.port))
    web.run_app(app, host="127.0.0.1", port=arguments.port, print=None, shutdown_timeout=0.2)


async def stay(app: web.Application, port: int) -> None:
    """Until it is killed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def note(config: Path, pid: int) -> None:
    config.with_name(f"{pid}.pid").touch()


if __name__ == "__main__":
    main()
