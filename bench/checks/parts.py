"""Runs the parts, each in a process of its own, and keeps what they found. Imports no torch."""

import json
import platform
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from bench.checks.rows import Rates, Row, as_json, failed

FACTS = """
import json, torch, triton
facts = {"torch": torch.__version__, "triton": triton.__version__, "gpu": "none"}
if torch.cuda.is_available():
    found = torch.cuda.get_device_properties(0)
    facts |= {"gpu": found.name, "capability": f"{found.major}.{found.minor}"}
    facts |= {"multiprocessors": str(found.multi_processor_count), "bytes": str(found.total_memory)}
    facts |= {"cuda": str(torch.version.cuda)}
print(json.dumps(facts))
"""
FACTS_S = 60
NUM_LINES = 3
"""Of what a process that failed said last."""


class Check:
    """The parts of one run.

    Args:
        command: runs a part, with its name and rates after it.
        budgets: seconds of each part.
    """

    def __init__(self, command: Sequence[str], python: str, budgets: Mapping[str, float]) -> None:
        self._command, self._python, self._budgets = list(command), python, budgets
        self._rates = Rates(1e12, 1e15)
        self.machine: dict[str, str] = {}
        self.rows: list[Row] = []

    def describe(self) -> None:
        """What runs here. Raises CalledProcessError where torch or triton cannot be imported."""
        done = subprocess.run(
            [self._python, "-c", FACTS], stdout=subprocess.PIPE, timeout=FACTS_S, check=True
        )
        self.machine = {"python": platform.python_version(), **json.loads(done.stdout)}
        print(", ".join(f"{name} {value}" for name, value in self.machine.items()), flush=True)

    def run(self, part: str) -> None:
        """Print its rows as they come. What happens in it is said in a row, never raised."""
        budget, began = self._budgets[part], time.perf_counter()
        print(f"\n{part}, at most {budget:.0f} s", flush=True)
        with tempfile.TemporaryFile() as log:
            code = self._follow(part, budget, log)
            log.seek(0)
            said = log.read().decode(errors="replace").strip().splitlines()[-NUM_LINES:]
        seconds = time.perf_counter() - began
        if code != 0:
            end = f"ended after {seconds:.0f} s" if seconds >= budget else f"status {code}"
            self._add(failed(part, " | ".join([end, *said])))
        print(f"{seconds:.0f} s", flush=True)

    def _follow(self, part: str, budget: float, log: BinaryIO) -> int:
        """-> its exit status, when it has ended or its time is over."""
        rates = json.dumps([self._rates.bytes_per_s, self._rates.flops_per_s])
        command = [*self._command, "--part", part, "--rates", rates]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as process:
            end = threading.Timer(budget, process.kill)
            end.start()
            for line in process.stdout or ():
                self._add(msgspec.json.decode(line, type=Row))
            code = process.wait()
            end.cancel()
        return code

    def _add(self, row: Row) -> None:
        print(row.line, flush=True)
        self.rows.append(row)
        if row.part == "machine" and "flops_per_s" in row.values:
            self._rates = Rates(row.values["bytes_per_s"], row.values["flops_per_s"])

    def table(self) -> str:
        """All lines, and what is not ok once more."""
        wrong = [row for row in self.rows if not row.ok]
        lines = [row.line for row in self.rows]
        summary = f"{len(self.rows)} results on {self.machine.get('gpu')}, {len(wrong)} not ok"
        return "\n".join([*lines, "", summary, *(row.line for row in wrong)])

    def write(self, path: Path) -> None:
        path.write_bytes(as_json(self.machine, self.rows))
