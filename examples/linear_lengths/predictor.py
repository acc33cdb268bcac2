"""Linear lengths: answers that grow with their prompts, as translations do.

Not every idea needs a stage. How long an answer will be is a question that the scheduler asks of a policy
(pipeline.core.length_prediction), for its orders `sjf` and `deadline`:

    [stages.schedule.options]
    policy = "sjf"
    length_predictor = "examples.linear_lengths.predictor:LinearLengths"

An answer is expected to have a + b * prompt tokens: the least squares fit over the answers so far,
each of which counts a little less with every one that follows.
"""

from pipeline.core.policies.make import Parts
from pipeline.core.sequence import Sequence

FADING = 0.99
"""What an answer's weight is multiplied by with each one that follows: about the last 100 count."""


class LinearLengths:
    """A LengthPredictor. Five numbers, whatever the load."""

    def __init__(self, parts: Parts) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        """Sums of 1, prompt, answer, prompt squared, prompt times answer."""

    def predict(self, sequence: Sequence) -> int:
        """Before the first answer there is nothing to go by but the request's own bound."""
        if not self._weight:
            return sequence.max_tokens
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - mean_x * mean_x
        slope = (self._xy / self._weight - mean_x * mean_y) / spread if spread > 1.0 else 0.0
        expected = round(mean_y + slope * (sequence.num_prompt_tokens - mean_x))
        return max(1, min(expected, sequence.max_tokens))

    def observe(self, sequence: Sequence) -> None:
        x, y = sequence.num_prompt_tokens, sequence.num_output_tokens
        self._weight = self._weight * FADING + 1
        self._x = self._x * FADING + x
        self._y = self._y * FADING + y
        self._xx = self._xx * FADING + x * x
        self._xy = self._xy * FADING + x * y
