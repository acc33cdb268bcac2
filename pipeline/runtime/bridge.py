"""The bridge between the loop and the device: a worker thread that owns a runner.

A runner is used by one thread only, from opening to closing, so nothing of it needs a lock. The loop puts
plans into the worker's queue and never waits for it; a finished launch comes back as a call on the loop.
The worker holds what it was given: at most `credits` plans, by the scheduler's rule.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

Plan = TypeVar("Plan")
Handle = TypeVar("Handle")
Plan_contra = TypeVar("Plan_contra", contravariant=True)
Handle_co = TypeVar("Handle_co", covariant=True)
Capacity_co = TypeVar("Capacity_co", covariant=True)


class Runner(Protocol[Plan_contra, Handle_co, Capacity_co]):
    """What drives a device. Every method is called on the worker's thread."""

    @property
    def capacity(self) -> Capacity_co:
        """What the device can hold; fixed once the runner is open."""
        ...

    def launch(self, plan: Plan_contra, /) -> Handle_co:
        """Start one step. It may return before the device is done; steps end in launch order."""
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


class DeviceWorker(Generic[Plan, Handle]):
    """The thread.

    Args:
        deliver: called on the loop with each launched step, in order.
        fail: called on the loop, once, if the runner raises; the worker has ended then.
    """

    def __init__(self, deliver: Callable[[Handle], None], fail: Callable[[BaseException], None]) -> None:
        self.mover: Mover | None = None
        """The runner's, once it is open."""
        self._deliver = deliver
        self._fail = fail
        self._plans: SimpleQueue[Plan | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._opened: asyncio.Future[object] | None = None

    async def start(self, factory: RunnerFactory) -> object:
        """Open the runner on the thread; its capacity. Raises what opening it raised."""
        loop = asyncio.get_running_loop()
        self._opened = loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(factory, loop), name="device", daemon=True)
        self._thread.start()
        return await self._opened

    def submit(self, plan: Plan) -> None:
        self._plans.put(plan)

    async def stop(self) -> None:
        """Close the runner after the step under way. Idempotent."""
        if self._thread is not None:
            self._plans.put(None)
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def _run(self, factory: RunnerFactory, loop: asyncio.AbstractEventLoop) -> None:
        try:
            runner = factory.open()
        except BaseException as error:
            self._call(loop, self._settle, None, error)
            return
        self.mover = getattr(runner, "mover", None)
        self._call(loop, self._settle, runner.capacity, None)
        try:
            while (plan := self._plans.get()) is not None:
                self._call(loop, self._deliver, runner.launch(plan))
        except BaseException as error:
            self._call(loop, self._fail, error)
        finally:
            runner.close()

    def _settle(self, capacity: object, error: BaseException | None) -> None:
        if self._opened is None or self._opened.done():
            return  # start() was cancelled meanwhile
        if error is None:
            self._opened.set_result(capacity)
        else:
            self._opened.set_exception(error)

    @staticmethod
    def _call(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(callback, *args)
