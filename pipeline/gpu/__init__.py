"""The device side: the only package that imports torch and triton. Knows no stages.

Import submodules by name; this file imports none of them, so that what needs no torch does not load it.
"""

import os

if "OMP_WAIT_POLICY" not in os.environ:
    # libgomp reads it when torch is loaded. Its own default spins for milliseconds at the end of every parallel
    # region; the event loop and other processes need those cores (docs/benchmarks.md: 139 against 136 tokens/s on
    # a quiet machine, 57 against 28 beside one busy process).
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
