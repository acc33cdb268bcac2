"""Reading traces: every spelling of a time, every reason to drop, every error with its place."""

from pathlib import Path

import pytest

from loadgen.errors import TraceError
from loadgen.timing import Scale
from loadgen.traces import load
from loadgen.traces.azure import timestamp_ns
from loadgen.traces.row import Blocks
from loadgen.workload import Limits, Pacing, plan

SHARED = Path(__file__).parents[4] / "shared" / "data" / "traces"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def write(folder: Path, content: str, name: str = "trace") -> Path:
    path = folder / name
    path.write_text(content, newline="")
    return path


@pytest.mark.parametrize(
    ("text", "fraction_ns"),
    [
        ("2023-11-16 18:17:03.9799600", 979_960_000),
        ("2023-11-16 18:17:03.9799601", 979_960_100),
        ("2023-11-16 18:17:03.979960+00:00", 979_960_000),
        ("2023-11-16T18:17:03.979Z", 979_000_000),
        ("2023-11-16 18:17:03", 0),
        ("2023-11-16T20:17:03.5+02:00", 500_000_000),
    ],
)
def test_every_azure_timestamp_is_read_without_loss(text: str, fraction_ns: int) -> None:
    assert timestamp_ns(text) == 1_700_158_623 * 10**9 + fraction_ns


@pytest.mark.parametrize(
    "text", ["2023-13-16 18:17:03", "16/11/2023 18:17", "1700158623", "", "2023-11-16 25:00:00"]
)
def test_other_timestamps_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|must be in"):
        timestamp_ns(text)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("ending", [True, False])
def test_azure_rows_with_and_without_a_last_newline(tmp_path: Path, newline: str, ending: bool) -> None:
    lines = [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:17:03.0000000,374,44",
        "2023-11-16 18:17:04.5000000,396,109",
    ]
    trace = load(write(tmp_path, newline.join(lines) + newline * ending))
    assert trace.format == "azure" and trace.num_read == 2
    assert [(row.num_input, row.num_output) for row in trace.rows] == [(374, 44), (396, 109)]
    assert trace.rows[1].at_ns - trace.rows[0].at_ns == 1_500_000_000


def test_failed_and_image_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    content = (
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        "2024-10-15T12:00:00.000Z,0,770,491\n"
        "2024-10-15T12:00:01.000Z,1,949,126\n"
        "2024-10-15T12:00:02.000Z,0,0,0\n"
        "2024-10-15T12:00:03.000Z,0,0,7\n"
    )
    trace = load(write(tmp_path, content))
    assert len(trace.rows) == 1 and trace.num_read == 4
    assert trace.dropped == {"has images": 1, "output length 0": 1, "input length 0": 1}


def test_mooncake_is_told_by_its_content_and_sorted_by_time(tmp_path: Path) -> None:
    content = (
        '{"timestamp": 3000, "input_length": 10, "output_length": 2, "hash_ids": [0]}\n'
        '{"timestamp": 0, "input_length": 11, "output_length": 3, "hash_ids": [0]}\n'
        '{"timestamp": 5, "input_length": 12, "output_length": 0, "hash_ids": [0]}'
    )
    trace = load(write(tmp_path, content, name="looks_like.csv"))
    assert trace.format == "mooncake" and trace.dropped == {"output length 0": 1}
    assert [(row.at_ns, row.num_input) for row in trace.rows] == [(0, 11), (3_000_000_000, 10)]
    assert [row.content for row in trace.rows] == [Blocks("", (0,), 512)] * 2


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (HEADER + "2023-11-16 18:17:03.1,12\n", [":2:", "3 fields"]),
        (
            HEADER + "2023-11-16 18:17:03.1,12,3\n2023-11-16 18:17:03.1,-1,3\n",
            [":3:", "ContextTokens", "'-1'"],
        ),
        (HEADER + "2023-11-16 18:17:03.1,12,nan\n", [":2:", "GeneratedTokens", "'nan'"]),
        (HEADER + "yesterday,12,3\n", [":2:", "TIMESTAMP", "'yesterday'"]),
        (HEADER, ["no row"]),
        (HEADER + "2023-11-16 18:17:03.1,12,0\n", ["no row", "output length 0"]),
        ("", ["empty"]),
        ("a,b\n1,2\n", [":1:", "not a known trace", "a,b"]),
        ('{"timestamp": "1", "input_length": 10, "output_length": 2}', [":1:", "timestamp"]),
        (
            '{"timestamp": 1, "input_length": 10, "output_length": 2}\n{"timestamp": 1, "input_length": 10}',
            [":2:", "output_length"],
        ),
        ('{"timestamp": 1, "input_length": 1, "output_length": -2}', [":1:", "output_length"]),
        ('{"timestamp": 1, "input_length": 1, "output_length": 2}\n{"timest', [":2:"]),
        ('{"chat_id": 1, "timestamp": -6.1, "input_length": 1, "output_length": 2}', [":1:", "timestamp"]),
    ],
)
def test_errors_name_file_line_and_field(tmp_path: Path, content: str, parts: list[str]) -> None:
    path = write(tmp_path, content)
    with pytest.raises(TraceError) as caught:
        load(path)
    assert all(part in str(caught.value) for part in [str(path), *parts])


def test_a_missing_or_binary_file_is_a_trace_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        load(tmp_path / "absent.csv")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="not UTF-8"):
        load(tmp_path / "binary")


def test_the_plan_clamps_counts_and_scales(tmp_path: Path) -> None:
    rows = ["2023-11-16 18:17:00.0,100,5", "2023-11-16 18:17:10.0,300,50", "2023-11-16 18:17:20.0,301,1"]
    trace = load(write(tmp_path, HEADER + "\n".join(rows)))
    workload = plan(trace, Limits(max_input=300, max_output=4), Pacing(Scale(4)))
    assert [(job.due_s, job.num_input, job.num_output) for job in workload.jobs] == [
        (0.0, 100, 4),
        (2.5, 300, 4),
        (5.0, 300, 1),
    ]
    assert (workload.num_clamped_input, workload.num_clamped_output) == (1, 2)
    assert workload.mean_gap_s == 2.5
    assert len(plan(trace, Limits(rows=1)).jobs) == 1
    assert plan(trace, Limits(rows=1)).mean_gap_s is None


@pytest.mark.parametrize(
    ("name", "rows", "span_s"),
    [
        ("azure_llm_2023_code.csv", 8819, 3435.9),
        ("azure_llm_2023_conv.csv", 19366, 3501.7),
        ("azure_llm_2024_code.formatsample.csv", 10, None),
        ("azure_lmm_2025_multimodal.formatsample.csv", 10, None),
        ("mooncake_fast25_conversation_first1000s.jsonl", 3035, None),
        ("mooncake_fast25_synthetic_first850s.jsonl", 3273, None),
    ],
)
def test_real_traces(name: str, rows: int, span_s: float | None) -> None:
    if not (SHARED / name).exists():
        pytest.skip(f"{name} is not in ../shared/data/traces")
    trace = load(SHARED / name)
    assert trace.num_read == rows == len(trace.rows) + sum(trace.dropped.values())
    if span_s is not None:
        assert (trace.rows[-1].at_ns - trace.rows[0].at_ns) / 1e9 == pytest.approx(span_s, abs=0.5)
