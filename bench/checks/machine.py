"""How fast this GPU is at what nothing can do without: reading, copying, multiplying."""

from collections.abc import Iterator

import torch

from bench.checks.bench import Bench
from bench.checks.rows import Row

GIB = 1024**3


def run(bench: Bench) -> Iterator[Row]:
    """The last row has `bytes_per_s` and `flops_per_s` among its values."""
    read, copied = _memory(bench, 64 * 1024 if bench.is_tiny else 2 * GIB)
    yield Row("machine", "memory, read", f"{read / 1e12:.2f} TB/s", values={"bytes_per_s": read})
    yield Row("machine", "memory, copied", f"{copied / 1e12:.2f} TB/s", values={"bytes_per_s": copied})
    size = 64 if bench.is_tiny else 8192
    flops = _product(bench, size)
    values = {"bytes_per_s": max(read, copied), "flops_per_s": flops}
    yield Row("machine", f"bf16 product of {size:,}", f"{flops / 1e12:.0f} TFLOP/s", values=values)


def _memory(bench: Bench, num_bytes: int) -> tuple[float, float]:
    """Bytes a second: read, and read and written."""
    source = torch.zeros(num_bytes // 4, dtype=torch.float32, device=bench.device)
    target = torch.empty_like(source)
    read_ms = bench.median_ms(lambda: torch.amax(source))
    copy_ms = bench.median_ms(lambda: target.copy_(source))
    return 1e3 * num_bytes / read_ms, 2e3 * num_bytes / copy_ms


def _product(bench: Bench, size: int) -> float:
    """Flops a second."""
    a, b = (torch.randn(size, size, device=bench.device).bfloat16() for _ in range(2))
    return 2e3 * size**3 / bench.median_ms(lambda: a @ b)
