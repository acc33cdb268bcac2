"""Reports: what a bench found, as rich tables. docs/stages.md and docs/benchmarks.md
say what the figures mean."""

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table

from pipeline.bench.encoding import EncodingRate
from pipeline.bench.planning import PlanningResult
from pipeline.bench.result import StageResult
from pipeline.bench.whole import WholeResult
from pipeline.simulate.measured import Measured

_BARS = " ▁▂▃▄▅▆▇█"


def stage_report(
    result: StageResult, encodings: Sequence[EncodingRate] = (), beside: Sequence[StageResult] = ()
) -> Group:
    """One stage's figures; `encodings` compares ways to tokenize, the first is the measure of the others;
    `beside` are those that were replayed together with it.
    """
    table = _table(result.stage, "what", "value")
    rows = _service(result) | _demand(result) | _waiting(result) | _memory(result)
    for name, value in rows.items():
        table.add_row(name, value)
    further = ([_encodings(encodings)] if encodings else []) + ([_beside(beside)] if beside else [])
    return Group(table, *further)


def _service(result: StageResult) -> dict[str, str]:
    per_row = result.us_per_row
    rows = {
        "class": result.use,
        "messages": f"{result.messages:,}",
        "rows": f"{result.rows:,}",
        "messages per batch": f"{result.messages / result.batches:.2f}" if result.batches else "-",
        "us per message, mean": f"{result.us_per_message:,.1f}",
        "us per message, p50": f"{result.p50_us:,.1f}",
        "us per message, p99": f"{result.p99_us:,.1f}",
        "us per row": "-" if per_row is None else f"{per_row:,.2f}",
        "messages/s": f"{result.messages_per_s:,.0f}",
        "rows/s": f"{result.rows_per_s:,.0f}",
        "wake-ups per message": f"{result.wakeups / result.messages:.2f}",
    }
    if result.rows_left_out:
        rows["rows left out: begun before"] = f"{result.rows_left_out:,}"
    return rows


def _demand(result: StageResult) -> dict[str, str]:
    """How busy the stage is with what is asked of it, and with how much more it would be the bottleneck."""
    share = result.utilization
    if not share:
        return {}
    asked = f"at {result.at_rows_per_s:,.0f} rows/s" if result.at_rows_per_s else "at the recorded rate"
    return {
        f"utilisation {asked}": f"{share:.2%}",
        "the bottleneck from": f"{1 / share:,.1f} x that: {result.rows_per_s:,.0f} rows/s",
    }


def _waiting(result: StageResult) -> dict[str, str]:
    queue = result.queue
    if queue is None:
        return {}
    return {
        "us in the queue, p50 / p99": f"{queue.wait_p50_us:,.1f} / {queue.wait_p99_us:,.1f}",
        "queue depth, mean / most": f"{queue.mean_depth:.3f} / {max(queue.peaks)}",
        f"  over {result.seconds:,.1f} s": sparkline(queue.peaks),
    }


def _memory(result: StageResult) -> dict[str, str]:
    memory = result.allocations
    if memory is None:
        return {}
    return {
        "memory a batch, for a while / kept": f"{memory.peak_bytes:,.0f} / {memory.kept_bytes:,.0f} bytes",
        "pieces of memory a batch, kept": f"{memory.kept_blocks:,.0f}",
    }


def sparkline(values: Sequence[int]) -> str:
    """A character a value; the highest stands for the largest one."""
    most = max(values, default=0) or 1
    return "".join(_BARS[-(-value * (len(_BARS) - 1) // most)] for value in values)


def _encodings(rates: Sequence[EncodingRate]) -> Table:
    table = _table("Batched against single", "how", "prompts/s", "tokens/s", "ratio")
    for rate in rates:
        ratio = rate.tokens_per_s / rates[0].tokens_per_s
        table.add_row(rate.how, f"{rate.prompts_per_s:,.0f}", f"{rate.tokens_per_s:,.0f}", f"{ratio:.2f}")
    return table


def _beside(results: Sequence[StageResult]) -> Table:
    table = _table("Beside it", "stage", "messages", "us per message, mean", "p50", "p99")
    for each in results:
        times = (each.us_per_message, each.p50_us, each.p99_us)
        table.add_row(each.stage, f"{each.messages:,}", *(f"{us:,.1f}" for us in times))
    return table


def planning_report(results: Sequence[PlanningResult]) -> Table:
    """A line for each policy."""
    first = results[0]
    title = f"Planning a step: {first.running:,} running, {first.waiting:,} waiting"
    table = _table(title, "policy", "plan p50, us", "plan p99, us", "ns per row", "apply p50, us")
    for each in results:
        per_row = each.plan_us * 1e3 / each.running
        values = (each.plan_us, each.plan_p99_us, per_row, each.apply_us)
        table.add_row(each.policy, *(f"{value:,.0f}" for value in values))
    return table


def fit_report(measured: Measured, path: str) -> Table:
    """What a step costs by the fit, and how far that is from the steps it was made of."""
    step, residual, host = measured.step, measured.residual, measured.host
    low, high = step.base[0], step.base[-1]
    table = _table(f"{measured.name}: {path}", "what", "value")
    rows = {
        "steps": f"{residual.num_steps:,}",
        f"a step of {low[0]} / {high[0]} tokens, ms": f"{low[1] / 1e6:,.2f} / {high[1] / 1e6:,.2f}",
        "per row, us": f"{step.per_row / 1e3:,.2f}",
        "per 1,000 KV tokens read, us": f"{step.per_kv:,.2f}",
        "per 1,000 further pairs attended, us": f"{step.per_attended:,.3f}",
        "off by, median / p90": f"{residual.median:.1%} / {residual.p90:.1%}",
        "off by, signed mean": f"{residual.mean:+.1%}",
        "host: door / launch / gap / result / text, ms": " / ".join(
            f"{value / 1e6:.2f}"
            for value in (host.door_ns, host.launch_ns, host.gap_ns, host.result_ns, host.text_ns)
        ),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def whole_report(result: WholeResult) -> Group:
    """Throughput, the cost per token by stage, and what crosses the links per step."""
    return Group(_throughput(result), _costs(result), _links(result))


def _throughput(result: WholeResult) -> Table:
    table = _table("Output", "what", "value")
    place = "one core" if result.is_pinned else "no core of its own"
    chunks = max(result.chunks, 1)
    rows = {
        "output tokens/s": f"{result.tokens_per_s:,.0f}",
        "chunks/s": f"{result.chunks / result.seconds:,.0f}",
        "tokens per chunk": f"{result.tokens / chunks:.2f}",
        "requests ended": f"{result.requests:,}",
        "failures": f"{result.num_failures:,}",
        "steps/s": f"{result.steps / result.seconds:,.0f}",
        "rows per step": f"{result.tokens / max(result.steps, 1):.1f}",
        f"server CPU, {place}": f"{result.cpu_s / result.seconds:.0%}",
        "server CPU per token": f"{result.cpu_us_per_token:.2f} us",
        "clients' CPU": f"{result.client_cpu_s / result.seconds:.0%}",
        "tokens per CPU second": f"{result.tokens / result.cpu_s:,.0f}" if result.cpu_s else "-",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _costs(result: WholeResult) -> Table:
    """A stage's time is wall time in handle(); tokenize spends it waiting for its threads."""
    table = _table("Server time per token", "stage", "us per token", "of the CPU time")
    on_loop = {name: busy_s for name, busy_s in result.busy_s.items() if name != "tokenize"}
    rows = {**on_loop, "tokenize, loop, sockets, GC": result.cpu_s - sum(on_loop.values())}
    for name, busy_s in rows.items():
        share = busy_s / result.cpu_s if result.cpu_s else 0.0
        table.add_row(name, f"{busy_s / max(result.tokens, 1) * 1e6:.2f}", f"{share:.1%}")
    return table


def _links(result: WholeResult) -> Table:
    table = _table("Into each stage, per step", "stage", "sends", "posts", "wake-ups")
    for link in result.links:
        table.add_row(link.stage, *(f"{count:.2f}" for count in (link.sends, link.posts, link.wakeups)))
    return table


def _table(title: str, first: str, *numbers: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for name in numbers:
        table.add_column(name, justify="right")
    return table
