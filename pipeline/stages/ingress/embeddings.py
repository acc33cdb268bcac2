"""POST /v1/embeddings: each input is a request of the pipeline, some of them at a time."""

from collections import deque
from collections.abc import Callable

from aiohttp import web

from pipeline.core.wire import EmbeddingsAnswer, Limits, parse_embeddings
from pipeline.stages.ingress.authentication import PRINCIPAL
from pipeline.stages.ingress.body import read_body
from pipeline.stages.ingress.http import WholeRequest
from pipeline.stages.ingress.intake import Arrival, Intake
from pipeline.stages.ingress.options import IngressOptions
from pipeline.stages.ingress.replies import ANSWERED_TRACEPARENT, json_bytes, traceparent_of


class EmbeddingsDoor:
    """The handler. A client that leaves cancels what it still waits for, as with an answer of text."""

    def __init__(
        self, intake: Intake, limits: Limits, options: IngressOptions, clock: Callable[[], int]
    ) -> None:
        self._intake = intake
        self._limits = limits
        self._options = options
        self._clock = clock

    async def embed(self, request: web.Request) -> web.Response:
        """In their order, `embeddings_at_once` of them in the pipeline."""
        arrived_ns = self._clock()
        asked = parse_embeddings(await read_body(request, self._options), self._limits)
        principal = request[PRINCIPAL]
        wanted = [each.under(principal.tenant, principal.max_priority) for each in asked.inputs]
        answer = EmbeddingsAnswer(self._limits.model, asked)
        arrival = Arrival(arrived_ns, principal, traceparent_of(request))
        pending: deque[WholeRequest] = deque()
        try:
            for each in wanted:
                if len(pending) == self._options.embeddings_at_once:
                    answer.add((await pending[0].result()).completion)
                    pending.popleft()
                pending.append(self._intake.submit(each, arrival, self._live))
                request.setdefault(ANSWERED_TRACEPARENT, pending[-1].trace_parent)
            while pending:
                answer.add((await pending[0].result()).completion)
                pending.popleft()
        finally:
            for live in pending:
                self._intake.leave(live)
        return json_bytes(answer.body())

    def _live(self, request_id: int) -> WholeRequest:
        return WholeRequest(self._intake, request_id)
