"""The bridge between the loop and the device: what drives a device, and threads that own its runners.

A runner is used by one thread only, from opening to closing, so nothing of it needs a lock. The loop puts
plans into the thread's queue and never waits for it; a finished launch comes back as a call on the loop.
A thread holds what it was given: at most `credits` plans, by the scheduler's rule.

A runner that raises has lost the device: its thread runs nothing more until it is told to go on. The threads
live in this process (`ThreadDevice`) or in a child (runtime.process), by RunnerFactory.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from pipeline.runtime.frames import RunnerSpec

Plan = TypeVar("Plan")
Handle = TypeVar("Handle")
Plan_contra = TypeVar("Plan_contra", contravariant=True)
Handle_co = TypeVar("Handle_co", covariant=True)
Capacity_co = TypeVar("Capacity_co", covariant=True)
Opened: TypeAlias = Callable[[object, BaseException | None], None]
"""Is told the capacity, or what was raised instead."""


class Runner(Protocol[Plan_contra, Handle_co, Capacity_co]):
    """What drives a device. Every method is called on the worker's thread."""

    @property
    def capacity(self) -> Capacity_co:
        """What the device can hold; changed by `renew` only."""
        ...

    def launch(self, plan: Plan_contra, /) -> Handle_co:
        """Start one step. It may return before the device is done; steps end in launch order."""
        ...

    def renew(self) -> Capacity_co:
        """A launch has raised, and what was on the device counts no more: make ready for sequences that are
        admitted anew. What it holds now.
        """
        ...

    def close(self) -> None:
        """Give the device's memory back."""
        ...


class Mover(Protocol):
    """What moves data beside the steps, on a thread of its own: a runner may have one as its `mover`."""

    def start(self, report: Callable[[Any], object]) -> None:
        """`report` is called on that thread, once for each message, in their order."""
        ...

    def submit(self, message: Any) -> None:
        """Never waits."""
        ...


@dataclass(frozen=True, slots=True)
class RunnerFactory:
    """A resource: how to open the runners. Slow (it loads the weights), so the worker calls it.

    `open` is called once by each worker, one after the other. Runners after the first share its weights and
    its KV cache: a block that one has written, another can read.
    """

    open: Callable[[], "Runner[object, object, object]"]
    num_workers: int = 1
    process: RunnerSpec | None = None
    """How a child process opens the same; None: they live in this one."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Whom a device tells what happens, on the loop."""

    launched: Callable[[Any], None]
    """Each launched step, each worker's in order."""
    moved: Callable[[Any], None]
    """Each answer of the mover."""
    failed: Callable[[BaseException], None]
    """The device is lost until it is opened again; a MemoryError: for want of memory alone. May be told more
    than once."""


class Device(Protocol):
    """What the execute stage drives: all workers of one device."""

    async def open(self) -> Any:
        """Its capacity. Again after a failure: what can be kept is kept, and no plan from before is run."""
        ...

    def submit(self, worker: int, plan: Any) -> None: ...

    def move(self, moves: Any) -> None: ...

    def listen(self, listener: Listener) -> None:
        """Tell this one from now on, and nobody else; also of what was given to it before."""
        ...

    def condemn(self) -> bool:
        """It answers no more, and the next `open` is to start anew. False: a thread cannot be ended."""
        ...

    @property
    def pid(self) -> int:
        """Of its process; 0: it has none of its own."""
        ...

    async def close(self) -> None:
        """After the steps under way. Idempotent."""
        ...


def failure_of(error: BaseException) -> BaseException:
    """What to tell of what a runner has raised: a MemoryError where it found no memory, host's or device's.

    That one is without the traceback, whose frames hold what the step had allocated.
    """
    is_out_of_memory = (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"  # torch's, which only gpu imports
        or "can't allocate memory" in str(error)
    )
    return MemoryError(str(error) or "out of memory") if is_out_of_memory else error


class DeviceThread(Generic[Plan, Handle]):
    """Owns one runner. The callbacks are called on this thread.

    Args:
        launched: is told of each launched step, in order.
        failed: is told what the runner raised; it runs nothing more until `renew`.
    """

    def __init__(
        self,
        open_runner: Callable[[], Runner[Any, Any, Any]],
        launched: Callable[[Handle], object],
        failed: Callable[[BaseException], object],
    ) -> None:
        self.mover: Mover | None = None
        """The runner's, once it is open."""
        self._open_runner = open_runner
        self._launched = launched
        self._failed = failed
        self._work: SimpleQueue[Plan | _Renewal | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, opened: Opened) -> None:
        self._thread = threading.Thread(target=self._run, args=(opened,), name="device", daemon=True)
        self._thread.start()

    def submit(self, plan: Plan) -> None:
        self._work.put(plan)

    def renew(self, renewed: Opened) -> None:
        """Drop what was submitted before, and go on."""
        self._work.put(_Renewal(renewed))

    def stop(self) -> None:
        """Close the runner after the step under way; `join` waits for that."""
        self._work.put(None)

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _run(self, opened: Opened) -> None:
        try:
            runner = self._open_runner()
        except BaseException as error:
            opened(None, error)
            return
        self.mover = getattr(runner, "mover", None)
        opened(runner.capacity, None)
        try:
            self._serve(runner)
        finally:
            runner.close()

    def _serve(self, runner: Runner[Any, Any, Any]) -> None:
        is_lost = False
        while (work := self._work.get()) is not None:
            if isinstance(work, _Renewal):
                is_lost = not self._renew(runner, work)
            elif not is_lost:
                is_lost = not self._launch(runner, work)

    def _launch(self, runner: Runner[Any, Any, Any], plan: Plan) -> bool:
        try:
            handle = runner.launch(plan)
        except BaseException as error:
            self._failed(failure_of(error))
            return False
        self._launched(handle)
        return True

    @staticmethod
    def _renew(runner: Runner[Any, Any, Any], work: "_Renewal") -> bool:
        try:
            capacity = runner.renew()
        except BaseException as error:
            work.renewed(None, failure_of(error))
            return False
        work.renewed(capacity, None)
        return True


@dataclass(frozen=True, slots=True)
class _Renewal:
    renewed: Opened


class ThreadDevice:
    """Workers in this process: one thread each. A runner that raised goes on over the same weights when it is
    opened again; what only a fresh process can heal, it cannot.
    """

    pid = 0

    def __init__(self, factory: RunnerFactory, listener: Listener) -> None:
        self._factory = factory
        self._listener = listener
        self._workers: list[DeviceThread[Any, Any]] = []
        self._mover: Mover | None = None
        self._loop: asyncio.AbstractEventLoop

    async def open(self) -> Any:
        if self._workers:
            renewals = [self._asked(worker.renew) for worker in self._workers]
            return (await asyncio.gather(*renewals))[0]
        self._loop = asyncio.get_running_loop()
        capacities = [await self._asked(self._new_worker().start) for _ in range(self._factory.num_workers)]
        self._mover = self._workers[0].mover
        if self._mover is not None:
            self._mover.start(lambda moved: self._call(self._moved, moved))
        return capacities[0]

    def submit(self, worker: int, plan: Any) -> None:
        self._workers[worker].submit(plan)

    def move(self, moves: Any) -> None:
        assert self._mover is not None, "who has no disk is asked for no moves"
        self._mover.submit(moves)

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    def condemn(self) -> bool:
        return False

    async def close(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.stop()
        for worker in workers:
            await asyncio.to_thread(worker.join)

    def _new_worker(self) -> DeviceThread[Any, Any]:
        worker: DeviceThread[Any, Any] = DeviceThread(
            self._factory.open,
            lambda handle: self._call(self._launched, handle),
            lambda error: self._call(self._failed, error),
        )
        self._workers.append(worker)
        return worker

    # On the loop, where the listener may have changed since the thread said so.

    def _launched(self, handle: object) -> None:
        self._listener.launched(handle)

    def _moved(self, moved: object) -> None:
        self._listener.moved(moved)

    def _failed(self, error: BaseException) -> None:
        self._listener.failed(error)

    async def _asked(self, ask: Callable[[Opened], None]) -> object:
        """What the worker answers, on its thread; here it comes after all that it has told before."""
        answer: asyncio.Future[object] = self._loop.create_future()

        def settle(capacity: object, error: BaseException | None) -> None:
            if answer.done():
                return  # whoever waited was cancelled meanwhile
            if error is None:
                answer.set_result(capacity)
            else:
                answer.set_exception(error)

        ask(lambda capacity, error: self._call(settle, capacity, error))
        return await answer

    def _call(self, callback: Callable[..., None], *args: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)
