"""Charts of what went on over the time of a run."""

from collections import deque

from loadgen.html.axis import Axis, from_zero, round_step
from loadgen.html.plot import Mark, Point, area, bars, chart, figure, steps
from loadgen.queues import QueueSample
from loadgen.record import Record

_HEIGHT_PX = 340
"""Of the timeline: its bars are as thick as there is room for."""
_LEVEL_BINS, _RATE_BINS = 300, 60
_Span = tuple[float, float]


def timeline(records: list[Record], wall_s: float) -> str:
    """Every request as a bar, coloured by phase."""
    what = "one line per request, by due time: from due to the first token, then to the last"
    if not records:
        return figure("Requests over time", what, None, css="wide")
    x, y = _seconds(wall_s), Axis(len(records) - 0.5, -0.5)
    width = min(8.0, max(1.0, 0.75 * _HEIGHT_PX / len(records)))
    phases: dict[str, list[tuple[float, float, float]]] = {name: [] for name, _ in _PHASES}
    for row, record in enumerate(sorted(records, key=lambda record: record.intended_s)):
        for name, (begin, end) in _phases(record).items():
            phases[name].append((begin, end, row))
    marks = [Mark(name, css, bars(phases[name], x, y), width) for name, css in _PHASES if phases[name]]
    drawn = chart(
        marks,
        x,
        y,
        x_unit="s",
        y_unit=f"{len(records):,} requests, the first on top",
        css="tall",
        height_px=_HEIGHT_PX,
        y_labels=[],
    )
    return figure("Requests over time", what, drawn, css="wide")


def tokens(records: list[Record], wall_s: float) -> str:
    """Output tokens received per second."""
    arrivals = [
        (at, count or 1)
        for record in records
        for at, count in zip(record.chunk_s, record.chunk_tokens, strict=True)
    ]
    what = "output tokens received; a chunk that does not say counts as one"
    if not arrivals:
        return figure("Token throughput", what, None)
    per_s = rates(arrivals, wall_s)
    x, y = _seconds(wall_s), from_zero([rate for _, rate in per_s])
    marks = [Mark("", "c2", area(per_s, x, y), 0), Mark("", "c2", steps(per_s, x, y))]
    return figure(
        "Token throughput", what, chart(marks, x, y, x_unit="s", y_unit="tokens/s", has_legend=False)
    )


def requests(records: list[Record], wall_s: float) -> str:
    """Requests sent, and whole answers received, per second."""
    sent = rates([(record.sent_s, 1) for record in records if record.sent_s is not None], wall_s)
    ended = rates(
        [(record.closed_s, 1) for record in records if record.is_finished and record.closed_s], wall_s
    )
    if not records:
        return figure("Request throughput", "requests sent, and whole answers", None)
    x, y = _seconds(wall_s), from_zero([rate for _, rate in sent + ended])
    marks = [Mark("sent", "c4", steps(sent, x, y)), Mark("finished", "c2", steps(ended, x, y))]
    return figure(
        "Request throughput",
        "requests sent, and whole answers",
        chart(marks, x, y, x_unit="s", y_unit="requests/s"),
    )


def live(records: list[Record], wall_s: float) -> str:
    """How many requests were unanswered, and how many of these had no token yet."""
    what = "requests that are unanswered at a time, as the client sees them; the most in each bin"
    alive = levels(
        [(record.sent_s, record.closed_s) for record in records if record.sent_s is not None], wall_s
    )
    waits = [(record.sent_s, _first_s(record)) for record in records if record.sent_s is not None]
    waiting = levels(waits, wall_s)
    if not alive:
        return figure("Live requests", what, None)
    x, y = _seconds(wall_s), from_zero([level for _, level in alive])
    marks = [
        Mark("live", "c3", area(alive, x, y), 0),
        Mark("waiting for the first token", "c1", steps(waiting, x, y)),
    ]
    return figure("Live requests", what, chart(marks, x, y, x_unit="s", y_unit="requests"))


def queues(samples: list[QueueSample], wall_s: float) -> str:
    """The server's own queues. Stages whose inbox was never seen with a message are left out."""
    title = "Server queues"
    what = "in the server, each half second: requests without a place on the device, messages before a stage"
    if not samples:
        empty = '<p class="empty">No samples: the server has no /metrics of this project.</p>'
        return figure(title, what, empty, css="wide")
    shown = _depths(samples)
    x, y = _seconds(wall_s), from_zero([depth for points in shown.values() for _, depth in points])
    marks = [
        Mark(name, f"c{1 + number % 8}", steps(points, x, y))
        for number, (name, points) in enumerate(shown.items())
    ]
    drawn = chart(marks, x, y, x_unit="s", y_unit="requests or messages")
    return figure(title, what, drawn, css="wide")


def _depths(samples: list[QueueSample]) -> dict[str, list[Point]]:
    """The queues that were not always empty, by name."""
    series = {"scheduler waiting": [(sample.at_s, sample.waiting) for sample in samples]}
    for stage in samples[0].inboxes:
        series[f"inbox {stage}"] = [(sample.at_s, sample.inboxes.get(stage, 0.0)) for sample in samples]
    seen = {name: points for name, points in series.items() if any(depth for _, depth in points)}
    return seen or {"all queues: empty at every sample": [(sample.at_s, 0.0) for sample in samples]}


_PHASES = (
    ("waiting for the first token", "c1"),
    ("streaming", "c2"),
    ("failed", "bad"),
    ("ended by its client", "muted"),
)


def _phases(record: Record) -> dict[str, _Span]:
    """Phase to (begin, end) in seconds."""
    ended_s = record.closed_s or record.intended_s
    if record.failure is not None:
        return {"failed": (record.intended_s, ended_s)}
    if record.ended_by == "client":
        return {"ended by its client": (record.intended_s, ended_s)}
    first_s = _first_s(record) or ended_s
    waiting = (record.intended_s, first_s)
    last_s = record.chunk_s[-1] if record.chunk_s else ended_s
    return {"waiting for the first token": waiting, "streaming": (first_s, last_s)}


def _first_s(record: Record) -> float | None:
    """When it stopped waiting for the first token, by having it or by its end."""
    return record.chunk_s[0] if record.chunk_s else record.closed_s


def _seconds(wall_s: float) -> Axis:
    return Axis(0.0, wall_s or 1.0)


def rates(events: list[tuple[float, int]], wall_s: float, num_bins: int = _RATE_BINS) -> list[Point]:
    """Per second, in bins of a round width; what is left over at the end is part of the last."""
    if not events or not wall_s:
        return []
    width = round_step(wall_s / num_bins)
    counts = [0] * max(1, int(wall_s / width))
    for at, count in events:
        counts[min(len(counts) - 1, max(0, int(at / width)))] += count
    last_s = wall_s - width * (len(counts) - 1)
    points = [(i * width, count / width) for i, count in enumerate(counts[:-1])]
    last = counts[-1] / last_s
    return [*points, (wall_s - last_s, last), (wall_s, last)]


def levels(
    spans: list[tuple[float, float | None]], wall_s: float, num_bins: int = _LEVEL_BINS
) -> list[Point]:
    """The most spans open at once in each of `num_bins` bins; a span without an end lasts to the end."""
    if not spans or not wall_s:
        return []
    ends = [(end, -1) for _, end in spans if end is not None]
    changes = deque(sorted([(begin, 1) for begin, _ in spans] + ends))
    width, level = wall_s / num_bins, 0
    points: list[Point] = []
    for number in range(num_bins):
        most = level
        while changes and changes[0][0] < (number + 1) * width:
            level += changes.popleft()[1]
            most = max(most, level)
        points.append((number * width, most))
    return [*points, (wall_s, points[-1][1])]
