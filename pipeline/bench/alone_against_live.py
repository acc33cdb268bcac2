"""Alone against live: is a stage that is replayed alone what it was in the server? A table in docs/stages.md.

    python -m pipeline.bench.alone_against_live FOLDER --trace azure.csv -- [options of loadgen replay]

A server is started whose stages are all recorded, loadgen replays the trace against it, and then each stage
is given its recording alone, at the recorded rate. Both are kept to the same cores, the clients and the
device workers to the others (on a CPU: set device.num_threads to what these can run), so that what differs is
the company of the other stages. FOLDER keeps the recordings, and what both said, so that `--again` repeats
the second half alone.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from pipeline.bench import cores
from pipeline.bench.at_the_door import recorded_services_us
from pipeline.bench.measure import quantile
from pipeline.bench.recorded_server import LIVE, Live, ServerSettings, config_of
from pipeline.bench.replay import read_recording
from pipeline.errors import StagelineError
from pipeline.messages.stand_ins import RecordedStep
from pipeline.topology import WHOLE

RESULT = "alone_against_live.json"
LIMIT = 0.15
"""By so much may the two differ."""
_DEVICE = "device"
_ORDER = WHOLE.names
_LOOK_S = 0.2
_STDERR = 2
"""The file descriptor: standard output is the table's."""


class Row(msgspec.Struct, frozen=True):
    """One stage: its service time per message, us."""

    stage: str
    what: str
    """What is timed: handle(), or another span that says more of this stage."""
    live: Live
    alone: Live

    @property
    def ratio(self) -> float:
        """Of the medians: alone by live."""
        return self.alone.p50_us / self.live.p50_us

    @property
    def mean_ratio(self) -> float:
        return self.alone.mean_us / self.live.mean_us


def main(argv: Sequence[str] | None = None) -> int:
    """0: every stage is within the limit; 1: one is not; 2: it could not be measured."""
    words = list(sys.argv[1:] if argv is None else argv)
    place = words.index("--") if "--" in words else len(words)
    args = _parser().parse_args(words[:place], argparse.Namespace(loadgen=words[place + 1 :]))
    folder: Path = args.folder
    division = cores.divide()
    try:
        if not args.again:
            folder.mkdir(parents=True, exist_ok=False)
            asyncio.run(run_live(args, division))
        rows = compare(folder, args, division)
    except (StagelineError, OSError) as error:
        print(f"alone_against_live: {error}", file=sys.stderr)
        return 2
    (folder / RESULT).write_bytes(msgspec.json.format(msgspec.json.encode(rows)))
    Console().print(report(rows))
    return int(any(abs(row.ratio - 1) > LIMIT for row in rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline.bench.alone_against_live", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="made; with --again, one that there is")
    parser.add_argument("--trace", metavar="FILE", help="of any format that loadgen reads")
    parser.add_argument("--again", action="store_true", help="what FOLDER holds, without a new run")
    parser.add_argument("--fake", type=float, metavar="MS", help="steps that take MS and compute nothing")
    parser.add_argument("--config", metavar="FILE", help="default: ./config.toml if there is one")
    parser.add_argument("--model", metavar="REF", help="default: the config's")
    parser.epilog = "What follows -- are options of loadgen replay."
    return parser


# The run ------------------------------------------------------------------------------------------


async def run_live(args: argparse.Namespace, division: cores.Division | None) -> None:
    """Serve, record, load. Raises StagelineError, ConfigError."""
    settings = ServerSettings(
        str(args.folder.absolute()),
        args.config,
        args.model,
        args.fake,
        sorted(division.server) if division else None,
        sorted(division.clients) if division else None,
    )
    config_of(settings)  # a fault of the configuration shows here, not in another process
    async with _started(settings) as port:
        await _load(args, port, division)


@asynccontextmanager
async def _started(settings: ServerSettings) -> AsyncIterator[int]:
    """The server's process; its port. Its recordings are whole when this ends."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pipeline.bench.recorded_server", msgspec.json.encode(settings).decode()),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None, "they were made with pipes"
    try:
        line = await process.stdout.readline()
        if not line.strip().isdigit():
            raise StagelineError("the server did not start; its reason stands above")
        yield int(line)
    finally:
        process.stdin.close()
        await process.wait()


async def _load(args: argparse.Namespace, port: int, division: cores.Division | None) -> None:
    command = (sys.executable, "-m", "loadgen", "replay", "--trace", args.trace or "")
    with cores.kept_to(division.clients if division else None):
        process = await asyncio.create_subprocess_exec(
            *command, "--url", f"http://127.0.0.1:{port}", *args.loadgen, stdout=_STDERR
        )
    if await process.wait() == 2:
        raise StagelineError("loadgen could not replay the trace; its reason stands above")


# Alone --------------------------------------------------------------------------------------------


def compare(folder: Path, args: argparse.Namespace, division: cores.Division | None) -> list[Row]:
    """A row for the door, for each stage, and for the device."""
    live = msgspec.json.decode((folder / LIVE).read_bytes(), type=dict[str, Live])
    rows = [_door(folder, _alone(folder, "ingress", "tokenize.rec", args, division))]
    for stage, each in sorted(live.items(), key=lambda item: _ORDER.index(item[0])):
        result = _alone(folder, stage, f"{stage}.rec", args, division)
        mean_us = result["handled_s"] / result["messages"] * 1e6
        alone = Live(result["messages"], result["batches"], mean_us, result["handled_p50_us"])
        rows.append(Row(stage, "handle()", each, alone))
        if stage == "execute" and args.fake is None:
            rows.append(_device(folder, result))
    return rows


def _door(folder: Path, result: dict[str, Any]) -> Row:
    services = recorded_services_us(read_recording(folder / "tokenize.rec"))
    return Row("ingress", "arrival to tokenize", _live(services), _timed(result))


def _device(folder: Path, result: dict[str, Any]) -> Row:
    entries = read_recording(folder / "sample.rec").entries
    steps = [entry.message for entry in entries if isinstance(entry.message, RecordedStep)]
    live = _live([(step.end_ns - step.begin_ns) / 1e3 for step in steps])
    return Row(_DEVICE, "a step", live, _timed(result))


def _live(services_us: Sequence[float]) -> Live:
    count = len(services_us)
    return Live(count, count, sum(services_us) / count, quantile(services_us, 0.5))


def _timed(result: dict[str, Any]) -> Live:
    return Live(result["messages"], result["batches"], result["us_per_message"], result["p50_us"])


def _alone(
    folder: Path, stage: str, file: str, args: argparse.Namespace, division: cores.Division | None
) -> dict[str, Any]:
    """What `stageline bench` says, in a process of its own."""
    command = [sys.executable, "-m", "pipeline", "bench", stage, "--replay", str(folder / file)]
    command += ["--rate", "recorded", "--no-allocations", "--json"]
    command += ["--fake", str(args.fake)] if args.fake is not None else []
    for option, value in (("--config", args.config), ("--model", args.model)):
        command += [option, value] if value else []
    print(f"{stage} alone ...", file=sys.stderr)
    with cores.kept_to(division.server if division else None):
        bench = subprocess.Popen(command, stdout=subprocess.PIPE)
    with bench:
        while division and bench.poll() is None:
            cores.place_children(bench.pid, division.clients)  # the device workers' process, once it is there
            time.sleep(_LOOK_S)
        said, _ = bench.communicate()
    if bench.returncode:
        raise StagelineError(f"{stage} could not be replayed alone; the reason stands above")
    result: dict[str, Any] = msgspec.json.decode(said)
    return result


def report(rows: Sequence[Row]) -> Table:
    table = Table(title="Service time per message, us", title_justify="left")
    table.add_column("stage")
    for name in ("messages", "live p50", "alone", "ratio", "live mean", "alone", "ratio"):
        table.add_column(name, justify="right")
    for row in rows:
        medians = (f"{row.live.p50_us:,.1f}", f"{row.alone.p50_us:,.1f}", f"{row.ratio:.2f}")
        means = (f"{row.live.mean_us:,.1f}", f"{row.alone.mean_us:,.1f}", f"{row.mean_ratio:.2f}")
        table.add_row(row.stage, f"{row.live.messages:,}", *medians, *means)
    return table


if __name__ == "__main__":
    sys.exit(main())
