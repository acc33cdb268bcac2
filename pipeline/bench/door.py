"""What the door costs: a request's key, limits and check; a piece of text in the filter; the middlewares.

    python -m pipeline.bench.door

Medians of many short rounds. What a middleware costs is seen at a real socket of this machine: requests that
come one behind the other on one connection, answered by turns by a door with it and by one without.
"""

import asyncio
import io
import json
import statistics
from collections.abc import Callable
from contextlib import redirect_stderr
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from typing import Any

import uvloop

from pipeline import assemble, logs
from pipeline import config as configuration
from pipeline.bench.stand import build_stand
from pipeline.checkpoint.fake import byte_card
from pipeline.core.allowance import Allowance
from pipeline.core.content_filter import ContentFilter
from pipeline.core.keys import Key, KeyRing, fingerprint, new_secret
from pipeline.core.wire import Limits, bearer_of, parse_chat
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.testing import FakeRunner
from pipeline.stages.filter import FilterRule, compiled

ROUNDS, CALLS = 200, 100
NUM_KEYS = 1000
NUM_TERMS, PIECE = 100, "a piece of an answer, "
NUM_PIPELINED, DOOR_ROUNDS, ORIGIN = 200, 60, "https://a.example"
LIMITS = Limits(model="m", max_model_len=8192, vocab_size=49_152)
BODY = json.dumps(
    {
        "model": "m",
        "messages": [
            {"role": "system", "content": "You answer in one sentence."},
            {"role": "user", "content": "What is a queue, and what does it cost? " * 20},
        ],
        "max_tokens": 200,
        "temperature": 0.7,
        "top_p": 0.9,
        "stop": ["\n\n"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
).encode()


def main() -> None:
    """Measure and print."""
    plain_us, keyed_us, logged_us = uvloop.run(get_us())
    parts = {
        f"key, among {NUM_KEYS:,}": median_us(key_check()),
        "limits: counted, and settled": median_us(limit_check()),
        f"body of {len(BODY):,} bytes, checked": median_us(lambda: parse_chat(BODY, LIMITS, 1)),
        f"filter, begun, and {len(PIECE)} characters at a time": median_us(filter_scan(PIECE)),
    }
    for name, us in parts.items():
        show(name, us)
    show("together", sum(parts.values()))
    show(f"filter, {16 * len(PIECE)} characters at a time", median_us(filter_scan(PIECE * 16)))
    show("a GET of /v1/models, all of it", plain_us)
    show("  more with a key and CORS", keyed_us - plain_us)
    show("  more with an access log too (JSON)", logged_us - keyed_us)


def show(name: str, us: float) -> None:
    print(f"{name:44} {us:6.1f} us")


def filter_scan(text: str) -> Callable[[], object]:
    """A piece of an answer in which nothing is found, against so many terms."""
    terms = tuple(f"word{k:02}that is not there" for k in range(NUM_TERMS))
    content = ContentFilter(compiled([FilterRule(terms=terms)]), cleans=False)
    return lambda: content.push(text)


async def get_us() -> list[float]:
    """A GET at a door without middlewares, one with keys and CORS, and one with an access log as well."""
    secret = new_secret()
    with TemporaryDirectory() as folder, redirect_stderr(Nowhere()):
        logs.configure("info", "json")
        keys = Path(folder) / "keys.toml"
        keys.write_text(f'[bench]\nsha256 = "{fingerprint(secret)}"\n', "utf-8")
        keyed = f'keys_file = "{keys}"\ncors_origins = ["{ORIGIN}"]'
        doors = [_door(toml) for toml in ("", keyed, f"{keyed}\naccess_log = true")]
        for door in doors:
            await door.start()
        try:
            times = [[await _get_us(door.port, secret) for door in doors] for _ in range(DOOR_ROUNDS)]
        finally:
            for door in doors:
                await door.stop()
    return [statistics.median(column) for column in zip(*times, strict=True)]


class Nowhere(io.StringIO):
    """Where lines of the log go."""

    def write(self, text: str, /) -> int:
        return len(text)


def _door(options: str) -> Any:
    toml = f"[stages.ingress.options]\nport = 0\n{options}\n"
    blueprint = assemble.check(configuration.loads(toml, "bench"))
    runner = RunnerFactory(_runner)
    return build_stand(blueprint, "ingress", byte_card(), runner).stages[0]


def _runner() -> Any:
    """Never opened: the door alone is started."""
    return FakeRunner()


async def _get_us(port: int, secret: str) -> float:
    """Of one of many requests that come together on one connection."""
    head = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nOrigin: {ORIGIN}\r\nAuthorization: Bearer {secret}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begin_ns = perf_counter_ns()
    writer.write(head.encode() * NUM_PIPELINED)
    num_answers = 0
    while num_answers < NUM_PIPELINED:
        num_answers += (await reader.readuntil(b"\r\n\r\n")).count(b"HTTP/1.1 200")
    us = (perf_counter_ns() - begin_ns) / NUM_PIPELINED / 1e3
    writer.close()
    return us


def key_check() -> Callable[[], object]:
    secrets = [new_secret() for _ in range(NUM_KEYS)]
    ring = KeyRing({str(k): Key(sha256=fingerprint(secret)) for k, secret in enumerate(secrets)})
    header = f"Bearer {secrets[NUM_KEYS // 2]}"
    return lambda: ring.find(bearer_of(header), datetime.now(UTC).date())


def limit_check() -> Callable[[], object]:
    allowance = Allowance(requests_per_min=10**9, tokens_per_min=10**12, max_concurrent=10)

    def check() -> None:
        charge = allowance.admit(1, 200, perf_counter_ns())
        allowance.settle(charge, 150, perf_counter_ns())

    return check


def median_us(call: Callable[[], object]) -> float:
    """Of one call."""
    times: list[float] = []
    for _ in range(ROUNDS):
        begin_ns = perf_counter_ns()
        for _ in range(CALLS):
            call()
        times.append((perf_counter_ns() - begin_ns) / CALLS / 1e3)
    return statistics.median(times)


if __name__ == "__main__":
    main()
