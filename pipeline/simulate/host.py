"""What a request and a step cost outside the device."""

import msgspec


class HostCosts(msgspec.Struct, frozen=True):
    """Constants, in ns. The defaults are the server's own on an idle core (docs/benchmarks.md)."""

    door_ns: int = 1_000_000
    """Of a request, from its arrival to the scheduler's queue: parse, tokenize, hand over."""
    launch_ns: int = 100_000
    """Of a step, from its plan to the device; hidden while another step runs."""
    gap_ns: int = 50_000
    """Between two steps of which the second was ready."""
    result_ns: int = 150_000
    """From the end of a step to the scheduler that plans with it."""
    text_ns: int = 200_000
    """From there to the client: detokenize, write, read."""
    flush_tokens: int = 16
    """The streamer's rule, as config.toml has it."""
    flush_ns: int = 20_000_000
