"""Plans: a recording of execute's inbox, replayed on the device that the stage opens, whose time counts."""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from pipeline.bench.replay.anew import anew
from pipeline.bench.replay.begun import Begun
from pipeline.bench.replay.pace import Pace
from pipeline.bench.stand import Feed, Stand
from pipeline.errors import StagelineError
from pipeline.messages import DeviceLost, DeviceReady, StepHandle, StepPlan
from pipeline.runtime.recording import Entry, Recording
from pipeline.simulate.fitting import Timed
from pipeline.simulate.work import work_of
from pipeline.topology import CREDITS


class PlansReplay(Feed):
    """`send` counts steps. Each is sent when it was, but never more than are in flight at once in a server.

    Plans are launched as they stand, so blocks and slots are those of the recording. Rows of requests that
    began before it are left out, as is what was moved from and to a disk; where the device has no host memory
    for blocks, what was copied there and back is left out too: the tokens are then others, the times are not.
    """

    def __init__(self, recording: Recording, pace: Pace) -> None:
        super().__init__()
        self._plans = deque(plans_of(recording.entries))
        if not self._plans:
            raise StagelineError("the recording holds no step: it must be of all links to execute")
        self.num_messages = len(self._plans)
        """Steps of the recording."""
        self.needs = capacity_of([entry.message for entry in self._plans])
        """What the device must hold."""
        self._begin_ns = recording.header.begin_ns
        self._pace = pace
        self._begun = Begun()
        self.ready: DeviceReady | None = None
        """What it holds, once it is open."""
        self._in_flight: dict[int, int] = {}
        """Steps, by worker."""
        self._changed = asyncio.Event()
        self.timed: list[Timed] = []
        """What each step so far was made of, and took."""
        self._services_us: list[tuple[int, float]] = []

    async def send(self, stand: Stand, num_messages: int) -> None:
        while self.ready is None:
            await self._change()
        for _ in range(min(num_messages, len(self._plans))):
            entry = self._plans.popleft()
            self._count(entry)
            await self._put(stand, entry)
        while any(self._in_flight.values()):
            await self._change()

    def gave(self, stand: Stand, message: object) -> None:
        if isinstance(message, DeviceReady):
            self.ready = message
            check_fits(self.needs, message)
        elif isinstance(message, DeviceLost):
            raise StagelineError(f"the device was lost in its bench: {message.reason}")
        else:
            self._done(message)  # type: ignore[arg-type]  # a Protocol without a cheap isinstance
        self._changed.set()

    def services_us(self, stand: Stand, since_ns: int) -> list[float]:
        return [service_us for begin_ns, service_us in self._services_us if begin_ns >= since_ns]

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _count(self, entry: Entry) -> None:
        later_ns = self._plans[0].at_ns if self._plans else entry.at_ns
        self.recorded_ns += later_ns - entry.at_ns

    async def _put(self, stand: Stand, entry: Entry) -> None:
        plan = self._begun.of(entry.message)
        self.num_left_out = self._begun.num_left_out
        if plan is None:
            return
        if self._pace.factor is not None:
            await self._pace.until(self._pace.due_ns(entry.at_ns, stand.clock()), stand.clock)
        while self._in_flight.get(plan.worker, 0) >= CREDITS:
            await self._change()
        self._in_flight[plan.worker] = self._in_flight.get(plan.worker, 0) + 1
        plan = anew(plan, stand.clock() - self._begin_ns - entry.at_ns)
        await stand.inbox.send(plan if self.ready and self.ready.num_host_blocks else _without_copies(plan))

    def _done(self, step: StepHandle) -> None:
        step.token_ids_sync()  # its times are there once it is done
        self.num_rows += len(step.plan.slots)
        self.timed.append(Timed(work_of(step.plan), step.end_ns - step.begin_ns))
        self._services_us.append((step.begin_ns, (step.end_ns - step.begin_ns) / 1e3))
        self._in_flight[step.plan.worker] -= 1


def plans_of(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Those of steps; in order of their ids, which is that of their launch."""
    plans = [entry for entry in entries if isinstance(entry.message, StepPlan)]
    return iter(sorted(plans, key=lambda entry: entry.message.step_id))


def capacity_of(plans: Sequence[StepPlan]) -> DeviceReady:
    """The least that holds them all, with the block size left open (1)."""
    blocks = [block for plan in plans for block in (*plan.block_ids, *plan.saved_ids, *plan.loaded_ids)]
    slots = [slot for plan in plans for slot in plan.slots]
    return DeviceReady(
        num_blocks=max(blocks, default=0) + 1,
        block_size=1,
        max_num_seqs=max(slots, default=0) + 1,
        max_num_batched_tokens=max(len(plan.token_ids) for plan in plans),
        num_host_blocks=max((place for plan in plans for place in plan.saved_places), default=-1) + 1,
    )


def check_fits(needs: DeviceReady, ready: DeviceReady) -> None:
    """Raises StagelineError that says which setting of [device] is too small."""
    settings = {
        "num_blocks": "device.num_blocks",
        "max_num_seqs": "device.max_num_seqs",
        "max_num_batched_tokens": "device.max_num_batched_tokens",
    }
    for name, setting in settings.items():
        needed, held = getattr(needs, name), getattr(ready, name)
        if needed > held:
            raise StagelineError(f"the recording's steps need {setting} = {needed}; the device has {held}")
    if 0 < ready.num_host_blocks < needs.num_host_blocks:
        raise StagelineError(
            f"the recording's steps need {needs.num_host_blocks} blocks in device.host_kv_memory; the device "
            f"has {ready.num_host_blocks}"
        )


def _without_copies(plan: StepPlan) -> StepPlan:
    return replace(plan, saved_ids=[], saved_places=[], loaded_places=[], loaded_ids=[])
