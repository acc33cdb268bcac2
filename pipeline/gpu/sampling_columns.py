"""What the columns of a step's sampling rows are while they are in host memory."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Columns: TypeAlias = dict[str, npt.NDArray[np.generic]]
"""By the name of a field, of gpu.sampling.SamplingRows or, after RULES, of gpu.logit_rules.LogitRules."""

RULES = "rules."
