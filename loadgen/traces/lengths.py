"""A ServeGen client's lengths: a distribution of each field per window of the day."""

import ast
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from loadgen.errors import TraceError
from loadgen.traces.format import Source

_INPUTS = ("input_tokens", "text_tokens")
_OUTPUT = "output_tokens"
_MEDIA = ("image_count", "audio_count", "video_count")
_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


class _Distribution(msgspec.Struct, frozen=True):
    values: _Ints
    weights: _Floats
    """They add to 1."""

    def draw(self, count: int, rng: np.random.Generator) -> _Ints:
        return rng.choice(self.values, count, p=self.weights)


class Lengths:
    """What a client asks, by time of day.

    Args:
        starts_s: of each window, ascending.
        windows: of each, the distribution by field; fields without one are absent.
        input_name: the field that is the prompt's length.
    """

    def __init__(
        self, path: Path, starts_s: _Floats, windows: list[dict[str, _Distribution]], input_name: str
    ) -> None:
        self._path = path
        self._starts_s = starts_s
        self._windows = windows
        self._input_name = input_name

    def draw(self, times_s: _Floats, rng: np.random.Generator) -> tuple[_Ints, _Ints, _Ints]:
        """(input tokens, output tokens, images and other media) of a request at each of `times_s`, ascending.

        Raises:
            TraceError: a request falls into a window without lengths.
        """
        inputs, outputs, media = (np.zeros(len(times_s), np.int64) for _ in range(3))
        edges = [*np.searchsorted(times_s, self._starts_s).tolist(), len(times_s)]
        if edges[0]:
            raise TraceError(f"{self._path}: there are requests before its first window")
        for window, first, last in zip(self._windows, edges, edges[1:], strict=False):
            if first < last:
                part = slice(first, last)
                inputs[part] = self._field(window, self._input_name).draw(last - first, rng)
                outputs[part] = self._field(window, _OUTPUT).draw(last - first, rng)
                for name in _MEDIA:
                    if name in window:
                        media[part] += window[name].draw(last - first, rng)
        return inputs, outputs, media

    def _field(self, window: dict[str, _Distribution], name: str) -> _Distribution:
        if name not in window:
            raise TraceError(f"{self._path}: {name}: a window with requests has no distribution of it")
        return window[name]


def read_lengths(source: Source, path: Path) -> Lengths:
    """The lengths in a `*-dataset.json`.

    Raises:
        TraceError: it is not of that form.
    """
    try:
        content = msgspec.json.decode(source.text(path), type=dict[str, dict[str, str]])
        by_start = sorted((float(start), fields) for start, fields in content.items())
    except ValueError as error:  # msgspec's errors are among them
        raise TraceError(f"{path}: expected {{t_s: {{field: distribution}}}}: {error}") from error
    names = {name for _, fields in by_start for name in fields}
    input_name = next((name for name in _INPUTS if name in names), None)
    if input_name is None:
        raise TraceError(f"{path}: has none of the fields {', '.join(_INPUTS)}")
    windows = [
        {name: found for name, value in fields.items() if (found := _distribution(value, f"{path}: {name}"))}
        for _, fields in by_start
    ]
    return Lengths(path, np.array([start for start, _ in by_start]), windows, input_name)


def _distribution(value: str, where: str) -> _Distribution | None:
    """`{value: probability}` as Python prints a dict; None of an empty one."""
    try:
        weights = ast.literal_eval(value)
        values = np.array([int(key) for key in weights], np.int64)
        probabilities = np.array([float(weight) for weight in weights.values()])
    except (ValueError, SyntaxError, TypeError, AttributeError) as error:
        raise TraceError(f"{where}: expected {{value: probability}}, got {value[:60]!r}") from error
    if not values.size:
        return None
    if (values < 0).any() or not (probabilities >= 0).all() or not 0.99 < probabilities.sum() < 1.01:
        raise TraceError(f"{where}: values must be 0 or more, and probabilities add to 1")
    return _Distribution(values, probabilities / probabilities.sum())
