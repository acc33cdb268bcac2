"""Stages alone, on what a server has recorded over real sockets."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import copyfile
from time import perf_counter_ns
from typing import Any

import msgspec
import pytest

from pipeline import assemble
from pipeline.__main__ import main
from pipeline.bench.replay import Pace, read_recording, replay_feed
from pipeline.bench.replay.alarm import Alarm
from pipeline.bench.replay.clients import Client
from pipeline.bench.sources import fake_runner
from pipeline.bench.stand import Feed, Stand, build_stand, running
from pipeline.checkpoint.card import ModelCard
from pipeline.config import loads
from pipeline.messages import (
    NO_TOKEN,
    Completion,
    FinishReason,
    Open,
    SampledBatch,
    TextBatch,
    Timings,
    TokenBatch,
)
from pipeline.runtime.inbox import Taken
from pipeline.runtime.recording import Recording
from pipeline.runtime.stage import NoOptions, Stage
from pipeline.runtime.testing import DEFAULT_CAPACITY
from tests.recorded import STAGES, record

STEPPED = ("execute", "sample", "detokenize", "stream")


class Reversed(Stage[TokenBatch, NoOptions]):
    """A lab's own detokenizer: no code of the bench knows it."""

    takes = (TokenBatch,)
    gives = (TextBatch,)

    async def handle(self, batch: Sequence[TokenBatch]) -> None:
        for step in batch:
            texts = [chr(token_id) for token_id in reversed(step.token_ids)]
            reasons, now_ns = list(step.finish_reasons), self.ctx.clock()
            await self.ctx.outlet(TextBatch).send(
                TextBatch(
                    step.step_id,
                    list(step.request_ids),
                    texts,
                    [1] * len(texts),
                    reasons,
                    [],
                    [],
                    step.elapsed_ns,
                    step.sent_ns,
                    now_ns,
                    now_ns,
                )
            )


class Failing(Reversed):
    async def handle(self, batch: Sequence[TokenBatch]) -> None:
        raise RuntimeError("no more")


@pytest.fixture(scope="module")
def folder(fake_card: ModelCard, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    record(fake_card, folder)
    return folder


@pytest.fixture(scope="module")
def late_folder(fake_card: ModelCard, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Begun while two others were under way."""
    folder = tmp_path_factory.mktemp("late")
    record(fake_card, folder, after=2)
    return folder


class Heard(Feed):
    """Another feed, whose stage is listened to."""

    def __init__(self, feed: Any) -> None:
        super().__init__()
        self.feed = feed
        self.messages: list[Any] = []

    async def send(self, stand: Stand, num_messages: int) -> None:
        await self.feed.send(stand, num_messages)

    def gave(self, stand: Stand, message: object) -> None:
        self.messages.append(message)
        self.feed.gave(stand, message)

    def end(self, stand: Stand) -> None:
        self.feed.end(stand)

    def close(self) -> None:
        self.feed.close()


def replay(card: ModelCard, recording: Recording, stage: str, rate: str = "max", toml: str = "") -> Heard:
    """All of it, in two parts."""

    async def main() -> Heard:
        blueprint = assemble.check(loads(toml, "bench.toml"))
        feed = Heard(replay_feed(recording, stage, blueprint.graph, Pace.of(rate)))
        stand = build_stand(blueprint, stage, card, fake_runner(DEFAULT_CAPACITY))
        async with running(stand, feed):
            await feed.send(stand, feed.feed.num_messages // 2)
            await feed.send(stand, 1 << 30)
        return feed

    return asyncio.run(asyncio.wait_for(main(), 30))


def tokens_by_request(messages: Iterator[Any] | list[Any], kind: type) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for message in messages:
        if isinstance(message, kind):
            pairs: Any = zip(message.request_ids, message.token_ids, strict=True)  # type: ignore[attr-defined]
            for request_id, token_id in pairs:
                if token_id != NO_TOKEN:
                    found[request_id].append(token_id)
    return found


def text_by_request(messages: Iterator[Any] | list[Any]) -> dict[int, str]:
    found: dict[int, str] = defaultdict(str)
    for message in messages:
        if isinstance(message, TextBatch):
            for request_id, text in zip(message.request_ids, message.texts, strict=True):
                found[request_id] += text
    return found


def of(folder: Path, stage: str) -> list[Any]:
    return [entry.message for entry in read_recording(folder / f"{stage}.rec").entries]


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_is_sent_all_that_it_was_sent(fake_card: ModelCard, folder: Path, stage: str) -> None:
    heard = replay(fake_card, read_recording(folder / f"{stage}.rec"), stage)
    assert heard.feed.num_left_out == 0
    assert heard.feed.recorded_ns > 0
    if stage in STEPPED:
        rows = {"execute": "sample", "sample": "sample", "detokenize": "detokenize", "stream": "stream"}
        assert heard.feed.num_rows == sum(num_rows(message) for message in of(folder, rows[stage]))


def num_rows(message: Any) -> int:
    if hasattr(message, "plan"):
        return len(message.plan.slots)
    return len(getattr(message, "request_ids", ()))


@pytest.mark.parametrize("rate", ["max", "recorded", "10"])
def test_a_scheduler_gives_each_request_the_tokens_that_it_had(
    fake_card: ModelCard, folder: Path, rate: str
) -> None:
    heard = replay(fake_card, read_recording(folder / "schedule.rec"), "schedule", rate)
    expected = tokens_by_request(of(folder, "detokenize"), TokenBatch)
    assert len(expected) == 12
    sampled = tokens_by_request(of(folder, "schedule"), SampledBatch)
    for request_id, token_ids in tokens_by_request(heard.messages, TokenBatch).items():
        assert token_ids[: len(expected[request_id])] == expected[request_id]
        assert token_ids == sampled[request_id][: len(token_ids)]


@pytest.mark.parametrize("rate", ["max", "recorded"])
def test_a_detokenizer_gives_the_text_that_was_streamed(
    fake_card: ModelCard, folder: Path, rate: str
) -> None:
    heard = replay(fake_card, read_recording(folder / "detokenize.rec"), "detokenize", rate)
    assert text_by_request(heard.messages) == text_by_request(of(folder, "stream"))


def test_a_recording_can_be_replayed_again(fake_card: ModelCard, folder: Path) -> None:
    """A scheduler appends to the prompts that it is given."""
    recording = read_recording(folder / "schedule.rec")
    first, second = (replay(fake_card, recording, "schedule") for _ in range(2))
    assert tokens_by_request(first.messages, TokenBatch) == tokens_by_request(second.messages, TokenBatch)


def test_messages_are_as_old_as_they_were(fake_card: ModelCard, folder: Path) -> None:
    heard = replay(fake_card, read_recording(folder / "tokenize.rec"), "tokenize", "recorded")
    ages_ns = [message.sent_ns - message.arrived_ns for message in heard.messages]
    assert all(0 < age_ns < 5e9 for age_ns in ages_ns)


def test_a_class_of_ones_own_is_replayed_without_code(fake_card: ModelCard, folder: Path) -> None:
    toml = f'[stages.detokenize]\nuse = "{__name__}:Reversed"\n'
    heard = replay(fake_card, read_recording(folder / "detokenize.rec"), "detokenize", toml=toml)
    assert len(heard.messages) == len(of(folder, "detokenize"))


@pytest.mark.parametrize("stage", ["execute", "detokenize", "stream"])
def test_rows_of_requests_that_began_before_are_left_out(
    fake_card: ModelCard, late_folder: Path, stage: str
) -> None:
    heard = replay(fake_card, read_recording(late_folder / f"{stage}.rec"), stage)
    total = sum(num_rows(message) for message in of(late_folder, stage))
    assert heard.feed.num_left_out > 0
    if stage != "execute":
        assert heard.feed.num_rows + heard.feed.num_left_out == total


def test_a_scheduler_is_told_what_the_device_held(fake_card: ModelCard, late_folder: Path) -> None:
    heard = replay(fake_card, read_recording(late_folder / "schedule.rec"), "schedule")
    assert heard.feed._device.ready == DEFAULT_CAPACITY
    assert set(range(2, 14)) <= set(tokens_by_request(heard.messages, TokenBatch))


# The command --------------------------------------------------------------------------------------


def bench(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["bench", *argv, "--fake", "--json"]) == 0
    result: dict[str, Any] = msgspec.json.decode(capsys.readouterr().out)
    return result


def test_the_command_tells_queue_utilisation_and_memory(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(folder / "detokenize.rec")
    result = bench(capsys, "detokenize", "--replay", file, "--rate", "recorded")
    assert 0 < result["utilization"] < 1
    assert result["utilization"] == pytest.approx(result["busy_s"] / result["recorded_s"])
    assert sum(result["queue"]["peaks"]) >= 1
    assert result["allocations"]["peak_bytes"] > 0
    twice = bench(capsys, "detokenize", "--replay", file, "--at", "1000", "--no-allocations")
    assert twice["utilization"] == pytest.approx(1000 / twice["rows_per_s"])
    assert (twice["queue"], twice["allocations"]) == (None, None)


@pytest.mark.parametrize("stage", ["schedule", "stream"])
def test_virtual_time_skips_what_nobody_works_in(
    folder: Path, capsys: pytest.CaptureFixture[str], stage: str
) -> None:
    argv = (
        "--replay",
        str(folder / f"{stage}.rec"),
        "--rate",
        "0.01",
        "--clock",
        "virtual",
        "--no-allocations",
    )
    result = bench(capsys, stage, *argv)
    assert result["seconds"] > 50 * result["recorded_s"] > 0
    assert result["busy_s"] < 0.1 * result["seconds"]


def test_a_thread_that_works_holds_virtual_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--replay", str(folder / "tokenize.rec"), "--rate", "recorded", "--clock", "virtual")
    result = bench(capsys, "tokenize", *argv, "--no-allocations")
    assert result["messages"] == 11
    assert result["busy_s"] > 0


def test_the_door_is_asked_what_it_was_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = bench(capsys, "ingress", "--replay", str(folder / "tokenize.rec"), "--rate", "recorded")
    assert (result["messages"], result["rows_left_out"]) == (11, 0)


def test_a_stage_with_threads_of_its_own_has_no_virtual_time(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--fake", "--replay", str(folder / "execute.rec"), "--clock", "virtual"]
    assert main(["bench", "execute", *argv]) == 2
    assert "threads or sockets of its own" in capsys.readouterr().err


def test_a_recording_of_another_stage_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--fake", "--replay", str(folder / "sample.rec")]
    assert main(["bench", "execute", *argv]) == 1
    assert "holds StepHandle, which no link leads to execute" in capsys.readouterr().err


def test_what_steps_cost_is_fitted_from_a_recording(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "measured.json"
    argv = ("execute", "--fit", str(folder / "sample.rec"), "--out", str(out))
    measured = bench(capsys, *argv)
    assert msgspec.json.decode(out.read_bytes()) == measured
    assert measured["source"] == "recording"
    assert all(1e6 < value < 100e6 for _, value in measured["step"]["base"])
    assert bench(capsys, "execute", "--fit", str(folder / "execute.rec"), "--out", str(out))["ready"]


# In company ---------------------------------------------------------------------------------------


def test_a_stage_has_the_company_that_it_had(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(folder / "schedule.rec")
    argv = ("schedule", "--replay", file, "--rate", "recorded", "--no-allocations")
    result = bench(capsys, *argv, "--beside", str(folder))
    assert set(result["beside"]) == {"ingress", *STAGES} - {"schedule"}
    for stage in ("tokenize", "detokenize", "stream"):
        count = len(of(folder, stage))
        assert 0.75 * count < result["beside"][stage]["messages"] <= count - count // 10
    assert result["messages"] > len(of(folder, "sample")) // 2


def test_steps_in_company_come_back_when_they_did(fake_card: ModelCard, folder: Path) -> None:
    recording = read_recording(folder / "schedule.rec")
    came_ns = [each.at_ns for each in recording.entries if isinstance(each.message, SampledBatch)]

    async def main() -> tuple[list[int], int]:
        blueprint = assemble.check(loads("", "bench.toml"))
        with Alarm() as alarm:
            pace = Pace.of("recorded", alarm.call_later)
            feed = replay_feed(recording, "schedule", blueprint.graph, pace)
            stand = build_stand(blueprint, "schedule", fake_card, fake_runner(DEFAULT_CAPACITY))
            taken: list[int] = []
            stand.inbox.taps += (lambda batch: taken.extend(_steps_sent_ns(batch)),)
            async with running(stand, feed):
                begin_ns = perf_counter_ns() + 10_000_000
                pace.share(begin_ns)
                await feed.send(stand, feed.num_messages)
        return taken, begin_ns

    taken, begin_ns = asyncio.run(asyncio.wait_for(main(), 30))
    late_ms = [(sent_ns - begin_ns - at_ns) / 1e6 for sent_ns, at_ns in zip(taken, came_ns, strict=False)]
    assert len(late_ms) > len(came_ns) // 2
    assert min(late_ms) >= 0
    assert sorted(late_ms)[len(late_ms) // 2] < 5


def _steps_sent_ns(taken: Taken[Any]) -> Iterator[int]:
    for message, sent_ns in zip(taken.messages, taken.sent_ns, strict=True):
        if isinstance(message, SampledBatch):
            yield sent_ns


@pytest.mark.parametrize(
    ("options", "status", "told"),
    [
        (["--rate", "max"], 2, "--beside needs --replay, and a --rate"),
        (["--rate", "recorded", "--clock", "virtual"], 2, "neither with --clock virtual nor with --profile"),
        (["--rate", "recorded", "--profile", "cprofile"], 2, "neither with --clock virtual nor"),
    ],
)
def test_where_there_is_no_company(
    folder: Path, options: list[str], status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", "sample", "--fake", "--replay", str(folder / "sample.rec"), "--beside", str(folder)]
    assert main([*argv, *options]) == status
    assert told in capsys.readouterr().err


def test_a_company_is_of_one_server_at_one_time(
    folder: Path, late_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", "sample", "--fake", "--rate", "recorded", "--replay", str(folder / "sample.rec")]
    assert main([*argv, "--beside", str(tmp_path)]) == 1
    assert "holds no recording (*.rec) of another stage than sample" in capsys.readouterr().err
    assert main([*argv, "--beside", str(late_folder)]) == 1
    assert "were not made at the same time" in capsys.readouterr().err
    for name in ("a.rec", "b.rec"):
        copyfile(folder / "stream.rec", tmp_path / name)
    assert main([*argv, "--beside", str(tmp_path)]) == 1
    assert "b.rec: is the second recording of stream there" in capsys.readouterr().err


def test_a_fault_of_one_of_them_ends_them_all(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[stages.detokenize]\nuse = "{__name__}:Failing"\n', "utf-8")
    argv = ["bench", "sample", "--fake", "--rate", "recorded", "--replay", str(folder / "sample.rec")]
    assert main([*argv, "--beside", str(folder), "--config", str(config)]) == 1
    assert "detokenize failed in its bench: RuntimeError('no more')" in capsys.readouterr().err


def test_clients_of_a_replay_are_written_to(fake_card: ModelCard, folder: Path) -> None:
    """What they are written is the text of the recording, as SSE."""
    written: list[bytes] = []
    opened = [message for message in of(folder, "stream") if isinstance(message, Open)]
    client = Client(opened[0], written.append)
    client.delta("ab", 1)
    client.done(Completion(FinishReason.LENGTH, 1, 1, Timings((), 0, None)))
    assert b'"text":"ab"' in written[0]
    assert b"data: [DONE]" in written[1]
