"""Every format: told by content, with its own units and block sizes; followers linked, lost rows counted."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import TraceError, UsageError
from loadgen.traces import FORMAT_NAMES, ReadOptions, Trace, load
from loadgen.traces.row import OUTPUT_TOKENS, Blocks, Message

DATA = Path(__file__).parents[4] / "shared" / "data"


def lines(folder: Path, *rows: dict[str, Any], name: str = "trace") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(folder: Path, *rows: dict[str, Any]) -> Trace:
    return load(lines(folder, *rows))


def links(trace: Trace) -> list[tuple[int | None, float | None]]:
    return [(row.after, row.think_s) for row in trace.rows]


def mooncake(at_ms: int, num_input: int, ids: list[int]) -> dict[str, Any]:
    return {"timestamp": at_ms, "input_length": num_input, "output_length": 7, "hash_ids": ids}


def test_mooncake_blocks_are_512_and_the_last_is_partial(tmp_path: Path) -> None:
    trace = read(tmp_path, mooncake(0, 1024, [0, 1]), mooncake(0, 1025, [0, 1, 2]))
    content = trace.rows[1].content
    assert isinstance(content, Blocks)
    assert list(content.spans(1025)) == [(0, 512), (1, 512), (2, 1)]
    assert list(content.spans(600)) == [(0, 512), (1, 88)]  # clamped: the prefix stays


@pytest.mark.parametrize(
    ("ids", "size", "count"), [([0, 1], None, 3), ([0, 1, 2, 3], None, 3), ([0, 1, 2], 16, 65)]
)
def test_a_wrong_block_size_is_refused_with_its_numbers(
    tmp_path: Path, ids: list[int], size: int | None, count: int
) -> None:
    path = lines(tmp_path, mooncake(0, 1, [0]), mooncake(0, 1025, ids))
    with pytest.raises(TraceError) as caught:
        load(path, None, ReadOptions(block_size=size))
    said = f"trace:2: hash_ids: 1025 input tokens in blocks of {size or 512} are {count} ids, the row has "
    assert f"{said}{len(ids)};" in str(caught.value)


def test_a_right_block_size_can_be_given(tmp_path: Path) -> None:
    trace = load(lines(tmp_path, mooncake(0, 65, [4, 5])), None, ReadOptions(block_size=64))
    assert trace.rows[0].content == Blocks("", (4, 5), 64)


def test_mooncake_sessions_follow_by_delay_or_by_time(tmp_path: Path) -> None:
    def row(session: str, **more: Any) -> dict[str, Any]:
        return {"session_id": session, "input_length": 3, "output_length": 4} | more

    trace = read(
        tmp_path,
        row("a", timestamp=1000),
        row("b", timestamp=1500),
        row("a", delay=250),
        row("b", timestamp=1100),  # recorded before its forerunner: it cannot be sent before it
        row("a", delay=0),
    )
    assert links(trace) == [(None, None), (0, 0.25), (1, 0.0), (None, None), (3, None)]
    assert [row.at_ns for row in trace.rows] == [
        10**9,
        1250 * 10**6,
        1250 * 10**6,
        1500 * 10**6,
        1500 * 10**6,
    ]


def test_mooncake_rows_may_bring_text_or_messages(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    trace = read(
        tmp_path,
        {"timestamp": 0, "text_input": "once", "output_length": 9},
        {"timestamp": 1, "messages": chat, "tools": [{}]},
        {"timestamp": 2, "text_input": ""},
    )
    assert trace.rows[0].content == "once" and trace.rows[0].num_input is None
    assert trace.rows[1].content == (Message("system", "be brief"), Message("user", "hi"))
    assert trace.rows[1].num_output == OUTPUT_TOKENS and trace.dropped == {"input length 0": 1}
    assert [note.split(" rows")[0] for note in trace.notes] == ["2", "1"]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"timestamp": 0, "text_input": "a", "messages": []}, "needs one of"),
        ({"timestamp": 0, "text_input": "a", "hash_ids": [1]}, "hash_ids need input_length"),
        ({"delay": 5, "input_length": 1, "output_length": 2}, "delay needs session_id"),
        ({"session_id": "a", "input_length": 1, "output_length": 2}, "timestamp is missing"),
        ({"timestamp": 0, "input_length": 1}, "output_length is missing"),
    ],
)
def test_odd_mooncake_rows_are_errors(tmp_path: Path, row: dict[str, Any], why: str) -> None:
    with pytest.raises(TraceError, match=f"trace:2: {why}"):
        read(tmp_path, mooncake(0, 1, [0]), row)


BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST_3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def test_burstgpt_is_read_by_column_name(tmp_path: Path) -> None:
    (tmp_path / "1").write_text(BURST + "5,GPT-4,472,18,490,API log\n45,ChatGPT,0,0,0,API log\n")
    trace = load(tmp_path / "1")
    assert (trace.format, trace.dropped) == ("burstgpt", {"output length 0": 1})
    assert [(row.at_ns, row.num_input, row.num_output) for row in trace.rows] == [(5 * 10**9, 472, 18)]


def test_burstgpt_sessions_have_think_times(tmp_path: Path) -> None:
    rows = ["10,s1,2.5,GPT-4,10,5,15,x", "11,s2,1,GPT-4,10,5,15,x", "20,s1,1,GPT-4,30,0,30,x",
            "30,s1,1,GPT-4,40,5,45,x", "31,,,GPT-4,40,5,45,x"]  # fmt: skip
    (tmp_path / "3").write_text(BURST_3 + "\n".join(rows))
    trace = load(tmp_path / "3")
    assert trace.dropped == {"output length 0": 1}
    assert links(trace) == [(None, None), (None, None), (0, 9.0), (None, None)]  # over the failed row


def bailian(chat: int, parent: int, at_s: float, num_input: int = 33, **more: Any) -> dict[str, Any]:
    ids = list(range(-(-num_input // 16)))
    base = {"chat_id": chat, "parent_chat_id": parent, "timestamp": at_s, "type": "text", "turn": 1}
    return base | {"input_length": num_input, "output_length": 5, "hash_ids": ids} | more


def test_bailian_seconds_parents_and_16_token_blocks(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        bailian(5, -1, 0.0),
        bailian(6, 5, 61.114, 48),
        bailian(7, 99, 62.0),
        bailian(8, 6, 63.0, type="image"),
        bailian(9, 8, 64.0, hash_ids=[0, 1]),  # floor: the partial block has no id
    )
    assert trace.format == "bailian" and trace.rows[1].at_ns == 61_114_000_000
    assert links(trace) == [(None, None), (0, None), (None, None), (1, None)]
    assert trace.rows[1].content == Blocks("", (0, 1, 2), 16)
    assert trace.dropped == {"has images": 1} and "1 rows follow a request that is not" in trace.notes[0]
    with pytest.raises(TraceError, match="33 input tokens in blocks of 16 are 2 or 3 ids, the row has 1"):
        read(tmp_path, bailian(1, -1, 0.0, hash_ids=[0]))


def rag(at: str, num_input: int, session: str, **ids: list[int]) -> dict[str, Any]:
    return {
        "timestamp": at,
        "input_length": num_input,
        "output_length": 3,
        "hash_ids": ids,
        "session_id": session,
    }


def test_ragpulse_components_have_lengths_of_their_own(tmp_path: Path) -> None:
    path = lines(
        tmp_path,
        rag("82", 38, "s", sys=[1, 2], user=[3]),
        rag("93", 27, "s", sys=[1], user=[]),
        name="rag.jsonl",
    )
    (tmp_path / "rag.lengths.json").write_text('{"1": 20, "2": 5, "3": 6}')
    trace = load(path)
    assert (trace.format, links(trace)) == ("ragpulse", [(None, None), (0, None)])
    assert trace.rows[0].content == Blocks("", (1, 2, 3), (20, 5, 6))
    (tmp_path / "rag.lengths.json").write_text('{"1": 20, "2": 50, "3": 6}')
    with pytest.raises(TraceError, match=r":1: input_length is 38, by the table its parts have 76"):
        load(path)
    (tmp_path / "rag.lengths.json").unlink()
    with pytest.raises(TraceError, match=r"rag\.lengths\.json: cannot be read"):
        load(path)


def weka(t: float, num_input: int, ids: list[int], **more: Any) -> dict[str, Any]:
    base = {
        "t": t,
        "type": "n",
        "in": num_input,
        "out": 9,
        "hash_ids": ids,
        "think_time": 0.0,
        "api_time": 2.0,
    }
    return base | more


def weka_file(path: Path, *requests: dict[str, Any], scope: str = "local") -> Path:
    path.write_text(json.dumps({"id": "x", "block_size": 64, "hash_id_scope": scope, "requests": requests}))
    return path


def test_weka_chains_subagents_and_think_times(tmp_path: Path) -> None:
    inner = [weka(0.0, 64, [7]), weka(6.0, 128, [7, 8], api_time=None), weka(20.0, 128, [7, 8])]
    path = weka_file(
        tmp_path / "s.json",
        weka(0.0, 130, [1, 2]),
        {"t": 10.0, "type": "subagent", "requests": inner},
        weka(12.0, 200, [1, 2, 3], type="s"),
    )
    trace = load(path)
    assert [row.at_ns // 10**9 for row in trace.rows] == [0, 10, 12, 16, 30]
    assert links(trace) == [(None, None), (0, 8.0), (0, 10.0), (1, 4.0), (3, 14.0)]
    assert trace.rows[0].content == Blocks("s.json", (1, 2), 64)
    assert trace.notes == ["1 requests have no api_time: the think time after them has their answer's in it"]


def test_weka_ids_are_local_to_their_file(tmp_path: Path) -> None:
    for name in ("b.json", "a.json"):
        weka_file(tmp_path / name, weka(0.0, 64, [1]), weka(5.0, 64, [1]))
    weka_file(tmp_path / "c.json", weka(1.0, 64, [1]), scope="global")
    (tmp_path / "README.md").write_text("not a session")
    trace = load(tmp_path)
    assert [row.content.scope for row in trace.rows if isinstance(row.content, Blocks)] == [
        "a.json", "b.json", "", "a.json", "b.json"]  # fmt: skip
    assert [row.after for row in trace.rows] == [None, None, None, 0, 1]
    listing = "".join(
        f"{hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("a.json", "b.json", "c.json")
    )
    assert trace.sha256 == hashlib.sha256(listing.encode()).hexdigest()


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (
            weka(0.0, 128, [1]),
            r"requests\[0\]: hash_ids: 128 input tokens in blocks of 64 are 2 ids, the row has 1",
        ),
        (weka(0.0, 128, [1, 2], type="x"), "type"),
        (weka(-1.0, 128, [1, 2]), "t"),
    ],
)
def test_odd_weka_files_are_errors(tmp_path: Path, request_: dict[str, Any], why: str) -> None:
    path = weka_file(tmp_path / "s.json", request_)
    with pytest.raises(TraceError, match=rf"s.json: .*{why}"):
        load(path)


def test_tracelab_prefixes_are_what_was_said(tmp_path: Path) -> None:
    path = tmp_path / "rounds.csv"
    path.write_text(
        "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
        "0,117,0,0,2318,200,300\n0,117,1,2518,348,131,154\n0,117,2,2000,10,104,0\n"
    )
    trace = load(path)
    assert trace.format == "tracelab" and links(trace) == [(None, None), (0, 0.3), (1, 0.154)]
    assert [row.num_input for row in trace.rows] == [2318, 2866, 2010]
    assert [list(row.content.spans(9999)) for row in trace.rows if isinstance(row.content, Blocks)] == [
        [(0, 2318)],
        [(0, 2318), (1, 200), (2, 348)],
        [(0, 2000), (1, 10)],
    ]


def test_prompt_files(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        {"id": "q1", "prompt": "What?", "max_tokens": 12},
        {"turns": ["one", {"text": "two", "delay": 500}, "three"], "output_tokens": 8},
        {"messages": [{"role": "user", "content": "hi"}], "tools": [{}]},
        {"text": ""},
    )
    assert trace.format == "prompts" and not trace.is_timed
    assert trace.dropped == {"input length 0": 1}
    assert [row.content for row in trace.rows] == [
        "What?",
        *((Message("user", text),) for text in ("one", "two", "three", "hi")),
    ]
    assert [row.num_output for row in trace.rows] == [12, 8, 8, 8, OUTPUT_TOKENS]
    assert links(trace)[1:4] == [(None, None), (1, 0.5), (2, 0.0)]
    assert [row.adds_turn for row in trace.rows] == [False, False, True, True, False]
    assert any("no times" in note for note in trace.notes) and any("tools" in note for note in trace.notes)


def test_sharegpt_sends_the_users_turns(tmp_path: Path) -> None:
    said = [
        {"conversations": [{"from": "system", "value": "S"}, {"from": "human", "value": "A"},
                           {"from": "gpt", "value": "B"}, {"from": "human", "value": "C"}]},
        {"conversations": [{"from": "gpt", "value": "only me"}]},
        {"conversations": [{"from": "human", "value": "D"}, {"from": "gpt", "value": "E"}]},
    ]  # fmt: skip
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(said, indent=1))
    trace = load(path)
    assert trace.format == "sharegpt" and trace.dropped == {"no user turn, or an empty one": 1}
    assert [row.content for row in trace.rows] == [
        (Message("system", "S"), Message("user", "A")), (Message("user", "C"),), (Message("user", "D"),)
    ]  # fmt: skip
    assert [row.after for row in trace.rows] == [None, 0, None]


def test_a_format_can_be_forced_and_a_wrong_one_is_told(tmp_path: Path) -> None:
    path = lines(tmp_path, mooncake(0, 1, [0]))
    assert load(path, "mooncake").format == "mooncake"
    with pytest.raises(UsageError) as caught:
        load(path, "monocake")
    assert all(name in str(caught.value) for name in ("monocake", *FORMAT_NAMES))
    with pytest.raises(TraceError, match=r"trace:1: .*chat_id"):
        load(path, "bailian")
    with pytest.raises(UsageError, match="--window means nothing for mooncake"):
        load(path, None, ReadOptions(window_s=(0, 1)))


def test_a_block_size_where_there_are_no_blocks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b").write_text(BURST + "5,GPT-4,472,18,490,API log\n")
    with pytest.raises(UsageError, match="--block-size means nothing for burstgpt"):
        load(tmp_path / "b", None, ReadOptions(block_size=16))


@pytest.mark.parametrize("content", ["a,b\n1,2\n", '{"x": 1}\n', "[1, 2]", "Just some text.\n"])
def test_unknown_content_lists_the_known_formats(tmp_path: Path, content: str) -> None:
    (tmp_path / "unknown").write_text(content)
    with pytest.raises(TraceError, match="not a known trace") as caught:
        load(tmp_path / "unknown")
    assert all(f"\n  {name}: " in str(caught.value) for name in FORMAT_NAMES)


def test_an_empty_folder_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="a folder of other files"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "form", "num_rows", "num_followers"),
    [
        ("traces/burstgpt_1_first400.csv", "burstgpt", 383, 0),
        ("traces/ragpulse_first2000.jsonl", "ragpulse", 2000, 852),
        ("agentic/claude_code_weka", "weka", 168, 162),
        ("agentic/tracelab/multi_session_large.csv", "tracelab", 303, 255),
        ("prompts/prompts.jsonl", "prompts", 341, 0),
        ("prompts/mt_bench_question.jsonl", "prompts", 160, 80),
    ],
)
def test_real_files(name: str, form: str, num_rows: int, num_followers: int) -> None:
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not in ../shared/data")
    trace = load(DATA / name)
    followers = [(i, row) for i, row in enumerate(trace.rows) if row.after is not None]
    assert (trace.format, len(trace.rows), len(followers)) == (form, num_rows, num_followers)
    assert all(row.after is not None and row.after < i for i, row in followers)


def test_think_times_of_real_weka_sessions_are_the_recorded_ones() -> None:
    path = DATA / "agentic" / "claude_code_weka" / "trace_0057.json"
    if not path.exists():
        pytest.skip(f"{path.name} is not in ../shared/data")
    recorded = [request["think_time"] for request in json.loads(path.read_text())["requests"]]
    measured = [row.think_s or 0.0 for row in load(path).rows]
    assert measured == pytest.approx(recorded, abs=1.0)  # `t` and `think_time` are in whole seconds
