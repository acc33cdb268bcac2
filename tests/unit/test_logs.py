"""What a line of the log holds, in both forms."""

import subprocess
import sys

import pytest

FAULT = """
import structlog
from pipeline import logs

logs.configure("debug", "{form}")

def work(prompt):
    try:
        raise RuntimeError("it broke")
    except RuntimeError:
        structlog.get_logger().exception("failed", part="work")

work("".join(["can", "ary"]))
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_fault_is_logged_with_its_traceback_but_not_with_what_was_in_it(form: str) -> None:
    code = FAULT.format(form=form)
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "it broke" in got.stderr and "in work" in got.stderr
    assert "canary" not in got.stderr and not got.stdout
