"""ServeGen (Xiang et al., 2025): traffic generated from the parameters of a production service's clients.

A client is two files: `*-trace.csv` without header, `t_s,rate,cv,pattern,p1,p2` per window (600 s), and
`*-dataset.json`, `{t_s: {field: "{value: probability}"}}` per longer window (6 h). The source is one
client's trace file, or a folder of clients.

Gaps between a client's requests have the window's law (Gamma or Weibull of shape p1) scaled to a mean of
1 / rate: they are drawn in units of the mean gap and laid along the integral of the rate, so that a gap
may reach over several windows and the number of requests follows the rates. Input and output lengths are
drawn independently. The same seed gives the same day, whatever part of it is taken.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from math import gamma
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from loadgen.errors import TraceError
from loadgen.traces.format import Format, ReadOptions, Source
from loadgen.traces.lengths import Lengths, read_lengths
from loadgen.traces.row import NS_PER_S, Dropped, Note, TraceRow, usable

_TRACE, _DATASET = "-trace.csv", "-dataset.json"
_NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_LINE = re.compile(rf"({_NUMBER}),({_NUMBER}),({_NUMBER}),(|Gamma|Weibull),({_NUMBER}),({_NUMBER})\s*")
_MIN_SHAPE = 0.01
"""Under it a Weibull's mean is no number; the published shapes are 0.03 and more."""
_Floats = npt.NDArray[np.float64]


class _Window(msgspec.Struct, frozen=True):
    start_s: float
    rate: float
    """Requests per second."""
    pattern: str
    shape: float


def matches(source: Source) -> bool:
    traces = _traces(source)
    return bool(traces) and _LINE.fullmatch(source.text(traces[0]).split("\n")[0]) is not None


def read(source: Source, options: ReadOptions) -> Iterator[TraceRow | Dropped | Note]:
    """See Format.read."""
    num_expected = 0.0
    traces = _traces(source)
    for path in traces:
        windows = _windows(source, path)
        edges = np.array([window.start_s for window in windows] + [_end_s(windows)])
        num_expected += sum(w.rate * float(gap) for w, gap in zip(windows, np.diff(edges), strict=True))
        rng = np.random.default_rng([options.seed % 2**63, *path.name.encode()])
        times = _arrivals(windows, edges, rng)
        lengths = read_lengths(source, path.with_name(path.name.removesuffix(_TRACE) + _DATASET))
        yield from _rows(times, lengths, rng, options)
    yield Note(
        f"generated: {len(traces)} clients, seed {options.seed}; "
        f"their rates make {num_expected:.0f} requests in the whole day"
    )


def _traces(source: Source) -> list[Path]:
    """The clients' trace files that have their lengths beside them."""
    return [
        file
        for file in source.files
        if file.name.endswith(_TRACE) and file.with_name(file.name.removesuffix(_TRACE) + _DATASET).is_file()
    ]


def _windows(source: Source, path: Path) -> list[_Window]:
    windows: list[_Window] = []
    for number, line in enumerate(source.text(path).split("\n"), 1):
        if not line.strip():
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise TraceError(
                f"{path}:{number}: expected t_s,rate,cv,Gamma or Weibull,shape,scale, got {line!r}"
            )
        start_s, rate, _, pattern, shape, _ = found.groups()
        windows.append(_Window(float(start_s), float(rate), pattern, float(shape)))
        if windows[-1].rate and not (pattern and windows[-1].shape >= _MIN_SHAPE):
            raise TraceError(
                f"{path}:{number}: a rate of {rate} needs a pattern and a shape of {_MIN_SHAPE} or more"
            )
    if len(windows) < 2 or any(b.start_s <= a.start_s for a, b in pairwise(windows)):
        raise TraceError(f"{path}: expected at least two windows, each later than the one before")
    return windows


def _end_s(windows: list[_Window]) -> float:
    """The last window is as long as the one before it."""
    return 2 * windows[-1].start_s - windows[-2].start_s


def _arrivals(windows: list[_Window], edges: _Floats, rng: np.random.Generator) -> _Floats:
    """Times of one client's requests, in seconds, ascending."""
    times: list[_Floats] = []
    ahead = 0.0  # mean gaps from the window's start to the first request in or after it
    is_started = False
    for window, start_s, end_s in zip(windows, edges, edges[1:], strict=False):
        reach = window.rate * (end_s - start_s)  # the window's length in mean gaps
        if not reach:
            continue
        if not is_started:
            ahead, is_started = float(_gaps(window, 1, rng)[0]), True
        places = _places(window, ahead, reach, rng)
        times.append(start_s + places[places < reach] / window.rate)
        ahead = float(places[places >= reach][0]) - reach
    return np.concatenate(times) if times else np.array([])


def _places(window: _Window, first: float, reach: float, rng: np.random.Generator) -> _Floats:
    """Requests from `first` on, in mean gaps, up to and including the first at or past `reach`."""
    places = [np.array([first])]
    while places[-1][-1] < reach:
        gaps = _gaps(window, 64 + int(reach - places[-1][-1]), rng)
        places.append(places[-1][-1] + np.cumsum(gaps))
    joined = np.concatenate(places)
    return joined[: int(np.searchsorted(joined, reach)) + 1]


def _gaps(window: _Window, count: int, rng: np.random.Generator) -> _Floats:
    """Gaps of mean 1."""
    if window.pattern == "Gamma":
        return rng.gamma(window.shape, 1 / window.shape, count)
    return rng.weibull(window.shape, count) / gamma(1 + 1 / window.shape)


def _rows(
    times: _Floats, lengths: Lengths, rng: np.random.Generator, options: ReadOptions
) -> Iterator[TraceRow | Dropped]:
    """The rows within the options' part of the day. Drawn for all of it, so that the part is the day's."""
    inputs, outputs, media = lengths.draw(times, rng)
    first, last = np.searchsorted(times, options.window_s or (0.0, np.inf))
    part = slice(int(first), int(last))
    at_ns = np.rint(times[part] * NS_PER_S).astype(np.int64).tolist()
    columns = (at_ns, inputs[part].tolist(), outputs[part].tolist(), media[part].tolist())
    for at, num_input, num_output, num_media in zip(*columns, strict=True):
        row = TraceRow(at, num_input, num_output)
        yield Dropped("has images, audio or video", row) if num_media else usable(row)


FORMAT = Format(
    "servegen",
    f"a client's *{_TRACE} (t_s,rate,cv,pattern,p1,p2) with its *{_DATASET}, or a folder of clients",
    matches,
    read,
    is_generated=True,
)
