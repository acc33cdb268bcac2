"""`python -m pipeline.gpu.worker FD PID`: the process of the device workers, told everything over one socket.

The other end is runtime.process. It is a program of the server's own, not a command: it never outlives the
server (the kernel kills it when that dies, and it ends when the socket does), takes no signals, and logs to
stderr as the server does.
"""

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import structlog

from pipeline import logs
from pipeline.core.import_path import resolve
from pipeline.errors import StagelineError
from pipeline.messages import DeviceReady, DiskMoves, StepHandle, StepPlan
from pipeline.runtime import heap
from pipeline.runtime.bridge import DeviceThread, Opened, failure_of
from pipeline.runtime.frames import HEAD, Fault, Ready, Renew, RunnerSpec, StepDone, decode, encode

_PR_SET_PDEATHSIG = 1


class Line:
    """The socket: frames in on the main thread, out on any."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._incoming = connection.makefile("rb")
        self._sending = threading.Lock()

    def receive(self) -> Any:
        """The next message; None at the end."""
        head = self._incoming.read(HEAD.size)
        if len(head) < HEAD.size:
            return None
        length, kind = HEAD.unpack(head)
        body = self._incoming.read(length)
        return decode(kind, body) if len(body) == length else None

    def send(self, message: Any) -> None:
        frame = encode(message)
        with self._sending:
            self._connection.sendall(frame)


class Results:
    """Sends what steps yield, each worker's in launch order.

    A step that is done when its launch returns is sent by the worker itself; for others a thread waits, so
    that the worker can launch the next one meanwhile.
    """

    def __init__(
        self, worker: int, send: Callable[[Any], None], failed: Callable[[BaseException], None]
    ) -> None:
        self._worker = worker
        self._send = send
        self._failed = failed
        self._waiting: SimpleQueue[StepHandle] = SimpleQueue()
        self._num_waited = 0
        self._num_sent = 0
        self._thread: threading.Thread | None = None

    def launched(self, handle: StepHandle) -> None:
        """On the worker's thread."""
        if self._num_sent == self._num_waited and handle.is_ready():
            self._send(self._done(handle))
            return
        self._num_waited += 1
        self._waiting.put(handle)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="results", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            handle = self._waiting.get()
            try:
                self._send(self._done(handle))
            except (
                BaseException
            ) as error:  # a fault of the device may show only where its results are awaited
                self._failed(failure_of(error))
            self._num_sent += 1

    def _done(self, handle: StepHandle) -> StepDone:
        token_ids = handle.token_ids_sync()  # first: it waits for the step
        return StepDone(
            self._worker,
            handle.plan.step_id,
            handle.begin_ns,
            handle.end_ns,
            token_ids,
            handle.drops_sync(),
            handle.embeddings_sync(),
            handle.logprobs_sync(),
            handle.scores_sync(),
        )


class Host:
    """The workers of one device, and the line they are told over."""

    def __init__(self, line: Line, spec: RunnerSpec) -> None:
        self._line = line
        open_runner = resolve("the runner's opener", spec.opener)(spec.options, spec.num_workers)
        self._workers: list[DeviceThread[StepPlan, StepHandle]] = []
        for worker in range(spec.num_workers):
            results = Results(worker, line.send, self._failed)
            self._workers.append(DeviceThread(open_runner, results.launched, self._failed))

    def open(self) -> None:
        """Load, and say so. Raises what opening a runner raised."""
        capacity, *_ = [_asked(worker.start) for worker in self._workers]
        mover = self._workers[0].mover
        if mover is not None:
            mover.start(self._line.send)
        heap.settle()
        self._line.send(Ready(capacity))

    def serve(self) -> None:
        """Until the other end closes; then the steps under way are the last."""
        while (message := self._line.receive()) is not None:
            if isinstance(message, StepPlan):
                self._workers[message.worker].submit(message)
            elif isinstance(message, DiskMoves):
                self._move(message)
            elif isinstance(message, Renew):
                self._renew()
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            worker.join()

    def _move(self, moves: DiskMoves) -> None:
        mover = self._workers[0].mover
        assert mover is not None, "who has no disk is asked for no moves"
        mover.submit(moves)

    def _renew(self) -> None:
        try:
            capacity, *_ = [_asked(worker.renew) for worker in self._workers]
        except BaseException as error:
            self._failed(error)
        else:
            self._line.send(Ready(capacity))

    def _failed(self, error: BaseException) -> None:
        _tell(self._line, error)


def main() -> None:
    """Open what the first frame says, then serve."""
    _live_no_longer_than_the_server()
    line = Line(socket.socket(fileno=int(sys.argv[1])))
    spec = line.receive()
    if not isinstance(spec, RunnerSpec):
        return
    logs.configure(spec.log_level, spec.log_format)
    try:
        host = Host(line, spec)
        host.open()
    except BaseException as error:
        _tell(line, failure_of(error))
        return
    host.serve()


def _tell(line: Line, error: BaseException) -> None:
    """What was not raised on purpose is also logged, with its traceback."""
    if not isinstance(error, StagelineError | MemoryError):
        structlog.get_logger().error("a device worker failed", exc_info=error)
    line.send(Fault(type(error).__name__, str(error) or repr(error)))


def _asked(ask: Callable[[Opened], None]) -> DeviceReady:
    """What a worker answers on its own thread."""
    answers: SimpleQueue[tuple[object, BaseException | None]] = SimpleQueue()
    ask(lambda capacity, error: answers.put((capacity, error)))
    capacity, error = answers.get()
    if error is not None:
        raise error
    assert isinstance(capacity, DeviceReady), "what a process opens says what it holds in a message"
    return capacity


def _live_no_longer_than_the_server() -> None:
    """Signals are the server's, which drains and then closes the socket. Its death is ours."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        sys.exit(1)  # it had died before


if __name__ == "__main__":
    main()
