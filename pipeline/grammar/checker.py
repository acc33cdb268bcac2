"""GrammarChecker: whether a grammar that a client sent can be used.

It is tried in a process of its own (grammar.worker), with limits on CPU time, memory and wall-clock time; a
process that a grammar has killed is started anew for the next one.
"""

import hashlib
import os
import select
import subprocess
import sys
import time
from collections import OrderedDict

import msgspec

from pipeline.grammar.library import TokenizerSpec
from pipeline.grammar.worker import LENGTH, Bounds, Opening, Verdict, write
from pipeline.messages import Grammar

START_S = 60.0
"""What reading a vocabulary may take, on a machine that is busy."""
MAX_VERDICTS = 4096
"""Known at a time; each is some hundred bytes."""
MEMORY_BYTES = 768 << 20


class GrammarRefused(ValueError):
    """It cannot be used. The text says why, and is for the client."""


class GrammarChecker:
    """One thread at a time may `check`; any may ask `knows`.

    Args:
        timeout_s: for one grammar.
    """

    def __init__(self, spec: TokenizerSpec, timeout_s: float) -> None:
        self._spec = spec
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()

    def knows(self, grammar: Grammar) -> bool:
        """`check` would answer at once."""
        return _key(grammar) in self._verdicts

    def check(self, grammar: Grammar) -> None:
        """Raises GrammarRefused; within the time limit, once the process runs."""
        key = _key(grammar)
        if key not in self._verdicts:
            self._verdicts[key] = self._ask(grammar)
            if len(self._verdicts) > MAX_VERDICTS:
                self._verdicts.popitem(last=False)
        fault = self._verdicts[key]
        if fault is not None:
            raise GrammarRefused(fault)

    def close(self) -> None:
        """Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _ask(self, grammar: Grammar) -> str | None:
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it has died since the last one
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        try:
            write(process.stdin, grammar)
            verdict = self._answer(process, self._timeout_s)
        except OSError:  # it dies
            verdict = None
        if verdict is None:
            self.close()
            return f"it takes more than {self._timeout_s:g} s or too much memory to compile"
        return verdict.fault

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "pipeline.grammar.worker"]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdin is not None
        cpu_s = max(1, round(self._timeout_s))
        write(process.stdin, Opening(self._spec, Bounds(cpu_s, MEMORY_BYTES)))
        if self._answer(process, START_S) is None:
            process.kill()
            process.communicate()
            raise RuntimeError("the process that compiles grammars does not start")
        return process

    def _answer(self, process: subprocess.Popen[bytes], timeout_s: float) -> Verdict | None:
        """None: there is none within the time, or it has died."""
        body = _read(process, LENGTH.size, time.monotonic() + timeout_s)
        if body is not None:
            body = _read(process, LENGTH.unpack(body)[0], time.monotonic() + timeout_s)
        return None if body is None else msgspec.msgpack.decode(body, type=Verdict)


def _read(process: subprocess.Popen[bytes], size: int, until_s: float) -> bytes | None:
    assert process.stdout is not None
    stdout, read = process.stdout.fileno(), b""
    while len(read) < size:
        poll = select.poll()  # not select: descriptors of a busy server are above 1024
        poll.register(stdout, select.POLLIN)
        if not poll.poll(max(0.0, until_s - time.monotonic()) * 1000):
            return None
        part = os.read(stdout, size - len(read))
        if not part:
            return None
        read += part
    return read


def _key(grammar: Grammar) -> bytes:
    return hashlib.sha256(grammar.kind.encode() + b"\0" + grammar.text.encode()).digest()
