"""How a kernel is launched on which GPU."""

import msgspec


class LaunchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """They change the time, and what `constants` says of the order of sums; nothing else."""

    num_warps: int = 4
    num_stages: int = 2
    constants: dict[str, int] = {}
    """Tile sizes, by the name of the kernel's constexpr argument."""
