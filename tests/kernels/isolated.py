"""Runs tests of kernels in another process, which has Triton's interpreter on.

    @pytest.mark.parametrize("rows", [1, 7])
    @isolated
    def test_something(rows: int) -> None: ...

pytest's process only sends the name of the function and its arguments, JSON values, and raises what comes
back; a test that is the death of the worker has failed, and the next gets another. A worker lives for the
session, for the imports take seconds. In it warnings are errors, torch has one thread, `isolated` does
nothing, and after each test tests.kernels.guarded looks at the margins of its tensors.
"""

import atexit
import functools
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 200
IS_WORKER = "STAGELINE_KERNEL_TESTS"


class KernelTestFailed(AssertionError):
    """With the worker's traceback."""


def isolated(test: Callable[..., None]) -> Callable[..., None]:
    """Run the test in the worker."""
    if IS_WORKER in os.environ:
        return test

    @functools.wraps(test)
    def send(**arguments: Any) -> None:
        __tracebackhide__ = True
        failure = _worker.run(test.__module__, test.__name__, arguments)
        if failure:
            raise KernelTestFailed(failure)

    return send


class Worker:
    """The other process, started when first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - for the session
        atexit.register(self.close)

    def run(self, module: str, name: str, arguments: dict[str, Any]) -> str:
        """-> what failed, or nothing."""
        process = self._process = self._process or self._start()
        assert process.stdin and process.stdout
        self._log.truncate(0)
        process.stdin.write(json.dumps([module, name, arguments]).encode() + b"\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], TIMEOUT_S)[0]:
            process.kill()
        answer = process.stdout.readline()
        return json.loads(answer) if answer else self._bury(process)

    def close(self) -> None:
        if self._process:
            self._bury(self._process)
        self._log.close()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.kernels.isolated"]
        environment = os.environ | {IS_WORKER: "1", "TRITON_INTERPRET": "1"}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=self._log)

    def _bury(self, process: "subprocess.Popen[bytes]") -> str:
        self._process = None
        assert process.stdin and process.stdout
        process.stdin.close()
        code = process.wait()
        process.stdout.close()
        self._log.seek(0)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return f"the worker ended by {how}:\n{self._log.read().decode(errors='replace')}"


_worker = Worker()


def main() -> None:
    """The worker: a line is a test, its answer a line with what failed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a test prints is for the log
    import torch

    from pipeline.gpu.kernels.interpreter import prepare

    torch.set_num_threads(1)
    prepare(torch.device("cpu"))
    for line in sys.stdin:
        print(json.dumps(_outcome(*json.loads(line))), file=answers, flush=True)


def _outcome(module: str, name: str, arguments: dict[str, Any]) -> str:
    from tests.kernels.guarded import check, take_margins

    take_margins()
    try:
        test = getattr(importlib.import_module(module), name)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            test(**arguments)
        check(take_margins())
    except Exception:  # whatever it is, pytest's process reports it
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    main()
