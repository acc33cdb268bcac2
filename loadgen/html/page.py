"""report.html: one page from one result, which opens without a network."""

from html import escape
from importlib.resources import files
from pathlib import PurePath
from string import Template
from typing import Any

from loadgen.html import course, latency, stages
from loadgen.html.plot import figure
from loadgen.html.tables import facts, table, tiles
from loadgen.record import Record
from loadgen.report import goodput_lines, tokens_line, trace_line, verdict, verification_line
from loadgen.result import Result
from loadgen.summary import Spread, Summary


def render(result: Result) -> str:
    """The whole page."""
    summary, records = result.summary, result.requests
    wall_s = summary.wall_s
    return Template(files("loadgen.html").joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=escape(_title(result)),
        subtitle=escape(_subtitle(result)),
        notes=_notes(result),
        tiles=tiles(_tiles(summary)),
        course=course.timeline(records, wall_s)
        + course.tokens(records, wall_s)
        + course.requests(records, wall_s)
        + course.live(records, wall_s),
        latency=latency.ttft(_finished(result))
        + latency.e2e(_finished(result))
        + latency.tpot(_finished(result))
        + latency.itl(_finished(result))
        + _spreads(summary),
        lengths=latency.by_length(records),
        server=stages.stages(records) + course.queues(result.queues, wall_s),
        facts=_facts(result),
    )


def _finished(result: Result) -> list[Record]:
    return [record for record in result.requests if record.is_finished]


def _title(result: Result) -> str:
    return f"{PurePath(result.trace.path).name} on {result.config.get('served_model')}"


def _subtitle(result: Result) -> str:
    target = result.config["target"]
    return f"{target['url']} over {target['protocol']}, begun {result.started_at}"


def _notes(result: Result) -> str:
    """Verdicts and failures, the good ones too: silence is no statement."""
    is_bound = bool(result.summary.client_bound)
    notes = [("bad" if is_bound else "good", verdict(result.summary))]
    if result.verification is not None:
        notes.append(
            ("good" if result.verification.is_clean else "bad", verification_line(result.verification))
        )
    for reason, count in result.summary.failures.items():
        example = result.summary.failure_examples[reason]
        notes.append(("bad", f"failed {reason}: {count}, first: {example}"))
    notes += [(_colour(line), line) for line in goodput_lines(result.summary)]
    items = "".join(f'<li class="{css}">{escape(text)}</li>' for css, text in notes)
    return f'<ul class="notes">{items}</ul>'


def _colour(line: str) -> str:
    return "bad" if line.startswith("SLO missed") else "good" if line.startswith("SLO held") else ""


def _tiles(summary: Summary) -> list[tuple[str, str, str]]:
    left = summary.num_abandoned + summary.num_cancelled
    failed = sum(summary.failures.values())
    counts = f"of {summary.num_sent:,} sent; {failed:,} failed" + (f", {left:,} left" if left else "")
    found = [
        ("finished", f"{summary.num_finished:,}", counts),
        ("output", f"{summary.output_tokens_per_s:,.0f} tok/s", f"over {summary.wall_s:,.1f} s"),
        ("requests", f"{summary.requests_per_s:,.2f}/s", "finished"),
        _tile("TTFT p50", summary.ttft),
        _tile("E2E p50", summary.e2e),
        _tile("TPOT p50", summary.tpot),
    ]
    if summary.goodput is not None:
        note = f"of offered; shed {summary.goodput.shed_pct:.1f} %"
        found.append(("goodput", f"{summary.goodput.offered_pct:.1f} %", note))
    return found


def _tile(name: str, spread: Spread | None) -> tuple[str, str, str]:
    if spread is None:
        return name, "-", "no finished request"
    return name, _time(spread.p50_ms), f"p99 {_time(spread.p99_ms)}"


def _time(value_ms: float) -> str:
    """For a tile: short."""
    return f"{value_ms:.0f} ms" if value_ms < 10_000 else f"{value_ms / 1000:,.1f} s"


def _spreads(summary: Summary) -> str:
    names = {
        "TTFT, from due": summary.ttft,
        "TTFT, from sent (raw)": summary.raw_ttft,
        "E2E, from due": summary.e2e,
        "E2E, from sent (raw)": summary.raw_e2e,
        "TPOT": summary.tpot,
        "ITL (chunk gap)": summary.itl,
        "lateness of the generator": summary.lateness,
        "loop lag of the generator": summary.loop_lag,
    }
    rows = [[name, *_cells(spread)] for name, spread in names.items()]
    body = table(["ms", "values", "mean", "p50", "p90", "p99", "max"], rows)
    return figure("In numbers", "milliseconds; latencies of finished requests", body, css="wide")


def _cells(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["0", *["-"] * 5]
    values = (spread.mean_ms, spread.p50_ms, spread.p90_ms, spread.p99_ms, spread.max_ms)
    return [f"{spread.count:,}", *(f"{value:,.1f}" for value in values)]


def _facts(result: Result) -> str:
    summary, machine = result.summary, result.machine
    work = facts(
        [
            ("trace", trace_line(result.trace)),
            ("input", tokens_line(summary.input, summary.input_tokens_per_s)),
            ("output", tokens_line(summary.output, summary.output_tokens_per_s)),
            ("trace sha256", result.trace.sha256),
            ("workload sha256", result.workload.sha256),
            *(("note", note) for note in result.trace.notes),
        ]
    )
    where = facts(
        [
            ("generator", f"{machine.cpu}, {machine.cores} cores, {machine.platform}"),
            ("python", machine.python),
            ("packages", ", ".join(f"{name} {version}" for name, version in machine.packages.items())),
            *((name, _plain(value)) for name, value in result.config.items() if value is not None),
        ]
    )
    return figure("Workload", "what was sent, and how it differs from the trace", work) + figure(
        "Options and machine", "of the generator; the server's machine may be another", where
    )


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items() if item is not None)
    return str(value)
