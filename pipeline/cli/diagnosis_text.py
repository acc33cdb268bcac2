"""A diagnosis for people: readable on 80 columns."""

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from pipeline.doctor import Attribution, Diagnosis, Finding, StageState, State

COLOURS = {State.HEALTHY: "green", State.IDLE: "green", State.CONSTRAINED: "red", State.UNKNOWN: "yellow"}
MIN_SHARE = 0.005
"""Segments with less of both TTFT and E2E are left out of the table."""


def show(diagnosis: Diagnosis, console: Console) -> None:
    """The verdict, then what it rests on."""
    colour = COLOURS[diagnosis.state]
    console.print(f"[bold {colour}]{escape(diagnosis.verdict)}[/]")
    console.print(f"{diagnosis.num_requests} requests ended in {diagnosis.window_s:.1f} s.", highlight=False)
    for number, finding in enumerate(diagnosis.findings, 1):
        _finding(console, number, finding)
    for attribution in diagnosis.attributions:
        console.print(
            f"\np{attribution.percent}: TTFT {_ms(attribution.ttft_ns)} ms, "
            f"E2E {_ms(attribution.e2e_ns)} ms, {attribution.num_output_tokens:.0f} tokens",
            highlight=False,
        )
        console.print(_latency(attribution))
    if diagnosis.stages:
        console.print(_stages(diagnosis.stages))
    for law in diagnosis.laws:
        mark = "[green]holds[/]" if law.holds else "[bold red]does not hold[/]"
        why = f" ({law.why})" if law.why else ""
        console.print(f"{law.name}: {mark}: {escape(law.claim + why)}", highlight=False)
    for each in diagnosis.unknown:
        console.print(f"Not known: {escape(each)}", highlight=False)


def _finding(console: Console, number: int, finding: Finding) -> None:
    console.print(
        f"\n[bold]{number}. {escape(finding.title)}[/] ({finding.constraint}, {finding.severity}: "
        f"{finding.share:.0%} of {finding.of})",
        highlight=False,
    )
    lines = [f"Seen: {finding.evidence}"]
    lines += [f"Change: {advice.setting} {advice.change}" for advice in finding.advice]
    lines.append(f"Worse: {finding.worse}")
    for line in lines:
        console.print(Padding(escape(line), (0, 0, 0, 3)), highlight=False)


def _latency(attribution: Attribution) -> Table:
    table = Table()
    knows_ttft = bool(attribution.ttft_segments_ns)
    table.add_column("segment")
    for name in ("TTFT ms", "share", "after first token ms") if knows_ttft else ():
        table.add_column(name, justify="right")
    for name in ("E2E ms", "share"):
        table.add_column(name, justify="right")
    for name, whole_ns in attribution.segments_ns.items():
        first_ns = attribution.ttft_segments_ns.get(name, 0.0)
        shares = first_ns / max(1.0, attribution.ttft_ns), whole_ns / max(1.0, attribution.e2e_ns)
        if max(shares) >= MIN_SHARE:
            after_ns = attribution.decode_segments_ns.get(name, 0.0)
            before = (_ms(first_ns), f"{shares[0]:.0%}", _ms(after_ns)) if knows_ttft else ()
            table.add_row(name, *before, _ms(whole_ns), f"{shares[1]:.0%}")
    return table


def _stages(stages: tuple[StageState, ...]) -> Table:
    table = Table(title="\nStages", title_justify="left")
    table.add_column("stage")
    for name in ("busy", "peak", "in/s", "call ms", "wait ms", "queue", "bound"):
        table.add_column(name, justify="right")
    for stage in stages:
        table.add_row(
            f"{stage.name} x{stage.workers}" if stage.workers > 1 else stage.name,
            f"{stage.utilisation:.0%}",
            f"{stage.peak_utilisation:.0%}",
            f"{stage.arrivals_per_s:,.1f}",
            f"{stage.service_ms:.2f}",
            "" if stage.wait_ms is None else f"{stage.wait_ms:,.1f}",
            f"{stage.mean_depth:.1f}",
            str(stage.bound),
        )
    return table


def _ms(ns: float) -> str:
    return f"{ns / 1e6:,.1f}"
