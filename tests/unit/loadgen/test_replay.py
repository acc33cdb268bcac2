"""The replay command from trace file to exit code, against a scripted server."""

import asyncio
import json
import signal
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadgen.__main__ import main
from loadgen.clients.connect import target
from loadgen.replay import Options, replay
from loadgen.slo import parse_slo
from loadgen.timing import Scale
from loadgen.workload import Limits, Pacing
from tests.unit.loadgen.fake_llm_server import (
    DONE,
    FakeServer,
    Script,
    delta,
    done,
    num_tokens,
    serve,
    text,
    usage,
)

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def write_trace(folder: Path, rows: list[tuple[float, int, int]]) -> Path:
    path = folder / "trace.csv"
    path.write_text(HEADER + "".join(f"2023-11-16 18:00:{at:010.7f},{i},{o}\n" for at, i, o in rows))
    return path


def sse_answer(body: dict[str, Any]) -> Script:
    count = body["max_tokens"]
    chunks = [text("x", "length" if i + 1 == count else None) for i in range(count)]
    return [*chunks, usage(num_tokens(body["prompt"]), count), DONE]


def ws_answer(frame: dict[str, Any]) -> Script:
    count = frame["max_tokens"]
    return [delta("x", 1)] * count + [done(num_tokens(frame["prompt"]), count)]


def options(trace: Path, server: FakeServer, protocol: str, **more: Any) -> Options:
    return Options(trace, target(server.url, protocol, None, 2), **({"limits": Limits()} | more))


async def run(chosen: Options) -> tuple[int, str]:
    out = StringIO()
    code = await replay(chosen, Console(file=out, width=200))
    return code, out.getvalue()


@pytest.mark.parametrize(("protocol", "answer"), [("sse", sse_answer), ("ws", ws_answer)])
def test_a_whole_replay(tmp_path: Path, protocol: str, answer: Any) -> None:
    rows = [(0.02 * i, 50 + i, 1 + i % 5) for i in range(30)] + [(0.7, 10, 0), (0.8, 5000, 90)]
    trace = write_trace(tmp_path, rows)
    result_path = tmp_path / "result.json"

    async def body() -> None:
        async with serve(answer) as server:
            chosen = options(
                trace,
                server,
                protocol,
                limits=Limits(max_input=1000, max_output=20),
                pacing=Pacing(Scale(2)),
                slo=parse_slo("ttft=5s"),
                json=result_path,
            )
            code, out = await run(chosen)
            assert code == 0
            for part in ("31 requests", "31 finished, 0 failed", "output length 0: 1", "TTFT", "100.0 %"):
                assert part in out
            assert "clamped 1 in input, 1 in output" in out

    asyncio.run(body())
    result = json.loads(result_path.read_text())
    assert result["summary"]["num_finished"] == 31 and result["trace"]["rows_dropped"] == {
        "output length 0": 1
    }
    assert result["summary"]["output"] == {"planned": 30 // 5 * 15 + 20, "actual": 110, "num_off": 0}
    assert abs(result["summary"]["input"]["actual"] / result["summary"]["input"]["planned"] - 1) < 0.02
    assert [request["index"] for request in result["requests"]] == list(range(31))
    assert result["requests"][10]["intended_s"] == pytest.approx(0.1)
    assert all(request["sent_s"] >= request["intended_s"] for request in result["requests"])
    assert set(tmp_path.iterdir()) == {trace, result_path}  # no temporary file is left


def test_the_loop_is_open_and_a_stall_is_charged_to_the_server(tmp_path: Path) -> None:
    """Five requests 50 ms apart while every answer waits for 0.4 s after the start: coordinated omission."""
    trace = write_trace(tmp_path, [(0.05 * i, 100, 1) for i in range(5)])

    async def body() -> dict[str, Any]:
        started: list[float] = []
        loop = asyncio.get_running_loop()

        def stalled(frame: dict[str, Any]) -> Script:
            started.append(loop.time())
            return [max(0.0, started[0] + 0.4 - loop.time()), *sse_answer(frame)]

        async with serve(stalled) as server:
            path = tmp_path / "out.json"
            code, _ = await run(options(trace, server, "sse", tokens_per_word=1.3, json=path))
            assert code == 0
            sent = [at - started[0] for at in started]
            assert sent == pytest.approx([0.05 * i for i in range(5)], abs=0.03)
            return json.loads(path.read_text())

    ttfts = [request["ttft_s"] for request in asyncio.run(body())["requests"]]
    assert ttfts == pytest.approx([0.4, 0.35, 0.3, 0.25, 0.2], abs=0.04)


def test_failures_are_counted_by_reason_and_change_the_exit_code(tmp_path: Path) -> None:
    trace = write_trace(tmp_path, [(0.01 * i, 40, 2 + i) for i in range(6)])

    def answer(body: dict[str, Any]) -> Script:
        kept = sse_answer(body)
        return {3: kept[:-1], 4: [text("x"), 5.0]}.get(body["max_tokens"], kept)

    async def body() -> None:
        async with serve(answer) as server:
            code, out = await run(options(trace, server, "sse", timeout_s=0.3, slo=parse_slo("ttft=10s")))
            assert code == 1
            assert "failed unterminated: 1" in out and "failed timeout: 1" in out
            assert "4 of 6 sent: 66.7 % of those the server took" in out

    asyncio.run(body())


@pytest.mark.parametrize(("protocol", "answer"), [("sse", sse_answer), ("ws", ws_answer)])
def test_very_long_prompts_go_through(tmp_path: Path, protocol: str, answer: Any) -> None:
    trace = write_trace(tmp_path, [(0.0, 50_000, 1), (0.1, 120_000, 2)])

    async def body() -> None:
        async with serve(answer) as server:
            code, out = await run(options(trace, server, protocol))
            assert code == 0 and "2 finished" in out and "% of a core" in out and "loop lag" in out
            assert sum(num_tokens(request["prompt"]) > 45_000 for request in server.requests) == 2

    asyncio.run(body())


def test_progress_is_told_in_plain_lines_without_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.progress._PLAIN_EVERY_S", 0.2)
    trace = write_trace(tmp_path, [(0.0, 40, 3), (0.01, 40, 2), (0.5, 40, 3)])

    def answer(frame: dict[str, Any]) -> Script:
        return [0.4 * (frame["max_tokens"] == 3), *ws_answer(frame)]

    async def body() -> None:
        async with serve(answer) as server:
            _, out = await run(options(trace, server, "ws", tokens_per_word=1.3))
            assert "sent 2/3  live 1  done 1  failed 0  " in out and "tok/s" in out

    asyncio.run(body())


async def loadgen(*arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadgen", *arguments, stdout=pipe, stderr=pipe, cwd=Path(__file__).parents[3]
    )


@pytest.mark.parametrize("protocol", ["sse", "ws"])
def test_ctrl_c_stops_sending_and_reports(tmp_path: Path, protocol: str) -> None:
    trace = write_trace(tmp_path, [(0.0, 40, 2), (0.1, 40, 3), (50.0, 40, 4)])
    answer = sse_answer if protocol == "sse" else ws_answer

    async def body() -> None:
        async with serve(lambda frame: [0.3 * (frame["max_tokens"] == 3), *answer(frame)]) as server:
            process = await loadgen(
                "replay", "--trace", str(trace), "--url", server.url, "--protocol", protocol,
                "--tokens-per-word", "1.3",
            )  # fmt: skip
            await server.arrivals.get()
            await server.arrivals.get()
            process.send_signal(signal.SIGINT)
            out, err = await process.communicate()
            assert process.returncode == 130, err.decode()
            assert "2 requests: 2 finished, 0 failed, 1 of the plan not sent" in out.decode()

    asyncio.run(body())


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    trace = write_trace(tmp_path, [(0.0, 40, 2)])

    async def body() -> None:
        async with serve(lambda frame: [text("x"), 60.0]) as server:
            process = await loadgen(
                "replay", "--trace", str(trace), "--url", server.url, "--tokens-per-word", "1"
            )
            await server.arrivals.get()
            process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.1)
            process.send_signal(signal.SIGINT)
            out, _ = await asyncio.wait_for(process.communicate(), 3)
            assert process.returncode == 130 and "failed interrupted: 1" in out.decode()

    asyncio.run(body())


@pytest.mark.parametrize("protocol", ["sse", "ws"])
def test_what_cannot_be_used_is_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], protocol: str
) -> None:
    trace = str(write_trace(tmp_path, [(0.0, 40, 2)]))
    base = ["replay", "--url", "http://127.0.0.1:9", "--protocol", protocol]
    assert main([*base, "--trace", trace]) == 2
    assert "cannot reach http://127.0.0.1:9" in capsys.readouterr().err
    assert main([*base, "--trace", str(tmp_path / "absent")]) == 2
    assert "absent: cannot be read" in capsys.readouterr().err
    assert main([*base, "--trace", trace, "--json", str(tmp_path / "no" / "out.json")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main([*base, "--trace", trace, "--slo", "fast"]) == 2
    assert "--slo fast" in capsys.readouterr().err


def test_a_server_without_our_websocket_is_told(tmp_path: Path) -> None:
    trace = write_trace(tmp_path, [(0.0, 40, 2)])

    async def body() -> None:
        async with serve(sse_answer) as server:
            url = server.url + "/nowhere"
            process = await loadgen(
                "replay", "--trace", str(trace), "--url", url, "--model", "m", "--protocol", "ws"
            )
            _, err = await process.communicate()
            assert process.returncode == 2 and "cannot open a websocket at" in err.decode()

    asyncio.run(body())


@pytest.mark.parametrize(
    "bad", [["--speed", "0"], ["--speed", "nan"], ["--limit", "0"], ["--max-input", "x"], []]
)
def test_wrong_options_are_exit_code_2(bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["replay", "--url", "http://h", *bad])
    assert caught.value.code == 2
    assert "usage: loadgen replay" in capsys.readouterr().err
