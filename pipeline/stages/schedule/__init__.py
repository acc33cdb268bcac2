"""Schedule: requests -> step plans, and sampled tokens -> rows for the text side."""

from pipeline.stages.schedule.options import ScheduleOptions
from pipeline.stages.schedule.stage import Schedule, ScheduleState

__all__ = ["Schedule", "ScheduleOptions", "ScheduleState"]
