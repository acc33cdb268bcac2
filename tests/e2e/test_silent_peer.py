"""R7: a peer that falls silent, without FIN or RST. Its slot is free in less than two heartbeats."""

import json
import shutil
import subprocess
import sys

import pytest

from tests.e2e.silent_peer import HEARTBEAT_S

pytestmark = pytest.mark.nightly


def check_allowed() -> None:
    """Skips where network namespaces cannot be made."""
    missing = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no network namespaces here: {', '.join(missing)} missing")
    tried = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "here", "type", "veth", "peer", "name", "there"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        pytest.skip(f"network namespaces are not allowed here: {tried.stderr.strip()}")


@pytest.mark.timeout(120)
def test_a_peer_that_falls_silent() -> None:
    check_allowed()
    command = ["unshare", "--net", sys.executable, "-m", "tests.e2e.silent_peer"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    took = json.loads(done.stdout.splitlines()[-1])
    print(f"freed after {took} with a heartbeat of {HEARTBEAT_S} s")
    assert set(took) == {"sse", "websocket"}
    assert max(took.values()) < 2 * HEARTBEAT_S
