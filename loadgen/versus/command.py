"""`loadgen versus`: rounds over the servers, resumable, and a table."""

import argparse
import asyncio
from collections.abc import Callable
from itertools import product

import msgspec
import uvloop
from rich.console import Console

from loadgen.interrupts import cancel_on_signals
from loadgen.replay import FINISHED, INTERRUPTED, SOME_FAILED
from loadgen.server_process import Patience
from loadgen.versus import cases
from loadgen.versus.report import table
from loadgen.versus.servers import Server, read_servers
from loadgen.versus.store import Store, Visit
from loadgen.versus.visit import Work, visit


class Match(msgspec.Struct, frozen=True):
    """What is asked for."""

    servers: dict[str, Server]
    work: Work
    store: Store
    num_rounds: int


def run(arguments: argparse.Namespace, console: Console) -> int:
    """The command.

    Raises:
        LoadgenError: a file or an option cannot be used.
    """
    return uvloop.run(compare(_match(arguments), console))


async def compare(match: Match, console: Console) -> int:
    """Visits every server in every round, prints the table, and returns the exit code."""

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False, markup=False)

    visits: list[Visit] = []
    try:
        cancel_on_signals()
        for number, name in product(range(1, match.num_rounds + 1), match.servers):
            visits.append(await _visit(match, name, number, say))
    except asyncio.CancelledError:
        say(
            f"stopped after {len(visits)} of {match.num_rounds * len(match.servers)} visits; they are in "
            f"{match.store.folder}, and the same command goes on from there"
        )
        return INTERRUPTED
    report = table(list(match.servers), visits)
    match.store.conclude(visits, report)
    say("\n" + report)
    return SOME_FAILED if any(each.failure for each in visits) else FINISHED


async def _visit(match: Match, name: str, number: int, say: Callable[[str], None]) -> Visit:
    title = f"round {number} of {match.num_rounds}, {name}"
    finished = match.store.finished(name, number)
    if finished is not None:
        say(f"{title}: finished before")
        return finished
    say(title)
    return await visit(name, match.servers[name], number, match.work, match.store, say)


def _match(arguments: argparse.Namespace) -> Match:
    servers = read_servers(arguments.servers)
    workload = (
        cases.made(arguments.seed, arguments.token_ids, arguments.requests)
        if arguments.workload is None
        else cases.read(arguments.workload)
    )
    work = Work(
        cases=workload.cases(arguments.users, beside_busy=arguments.beside_busy),
        patience=Patience(arguments.ready_s, arguments.stop_s),
        timeout_s=arguments.timeout_s,
        quiet_s=arguments.quiet_s,
        num_tries=arguments.tries,
    )
    common = {
        "workload": workload.sha256,
        "users": arguments.users,
        "cases": [case.name for case in work.cases],
    }
    questions = {name: common | msgspec.to_builtins(server) for name, server in servers.items()}
    return Match(servers, work, Store(arguments.out, questions), arguments.rounds)
