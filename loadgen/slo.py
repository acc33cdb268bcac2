"""Service level objectives: what a request must keep to count as good."""

import math
from collections.abc import Callable

import msgspec

from loadgen.errors import UsageError
from loadgen.record import Record

_METRICS: dict[str, Callable[[Record], float | None]] = {
    "ttft": lambda record: record.ttft_s,
    "tpot": lambda record: record.tpot_s,
    "e2e": lambda record: record.e2e_s,
}
_UNITS_MS = {"ms": 1.0, "s": 1000.0}


class Slo(msgspec.Struct, frozen=True):
    """Limits in milliseconds by metric; all of them must hold."""

    limits_ms: dict[str, float]

    def is_met(self, record: Record) -> bool:
        """True if the request is whole and within every limit."""
        return record.failure is None and all(
            _is_within(name, _METRICS[name](record), limit) for name, limit in self.limits_ms.items()
        )

    def __str__(self) -> str:
        return ", ".join(f"{name.upper()} <= {limit:g} ms" for name, limit in self.limits_ms.items())


def _is_within(name: str, value_s: float | None, limit_ms: float) -> bool:
    """What has no first token is not in time; what has one token keeps any time per further token."""
    return name == "tpot" if value_s is None else value_s * 1000 <= limit_ms


def parse_slo(text: str) -> Slo:
    """`ttft=1000,tpot=100`: milliseconds, or with a unit: `ttft=1s,tpot=100ms`.

    Raises:
        UsageError: an unknown metric or a limit that is no positive number.
    """
    limits = dict(_limit(part, text) for part in text.split(","))
    return Slo(limits)


def _limit(part: str, text: str) -> tuple[str, float]:
    name, _, value = part.strip().partition("=")
    if name not in _METRICS:
        raise UsageError(f"--slo {text}: unknown metric {name!r}; known: {', '.join(_METRICS)}")
    unit = next((unit for unit in _UNITS_MS if value.endswith(unit)), "")
    try:
        limit = float(value.removesuffix(unit)) * _UNITS_MS.get(unit, 1.0)
    except ValueError:
        limit = math.nan
    if not 0 < limit < math.inf:
        raise UsageError(f"--slo {text}: {name} needs a positive number of milliseconds, got {value!r}")
    return name, limit
