from collections.abc import Iterable

import pytest

from pipeline.errors import RequestError
from pipeline.messages import (
    NO_TOKEN,
    Cancel,
    Completion,
    FinishReason,
    Logprobs,
    Open,
    SampledBatch,
    SpelledLogprobs,
    Started,
    StepPlan,
    TextBatch,
    Timings,
    TokenBatch,
    TokenCall,
    TokenizedRequest,
    TokenLogprob,
)
from pipeline.messages import SamplingParams as Params
from pipeline.runtime.comparison import Comparison, Difference
from pipeline.runtime.equivalence import BY_REQUEST, MESSAGES, Equivalence, Key
from pipeline.runtime.facts import About, Written, plain
from pipeline.runtime.heard import HeardSink, heard
from pipeline.runtime.testing import FakeHandle

NONE, STOP, LENGTH = FinishReason.NONE, FinishReason.STOP, FinishReason.LENGTH


def texts(*rows: tuple[int, str, FinishReason], num_tokens: int = 1, step_id: int = 1) -> TextBatch:
    request_ids, pieces, reasons = ([row[at] for row in rows] for at in range(3))
    counts = [num_tokens] * len(rows)
    return TextBatch(step_id, request_ids, pieces, counts, reasons, [], [], (), 1, 2, 3)  # type: ignore[arg-type]


def tokens(*rows: tuple[int, int, FinishReason]) -> TokenBatch:
    request_ids, token_ids, reasons = ([row[at] for row in rows] for at in range(3))
    return TokenBatch(1, request_ids, token_ids, reasons, [], [], (), 1)


def compared(
    a: Iterable[object], b: Iterable[object], equivalence: Equivalence = BY_REQUEST
) -> list[Difference]:
    """The same whether they speak in turns or one after the other."""
    after, turns = Comparison(equivalence), Comparison(equivalence)
    first, second = list(a), list(b)
    for message in first:
        after.a(message)
    for message in second:
        after.b(message)
    for index in range(max(len(first), len(second))):
        for message in second[index : index + 1]:
            turns.b(message)
        for message in first[index : index + 1]:
            turns.a(message)
    places = [
        sorted((str(found.request_id), found.what, found.position) for found in comparison.differences())
        for comparison in (after, turns)
    ]
    assert places[0] == places[1]
    return after.differences()


def test_text_may_be_cut_anywhere_and_requests_may_be_mixed() -> None:
    a = [texts((1, "Hel", NONE), (2, "x", NONE)), texts((1, "lo", LENGTH), (2, "y", LENGTH))]
    b = [
        texts((2, "xy", LENGTH), num_tokens=2, step_id=7),
        texts((1, "", NONE), num_tokens=0),
        texts((1, "Hello", LENGTH), num_tokens=2),
    ]
    assert compared(a, b) == []


@pytest.mark.parametrize(
    ("row", "what", "position", "a", "b"),
    [
        ((1, "ab\ud83d", LENGTH), "text", 2, "'\\U0001f642' ", "'\\ud83d' "),  # half a character
        ((1, "ab\ufffd", LENGTH), "text", 2, "'\\U0001f642' ", "'\\ufffd' "),
        ((1, "ab", LENGTH), "text", 2, "'\\U0001f642' ", "END("),
        ((1, "ab🙂\u200b", LENGTH), "text", 3, "END(", "'\\u200b' "),
        ((1, "ab🙂", STOP), "text", 3, "LENGTH", "STOP"),
        ((1, "ab🙂", NONE), "text", 3, "LENGTH", "nothing"),
    ],
)
def test_what_differs_is_shown_so_that_it_can_be_seen(
    row: tuple[int, str, FinishReason], what: str, position: int, a: str, b: str
) -> None:
    (found,) = compared([texts((1, "ab🙂", LENGTH))], [texts(row)])
    assert (found.what, found.request_id, found.position) == (what, 1, position)
    assert a in found.a
    assert b in found.b
    assert str(found).isascii()
    assert "request 1" in str(found)


def test_counts_add_up() -> None:
    a, b = texts((1, "ab", LENGTH), num_tokens=3), texts((1, "ab", LENGTH), num_tokens=2)
    (found,) = compared([a], [b])
    assert (found.what, found.a, found.b) == ("output tokens", "1 more", "fewer")
    (found,) = compared([b], [a])
    assert (found.a, found.b) == ("fewer", "1 more")


def test_each_request_that_differs_counts_once() -> None:
    a = [texts((1, "a", NONE), (2, "b", NONE)), texts((1, "c", LENGTH), (2, "d", LENGTH))]
    b = [texts((1, "x", NONE), (2, "b", NONE)), texts((1, "y", LENGTH), (2, "d", LENGTH))]
    assert [found.request_id for found in compared(a, b)] == [1]


def test_what_one_side_alone_says_shows_at_the_end_only() -> None:
    comparison = Comparison(BY_REQUEST)
    comparison.a(Cancel(3, STOP))
    assert comparison.found() == []
    (missing,) = comparison.differences()
    assert (missing.what, missing.request_id, missing.b) == ("Cancel", 3, "nothing")
    comparison.b(Cancel(3, STOP))
    assert comparison.differences() == []
    comparison.b(Cancel(3, STOP))
    (twice,) = comparison.differences()
    assert twice.a == "nothing"


def test_a_field_that_differs_is_named() -> None:
    a = TokenizedRequest(1, [1, 2], Params(stop=("x", "y")), 1, 2, (1, 2, 3))
    b = TokenizedRequest(1, [1, 2], Params(stop=("x", "z")), 10, 20, (7, 8, 9))
    (found,) = compared([a], [b])
    assert (found.what, found.a, found.b) == ("TokenizedRequest.sampling.stop[1]", "'y'", "'z'")
    longer = TokenizedRequest(1, [1, 2, 3], a.sampling, 1, 2, (1, 2, 3))
    (found,) = compared([a], [longer])
    assert (found.what, found.a, found.b) == ("TokenizedRequest.token_ids[2:]", "[]", "[3]")


def test_messages_are_compared_in_their_order() -> None:
    first, second = (SampledBatch(step, [1], [0], [5], (step, 2, 3, 4, 5)) for step in (1, 2))
    later = SampledBatch(1, [1], [0], [5], (9, 9, 9, 9, 9))
    assert compared([first, second], [later, second], MESSAGES) == []
    assert [found.what for found in compared([first, second], [second, first], MESSAGES)] == [
        "SampledBatch.step_id"
    ]


def test_a_schedule_may_plan_its_own_way() -> None:
    plan = StepPlan(1, 1, [1], [0], [0], [1], [0], [True], [5], [], [], [], [])
    assert compared([plan, tokens((1, 7, NONE)), tokens((1, NO_TOKEN, STOP))], [tokens((1, 7, STOP))]) == []
    (found,) = compared([tokens((1, 7, STOP))], [tokens((1, 8, STOP))])
    assert (found.what, found.a) == ("token ids", "7 END(STOP)")


def test_figures_of_devices_may_be_a_little_off() -> None:
    plan = StepPlan(1, 1, [1, 2], [0, 0], [0, 1], [1, 1], [0, 0], [True, False], [5, 6], [], [], [], [])

    class Told(FakeHandle):
        value = -0.5

        def logprobs_sync(self) -> Logprobs:  # type: ignore[override]
            return Logprobs([1], [7], [self.value], [[7]], [[self.value]])

    def told(value: float, token_id: int = 7) -> FakeHandle:
        handle = type("Another", (Told,), {"value": value})(plan, [token_id], 1, 2)
        assert isinstance(handle, FakeHandle)
        return handle

    assert compared([told(-0.5)], [told(-0.5001)]) == []
    assert [found.what for found in compared([told(-0.5)], [told(-0.6)])] == ["logprobs[1]"]
    assert [found.what for found in compared([told(-0.5)], [told(-0.5, 8)])] == ["token ids"]
    assert [found.what for found in compared([told(-0.5)], [told(-0.6)], MESSAGES)] == [
        "StepHandle.logprobs.values[0]"
    ]


def test_about_is_about() -> None:
    assert About(1.0) == About(1.0005)
    assert About(1.0) != About(1.1)
    assert About(float("nan")) == About(float("nan"))
    assert About(float("nan")) != About(1.0)
    assert About(1.0) != "1.0"


def test_spelled_logprobs_and_embeddings_are_text_sides_facts() -> None:
    told = SpelledLogprobs([1], [TokenLogprob(b"\xf0\x9f", -1.0, [(b"x", -2.0)])])
    other = SpelledLogprobs([1], [TokenLogprob(b"\xf0", -1.0, [(b"x", -2.0)])])

    def batch(spelled: SpelledLogprobs, embedding: bytes = b"1") -> TextBatch:
        started = Started(1, 5, ())
        return TextBatch(1, [1], ["a"], [1], [0], [started], [], (), 1, 2, 3, spelled, {1: embedding})

    assert compared([batch(told)], [batch(told)]) == []
    assert [found.what for found in compared([batch(told)], [batch(other)])] == ["logprobs.piece"]
    assert [found.what for found in compared([batch(told)], [batch(told, b"2")])] == ["embedding"]


def test_requests_that_have_ended_are_forgotten() -> None:
    comparison = Comparison(BY_REQUEST)
    for request_id in range(100):
        comparison.a(texts((request_id, "ab", LENGTH)))
        comparison.b(texts((request_id, "ab", LENGTH)))
    assert not comparison._keys
    assert not comparison._counts


def test_an_equivalence_of_ones_own() -> None:
    lower = Equivalence("letters, not their case", lambda text: [(Key("letters"), [*str(text).lower()])])
    assert compared(["Ab", "c"], ["a", "BC"], lower) == []
    assert [found.position for found in compared(["Abc"], ["abd"], lower)] == [2]


# What sinks are given -----------------------------------------------------------------------------


class Client:
    """Takes what it is given."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def delta(self, text: str, num_tokens: int) -> None:
        self.calls.append((text, num_tokens))

    def logprobs(self, entries: list[TokenLogprob]) -> None:
        self.calls.append(entries)

    def done(self, completion: Completion) -> None:
        self.calls.append(completion)

    def error(self, error: RequestError) -> None:
        self.calls.append(error)

    def buffered_bytes(self) -> int:
        return 17

    def is_away(self) -> bool:
        return True


def completion(finish_reason: FinishReason, num_output_tokens: int = 2, e2e_ns: int = 9) -> Completion:
    return Completion(finish_reason, 3, num_output_tokens, Timings((), e2e_ns, None))


def test_a_heard_sink_tells_and_passes_on() -> None:
    client, told = Client(), list[object]()
    opened = heard(Open(4, client, 1, logprobs_sink=client), told.append)
    entries, done = [TokenLogprob(b"a", -1.0, [])], completion(STOP)
    error = RequestError("no")
    opened.logprobs_sink.logprobs(entries)
    opened.sink.delta("a", 1)
    opened.sink.done(done)
    opened.sink.error(error)
    assert client.calls == [entries, ("a", 1), done, error]
    assert (opened.sink.buffered_bytes(), opened.sink.is_away()) == (17, True)
    assert [type(each).__name__ for each in told] == ["Spelled", "Written", "Done", "Failed"]
    assert heard(Open(4, client, 1), told.append).logprobs_sink is None
    cancel = Cancel(1, STOP)
    assert heard(cancel, told.append) is cancel


class Asker:
    def __init__(self) -> None:
        self.answers: list[object] = []

    def tokens(self, value: list[int] | str) -> None:
        self.answers.append(value)

    def error(self, error: RequestError) -> None:
        self.answers.append(error)


def test_replies_are_compared_by_what_was_asked() -> None:
    def replied(*answers: tuple[str, object]) -> list[object]:
        told: list[object] = []
        for prompt, answer in answers:
            asker = Asker()
            reply = heard(TokenCall(asker, prompt=prompt), told.append).reply
            (reply.error if isinstance(answer, RequestError) else reply.tokens)(answer)
            assert asker.answers == [answer]
        return told

    a = replied(("x", [1, 2]), ("y", RequestError("no")))
    assert compared(a, replied(("y", RequestError("no")), ("x", [1, 2]))) == []
    (found,) = compared(a, replied(("x", [1, 3]), ("y", RequestError("no"))))
    assert found.what.startswith("reply to {")
    assert found.what.endswith("[1]")
    (found,) = compared(a, replied(("x", [1, 2]), ("y", RequestError("not so"))))
    assert found.what.endswith(".message")


def said_to_sink(*calls: tuple[str, object]) -> list[object]:
    told: list[object] = []
    sink = HeardSink(1, told.append)
    for name, argument in calls:
        getattr(sink, name)(*(argument if isinstance(argument, tuple) else (argument,)))
    return told


def test_sinks_are_compared_by_what_they_got() -> None:
    a = said_to_sink(("delta", ("ab", 2)), ("done", completion(STOP)))
    same = said_to_sink(("delta", ("a", 1)), ("delta", ("b", 1)), ("done", completion(STOP, e2e_ns=5)))
    assert compared(a, same) == []
    for other, what in (
        (
            said_to_sink(("delta", ("ab", 2)), ("done", completion(LENGTH))),
            {"text", "completion.finish_reason"},
        ),
        (said_to_sink(("delta", ("ab", 2)), ("done", completion(STOP, 3))), {"completion.num_output_tokens"}),
        (said_to_sink(("delta", ("ab", 1)), ("done", completion(STOP))), {"output tokens"}),
        (said_to_sink(("done", completion(STOP)), ("delta", ("ab", 2))), {"text"}),
        (said_to_sink(("delta", ("ab", 2))), {"text", "completion"}),
        (said_to_sink(("delta", ("ab", 2)), ("error", RequestError("no"))), {"text", "completion", "error"}),
    ):
        assert {found.what for found in compared(a, other)} == what


def test_somebody_to_be_told_is_not_something_said() -> None:
    assert plain(Open(1, Client(), 5))["sink"] == "Client"
    assert plain(Written(1, "a", 1)) == {"request_id": 1, "text": "a", "num_tokens": 1}
    assert plain(float("nan")) == "NaN"
