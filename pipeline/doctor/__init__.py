"""The doctor: judges a stretch of a server's time and names what holds it back.

Pure: from Evidence (pipeline.telemetry.evidence) to a Diagnosis; no clock, no sockets, no server.
"""

from pipeline.doctor.diagnosis import (
    Advice,
    Attribution,
    Constraint,
    Diagnosis,
    Finding,
    Law,
    StageState,
    State,
)
from pipeline.doctor.judge import diagnose

__all__ = [
    "Advice",
    "Attribution",
    "Constraint",
    "Diagnosis",
    "Finding",
    "Law",
    "StageState",
    "State",
    "diagnose",
]
