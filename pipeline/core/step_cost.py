"""StepCost: what a step costs, learned while serving: base + a per prefill, decode and KV token.

Least squares over the steps seen, weighted by relative error, the older ones forgotten exponentially. A step
that took far longer than predicted (the process was paused) counts no more than an ordinary bad one, and a
lasting change is followed within some dozens of steps, since the tolerance grows with the errors. No
coefficient is ever negative. One that the latest steps say nothing about keeps its last value.
"""

from typing import NamedTuple

UNLIMITED = 1 << 30
"""`prefill_tokens_within` of a budget that nothing learned so far bounds."""

_SCALES = (1.0, 256.0, 16.0, 4096.0)
"""What one unit of each feature stands for inside the fit, so that all are of one size."""
_NUM = len(_SCALES)
_MIN_STEPS = 8
_MAX_DEVIATIONS = 3.0
"""Past so many mean deviations, a step weighs the less the longer it took."""
_DEVIATION_GAIN = 0.05
_MIN_DEVIATION = 0.02
_ANCHOR = 1e-6
"""Weight of the last coefficients against all steps seen: decides only what these leave open."""
_REFIT_STEPS = 8

Matrix = list[list[float]]


class Coefficients(NamedTuple):
    """All in ns, none negative."""

    base: float
    per_prefill_token: float
    per_decode_token: float
    per_kv_token: float


class StepCost:
    """See the module. A step's KV tokens are those its running sequences hold (StepRecord.num_kv_tokens).

    Args:
        memory_steps: after so many steps, a step's weight has fallen to 1/e.
    """

    def __init__(self, memory_steps: int = 500) -> None:
        self.num_steps = 0
        self._keep = 1.0 - 1.0 / memory_steps
        self._gram: Matrix = [[0.0] * _NUM for _ in range(_NUM)]
        self._moment = [0.0] * _NUM
        self._solution = [0.0] * _NUM
        self._deviation = 0.5

    @property
    def is_ready(self) -> bool:
        """Enough steps were seen for predictions to mean something."""
        return self.num_steps >= _MIN_STEPS

    @property
    def coefficients(self) -> Coefficients:
        return Coefficients(*(value / scale for value, scale in zip(self._solution, _SCALES, strict=True)))

    @property
    def prefill_tokens_per_s(self) -> float:
        """How fast prompts are computed in a step that runs anyway; 0 until that is known."""
        cost_ns = self.coefficients.per_prefill_token
        return 1e9 / cost_ns if self.is_ready and cost_ns > 0 else 0.0

    def observe(
        self, num_prefill_tokens: int, num_decode_tokens: int, num_kv_tokens: int, step_ns: int
    ) -> None:
        """Learn from one step that took `step_ns` on the device."""
        features = _features(num_prefill_tokens, num_decode_tokens, num_kv_tokens)
        unit_ns = self._unit_ns(self._predict(features), step_ns)
        if unit_ns <= 0:
            return
        self._add(features, unit_ns, step_ns / unit_ns)
        self.num_steps += 1
        if self.num_steps < 8 * _REFIT_STEPS or self.num_steps % _REFIT_STEPS == 0:
            self._solution = _solve_non_negative(self._gram, self._moment, self._solution)

    def predict_ns(self, num_prefill_tokens: int, num_decode_tokens: int, num_kv_tokens: int) -> float:
        """What such a step would take; 0.0 before the first step."""
        return self._predict(_features(num_prefill_tokens, num_decode_tokens, num_kv_tokens))

    def prefill_tokens_within(self, budget_ns: float, num_decode_tokens: int, num_kv_tokens: int) -> int:
        """The most prefill tokens that keep a step of these decode rows within `budget_ns`; 0 if none do."""
        cost_ns = self.coefficients.per_prefill_token
        if not self.is_ready or cost_ns <= 0:
            return UNLIMITED
        left_ns = budget_ns - self.predict_ns(0, num_decode_tokens, num_kv_tokens)
        return min(UNLIMITED, max(0, int(left_ns / cost_ns)))

    def _predict(self, features: tuple[float, ...]) -> float:
        return sum(x * c for x, c in zip(features, self._solution, strict=True))

    def _unit_ns(self, predicted_ns: float, step_ns: int) -> float:
        """What errors are relative to: the prediction, or more where the step took far longer than that."""
        limit = _MAX_DEVIATIONS * self._deviation
        if predicted_ns > 0:
            residual = min(limit, abs(step_ns / predicted_ns - 1.0))
            self._deviation += _DEVIATION_GAIN * (residual - self._deviation)
            self._deviation = max(_MIN_DEVIATION, self._deviation)
        return max(predicted_ns, step_ns / (1.0 + limit))

    def _add(self, features: tuple[float, ...], unit_ns: float, target: float) -> None:
        """Features and target in units of about the step's own time: so relative errors count."""
        row = [x / unit_ns for x in features]
        keep = self._keep
        for i, x in enumerate(row):
            line = self._gram[i]
            for j, y in enumerate(row):
                line[j] = keep * line[j] + x * y
            self._moment[i] = keep * self._moment[i] + x * target


def _features(*counts: int) -> tuple[float, ...]:
    return (1.0, *(count / scale for count, scale in zip(counts, _SCALES[1:], strict=True)))


def _solve_non_negative(gram: Matrix, moment: list[float], last: list[float]) -> list[float]:
    """gram x = moment with x >= 0; where that leaves x open, near `last`.

    Coefficients that come out negative are set to 0, the worst first, and the others solved again.
    """
    anchor = _ANCHOR * gram[0][0]
    free = list(range(_NUM))
    while True:
        rows = [
            [gram[i][j] + (anchor if i == j else 0.0) for j in free] + [moment[i] + anchor * last[i]]
            for i in free
        ]
        solved = dict(zip(free, _solve(rows), strict=True))
        worst = min(solved, key=solved.__getitem__)
        if solved[worst] >= 0 or len(free) == 1:
            return [max(0.0, solved.get(i, 0.0)) for i in range(_NUM)]
        free.remove(worst)


def _solve(rows: Matrix) -> list[float]:
    """Gaussian elimination of a positive definite system [n, n + 1]."""
    size = len(rows)
    for i in range(size):
        for k in range(i + 1, size):
            factor = rows[k][i] / rows[i][i]
            rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i], strict=True)]
    solution = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - known) / rows[i][i]
    return solution
