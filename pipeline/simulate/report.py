"""Reports: the figures of all cells, as rich tables."""

from collections.abc import Callable, Sequence

from rich.console import Group
from rich.table import Table

from pipeline.simulate.against import Comparison
from pipeline.simulate.figures import Figures, Quantiles

LATENCIES = ("TTFT", "ITL", "TPOT", "E2E", "wait")


def report(target: str, cells: Sequence[Figures]) -> Group:
    """Latencies, then rates and use, then tenants where there are several."""
    tables = [_latencies(target, cells), _rates(cells)]
    if any(cell.by_tenant for cell in cells):
        tables.append(_tenants(cells))
    return Group(*tables)


def _latencies(target: str, cells: Sequence[Figures]) -> Table:
    table = _table(f"{target}: milliseconds", ("policy", "replicas", ""), ("mean", *_PERCENTILES))
    for cell in cells:
        for name, quantiles in zip(LATENCIES, latencies(cell), strict=True):
            is_first = name == LATENCIES[0]
            table.add_row(
                cell.policy if is_first else "",
                str(cell.num_replicas) if is_first else "",
                name,
                *(_ms(value) for value in _values(quantiles)),
                end_section=name == LATENCIES[-1],
            )
    return table


def latencies(cell: Figures) -> tuple[Quantiles, ...]:
    """In the order of LATENCIES."""
    return (cell.ttft_ms, cell.itl_ms, cell.tpot_ms, cell.e2e_ms, cell.wait_ms)


def _rates(cells: Sequence[Figures]) -> Table:
    table = _table("Rates and use", ("",), [f"{cell.policy} x{cell.num_replicas}" for cell in cells])
    rows: dict[str, Callable[[Figures], str]] = {
        "arrive, requests/s": lambda cell: f"{cell.rate:,.3g}",
        "finished, requests/s": lambda cell: f"{cell.requests_per_s:,.3g}",
        "output tokens/s": lambda cell: f"{cell.output_tokens_per_s:,.0f}",
        "goodput, requests/s": lambda cell: f"{cell.goodput_per_s:,.3g} ({cell.goodput:.1%})",
        "requests": lambda cell: f"{cell.num_requests:,}",
        "rejected": _rejected,
        "dropped": lambda cell: f"{cell.num_dropped:,}",
        "preemptions": lambda cell: f"{cell.num_preemptions:,}",
        "run at once, mean / crowded": lambda cell: f"{cell.running_mean:,.1f} / {cell.running_crowded:,.1f}",
        "cached prompt tokens": lambda cell: f"{cell.num_cached_tokens:,}",
        "KV use, mean / max": lambda cell: f"{cell.kv_mean:.1%} / {cell.kv_max:.1%}",
        "device busy": lambda cell: f"{cell.device_busy:.1%}",
        "steps": lambda cell: f"{cell.num_steps:,}",
        "simulated time, s": lambda cell: f"{cell.duration_s:,.0f}",
        "$ per million output tokens": lambda cell: _price(cell.cost_per_million_tokens),
    }
    for name, value in rows.items():
        table.add_row(name, *(value(cell) for cell in cells))
    return table


def comparison_report(comparisons: Sequence[Comparison], aim: float) -> Table:
    """Simulated beside measured."""
    table = _table("Simulated against measured", ("",), ("measured", "simulated", "error"))
    for each in comparisons:
        style = "" if abs(each.error) < aim else "bold"
        table.add_row(
            each.name, f"{each.measured:,.2f}", f"{each.simulated:,.2f}", f"{each.error:+.1%}", style=style
        )
    return table


def _tenants(cells: Sequence[Figures]) -> Table:
    table = _table(
        "By tenant: TTFT and E2E, milliseconds",
        ("policy", "tenant"),
        ("requests", "TTFT p50", "TTFT p99", "E2E p50", "E2E p99"),
    )
    for cell in cells:
        for name, tenant in cell.by_tenant.items():
            table.add_row(
                f"{cell.policy} x{cell.num_replicas}",
                name or "(none)",
                f"{tenant.num_requests:,}",
                _ms(tenant.ttft_ms.p50),
                _ms(tenant.ttft_ms.p99),
                _ms(tenant.e2e_ms.p50),
                _ms(tenant.e2e_ms.p99),
            )
    return table


_PERCENTILES = ("p50", "p90", "p99", "p99.9")


def _values(quantiles: Quantiles) -> tuple[float, ...]:
    return (quantiles.mean, quantiles.p50, quantiles.p90, quantiles.p99, quantiles.p999)


def _ms(value: float) -> str:
    return "-" if value != value else f"{value:,.{0 if value >= 1000 else 1 if value >= 10 else 2}f}"


def _rejected(cell: Figures) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in cell.rejected.items()) or "0"


def _price(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _table(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in names:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table
