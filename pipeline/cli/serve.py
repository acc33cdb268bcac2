"""`stageline serve`: run the server until a signal, then drain."""

import argparse
import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
import uvloop

from pipeline import admin, assemble, logs
from pipeline import config as configuration
from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.model import load_card, rename
from pipeline.errors import ConfigError, StageCrashed

EPILOG = """\
The first Ctrl-C or SIGTERM drains: no new requests, live ones finish (server.drain_timeout_s at most).
A second one ends them at once.

examples:
  stageline serve
  stageline serve --model ./my-llama --port 9000
  stageline serve --model hf:HuggingFaceTB/SmolLM2-360M-Instruct --config my.toml
"""


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "serve",
        help="run the server",
        description="Serve a language model over HTTP, SSE and websocket.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config", type=Path, help="configuration file (default: ./config.toml if it is there)"
    )
    parser.add_argument(
        "--model", help="model reference: folder, .gguf file, hf:org/name or pypi:package==version#path"
    )
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on; 0 picks a free one (default 8000)")
    parser.add_argument(
        "--admin-port",
        type=_admin_port,
        metavar="PORT|off",
        help="port of the live page; 0 picks a free one (default: the one after --port)",
    )
    parser.set_defaults(run=run)


def _admin_port(text: str) -> int | str:
    if text == "off":
        return text
    if text.isascii() and text.isdigit() and int(text) <= 65_535:
        return int(text)
    raise argparse.ArgumentTypeError("must be a port number or off")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; 0 after a drain, 1 if a second signal or a crash cut it short."""
    config = configuration.load(args.config)
    config = configuration.override(
        config, model=args.model, host=args.host, port=args.port, admin_port=args.admin_port
    )
    logs.configure(config.server.log_level, config.server.log_format)
    blueprint = assemble.check(config)
    _check_door(blueprint)
    started = time.monotonic()
    card = load_card(config.model.reference)
    if config.model.name:
        card = rename(card, config.model.name)
    print(f"Loading {card.name} ...", file=sys.stderr, flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(blueprint, card, started))


def _check_door(blueprint: assemble.Blueprint) -> None:
    """Raises ConfigError where the class in ingress's place opens no port."""
    if not hasattr(blueprint.options["ingress"], "port"):
        config = blueprint.config
        raise ConfigError(
            f"{config.origin}: stages.ingress.use = {config.stages['ingress'].use!r}: it opens no port, so "
            "nobody could ask; docs/embedded.md says what it is for"
        )


async def _serve(blueprint: assemble.Blueprint, card: ModelCard, started: float) -> int:
    pipeline = assemble.build(blueprint, card)
    until = asyncio.Event()
    is_ready = False

    async def serve_watched() -> None:
        async with admin.beside(pipeline, blueprint.config, card) as beside:

            def on_ready() -> None:
                nonlocal is_ready
                is_ready = True
                if beside is not None:
                    beside.door_is_open()
                _announce(pipeline, card, beside, time.monotonic() - started)

            await pipeline.supervisor.run(until, on_ready)

    serving = asyncio.ensure_future(serve_watched())
    _on_signals(until, serving, lambda: is_ready)
    try:
        await serving
    except asyncio.CancelledError:
        if not is_ready:
            print("Stopped before it was ready.", file=sys.stderr)
            return 130
        print("Ended at once; live requests were answered with an error.", file=sys.stderr)
        return 1
    except StageCrashed as crash:
        structlog.get_logger().error("the pipeline ended", reason=str(crash), exc_info=crash.__cause__)
        return 1
    print("Drained. Goodbye.", file=sys.stderr)
    return 0


def _on_signals(until: asyncio.Event, serving: "asyncio.Future[None]", is_ready: Callable[[], bool]) -> None:
    def stop() -> None:
        if until.is_set() or not is_ready():
            serving.cancel()
            return
        until.set()
        print(
            "\nDraining: live requests finish, new ones are refused. Once more ends at once.", file=sys.stderr
        )

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)


def _announce(
    pipeline: assemble.Pipeline,
    card: ModelCard,
    beside: admin.AdminServer | None,
    took_s: float,
) -> None:
    ingress: Any = pipeline.stages["ingress"][0]
    print(
        READY.format(
            model=card.name,
            host=admin.in_url(ingress.options.host),
            port=ingress.port,
            live_page=LIVE_PAGE.format(url=beside.url) if beside is not None else "",
            took_s=took_s,
            python=_shown(sys.executable),
            stageline=_shown(sys.argv[0]),
        )
    )
    sys.stdout.flush()


def _shown(program: str) -> str:
    """A program as the user can type it here."""
    if shutil.which(Path(program).name) == program:
        return Path(program).name
    return os.path.relpath(program) if Path(program).is_relative_to(Path.cwd()) else program


READY = """\

{model} is ready after {took_s:.1f} s at http://{host}:{port}

  HTTP, streamed:
    curl -N http://{host}:{port}/v1/chat/completions -H 'Content-Type: application/json' \\
      -d '{{"messages": [{{"role": "user", "content": "Why is the sky blue?"}}], "stream": true}}'

  WebSocket, one line of Python:
    {python} -c $'import asyncio, aiohttp\\nasync def main():\\n async with aiohttp.ClientSession() as s, \
s.ws_connect("ws://{host}:{port}/v1/stream") as ws:\\n  await ws.send_json({{"type": "generate", "id": "a", \
"prompt": "Once upon a time", "max_tokens": 32}})\\n  async for m in ws:\\n   print(m.data)\\n   \
if m.json()["type"] in ("done", "error"): break\\nasyncio.run(main())'

  Chat in the terminal:
    {stageline} chat --url http://{host}:{port}
{live_page}
Ctrl-C drains and stops.
"""

LIVE_PAGE = """
  See where the time goes, in a browser:
    {url}
"""
