"""Swapping: another stage for a running server, by import path: checked, rehearsed, and only then let in.

`Swapper` is what the admin port offers; runtime.swap does the handover and knows of no configuration.
"""

from pipeline.swapping.swapper import Order, Swapper

__all__ = ["Order", "Swapper"]
