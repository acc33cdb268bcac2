"""What the door costs a request: its key, its limits, the check of its body.

    python -m pipeline.bench.door

Medians of many short rounds, on the CPU alone: no sockets, no pipeline.
"""

import json
import statistics
from collections.abc import Callable
from datetime import UTC, datetime
from time import perf_counter_ns

from pipeline.core.allowance import Allowance
from pipeline.core.keys import Key, KeyRing, fingerprint, new_secret
from pipeline.core.wire import Limits, bearer_of, parse_chat

ROUNDS, CALLS = 200, 100
NUM_KEYS = 1000
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
    parts = {
        f"key, among {NUM_KEYS:,}": median_us(key_check()),
        "limits: counted, and settled": median_us(limit_check()),
        f"body of {len(BODY):,} bytes, checked": median_us(lambda: parse_chat(BODY, LIMITS, 1)),
    }
    for name, us in parts.items():
        print(f"{name:32} {us:6.1f} us")
    print(f"{'together':32} {sum(parts.values()):6.1f} us a request")


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
