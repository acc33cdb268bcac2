"""Service level objectives: what a request must keep to count as good, and what share of them must be."""

import math
from collections.abc import Callable

import msgspec

from loadgen.errors import UsageError
from loadgen.record import Record


def _longest_gap_s(record: Record) -> float | None:
    return max(record.itl_s, default=None)


_METRICS: dict[str, Callable[[Record], float | None]] = {
    "ttft": lambda record: record.ttft_s,
    "itl": _longest_gap_s,
    "tpot": lambda record: record.tpot_s,
    "e2e": lambda record: record.e2e_s,
}
_OF_MORE_TOKENS = ("itl", "tpot")
"""An answer of one token, or one frame, keeps any limit of these."""
_UNITS_MS = {"ms": 1.0, "s": 1000.0}


class Slo(msgspec.Struct, frozen=True):
    """Limits in milliseconds by metric; all of them must hold."""

    limits_ms: dict[str, float]
    percentile: float | None = None
    """Which percentile of each metric must keep its limit for a run to hold; None: only counted."""

    def is_met(self, record: Record) -> bool:
        """True if the request is whole and within every limit; its ITL is its longest gap."""
        return record.is_finished and all(
            _is_within(name, _METRICS[name](record), limit) for name, limit in self.limits_ms.items()
        )

    def broken(self, records: list[Record]) -> list[str]:
        """The limits that the run's percentile is over, in words; empty if it holds or none is asked for.

        Of TTFT, TPOT and E2E over the requests sent, where a failed or shed one counts as infinitely
        late; of ITL over all gaps. Requests that their client ended are left out.
        """
        if self.percentile is None:
            return []
        found = {name: self._percentile_ms(name, records) for name in self.limits_ms}
        return [
            f"p{self.percentile:g} {name.upper()} {_words(found[name])} is over {limit:g} ms"
            for name, limit in self.limits_ms.items()
            if not found[name] <= limit
        ]

    def __str__(self) -> str:
        limits = ", ".join(f"{name.upper()} <= {limit:g} ms" for name, limit in self.limits_ms.items())
        return limits if self.percentile is None else f"p{self.percentile:g} of {limits}"

    def _percentile_ms(self, name: str, records: list[Record]) -> float:
        values = sorted(_values_s(name, records))
        if not values:
            return 0.0
        rank = math.ceil((self.percentile or 0.0) / 100 * len(values))
        return 1000 * values[max(rank, 1) - 1]


def _words(value_ms: float) -> str:
    return f"{value_ms:.1f} ms" if math.isfinite(value_ms) else "of a failed request"


def _values_s(name: str, records: list[Record]) -> list[float]:
    """What a percentile is taken of; the nearest rank, for no line goes between a value and infinity."""
    counted = [record for record in records if record.ended_by == "server"]
    if name == "itl":
        return [gap for record in counted for gap in record.itl_s]
    values = (math.inf if record.failure else _METRICS[name](record) for record in counted)
    return [value for value in values if value is not None]


def _is_within(name: str, value_s: float | None, limit_ms: float) -> bool:
    """What has no first token is not in time."""
    return name in _OF_MORE_TOKENS if value_s is None else value_s * 1000 <= limit_ms


def parse_slo(text: str) -> Slo:
    """`ttft=1000,itl=50ms,p=99`: milliseconds, or with a unit; `p` is the percentile that must hold.

    Raises:
        UsageError: an unknown metric, a limit that is no positive number, no limit, or p not in 0-100.
    """
    parts = dict(_part(part, text) for part in text.split(","))
    percentile = parts.pop("p", None)
    if not parts:
        raise UsageError(f"--slo {text}: needs a limit; known: {', '.join(_METRICS)}")
    return Slo(parts, percentile)


def _part(part: str, text: str) -> tuple[str, float]:
    name, _, value = part.strip().partition("=")
    if name == "p":
        return name, _number(text, name, value, value, 1.0, 100.0)
    if name not in _METRICS:
        raise UsageError(f"--slo {text}: unknown metric {name!r}; known: {', '.join(_METRICS)}, p")
    unit = next((unit for unit in _UNITS_MS if value.endswith(unit)), "")
    return name, _number(text, name, value, value.removesuffix(unit), _UNITS_MS.get(unit, 1.0), math.inf)


def _number(text: str, name: str, value: str, digits: str, scale: float, most: float) -> float:
    """`digits` times `scale`. Raises UsageError unless it is over 0, finite and at most `most`."""
    try:
        number = float(digits) * scale
    except ValueError:
        number = math.nan
    if not (0 < number <= most and number < math.inf):
        what = "a percentile up to 100" if name == "p" else "a positive number of milliseconds"
        raise UsageError(f"--slo {text}: {name} needs {what}, got {value!r}")
    return number
