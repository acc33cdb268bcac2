"""Every message that a link carries can be written, and read as it was."""

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pipeline.errors import StagelineError
from pipeline.messages import (
    Cancel,
    ClearPins,
    ClientSink,
    DeviceReady,
    DiskReady,
    FinishReason,
    GenerateRequest,
    LogprobsSink,
    Open,
    Room,
    SamplingParams,
    Shelved,
    StepHandle,
    StepPlan,
    Terms,
    TokenBatch,
    TokenCall,
    TokenizedRequest,
    TokenReply,
    Wake,
)
from pipeline.messages.recorded import decode, encode, is_ready, kind_of
from pipeline.messages.stand_ins import TAKES_ALL, RecordedStep, TakesAll
from pipeline.runtime.testing import FakeHandle
from pipeline.topology import WHOLE
from tests.any_message import any_message

PHASES = (Phase.explicit, Phase.generate)
"""Messages take minutes to shrink, and do not tell more then."""
CARRIED = sorted({link.carries for link in WHOLE.links} | {Room, Wake, ClearPins}, key=lambda kind: str(kind))
SECRET = "of nobody's business"


def again(message: object) -> Any:
    return decode(kind_of(message), encode(message))


def less_secrets(message: Any) -> Any:
    """What `encode` leaves out is tested apart."""
    if isinstance(message, DeviceReady) and message.disk is not None:
        return replace(message, disk=replace(message.disk, secret=b"", kept=()))
    if isinstance(message, GenerateRequest | TokenizedRequest):
        return replace(message, terms=replace(message.terms, cache_salt=""))
    return message


@pytest.mark.parametrize("kind", CARRIED, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=PHASES)
def test_it_is_read_as_it_was(kind: type, data: st.DataObject) -> None:
    """A type that topology adds and the codec does not know fails here."""
    message = data.draw(any_message(kind))
    read = again(message)
    assert less_secrets(read) == less_secrets(message)
    assert kind_of(read) == kind_of(message) == kind.__name__
    assert is_ready(read)


def test_a_step_is_written_with_its_results() -> None:
    plan = StepPlan(7, 1, [1], [0], [0], [1], [4], [True], [5], [], [], [], [])
    step = FakeHandle(plan, [65], 10, 20)
    assert kind_of(step) == "StepHandle"
    assert again(step) == RecordedStep(plan, 10, 20, [65], [], [], None)
    assert again(step).token_ids_sync() == [65]


def test_a_step_that_is_not_done_is_not_ready() -> None:
    class Computing(FakeHandle):
        def is_ready(self) -> bool:
            return False

    plan = StepPlan(7, 1, [], [], [], [], [], [], [], [], [], [], [])
    assert not is_ready(Computing(plan, [], 0, 0))


def test_who_waits_for_an_answer_is_stood_for() -> None:
    opened = again(Open(1, TAKES_ALL, 2, logprobs_sink=TAKES_ALL, credits=5))
    assert opened == Open(1, TAKES_ALL, 2, logprobs_sink=TAKES_ALL, credits=5)
    assert again(Open(1, TAKES_ALL, 2)).logprobs_sink is None
    assert again(TokenCall(TAKES_ALL, prompt="hello")).reply is TAKES_ALL


@pytest.mark.parametrize(
    ("stands_for", "stand_in"),
    [(StepHandle, RecordedStep), *((each, TakesAll) for each in (ClientSink, LogprobsSink, TokenReply))],
)
def test_stand_ins_have_all_that_they_stand_for(stands_for: type, stand_in: type) -> None:
    members = {name for name in vars(stands_for) if not name.startswith("_")}
    assert members and members <= set(dir(stand_in))


def test_what_a_disk_keeps_and_its_secret_are_not_written() -> None:
    disk = DiskReady(9, True, SECRET.encode(), (Shelved(1, True, b"", SECRET.encode(), b""),))
    assert SECRET.encode() not in encode(DeviceReady(1, 1, 1, 1, disk=disk))
    assert again(DeviceReady(1, 2, 3, 4, disk=disk)) == DeviceReady(1, 2, 3, 4, disk=DiskReady(9, True))


def test_a_cache_salt_is_written_as_an_alias() -> None:
    def written(salt: str) -> str:
        request = GenerateRequest(1, "hi", None, SamplingParams(), 2, 3, Terms(cache_salt=salt))
        assert SECRET.encode() not in encode(request)
        alias: str = again(request).terms.cache_salt
        return alias

    assert written(SECRET) == written(SECRET) != written(SECRET + "s")
    assert written("") == ""


def test_what_no_link_carries_is_refused() -> None:
    with pytest.raises(StagelineError, match="SamplingParams cannot be recorded: no link carries it"):
        encode(SamplingParams())
    with pytest.raises(StagelineError, match=r"'Gossip' is no message: this Stageline knows Cancel, "):
        decode("Gossip", b"\x80")


def test_what_is_no_such_message_is_refused() -> None:
    with pytest.raises(StagelineError, match="it is no TokenBatch: Object missing required field"):
        decode("TokenBatch", encode(Cancel(1, FinishReason.STOP)))
    with pytest.raises(StagelineError, match="it is no Cancel: "):
        decode("Cancel", encode(Cancel(1, FinishReason.STOP))[:-1])


def test_fields_that_came_later_may_be_missing() -> None:
    old = {"step_id": 1, "request_ids": [1], "token_ids": [65], "finish_reasons": [0]}
    old |= {"started": [], "times": [], "elapsed_ns": [0], "sent_ns": 9}
    read = decode("TokenBatch", msgspec.msgpack.encode(old | {"of another time": 1}))
    assert read == TokenBatch(1, [1], [65], [0], [], [], (0,), 9)
