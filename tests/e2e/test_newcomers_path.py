"""The ten minutes of docs/stages.md, word for word: from new-stage to a swap in a running server.

Only ports are put in, so that it can run beside another server.
"""

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.documented import Block, Command, blocks, commands, section, write

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/stages.md").read_text()
PATIENCE_S = 120
AT_ONCE = ("stageline new-stage", "python -m pytest")


class Newcomer:
    """Someone with an empty folder, a shell and the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.door = _free_port_pair()
        self._environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "200",
            "PYTHONUNBUFFERED": "1",
        }
        self._server: subprocess.Popen[str] | None = None
        self._said: list[str] = []

    def follow(self, block: Block, *, asks: bool = True) -> None:
        """Args: asks: also run what needs a server, or takes long."""
        if block.word == "serve" and asks:
            self._serve(commands(block)[0])
        elif block.language == "console":
            for command in commands(block):
                if asks or command.line.startswith(AT_ONCE):
                    self._run(command)
        elif block.word:
            write(block, self.folder)

    def stop(self) -> None:
        if self._server is not None:
            self._server.terminate()
            assert self._server.wait(PATIENCE_S) == 0, "".join(self._said)

    def _run(self, command: Command) -> None:
        done = subprocess.run(
            ["bash", "-c", self._ported(command.line)],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == command.status, f"{command.line}\n{done.stdout}"
        for words in command.says:
            assert words in done.stdout, f"{command.line}\n{done.stdout}"

    def _serve(self, command: Command) -> None:
        self._server = subprocess.Popen(
            self._ported(command.line).split(),
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        ready = threading.Event()
        threading.Thread(target=self._listen, args=(ready,), daemon=True).start()
        assert ready.wait(PATIENCE_S) and self._server.poll() is None, "".join(self._said)

    def _listen(self, ready: threading.Event) -> None:
        assert self._server is not None and self._server.stdout is not None
        with self._server.stdout as output:
            for line in output:
                self._said.append(line)
                if "is ready after" in line:
                    ready.set()
        self._server.wait()
        ready.set()

    def _ported(self, line: str) -> str:
        admin = f"--url http://127.0.0.1:{self.door + 1}"
        ports = {
            "serve": f"--port {self.door}",
            "chat": f"--url http://127.0.0.1:{self.door}",
            "swap": admin,
            "record": admin,
        }
        return re.sub(r"stageline ([\w-]+)", lambda found: f"{found[0]} {ports.get(found[1], '')}", line)


def _free_port_pair() -> int:
    """A port that is free, as is the one after it."""
    while True:
        with closing(socket.socket()) as door, closing(socket.socket()) as admin:
            door.bind(("127.0.0.1", 0))
            port: int = door.getsockname()[1]
            try:
                admin.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


@contextmanager
def newcomer(folder: Path) -> Iterator[Newcomer]:
    someone = Newcomer(folder)
    try:
        yield someone
    finally:
        someone.stop()


def test_from_new_stage_to_a_stage_that_passes_its_tests(tmp_path: Path) -> None:
    with newcomer(tmp_path) as someone:
        for block in blocks(section(PAGE, "Ten minutes")):
            someone.follow(block, asks=False)


@pytest.mark.nightly
@pytest.mark.model
@pytest.mark.timeout(600)
def test_from_new_stage_to_a_swap(tmp_path: Path) -> None:
    with newcomer(tmp_path) as someone:
        for block in blocks(section(PAGE, "Ten minutes")):
            someone.follow(block)
