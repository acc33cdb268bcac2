"""A measured run is simulated request by request, and the errors are those of its figures."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.messages import DeviceReady
from pipeline.simulate.against import read_result, workload_of
from pipeline.simulate.host import HostCosts
from pipeline.simulate.measured import VERSION, Measured, Residual, StepTerms, encode

STEP_S = 0.010
HOST = HostCosts(door_ns=0, launch_ns=0, gap_ns=0, result_ns=0, text_ns=0, flush_tokens=1, flush_ns=0)


def request(sent_s: float, num_output: int, **changes: Any) -> dict[str, Any]:
    """As a server whose every step takes STEP_S would answer it."""
    chunks = [sent_s + STEP_S * (number + 1) for number in range(num_output)]
    fields = {
        "index": 0,
        "intended_s": sent_s,
        "sent_s": sent_s,
        "chunk_s": chunks,
        "chunk_tokens": [1] * num_output,
        "planned_input": 10,
        "planned_output": num_output,
        "input_tokens": 12,
        "output_tokens": num_output,
        "failure": None,
        "ended_by": "server",
    }
    return fields | changes


@pytest.fixture
def result(tmp_path: Path) -> Path:
    requests = [request(10.0 + number, 5 + number) for number in range(20)]
    requests.append(request(31.0, 3, failure={"reason": "http_429", "message": ""}))
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"version": 1, "config": {}, "requests": requests}))
    return path


@pytest.fixture
def device(tmp_path: Path) -> Path:
    path = tmp_path / "measured.json"
    ready = DeviceReady(num_blocks=64, block_size=16, max_num_seqs=8, max_num_batched_tokens=64)
    terms = StepTerms(((1, STEP_S * 1e9), (64, STEP_S * 1e9)), 0.0, 0.0, 0.0)
    path.write_bytes(
        encode(Measured(VERSION, "clockwork", "bench", ready, 512, terms, HOST, Residual(30, 0.0, 0.0, 0.0)))
    )
    return path


def test_the_workload_is_what_was_sent_and_answered(result: Path) -> None:
    finished, num_others = read_result(result)
    workload = workload_of(finished)
    assert num_others == 1
    assert [arrival.at_ns for arrival in workload] == [number * 10**9 for number in range(20)]
    assert [(arrival.num_input, arrival.num_output) for arrival in workload[:2]] == [(12, 5), (12, 6)]


def test_a_server_like_clockwork_is_simulated_without_error(
    result: Path, device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--against", str(result), "--device", str(device), "--json"]) == 0
    comparisons = json.loads(capsys.readouterr().out)["comparisons"]
    names = {each["name"] for each in comparisons}
    assert {"TTFT p99, ms", "ITL p50, ms", "E2E mean, ms", "output tokens/s"} <= names
    assert all(abs(each["error"]) < 1e-3 for each in comparisons)


def test_a_slower_device_is_seen_as_such(
    result: Path, device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = device.read_text().replace(f"{STEP_S * 1e9}", f"{STEP_S * 1.5e9}")
    device.write_text(text)
    assert main(["simulate", "--against", str(result), "--device", str(device)]) == 0
    assert "+50.0%" in capsys.readouterr().out


def test_a_file_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "odd.json").write_text("[]")
    assert main(["simulate", "--against", str(tmp_path / "odd.json")]) == 2
    assert "is no result.json of loadgen" in capsys.readouterr().err
