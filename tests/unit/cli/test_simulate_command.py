"""`stageline simulate` from a trace file to its tables and JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Sixty requests, two a second."""
    path = tmp_path / "trace.csv"
    rows = [
        f"2023-11-16 18:{number // 120:02}:{number // 2 % 60:02}.{number % 2 * 5}000000,{40 + number * 7},"
        f"{5 + number % 9 * 30}\n"
        for number in range(60)
    ]
    path.write_text(HEADER + "".join(rows))
    return path


def simulated(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    assert main(["simulate", "--json", *map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_policy_on_every_number_of_replicas(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--trace", trace, "--policy", "fcfs,sjf,fair", "--replicas", "1,2", "--slo", "ttft=1s,tpot=50ms")
    cells = simulated(capsys, *words)["cells"]
    assert [(cell["policy"], cell["num_replicas"]) for cell in cells] == [
        (policy, replicas) for replicas in (1, 2) for policy in ("fcfs", "sjf", "fair")
    ]
    assert all(cell["num_finished"] == 60 and cell["goodput"] == 1 for cell in cells)
    assert {cell["num_output_tokens"] for cell in cells} == {sum(5 + number % 9 * 30 for number in range(60))}
    assert cells[3]["cost_per_million_tokens"] > cells[0]["cost_per_million_tokens"] > 0


def test_the_same_command_says_the_same(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--trace", trace, "--load", "0.9", "--policy", "sjf", "--max-tokens", "500")
    assert simulated(capsys, *words) == simulated(capsys, *words)


def test_load_scales_to_what_the_device_can_bear(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = simulated(capsys, "--trace", trace, "--load", "0.5", "--replicas", "2", "--device", "l4")
    assert result["cells"][0]["rate"] == pytest.approx(result["capacity_per_replica"], rel=1e-3)


def test_tensor_parallel_replicas(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--trace", trace, "--model", "llama-3-70b")
    assert main(["simulate", *map(str, words)]) == 2
    assert "do not fit 1 x h100" in capsys.readouterr().err
    (cell,) = simulated(capsys, *words, "--gpus", 4)["cells"]
    assert cell["num_finished"] == 60


def test_a_prompt_longer_than_the_model_is_counted_as_rejected(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cell,) = simulated(capsys, "--trace", trace, "--max-model-len", 300)["cells"]
    assert cell["rejected"]["context_length_exceeded"] == 60 - cell["num_finished"] > 0


@pytest.mark.parametrize("scenario", ["sjf", "static", "itl", "fair", "paging", "int8"])
def test_scenarios_say_what_they_found(
    trace: Path, scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = simulated(capsys, "--trace", trace, "--scenario", scenario, "--seed", 3)
    assert result["verdict"] and len(result["cells"]) >= 2
    assert main(["simulate", "--trace", str(trace), "--scenario", scenario, "--limit", "30"]) == 0
    assert "Rates and use" in capsys.readouterr().out


def test_shared_prefixes_are_computed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """30 prompts of 3,000 tokens in twos that begin with the same 1,024."""
    trace = tmp_path / "mooncake.jsonl"
    rows = [
        {
            "timestamp": 100 * k,
            "input_length": 3000,
            "output_length": 5,
            "hash_ids": [k // 2 * 100, k // 2 * 100 + 1, *(10_000 + 10 * k + j for j in range(4))],
        }
        for k in range(30)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = simulated(capsys, "--trace", trace, "--scenario", "prefix")
    alone, shared = result["cells"]
    assert alone["num_cached_tokens"] == 0 and shared["num_cached_tokens"] == 15 * 1024
    assert shared["ttft_ms"]["mean"] < alone["ttft_ms"]["mean"]
    assert "17.1% of the prompt tokens were found in the cache; one without end has 17.1%" in str(result)


def test_a_trace_without_shared_blocks_shows_no_sharing(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--trace", str(trace), "--scenario", "prefix"]) == 2
    assert "does not say what its prompts have in common" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--device", "b3000"), "--device b3000: unknown; known: h100, h200, a100, l4, 4090"),
        (("--policy", "lifo"), "stages.schedule.options.policy = 'lifo': must be one of fcfs"),
        (("--set", "sjf_tokens_per_s=-1"), "stages.schedule.options.sjf_tokens_per_s = -1"),
        (("--set", "sjf"), "--set sjf: expected KEY=VALUE"),
        (("--slo", "ttfb=1s"), "--slo 'ttfb=1s': expected"),
        (("--gpus", "3"), "--gpus 3: llama-3.1-8b has 8 KV heads"),
        (("--dtype", "int3"), "--dtype int3: must be one of"),
    ],
)
def test_what_is_wrong_is_said(
    trace: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--trace", str(trace), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "odd.txt").write_text("what is this\n")
    assert main(["simulate", "--trace", str(tmp_path / "odd.txt")]) == 2
    assert "not a known trace" in capsys.readouterr().err
