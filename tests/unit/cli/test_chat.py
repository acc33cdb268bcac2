import io
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pipeline.__main__ import main

HUMAN_S = 0.2
"""No hand is quicker; input() loses a signal that comes while it is still setting up the line."""
NOWHERE = "http://127.0.0.1:9"  # the discard port: nobody listens

OWN_TTY = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C typed there is a signal here
from pipeline.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `stageline chat` with these lines on stdin; returns its status."""

    def run(url: str, *lines: str, args: tuple[str, ...] = ()) -> int:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return main(["chat", "--url", url, *args])

    return run


def test_piped_prompts_are_answered_one_a_line(
    server: Any, piped: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert piped(server.url, "hello you", "", "again") == 0
    assert capsys.readouterr().out == "<hello><you>\n<again>\n"


def test_the_conversation_is_sent_with_every_prompt(server: Any, piped: Any) -> None:
    piped(server.url, "one", "two", args=("--system", "Be brief."))
    contents = [(message["role"], message["content"]) for message in server.frames[1]["messages"]]
    assert contents == [("system", "Be brief."), ("user", "one"), ("assistant", "<one>"), ("user", "two")]


def test_only_the_given_sampling_fields_are_sent(server: Any, piped: Any) -> None:
    piped(server.url, "one", args=("--max-tokens", "5", "--temperature", "0"))
    assert {key: value for key, value in server.frames[0].items() if key not in ("id", "messages")} == {
        "type": "generate",
        "max_tokens": 5,
        "temperature": 0.0,
    }


def test_a_refused_prompt_is_reported_and_leaves_no_trace(
    server: Any, piped: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert piped(server.url, "refuse", "after") == 1
    shown = capsys.readouterr()
    assert shown.err == "stageline: top_p must be at most 1, got 2.0\n"
    assert shown.out == "<after>\n"
    assert [message["content"] for message in server.frames[1]["messages"]] == ["after"]


def test_a_server_that_goes_away_ends_a_pipe(
    server: Any, piped: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert piped(server.url, "die", "after") == 1
    shown = capsys.readouterr()
    assert "went away in the middle of the answer (code 1011)" in shown.err
    assert len(server.frames) == 1


def test_no_server(piped: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert piped(NOWHERE, "hi") == 1
    error = capsys.readouterr().err
    assert error.startswith(f"stageline: no server at {NOWHERE}: ") and "stageline serve" in error
    assert error.count("\n") == 1


def test_not_a_stageline_server(server: Any, piped: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert piped(f"{server.url}/elsewhere", "hi") == 1
    assert "opens no stream: it answered 404" in capsys.readouterr().err


def test_numbers_must_be_finite(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["chat", "--temperature", "nan"])
    assert raised.value.code == 2
    assert "--temperature" in capsys.readouterr().err


class Terminal:
    """`stageline chat` on a pseudo-terminal."""

    def __init__(self, url: str) -> None:
        self._fd, child_fd = pty.openpty()
        command = [sys.executable, "-c", OWN_TTY, "chat", "--url", url]
        self.process = subprocess.Popen(
            command, stdin=child_fd, stdout=child_fd, stderr=child_fd, start_new_session=True
        )
        os.close(child_fd)
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def expect(self, pattern: str) -> str:
        """Read until the pattern shows, and return what came before and with it."""
        deadline = time.monotonic() + 20
        while not (match := re.search(pattern, self._seen)):
            assert time.monotonic() < deadline, f"{pattern!r} not in {self._seen!r}"
            self._seen += os.read(self._fd, 4096).decode(errors="replace")
        seen, self._seen = self._seen[: match.end()], self._seen[match.end() :]
        return seen

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        os.close(self._fd)


@contextmanager
def terminal(url: str) -> Iterator[Terminal]:
    session = Terminal(url)
    try:
        yield session
    finally:
        session.close()


def test_ctrl_c_ends_the_answer_and_at_the_prompt_twice_the_program(server: Any) -> None:
    with terminal(server.url) as session:
        session.expect("> ")
        session.type("hang\n")
        session.expect("once")
        session.type("\x03")
        session.expect(r"\[cancelled\]\s+> ")
        assert [frame["type"] for frame in server.frames] == ["generate", "cancel"]
        session.type("hello\n")
        session.expect("<hello>")
        assert [message["content"] for message in server.frames[2]["messages"]] == ["hang", "once", "hello"]
        session.expect("> ")
        time.sleep(HUMAN_S)
        session.type("\x03")
        session.expect("Ctrl-C again")
        session.expect("> ")
        time.sleep(HUMAN_S)
        session.type("\x03")
        assert session.process.wait(10) == 0


def test_commands_and_a_server_that_is_gone(server: Any) -> None:
    with terminal(server.url) as session:
        session.expect("> ")
        session.type("/help\n")
        session.expect("/clear +forget")
        session.type("one\n")
        session.expect("<one>")
        session.type("die\n")
        session.expect("went away")
        session.type("/clear\n")
        session.type("bell\n")
        assert "\x07" not in session.expect("ding.*dong")
        assert len(server.frames[-1]["messages"]) == 1
        session.expect("> ")
        session.type("/exit\n")
        assert session.process.wait(10) == 0
