"""The device side: the only package that imports torch and triton. Knows no stages.

Import submodules by name; this file imports none of them, so that what needs no torch does not load it.
"""

import os

if "OMP_WAIT_POLICY" not in os.environ:
    # Read by libgomp when torch is loaded. Its default spins for milliseconds at the end of every parallel
    # region, on cores that others need: beside one busy process, 28 tokens/s against 57 with this
    # (docs/benchmarks.md).
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
