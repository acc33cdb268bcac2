import argparse
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from pipeline import __main__ as command_line
from pipeline import __version__, cli
from pipeline.__main__ import COMMANDS, main
from pipeline.errors import ConfigError, ModelError, StagelineError


def module(name: str) -> ModuleType:
    return import_module(f"pipeline.cli.{name.replace('-', '_')}")


def run_with(monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> int:
    """The status of `stageline trace x` where the command raises this."""

    def run(args: argparse.Namespace) -> int:
        if error is not None:
            raise error
        return 0

    parser = argparse.ArgumentParser()
    parser.set_defaults(run=run)
    monkeypatch.setattr(command_line, "_parser", lambda asked: parser)
    return main([])


@pytest.mark.parametrize(
    ("error", "status"),
    [(ConfigError("a.toml: wrong"), 2), (ModelError("no such file"), 1), (StagelineError("no server"), 1)],
)
def test_an_error_raised_on_purpose_is_one_line(
    error: StagelineError, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with(monkeypatch, error) == status
    assert capsys.readouterr().err == f"stageline: {error}\n"


def test_interrupted_is_130_and_success_0(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_with(monkeypatch, KeyboardInterrupt()) == 130
    assert run_with(monkeypatch, None) == 0


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        run_with(monkeypatch, ZeroDivisionError())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"stageline {__version__}\n"


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["sevre"],
        ["trace"],
        ["serve", "--port", "http"],
        ["serve", "--admin-port", "no"],
        ["serve", "--admin-port", "65536"],
    ],
)
def test_a_wrong_command_line_is_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(argv)
    assert raised.value.code == 2
    assert "usage: stageline" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_the_summary_it_gives_itself(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        main([name, "--help"])
    assert raised.value.code == 0
    assert f"usage: stageline {name}" in capsys.readouterr().out
    commands = argparse.ArgumentParser().add_subparsers()
    module(name).register(commands)
    assert [action.help for action in commands._choices_actions] == [COMMANDS[name]]


def test_every_command_module_is_listed() -> None:
    files = [
        path.stem.replace("_", "-") for path in Path(cli.__path__[0]).glob("*.py") if path.stem != "__init__"
    ]
    assert set(COMMANDS) == {name for name in files if hasattr(module(name), "register")}


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )


def test_help_imports_nothing_slow() -> None:
    """A count, not a time: these are what would make --help slow."""
    done = python(
        "import sys\n"
        "from pipeline.__main__ import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'aiohttp', 'rich', 'asyncio', 'tokenizers'} & set(sys.modules)))"
    )
    assert done.stdout.endswith("[]\n"), done.stderr


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "model", "list"],
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
        stdout=write_fd,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    os.close(write_fd)
    assert done.stderr == b""
    assert done.returncode == 1
