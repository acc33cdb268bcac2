"""DiskKv: moves KV blocks between host memory and disk, on a thread of its own, beside the steps.

It fails no request: what cannot be moved is told, and computed again. After the first error of the disk it
moves nothing more.
"""

import threading
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from queue import SimpleQueue

import msgspec
import structlog

from pipeline.gpu.kv.disk_file import DiskFile
from pipeline.gpu.memory.sizing import disk_kv_bytes
from pipeline.gpu.options import RunnerOptions
from pipeline.messages import DiskMove, DiskMoved, DiskMoves, DiskReady, Shelved

QUIET_S = 60.0
"""After a line about corrupt blocks, for so long none."""


def open_disk_file(options: RunnerOptions, purpose: str, block_bytes: int) -> DiskFile:
    """The file that the settings name, for what `purpose` describes. Raises ConfigError."""
    path, max_bytes = Path(options.disk_kv or ""), disk_kv_bytes(options.disk_kv_memory)
    digest = blake2b(purpose.encode(), digest_size=32).digest()
    return DiskFile(path, digest, block_bytes, max_bytes, keeps=options.disk_kv_keep)


class DiskKv:
    """Implements runtime.bridge.Mover.

    Args:
        place: the memory of a place; what is moved there or from there is nobody else's meanwhile
        (messages.DiskMoves).
    """

    def __init__(self, file: DiskFile, place: Callable[[int], memoryview], *, keeps: bool) -> None:
        self._file = file
        self._place = place
        self._keeps = keeps
        self._moves: SimpleQueue[DiskMoves | threading.Event | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._fault = ""
        self._quiet_until_s = float("-inf")
        self._num_told = 0
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
        self._tell_start()

    @property
    def ready(self) -> DiskReady:
        """What it holds at the start."""
        file = self._file
        return DiskReady(file.num_shelves, self._keeps, file.secret, tuple(file.kept), file.num_corrupt)

    def start(self, report: Callable[[DiskMoved], object]) -> None:
        """`report` is called on this thread for each DiskMoves, in their order."""
        self._thread = threading.Thread(target=self._run, args=(report,), name="disk", daemon=True)
        self._thread.start()

    def submit(self, moves: DiskMoves) -> None:
        """From any thread; never waits."""
        self._moves.put(moves)

    def renew(self) -> DiskReady:
        """What it holds once all that was submitted is done; nothing if the disk has failed."""
        if self._thread is not None:
            is_done = threading.Event()
            self._moves.put(is_done)
            is_done.wait()
        if self._fault:
            return DiskReady(0)
        num_corrupt = self._file.num_corrupt
        self._file.look_again()
        return msgspec.structs.replace(self.ready, num_corrupt=self._file.num_corrupt - num_corrupt)

    def close(self) -> None:
        """After all that was submitted. Idempotent."""
        if self._thread is not None:
            self._moves.put(None)
            self._thread.join()
            self._thread = None
        self._file.close()

    def _run(self, report: Callable[[DiskMoved], object]) -> None:
        while (moves := self._moves.get()) is not None:
            if isinstance(moves, threading.Event):
                moves.set()
            else:
                report(self._move(moves))

    def _move(self, moves: DiskMoves) -> DiskMoved:
        are_good: list[bool] = []
        fetch_ns = 0
        for move in moves.moves:
            begin_ns = time.perf_counter_ns()
            are_good.append(not self._fault and self._try(move))
            fetch_ns += (time.perf_counter_ns() - begin_ns) * move.is_fetch
        return DiskMoved([move.move_id for move in moves.moves], are_good, fetch_ns, self._fault)

    def _try(self, move: DiskMove) -> bool:
        try:
            if not move.is_fetch:
                name = Shelved(move.shelf, move.is_first, move.parent, move.tokens, move.key)
                return self._file.write(move.shelf, name, self._place(move.place))
            is_good = self._file.read(move.shelf, move.key, self._place(move.place))
            if not is_good:
                self._tell_corrupt()
        except OSError as error:
            self._fault = error.strerror or str(error)
            self._log.error("the KV on disk is given up", path=str(self._file.path), reason=self._fault)
            return False
        else:
            return is_good

    def _tell_start(self) -> None:
        file = self._file
        self._log.info(
            "KV blocks may go to disk",
            path=str(file.path),
            blocks=file.num_shelves,
            kept=len(file.kept),
            corrupt=file.num_corrupt,
        )
        if file.was_other:
            self._log.warning(
                "the KV on disk is of another model or layout: it starts empty", path=str(file.path)
            )

    def _tell_corrupt(self) -> None:
        now_s = time.monotonic()
        if now_s < self._quiet_until_s:
            return
        self._quiet_until_s = now_s + QUIET_S
        num_new, self._num_told = self._file.num_corrupt - self._num_told, self._file.num_corrupt
        self._log.warning(
            "KV blocks on disk are not as they were written", blocks=num_new, path=str(self._file.path)
        )
