"""How much memory the host has free: MemAvailable (proc(5)) within the cgroup's limit. Without torch."""

import re
from pathlib import Path


def free_host_bytes() -> int | None:
    """None where the system does not say."""
    try:
        meminfo = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    return None if match is None else min(int(match[1]) * 1024, cgroup_bytes())


def cgroup_bytes(root: Path = Path("/sys/fs/cgroup")) -> int:
    """What the cgroup may still take; 2**63 without a limit."""
    try:
        limit = (root / "memory.max").read_text().strip()
        used = (root / "memory.current").read_text().strip()
    except OSError:
        return 2**63
    return 2**63 if limit == "max" else max(0, int(limit) - int(used))
