"""ProcessDevice: the device workers in a child process, which a fault of the device cannot outlive.

The child is `python -m pipeline.gpu.worker FD PID`: one socket, frames (runtime.frames), no pickle. It hears
of no signal but KILL, ends when the socket ends, and so never outlives this process. That it dies is a fault,
which the stage is told of; the next `open` starts another one.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any, cast

from pipeline.errors import ConfigError, ModelError
from pipeline.messages import DiskMoved, Logprobs, StepPlan
from pipeline.runtime.bridge import Listener
from pipeline.runtime.frames import Fault, FrameReader, Ready, Renew, RunnerSpec, StepDone, encode

CLOSE_S = 10.0
"""A child that has not ended so long after it was told to is killed."""
_REAP_S = 1.0
_RAISED: dict[str, type[Exception]] = {
    "ConfigError": ConfigError,
    "ModelError": ModelError,
    "MemoryError": MemoryError,
}


class DeviceDied(Exception):
    """The process of the device workers has ended, or something in it was raised that ends it."""


class DoneStep:
    """Implements messages.StepHandle for a step whose results have come."""

    __slots__ = ("_done", "plan")

    def __init__(self, plan: StepPlan, done: StepDone) -> None:
        self.plan = plan
        self._done = done

    @property
    def begin_ns(self) -> int:
        return self._done.begin_ns

    @property
    def end_ns(self) -> int:
        return self._done.end_ns

    def is_ready(self) -> bool:
        return True

    def token_ids_sync(self) -> list[int]:
        return self._done.token_ids

    def drops_sync(self) -> list[list[int]]:
        return self._done.drops

    def logprobs_sync(self) -> Logprobs | None:
        return self._done.logprobs

    def scores_sync(self) -> Logprobs | None:
        return self._done.scores

    def embeddings_sync(self) -> list[bytes]:
        return self._done.embeddings


class ProcessDevice:
    """Implements runtime.bridge.Device."""

    def __init__(self, spec: RunnerSpec, listener: Listener) -> None:
        self._spec = spec
        self._listener = listener
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        return self._child.process.pid if self._child is not None else 0

    async def open(self) -> Any:
        if self._child is not None and self._child.can_go_on:
            return await self._child.ask(Renew())
        if self._child is not None:
            await self._child.kill()
        self._child = await Child.start(self._listener)
        return await self._child.ask(self._spec)

    def submit(self, worker: int, plan: StepPlan) -> None:
        if self._child is not None:
            self._child.submit(plan)

    def move(self, moves: Any) -> None:
        if self._child is not None:
            self._child.send(moves)

    def listen(self, listener: Listener) -> None:
        self._listener = listener
        if self._child is not None:
            self._child.listener = listener

    def condemn(self) -> bool:
        if self._child is not None:
            self._child.can_go_on = False
        return True

    async def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.close()


class Child(asyncio.Protocol):
    """One child process, from its start to its end."""

    def __init__(self, process: "subprocess.Popen[bytes]", listener: Listener) -> None:
        self.process = process
        self.can_go_on = True
        """It runs, and nothing worse has happened to it than a lack of memory."""
        self.listener = listener
        self._reader = FrameReader()
        self._plans: dict[int, StepPlan] = {}
        """Those out, by step."""
        self._answer: asyncio.Future[object] | None = None
        self._is_open = self._is_closing = False
        self._transport: asyncio.WriteTransport
        self._ended = asyncio.get_running_loop().create_future()

    @classmethod
    async def start(cls, listener: Listener) -> "Child":
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(  # noqa: ASYNC220 - a few ms, and asyncio's own reads no other pipe
                [sys.executable, "-m", "pipeline.gpu.worker", str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what it prints is no output of the command that runs the server
                pass_fds=(theirs.fileno(),),
                env=os.environ | {"PYTHONPATH": os.pathsep.join(each or os.getcwd() for each in sys.path)},
                process_group=0,  # Ctrl-C in a terminal is for the server, which drains
            )
        child = cls(process, listener)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: child, sock=ours)
        except BaseException:
            ours.close()
            await child.kill()
            raise
        return child

    async def ask(self, message: Any) -> object:
        """Send RunnerSpec or Renew; the capacity that it answers with. Raises what was raised there."""
        self._plans.clear()
        if self._ended.done():
            raise self._death()
        self._answer = asyncio.get_running_loop().create_future()
        self.send(message)
        capacity = await self._answer
        self._is_open = True
        return capacity

    def submit(self, plan: StepPlan) -> None:
        self._plans[plan.step_id] = plan
        self.send(plan)

    def send(self, message: Any) -> None:
        if not self._ended.done():
            self._transport.write(encode(message))

    async def close(self) -> None:
        """After the steps under way; at once if it is still loading."""
        self._is_closing = True
        if self._is_open and not self._ended.done():
            self._transport.write_eof()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._ended), CLOSE_S)
        await self.kill()

    async def kill(self) -> None:
        """Idempotent; it is reaped, and its memory is free, when this returns."""
        self._is_closing, self.can_go_on = True, False
        self.process.kill()
        await asyncio.to_thread(self.process.wait)
        if hasattr(self, "_transport"):
            self._transport.close()

    # asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are no subclasses

    def data_received(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            self._take(message)

    def connection_lost(self, error: Exception | None) -> None:
        self.can_go_on = False
        self._ended.set_result(None)
        if not self._is_closing:
            self._fail(self._death())

    def _take(self, message: Any) -> None:
        if isinstance(message, StepDone):
            plan = self._plans.pop(message.step_id, None)
            if plan is not None:  # else it is of a device that was lost
                self.listener.launched(DoneStep(plan, message))
        elif isinstance(message, DiskMoved):
            self.listener.moved(message)
        elif isinstance(message, Ready):
            self._settle(message.capacity)
        elif isinstance(message, Fault):
            error = _RAISED.get(message.kind, DeviceDied)(message.text)
            self.can_go_on = self.can_go_on and isinstance(error, MemoryError)
            self._fail(error)

    def _settle(self, capacity: object) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(capacity)

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        elif self._is_open:
            self.listener.failed(error)

    def _death(self) -> DeviceDied:
        """The socket ends shortly before the process can be asked how it did."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_REAP_S)
        status = self.process.returncode
        how = (
            f"with status {status}" if status is None or status >= 0 else f"by {signal.Signals(-status).name}"
        )
        return DeviceDied(f"the process of the device workers (pid {self.process.pid}) has ended {how}")
