"""Graphs that tests name in config: broken ones, and one with stages that pass on late."""

import asyncio
from collections.abc import Sequence
from typing import Any

from pipeline.messages import GenerateRequest, StepPlan, TextBatch, TokenCall, TokenizedRequest
from pipeline.runtime.stage import NoOptions, Stage
from pipeline.topology import WHOLE, Node

LATE_S = 0.03

BROKEN = WHOLE.without("detokenize")
MUTE = WHOLE.between("detokenize", "filter", Node("mute", "pipeline.stages.filter:Filter", 8))


class _Late(Stage[Any, NoOptions]):
    async def handle(self, batch: Sequence[Any]) -> None:
        await asyncio.sleep(LATE_S)
        for message in batch:
            await self.ctx.outlet(type(message)).send(message)


class SilentDoor(_Late):
    takes = gives = ()


class LatePrompt(_Late):
    takes = gives = (GenerateRequest, TokenCall)


class LateIds(_Late):
    takes = gives = (TokenizedRequest,)


class LatePlan(_Late):
    takes = gives = (StepPlan,)


class LateText(_Late):
    takes = gives = (TextBatch,)


LATE = (
    WHOLE.between("ingress", "tokenize", Node("late_prompt", f"{__name__}:LatePrompt", 8))
    .between("tokenize", "schedule", Node("late_ids", f"{__name__}:LateIds", 8))
    .between("schedule", "execute", Node("late_plan", f"{__name__}:LatePlan", 8))
    .between("filter", "stream", Node("late_text", f"{__name__}:LateText", 8))
)
