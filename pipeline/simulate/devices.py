"""Devices, from their data sheets: what a step's cost is made of. Peaks are dense, without sparsity.

Sources: NVIDIA H100 (SXM5), H200 (SXM), A100 80GB (SXM4) and L4 data sheets; Ada GPU architecture white paper
(RTX 4090: bfloat16 with float32 accumulation). Efficiencies and overheads are assumptions, not data sheet:
what well-tuned serving kernels reach. Prices are round figures to compare by; `--price` sets yours.
"""

import msgspec

from pipeline.errors import ConfigError

TERA, GIGA = 1e12, 1e9


class Device(msgspec.Struct, frozen=True):
    """One GPU."""

    name: str
    flops: dict[str, float]
    """Peak per second, by dtype."""
    bandwidth: float
    """Of its memory, bytes/s."""
    memory_bytes: int
    link_bandwidth: float
    """To the other GPUs of its group, bytes/s in one direction."""
    price_per_hour: float
    """US dollars."""
    compute_efficiency: float = 0.6
    """Of the peak, that matrix products reach."""
    memory_efficiency: float = 0.8
    """Of the bandwidth, that reads of weights and KV reach."""
    launch_s: float = 15e-6
    """Per layer and step: launches, and the tails of small kernels."""
    step_s: float = 200e-6
    """Per step: sampling, and the host's part that is not overlapped."""
    link_latency_s: float = 10e-6
    """Of one all-reduce."""


DEVICES = {
    device.name: device
    for device in (
        Device(
            "h100", {"bfloat16": 989.4 * TERA, "float32": 67 * TERA}, 3350 * GIGA, 80 * 10**9, 450 * GIGA, 3.0
        ),
        Device(
            "h200",
            {"bfloat16": 989.4 * TERA, "float32": 67 * TERA},
            4800 * GIGA,
            141 * 10**9,
            450 * GIGA,
            3.8,
        ),
        Device(
            "a100", {"bfloat16": 312 * TERA, "float32": 19.5 * TERA}, 2039 * GIGA, 80 * 10**9, 300 * GIGA, 1.8
        ),
        Device(
            "l4", {"bfloat16": 121 * TERA, "float32": 30.3 * TERA}, 300 * GIGA, 24 * 10**9, 32 * GIGA, 0.8
        ),
        Device(
            "4090",
            {"bfloat16": 165.2 * TERA, "float32": 82.6 * TERA},
            1008 * GIGA,
            24 * 10**9,
            32 * GIGA,
            0.5,
        ),
    )
}


def find_device(name: str) -> Device:
    """Raises ConfigError, naming those that are known."""
    if name not in DEVICES:
        raise ConfigError(f"--device {name}: unknown; known: {', '.join(DEVICES)}, or a measured .json file")
    return DEVICES[name]
