"""Which functions keep a CPU busy, in all threads: py-spy's flame graph, taken from another process.

docs/decisions/0033-profiles-of-a-stage.md says why it, and what it needs.
"""

import os
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from pipeline.errors import ConfigError, StagelineError

RATE_HZ = 500
_START_S, _END_S = 10.0, 60.0


def cpu(path: Path) -> AbstractContextManager[None]:
    """Threads that wait are not in it. Raises ConfigError: where there is no py-spy; when it is opened, where
    this process may not be looked into.
    """
    program = shutil.which("py-spy", path=sysconfig.get_path("scripts")) or shutil.which("py-spy")
    if program is None:
        raise ConfigError("--profile cpu needs py-spy; install it with: pip install 'stageline[profile]'")
    return _watching(
        [program, "record", "--pid", str(os.getpid()), "--rate", str(RATE_HZ), "--output", str(path)], path
    )


@contextmanager
def _watching(command: list[str], path: Path) -> Iterator[None]:
    _allow_looking()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as spy:
        try:
            _await_begin(spy)
            yield
        finally:
            spy.send_signal(signal.SIGINT)  # it writes what it has, and ends
            output, _ = spy.communicate(timeout=_END_S)
    if spy.returncode or not path.exists():
        raise StagelineError(f"py-spy has failed: {output.decode(errors='replace').strip()}")


def _allow_looking() -> None:
    """Where the kernel lets only a parent look into a process (Yama), let our children too."""
    if hasattr(os, "uname") and os.uname().sysname == "Linux":
        import ctypes

        pr_set_ptracer, any_process = 0x59616D61, -1
        ctypes.CDLL(None).prctl(pr_set_ptracer, any_process, 0, 0, 0)


def _await_begin(spy: "subprocess.Popen[bytes]") -> None:
    """Until it samples, which it says; or it has ended, with its reason."""
    assert spy.stdout is not None, "it was made with a pipe"
    said = ""
    for line in spy.stdout:
        said += line.decode(errors="replace")
        if "Sampling process" in said:
            return
    raise ConfigError(
        f"--profile cpu: py-spy may not look into this process: {said.strip()}\n"
        "In a container it needs the capability SYS_PTRACE; --profile wall and cprofile need nothing."
    )
