"""`stageline record`, run as a program against a server on real sockets."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pipeline import admin
from pipeline import config as configuration
from pipeline.__main__ import main
from pipeline.checkpoint.fake import byte_card
from pipeline.messages import TokenBatch
from pipeline.recordings.wanted import Wanted
from pipeline.runtime.recording import read
from pipeline.runtime.testing import FakeRunner
from tests.e2e.test_recording import streams
from tests.e2e.world import Server, serving

Program = asyncio.subprocess.Process
Run = Callable[..., Awaitable[Program]]


async def nothing() -> None:
    """More to do after the server's end."""


def with_server(
    folder: Path,
    do: Callable[[Server, Run], Awaitable[None]],
    more: str = "",
    last: Callable[[], Awaitable[None]] = nothing,
) -> None:
    toml = f'[trace]\nrecord_dir = "{folder}/server"\n{more}\n[admin]\nport = 0'

    async def serve() -> None:
        async with (
            serving(byte_card(), FakeRunner, toml) as server,
            admin.beside(server.pipeline, configuration.loads(toml, "test.toml"), byte_card()) as page,
        ):
            assert page is not None

            async def record(*args: str) -> Program:
                pipe = asyncio.subprocess.PIPE
                return await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "pipeline", "record", *args, "--url", page.url),
                    cwd=folder,
                    env=os.environ | {"PYTHONPATH": os.getcwd()},
                    stdout=pipe,
                    stderr=pipe,
                )

            await do(server, record)
        await last()

    asyncio.run(serve())


async def begun(server: Server) -> None:
    async with asyncio.timeout(30):
        while not server.pipeline.recordings.states():  # noqa: ASYNC110 - another program begins it
            await asyncio.sleep(0.01)


async def said(program: Program) -> tuple[int | None, str, str]:
    out, error = await program.communicate()
    return program.returncode, out.decode(), error.decode()


def test_ctrl_c_keeps_what_there_is(tmp_path: Path) -> None:
    async def do(server: Server, record: Run) -> None:
        program = await record("schedule->detokenize", "--out", "mine.rec")
        await begun(server)
        await streams(server, range(3))
        program.send_signal(signal.SIGINT)
        status, out, _ = await said(program)
        assert status == 0, out
        assert "mine.rec: " in out and "texts replaced; it was stopped" in out
        assert "Replay it with: stageline bench detokenize --replay mine.rec" in out
        assert server.pipeline.recordings.states() == []

    with_server(tmp_path, do)
    assert (tmp_path / "mine.rec").stat().st_mode & 0o777 == 0o600
    recording = read(tmp_path / "mine.rec")
    assert sum(len(entry.message.token_ids) for entry in recording.entries) == 3 * 40
    assert {type(entry.message) for entry in recording.entries} == {TokenBatch}
    assert list((tmp_path / "server").iterdir()) == []


def test_it_ends_by_itself_and_says_that_nothing_came(tmp_path: Path) -> None:
    async def do(server: Server, record: Run) -> None:
        status, out, error = await said(await record("stream", "--seconds", "100ms", "--with-prompts"))
        assert status == 0, error
        assert "0 messages of ->stream" in out and "with prompts; it has run for 0.1 s" in out
        assert "record while the server has work" in error

    with_server(tmp_path, do, "record_redacted = false")
    (path,) = tmp_path.glob("*.rec")
    assert read(path).header.stage == "stream"


def test_what_the_server_refuses_is_told(tmp_path: Path) -> None:
    async def do(server: Server, record: Run) -> None:
        status, _, error = await said(await record("stream", "--with-prompts"))
        assert status == 1 and error.startswith("stageline: Prompts are not recorded here: trace.record_red")
        await server.pipeline.recordings.begin(Wanted("stream"))
        status, _, error = await said(await record("stream"))
        assert status == 1 and "->stream is being recorded" in error
        status, _, error = await said(await record("steam"))
        assert status == 1 and "no link is called 'steam'. There are ->tokenize, " in error

    with_server(tmp_path, do)


def test_a_server_that_ends_keeps_the_file(tmp_path: Path) -> None:
    programs: list[Program] = []

    async def do(server: Server, record: Run) -> None:
        programs.append(await record("stream"))
        await begun(server)

    async def end() -> None:
        status, _, error = await said(programs[0])
        assert status == 1 and "the server has ended; what there was by then is to-stream." in error

    with_server(tmp_path, do, last=end)
    (path,) = (tmp_path / "server").iterdir()
    end_of_it = read(path).end
    assert end_of_it is not None and end_of_it.reason == "the server ended"


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.rec").write_text("mine")
    assert main(["record", "stream", "--out", str(tmp_path / "a.rec")]) == 1
    assert "a.rec is there already" in capsys.readouterr().err
    assert (tmp_path / "a.rec").read_text() == "mine"


def test_where_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "stream", "--url", "http://127.0.0.1:9"]) == 1
    assert "no admin port at http://127.0.0.1:9: " in capsys.readouterr().err
    assert main(["record", "stream", "--url", "file:///etc"]) == 1
    assert "must begin with http://" in capsys.readouterr().err
