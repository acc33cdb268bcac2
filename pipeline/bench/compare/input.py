"""Input: what both sides are sent, from the beginning each time: samples, or a recording."""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from pipeline.bench.compare.plans import CheckedDevice
from pipeline.bench.feeds import Device, feed_for
from pipeline.bench.replay import Pace, replay_feed
from pipeline.bench.replay.device import DeviceReplay
from pipeline.bench.samples import STOP, Load
from pipeline.bench.stand import Feed
from pipeline.errors import StagelineError
from pipeline.runtime.recording import Recording
from pipeline.topology import Graph


@dataclass(frozen=True)
class Input:
    """Makers of feeds that begin at the beginning."""

    answers: Callable[[], Feed]
    """Comes to an end, and every request with it."""
    timed: Callable[[], Feed]
    num_messages: int | None = None
    """That there are to be timed; None: as many as are asked for."""
    is_one_piece: bool = False
    """Each round begins at the beginning: how far a part of it goes is for the stage to say."""

    def part(self, num_messages: int, parts: int) -> int:
        """So many, or as many as there are for each of the parts. StagelineError if there are none."""
        there = num_messages if self.num_messages is None else self.num_messages // parts
        if not there:
            raise StagelineError(
                f"{self.num_messages} messages are too few for {parts} rounds, warm-up included"
            )
        return min(num_messages, there)


def of_samples(stage: str, graph: Graph, load: Load, num_requests: int, num_tokens: int) -> Input:
    """Steady load for the time; for the answers so many requests to their end, some by a stop string.

    Args:
        num_tokens: output of each of those requests.
    """
    whole = replace(load, num_tokens=num_tokens, num_sequences=num_requests, stop=STOP)

    def answers() -> Feed:
        feed = feed_for(stage, whole, graph)
        return CheckedDevice(whole) if isinstance(feed, Device) else feed

    return Input(answers, lambda: feed_for(stage, load, graph))


def of_recording(stage: str, graph: Graph, recording: Recording) -> Input:
    """As fast as the stage takes it. Raises StagelineError: it is of another stage."""

    def feed() -> Feed:
        return replay_feed(recording, stage, graph, Pace(None))

    first = replay_feed(recording, stage, graph, Pace(None))
    return Input(feed, feed, first.num_messages, is_one_piece=isinstance(first, DeviceReplay))
