"""Policies: who is admitted, when, with how much of a step, and who gives way. See contracts.py."""

from pipeline.core.policies.make import make_others, make_policies
from pipeline.core.policies.options import SchedulingOptions
from pipeline.core.policies.policies import Policies

__all__ = ["Policies", "SchedulingOptions", "make_others", "make_policies"]
