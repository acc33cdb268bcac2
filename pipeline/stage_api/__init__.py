"""What a stage of your own is made of. docs/stages.md says how.

What is named here, in `pipeline.stage_api.testing` and in `pipeline.messages` is the stage API: it has a
version, STAGE_API, and a stage that was written for one goes on working until that number rises. The built-in
stages are classes to inherit from, as far as Stage has the method. All else is the server's own and changes
without notice.
"""

from pipeline.checkpoint.card import ModelCard
from pipeline.core.reasoning import ReasoningState
from pipeline.core.text_state import DetokenizeState, FilteredText, FilterState, TextState
from pipeline.errors import ConfigError, RequestError, StagelineError
from pipeline.runtime.equivalence import BY_REQUEST, MESSAGES, Equivalence, Fact, Key
from pipeline.runtime.inbox import ALL, Inbox
from pipeline.runtime.stage import STAGE_API, NoOptions, NoState, Outlet, Stage, StageContext

__all__ = [
    "ALL",
    "BY_REQUEST",
    "MESSAGES",
    "STAGE_API",
    "ConfigError",
    "DetokenizeState",
    "Equivalence",
    "Fact",
    "FilterState",
    "FilteredText",
    "Inbox",
    "Key",
    "ModelCard",
    "NoOptions",
    "NoState",
    "Outlet",
    "ReasoningState",
    "RequestError",
    "Stage",
    "StageContext",
    "StagelineError",
    "TextState",
]
