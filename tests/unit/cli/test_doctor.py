"""`stageline doctor` on files, and what it says where there is nothing to judge."""

import json
from pathlib import Path

import msgspec
import pytest

from pipeline.__main__ import main
from tests.unit.cli.conftest import FakeServer
from tests.unit.doctor.made import HEALTHY, SPAN_S, evidence, requests, samples, steps
from tests.unit.doctor.replays import record, result

SLOW = HEALTHY | {"schedule.wait": (900, 1000)}


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    path = tmp_path / "healthy.json"
    path.write_bytes(msgspec.json.encode(evidence()))
    return path


@pytest.fixture
def short_of_blocks(tmp_path: Path) -> Path:
    path = tmp_path / "blocks.json"
    short = steps(num_waiting=3, num_running=4, num_used_blocks=990, num_kv_tokens=9000)
    path.write_bytes(msgspec.json.encode(evidence(requests(50, SLOW), short)))
    return path


def test_a_healthy_server(healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(healthy)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Healthy") and f"50 requests ended in {SPAN_S}.0 s" in out
    assert "Little: holds" in out and "execute.service" in out


def test_a_finding_on_80_columns(short_of_blocks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(short_of_blocks)]) == 3
    out = capsys.readouterr().out
    assert "1. The KV cache is too small (kv_capacity, severe: 94% of p99 TTFT)" in " ".join(out.split())
    assert "Change: device.num_blocks from 1000 to 1733" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def test_json(short_of_blocks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(short_of_blocks), "--json"]) == 3
    said = json.loads(capsys.readouterr().out)
    assert (said["state"], said["findings"][0]["constraint"]) == ("constrained", "kv_capacity")


def test_too_short_a_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "short.json"
    path.write_bytes(msgspec.json.encode(evidence(of_samples=samples()[:1])))
    assert main(["doctor", str(path)]) == 4
    assert capsys.readouterr().out.startswith("Not judged")


def test_a_result_of_loadgen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(result([record(k, queue_s=0.5) for k in range(50)]))
    assert main(["doctor", str(path)]) == 4
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("Most of p99 E2E is schedule.wait (71%)") and "Not known: utilisation" in out


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"samples": 3}', b'{"workload": {}}'])
def test_other_files_are_refused(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    assert main(["doctor", str(path)]) == 1
    assert "other.json" in capsys.readouterr().err
    assert main(["doctor", str(tmp_path / "absent")]) == 1


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", "http://127.0.0.1:9"]) == 1
    err = capsys.readouterr().err
    assert "no admin port at http://127.0.0.1:9" in err and "[admin]" in err


def test_the_port_of_the_api_is_not_it(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", server.url]) == 1
    assert "is that the admin port?" in capsys.readouterr().err


@pytest.mark.parametrize("last", ["0", "601", "x", "-1s", "nan"])
def test_windows_that_no_server_has(last: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", "--last", last])


def test_a_file_is_not_watched(healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(healthy), "--watch"]) == 1
    assert "for a running server" in capsys.readouterr().err


def test_watch_asks_again_until_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, pauses = [], iter([None, KeyboardInterrupt])

    def fetch(url: str, last_s: float) -> bytes:
        asked.append((url, last_s))
        return msgspec.json.encode(evidence())

    def pause(_: float) -> None:
        if (interrupt := next(pauses)) is not None:
            raise interrupt

    monkeypatch.setattr("pipeline.cli.doctor.fetch", fetch)
    monkeypatch.setattr("pipeline.cli.doctor.time.sleep", pause)
    assert main(["doctor", "--watch", "--last", "30s", "--url", "http://server:1"]) == 130
    assert asked == [("http://server:1", 30.0)] * 2
    assert capsys.readouterr().out.count("Healthy") == 2
