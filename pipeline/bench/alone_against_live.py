"""Alone against live: is a stage that is replayed what it was in the server? A table in docs/stages.md.

    python -m pipeline.bench.alone_against_live FOLDER --trace azure.csv -- [options of loadgen replay]

A server is started whose stages are all recorded, and loadgen replays the trace against it. Then each stage
is given its recording at the recorded rate: alone, and in the company of the others, all of them on one loop.
Server and bench are kept to the same cores, the clients and the device workers to the others (on a CPU: set
device.num_threads to what these can run). Compared are the same messages: all but the first tenth, with which
a replay warms up. FOLDER keeps the recordings, and what was found, so that `--again` repeats the replays.
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
from rich.console import Console, Group
from rich.table import Table

from pipeline.bench import cores
from pipeline.bench.at_the_door import recorded_services_us
from pipeline.bench.measure import quantile
from pipeline.bench.recorded_server import LIVE, ServerSettings, Span, config_of
from pipeline.bench.replay import read_recording
from pipeline.errors import StagelineError
from pipeline.messages.stand_ins import RecordedStep
from pipeline.topology import WHOLE

RESULT = "alone_against_live.json"
LIMIT = 0.15
"""By so much may the two differ."""
_DOOR, _DEVICE = "ingress", "device"
_ORDER = WHOLE.names
_LOOK_S = 0.2
_STDERR = 2
"""The file descriptor: standard output is the table's."""


class Times(msgspec.Struct, frozen=True):
    """Per message, us."""

    messages: int
    mean_us: float
    p50_us: float

    @classmethod
    def of(cls, times_us: Sequence[float]) -> "Times":
        if not times_us:
            raise StagelineError("the live run is too short: nothing is left of it after its first tenth")
        return cls(len(times_us), sum(times_us) / len(times_us), quantile(times_us, 0.5))


class Row(msgspec.Struct, frozen=True):
    """One stage."""

    stage: str
    what: str
    """What is timed: handle(), or another span that says more of this stage."""
    live: Times
    alone: Times
    beside: Times
    """In company."""

    @property
    def ratios(self) -> tuple[float, float]:
        """Of the medians, by live: alone, and in company."""
        return self.alone.p50_us / self.live.p50_us, self.beside.p50_us / self.live.p50_us

    @property
    def mean_ratios(self) -> tuple[float, float]:
        return self.alone.mean_us / self.live.mean_us, self.beside.mean_us / self.live.mean_us


def main(argv: Sequence[str] | None = None) -> int:
    """0: in company every stage's median is within the limit; 1: one is not; 2: it could not be measured."""
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
    return int(any(abs(row.ratios[1] - 1) > LIMIT for row in rows))


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
    with cores.kept_to(settings.cores):  # from its start: pools of threads are made for as many as there are
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


# The replays --------------------------------------------------------------------------------------


def compare(folder: Path, args: argparse.Namespace, division: cores.Division | None) -> list[Row]:
    """A row for the door, for each stage, and for the device."""
    spans = msgspec.json.decode((folder / LIVE).read_bytes(), type=dict[str, list[Span]])
    first = _replayed(folder, _DOOR, args, division, is_beside=True)
    beside = {_DOOR: first, **first["beside"]}
    rows = [_door(folder, _replayed(folder, _DOOR, args, division), first)]
    for stage in sorted(spans, key=_ORDER.index):
        alone = _replayed(folder, stage, args, division)
        live = _handled_us(spans[stage], _measured_since(folder, stage, alone))
        rows.append(Row(stage, "handle()", Times.of(live), _handled(alone), _handled(beside[stage])))
        if stage == "execute" and args.fake is None:
            rows.append(_device(folder, alone, beside[stage]))
    return rows


def _door(folder: Path, alone: dict[str, Any], beside: dict[str, Any]) -> Row:
    services = recorded_services_us(read_recording(_file(folder, _DOOR)))
    live = services[-alone["messages"] :]
    return Row(_DOOR, "arrival to tokenize", Times.of(live), _timed(alone), _timed(beside))


def _device(folder: Path, alone: dict[str, Any], beside: dict[str, Any]) -> Row:
    entries = read_recording(folder / "sample.rec").entries
    steps = [entry.message for entry in entries if isinstance(entry.message, RecordedStep)]
    live = [(step.end_ns - step.begin_ns) / 1e3 for step in steps[-alone["messages"] :]]
    return Row(_DEVICE, "a step", Times.of(live), _timed(alone), _timed(beside))


def _measured_since(folder: Path, stage: str, result: dict[str, Any]) -> int:
    """When that part of the recording began, by the clock of the server."""
    recording = read_recording(_file(folder, stage))
    last_ns = max(entry.at_ns for entry in recording.entries)
    return int(recording.header.begin_ns + last_ns - result["recorded_s"] * 1e9)


def _handled_us(spans: Sequence[Span], since_ns: int) -> list[float]:
    """Of each message."""
    since = [span for span in spans if span.begin_ns >= since_ns]
    return [span.took_ns / span.num_messages / 1e3 for span in since for _ in range(span.num_messages)]


def _handled(result: dict[str, Any]) -> Times:
    mean_us = result["handled_s"] / result["messages"] * 1e6
    return Times(result["messages"], mean_us, result["handled_p50_us"])


def _timed(result: dict[str, Any]) -> Times:
    return Times(result["messages"], result["us_per_message"], result["p50_us"])


def _file(folder: Path, stage: str) -> Path:
    """The door is asked what tokenize was sent."""
    return folder / f"{'tokenize' if stage == _DOOR else stage}.rec"


def _replayed(
    folder: Path,
    stage: str,
    args: argparse.Namespace,
    division: cores.Division | None,
    *,
    is_beside: bool = False,
) -> dict[str, Any]:
    """What `stageline bench` says, in a process of its own."""
    command = [sys.executable, "-m", "pipeline", "bench", stage, "--replay", str(_file(folder, stage))]
    command += ["--rate", "recorded", "--no-allocations", "--json"]
    command += ["--beside", str(folder)] if is_beside else []
    command += ["--fake", str(args.fake)] if args.fake is not None else []
    for option, value in (("--config", args.config), ("--model", args.model)):
        command += [option, value] if value else []
    print("all together ..." if is_beside else f"{stage} alone ...", file=sys.stderr)
    with cores.kept_to(division.server if division else None):
        bench = subprocess.Popen(command, stdout=subprocess.PIPE)
    with bench:
        while division and bench.poll() is None:
            cores.place_children(bench.pid, division.clients)  # the device's and the clients' process
            time.sleep(_LOOK_S)
        said, _ = bench.communicate()
    if bench.returncode:
        raise StagelineError(f"{stage} could not be replayed; the reason stands above")
    result: dict[str, Any] = msgspec.json.decode(said)
    return result


def report(rows: Sequence[Row]) -> Group:
    medians = [(row, [each.p50_us for each in (row.live, row.alone, row.beside)], row.ratios) for row in rows]
    means = [
        (row, [each.mean_us for each in (row.live, row.alone, row.beside)], row.mean_ratios) for row in rows
    ]
    return Group(_table("median", medians), _table("mean", means))


def _table(kind: str, rows: Sequence[tuple[Row, Sequence[float], tuple[float, float]]]) -> Table:
    table = Table(title=f"Service time per message, {kind}, us", title_justify="left")
    table.add_column("stage", no_wrap=True)
    for name in ("messages", "live", "alone", "/ live", "in company", "/ live"):
        table.add_column(name, justify="right", no_wrap=True)
    for row, (live, alone, beside), (ratio, beside_ratio) in rows:
        figures = (f"{live:,.1f}", f"{alone:,.1f}", f"{ratio:.2f}", f"{beside:,.1f}", f"{beside_ratio:.2f}")
        table.add_row(row.stage, f"{row.live.messages:,}", *figures)
    return table


if __name__ == "__main__":
    sys.exit(main())
