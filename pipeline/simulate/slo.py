"""Limits that make an answer count as good, as `ttft=1s,tpot=50ms`."""

import re

import msgspec

from pipeline.errors import ConfigError

METRICS = ("ttft", "tpot", "e2e")
_LIMIT = re.compile(r"(\w+)=(\d+(?:\.\d+)?)(ms|s)")
_NS = {"ms": 1_000_000, "s": 1_000_000_000}


class Slo(msgspec.Struct, frozen=True):
    """In ns; None: any."""

    ttft: int | None = None
    tpot: int | None = None
    e2e: int | None = None


def parse_slo(text: str) -> Slo:
    """Raises ConfigError if it is not `METRIC=NUMBER(ms|s),...`."""
    limits: dict[str, int] = {}
    for part in text.split(","):
        match = _LIMIT.fullmatch(part.strip())
        if match is None or match[1] not in METRICS:
            raise ConfigError(f"--slo {part!r}: expected {'|'.join(METRICS)}=NUMBER followed by ms or s")
        limits[match[1]] = int(float(match[2]) * _NS[match[3]])
    return Slo(**limits)
