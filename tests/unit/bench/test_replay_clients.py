import asyncio
from typing import Any

from pipeline.bench.replay.clients import Clients, most_at_once
from pipeline.bench.samples import Load, Row, text_batch
from pipeline.checkpoint.card import ModelCard
from pipeline.messages import Completion, FinishReason, Open, Rejected, Timings
from pipeline.messages.stand_ins import TAKES_ALL


def test_each_client_writes_to_a_connection_that_another_process_reads() -> None:
    async def main() -> None:
        clients: Any = Clients()
        await clients.connect(2)
        opened = [clients.of(Open(number, TAKES_ALL, 0)) for number in range(3)]
        for each in opened:
            each.sink.delta("ab" * 100_000, 1)
            each.sink.done(Completion(FinishReason.LENGTH, 1, 1, Timings((), 0, None)))
        writers = list(clients._transports)
        assert len({id(each.sink._write.__self__) for each in opened}) == 2
        while any(writer.get_write_buffer_size() for writer in writers):  # noqa: ASYNC110 - a transport says nothing
            await asyncio.sleep(0.005)
        clients.close()
        assert clients._process.returncode is not None

    asyncio.run(asyncio.wait_for(main(), 30))


def test_the_most_that_were_open_at_once(fake_card: ModelCard) -> None:
    ended = text_batch(Load.of(fake_card, 1), 1, [Row(7, 0, True)], 0)
    opened = [Open(request_id, TAKES_ALL, 0) for request_id in (7, 8, 9)]
    refused = Rejected(8, "no", 400, None, None)
    assert most_at_once([*opened[:2], refused, ended, opened[2]]) == 2
    assert most_at_once([ended]) == 0
