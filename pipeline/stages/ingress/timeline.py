"""/v1/requests/{id}: where a request is, or what became of it and where its time went; its end by DELETE."""

from aiohttp import web

from pipeline.core.wire.usage import named_ms
from pipeline.errors import RequestError
from pipeline.runtime.stage import StageContext
from pipeline.stages.ingress.authentication import PRINCIPAL
from pipeline.stages.ingress.intake import Intake, LiveRequest
from pipeline.stages.ingress.replies import json_response
from pipeline.telemetry import RequestRecord, Telemetry

NOT_FOUND = RequestError(
    "There is no such request of yours among the latest.", status=404, code="request_not_found"
)


class TimelineDoor:
    """The handlers. A request is named by the id of its answer, and known to whoever sent it.

    Args:
        instance: of this run of the server, in every answer's id.
    """

    def __init__(self, ctx: StageContext, intake: Intake, instance: str) -> None:
        self._intake = intake
        self._instance = instance
        self._journal = ctx.resource(Telemetry).journal

    async def show(self, request: web.Request) -> web.Response:
        """Its choices, in their order: live ones, and those that have ended."""
        first_id = self._first_id(request)
        choices = [_live(live) for live in self._lives(first_id)]
        if not choices:
            choices = [_ended(record) for record in self._journal.requests() if record.request_id == first_id]
        if not choices:
            raise NOT_FOUND
        return json_response(_about(request, choices))

    async def cancel(self, request: web.Request) -> web.Response:
        """Ends its choices; each still gets its terminal event. No-op for those that have ended."""
        lives = self._lives(self._first_id(request))
        for live in lives:
            self._intake.cancel(live)
        return json_response(_about(request, [_live(live) for live in lives]))

    def _lives(self, first_id: int) -> list[LiveRequest]:
        return [live for live in self._intake.live.values() if live.first_id == first_id]

    def _first_id(self, request: web.Request) -> int:
        kind, _, rest = request.match_info["id"].partition("-")
        instance, _, number = rest.partition("-")
        is_one = kind in ("cmpl", "chatcmpl", "resp") and instance == self._instance
        if not (is_one and number.isascii() and number.isdigit() and len(number) < 19):
            raise NOT_FOUND
        if not self._intake.is_of(int(number), request[PRINCIPAL]):
            raise NOT_FOUND
        return int(number)


def _about(request: web.Request, choices: list[dict[str, object]]) -> dict[str, object]:
    return {"id": request.match_info["id"], "object": "request", "choices": choices}


def _live(live: LiveRequest) -> dict[str, object]:
    status = "cancelling" if live.is_cancelled else "live"
    return {"status": status, "completion_tokens": live.num_output_tokens}


def _ended(record: RequestRecord) -> dict[str, object]:
    return {
        "status": "ended",
        "finish_reason": record.finish,
        "code": record.code or None,
        "prompt_tokens": record.num_prompt_tokens,
        "cached_tokens": record.num_cached_tokens,
        "completion_tokens": record.num_output_tokens,
        "preemptions": record.num_preemptions,
        "dropped_tokens": record.num_dropped_tokens,
        "e2e_ms": record.e2e_ns / 1e6,
        "ttft_ms": None if record.ttft_ns is None else record.ttft_ns / 1e6,
        "paused_ms": record.paused_ns / 1e6,
        "segments_ms": named_ms(record.segments_ns),
        "ttft_segments_ms": named_ms(record.ttft_segments_ns),
        "traceparent": record.trace_parent or None,
    }
