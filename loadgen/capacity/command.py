"""`loadgen capacity`: the search, told as it goes."""

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console

from loadgen.capacity.bisect import Search, most_rates
from loadgen.capacity.report import conclusion, vote_line
from loadgen.capacity.runs import Load, vote
from loadgen.capacity.votes import Verdict
from loadgen.errors import UsageError
from loadgen.interrupts import Interrupted, cancel_on_signals
from loadgen.outputs import check_places
from loadgen.replay import FINISHED, INTERRUPTED, Options
from loadgen.result import write
from loadgen.traces import load as load_trace

NOT_FOUND = 1
_PERCENTILE = 99.0
"""Where --slo names none."""
_SEEDS_A_RATE = 1000
_DOUBLINGS_GUESSED = 3


class Plan(msgspec.Struct, frozen=True):
    """A search."""

    load: Load
    start: float
    ceiling: float
    precision: float
    repeats: int
    json: Path | None


class Outcome(msgspec.Struct, frozen=True):
    """What --json holds."""

    slo: str
    held_req_s: float | None
    failed_req_s: float | None
    verdicts: list[Verdict]


def run(arguments: argparse.Namespace, options: Options, console: Console) -> int:
    """The command.

    Raises:
        LoadgenError: the trace, the server or an option cannot be used.
    """
    return uvloop.run(capacity(_plan(arguments, options), console))


async def capacity(plan: Plan, console: Console) -> int:
    """Searches, prints, writes, and returns the exit code."""

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False, markup=False)

    search = Search(plan.start, plan.precision, plan.ceiling)
    verdicts: list[Verdict] = []
    for line in _intent(plan):
        say(line)
    is_stopped = False
    try:
        cancel_on_signals()
        while (rate := search.next_rate()) is not None:
            verdicts.append(await _verdict(plan, rate, len(verdicts), say))
            if verdicts[-1].holds is None:
                break
            search.tell(rate, verdicts[-1].holds)
    except (asyncio.CancelledError, Interrupted):
        is_stopped = True
        say("stopped; what was found until then:")
    for line in conclusion(plan.load, search, verdicts, is_stopped=is_stopped):
        say(line)
    if plan.json is not None:
        outcome = Outcome(str(plan.load.slo), search.held, search.failed, verdicts)
        write(plan.json, msgspec.json.format(msgspec.json.encode(outcome)))
    return INTERRUPTED if is_stopped else FINISHED if search.held is not None else NOT_FOUND


async def _verdict(plan: Plan, rate: float, number: int, say: Callable[[str], None]) -> Verdict:
    """No two runs of a search share a seed: a repeated prompt could be answered from a cache."""
    verdict = Verdict(rate, [])
    while not verdict.is_decided(plan.repeats):
        seed = plan.load.options.seed + _SEEDS_A_RATE * number + len(verdict.votes)
        found = await vote(plan.load, rate, seed)
        cancel_on_signals()
        verdict = Verdict(rate, [*verdict.votes, found])
        say(vote_line(plan.load, verdict))
    return verdict


def _intent(plan: Plan) -> list[str]:
    load = plan.load
    rows = "" if load.num_rows is None else f" of {load.num_rows} requests"
    run_s = load.rows(plan.start) / plan.start
    num_rates = most_rates(plan.precision, _DOUBLINGS_GUESSED)
    return [
        f"{load.options.trace.name} -> {load.options.target.url}: the highest rate with {load.slo}",
        f"{plan.repeats} runs{rows} a rate, {run_s:.0f} s each at {plan.start:g} req/s; a capacity of "
        f"{2**_DOUBLINGS_GUESSED} times that would take about {num_rates} rates, "
        f"{num_rates * plan.repeats * run_s / 60:.1f} min at most (a run that is lost is cut)",
    ]


def _plan(arguments: argparse.Namespace, options: Options) -> Plan:
    if options.slo is None or not options.slo.limits_ms.keys() & {"ttft", "e2e"}:
        raise UsageError(
            "capacity needs --slo with a limit on ttft or e2e, such as ttft=500ms,itl=50ms,p=99: "
            "without one, a queue that grows without end would hold it"
        )
    if arguments.ceiling < arguments.start:
        raise UsageError(f"--to {arguments.ceiling:g}: is under --from {arguments.start:g}")
    check_places(options.json, None)
    percentile = _PERCENTILE if options.slo.percentile is None else options.slo.percentile
    trace = load_trace(options.trace, options.format, options.reading)
    load = Load(
        options,
        msgspec.structs.replace(options.slo, percentile=percentile),
        percentile,
        arguments.duration_s,
        options.limits.rows,
        len(trace.rows),
        arguments.gap_cv,
    )
    return Plan(
        load, arguments.start, arguments.ceiling, arguments.precision, arguments.repeats, options.json
    )
