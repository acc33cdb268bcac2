"""result.json holds all that is needed to compute a report again; digests name what differs."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadgen.__main__ import main
from loadgen.buckets import by_input, by_output
from loadgen.content import Contents
from loadgen.digest import Digest, digest
from loadgen.errors import UsageError
from loadgen.machine import this_machine
from loadgen.prefixes import Prefixes, TokenRange
from loadgen.queues import QueueSample
from loadgen.record import Record, ServerTimings
from loadgen.result import VERSION, Result, TraceFacts, encode, read_result
from loadgen.slo import parse_slo
from loadgen.summary import summarise
from loadgen.tally import Tally
from loadgen.traces.row import Blocks
from loadgen.workload import Job

SEGMENTS = ("ingress.service", "tokenize.wait", "tokenize.service", "schedule.wait", "execute.service")


def request(index: int, *, slower: float = 1.0) -> Record:
    """Request `index` of a made-up run: every tenth is shed, every eleventh left by its client."""
    intended_s = 0.1 * index
    record = Record(index, intended_s, 10 * (index + 1), 8, sent_s=intended_s + 0.001)
    if index % 10 == 9:
        record.fail("http_429", "full")
        record.closed_s = intended_s + 0.01
        return record
    first_s = intended_s + slower * (0.1 + 0.02 * (index % 7))
    for step in range(3 if index % 11 == 10 else 8):
        record.chunk(first_s + slower * 0.03 * step, 1)
    record.closed_s = record.chunk_s[-1] + 0.001
    if index % 11 == 10:
        record.ended_by = "client"
        return record
    record.usage(10 * (index + 1), 8)
    server_ms = 1000 * (record.chunk_s[-1] - intended_s) - 3
    shares = {
        name: server_ms * share for name, share in zip(SEGMENTS, (0.1, 0.1, 0.1, 0.5, 0.2), strict=True)
    }
    record.server_timings = ServerTimings(server_ms, server_ms / 2, shares)
    return record


def made_result(count: int = 200, *, slower: float = 1.0, due: str = "d" * 64) -> Result:
    """A result as a run would give it."""
    requests = [request(index, slower=slower) for index in range(count)]
    summary = summarise(requests, count, 0.1, [0.0001, 0.0002], parse_slo("ttft=150ms,p=99"))
    queues = [
        QueueSample(0.5 * i, float(i % 5), 4.0, {"tokenize": i % 2, "schedule": 0.0}) for i in range(40)
    ]
    return Result(
        version=VERSION,
        started_at="2026-01-01T00:00:00+00:00",
        config={"target": {"url": "http://server", "protocol": "sse"}, "seed": 0, "served_model": "fake"},
        machine=this_machine(),
        trace=TraceFacts("folder/trace.csv", "azure", "a" * 64, count, count, {}, 0, 0, ["a <note>"]),
        workload=Digest(due, "l" * 64, "c" * 64, "s" * 64, "b" * 64, due[::-1]),
        summary=summary,
        verification=None,
        queues=queues,
        requests=requests,
    )


def test_what_is_written_is_read_and_gives_the_same_summary(tmp_path: Path) -> None:
    written = made_result()
    path = tmp_path / "result.json"
    path.write_bytes(encode(written))
    read = read_result(path)
    assert read == written
    again = summarise(read.requests, 200, 0.1, [0.0001, 0.0002], parse_slo("ttft=150ms,p=99"))
    assert again == read.summary
    first = json.loads(path.read_text())["requests"][0]
    assert first["ttft_s"] == pytest.approx(0.1) and first["raw_ttft_s"] == pytest.approx(0.099)
    assert first["e2e_s"] == pytest.approx(0.31) and first["raw_e2e_s"] == pytest.approx(0.309)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", encode(made_result(1))[:-2]])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"result\.json: is no result\.json"):
        read_result(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_result(tmp_path / "absent")


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(encode(msgspec.structs.replace(made_result(1), version=VERSION + 1)))
    with pytest.raises(UsageError, match="of version"):
        read_result(path)


def test_the_report_command_shows_a_result_once_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = tmp_path / "result.json", tmp_path / "page.html"
    path.write_bytes(encode(made_result()))
    assert main(["report", str(path), "--html", str(page)]) == 0
    out = capsys.readouterr().out
    for part in (
        "163 finished, 20 failed (20 of them shed)",
        "17 cancelled by the client",
        "where the time went",
    ):
        assert part in out
    assert "SLO missed: p99 TTFT" in out and "shed 10.0 %" in out
    assert page.read_text().startswith("<!doctype html>")
    assert main(["report", str(page)]) == 2


def digest_of(*, due_s: float = 0.0, num_output: int = 5, seed: int = 0, after: int | None = None) -> Digest:
    jobs = [
        Job(0, 0.0, None, 5, "a given text"),
        Job(1, due_s, 700, num_output, Blocks("", (1, 2), 512), after=after),
    ]
    return digest(jobs, Contents(None, Prefixes(seed, TokenRange())), seed, "plain")


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, []),
        ({"due_s": 0.5}, ["due"]),
        ({"num_output": 6}, ["lengths"]),
        ({"seed": 1}, ["content"]),
        ({"after": 0}, ["sessions"]),
        ({"due_s": 0.5, "seed": 1}, ["due", "content"]),
    ],
)
def test_a_digest_says_what_differs(change: dict[str, Any], names: list[str]) -> None:
    plain, other = digest_of(), digest_of(**change)
    assert plain.differing(other) == names
    assert (plain.sha256 == other.sha256) is (not names)


def test_buckets_keep_long_requests_apart() -> None:
    records = [request(index) for index in range(200)]
    found = by_input(records)
    assert [bucket.label for bucket in found] == [
        "1 to 16",
        "17 to 64",
        "65 to 256",
        "257 to 1,024",
        "1,025 to 4,096",
        "longest 1 %: 1,964 and more",
    ]
    assert sum(bucket.count for bucket in found[:-1]) == 163 and found[-1].count == 2
    assert found[0].ttft is not None and found[0].ttft.p50_ms == pytest.approx(100)
    assert [bucket.label for bucket in by_output(records)] == ["1 to 16"]
    assert by_input([]) == []


def test_a_tally_is_right_to_one_percent() -> None:
    tally = Tally()
    assert tally.percentile(50) is None
    for value in range(1, 1001):
        tally.add(value / 1000)
    for percent in (1, 50, 90, 99, 100):
        assert tally.percentile(percent) == pytest.approx(percent / 100, rel=0.011)
