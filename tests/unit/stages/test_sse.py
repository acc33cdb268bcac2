"""A stream of events, without a server."""

import asyncio
from typing import Any
from unittest.mock import Mock

from pipeline.core.wire import CompletionAnswer, Wanted
from pipeline.messages import SEGMENTS, Completion, FinishReason, SamplingParams, Timings
from pipeline.runtime.testing import ManualClock
from pipeline.stages.ingress.sse import SseStream


def test_a_stream_that_has_ended_before_its_head_is_out_loses_nothing() -> None:
    async def main() -> bytes:
        answer = CompletionAnswer("1", 0, "m", [Wanted("p", None, SamplingParams())])
        stream = SseStream(answer, ManualClock())
        stream.write(answer.choices[0].delta("Hi"))
        stream.done(0, Completion(FinishReason.STOP, 1, 1, Timings((1,) * len(SEGMENTS), 13, 5)))
        transport: Any = Mock(**{"is_closing.return_value": False})
        stream.open(transport, is_chunked=False)
        return b"".join(call.args[0] for call in transport.write.call_args_list)

    sent = asyncio.run(main())
    assert b'"text":"Hi"' in sent and sent.endswith(b"data: [DONE]\n\n")
