"""Which configuration a launch gets, by GPU and by features."""

from pathlib import Path

import msgspec
import pytest
import torch

from pipeline.errors import ConfigError
from pipeline.gpu.kernels import finding
from pipeline.gpu.kernels.config import (
    PACKAGED,
    GpuConfigs,
    LaunchConfig,
    Setting,
    load_configs,
    packaged_for,
    read,
    save,
    saved_path,
)
from pipeline.gpu.kernels.finding import find_config

DEFAULT, OTHER, SPECIAL = LaunchConfig(1), LaunchConfig(2), LaunchConfig(4)
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> torch.device:
    """An H100, for who only asks its name; the cache folder is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: H100)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    for cached in (finding._find, load_configs):
        cached.cache_clear()
    return torch.device("cuda", 0)


def test_of_settings_that_fit_the_most_special_counts() -> None:
    configs = GpuConfigs(
        "x", "", [], {"k": [Setting(OTHER, ""), Setting(SPECIAL, "", {"d": 64, "kv": "int8"})]}
    )
    assert configs.find("k", {"d": 64, "kv": "int8", "more": 1}) == SPECIAL
    assert configs.find("k", {"d": 64, "kv": "bf16"}) == OTHER
    assert configs.find("other", {}) is None


def test_putting_replaces_what_is_for_the_same_launches() -> None:
    configs = GpuConfigs("x", "", [], {})
    for config in (OTHER, SPECIAL):
        configs.put("k", Setting(config, "", {"d": 64}))
    configs.put("k", Setting(DEFAULT, "", {"d": 128}))
    assert [each.config for each in configs.kernels["k"]] == [SPECIAL, DEFAULT]


def test_no_gpu_no_file() -> None:
    assert find_config("attention_decode", DEFAULT, torch.device("cpu"), head_dim=128) is DEFAULT


def test_a_gpu_with_a_file(gpu: torch.device) -> None:
    packaged = packaged_for(H100, 90)
    assert packaged is not None
    expected = packaged.find("attention_decode", {"head_dim": 128, "kv_dtype": "int8"})
    assert (
        find_config("attention_decode", DEFAULT, gpu, head_dim=128, kv_dtype="int8") == expected is not None
    )
    assert find_config("no such kernel", DEFAULT, gpu) is DEFAULT


def test_what_was_measured_here_goes_first(gpu: torch.device) -> None:
    measured = Setting(SPECIAL, "measured", {"head_dim": 128})
    save(saved_path(H100), GpuConfigs(H100, "measured", [H100], {"attention_decode": [measured]}))
    assert find_config("attention_decode", DEFAULT, gpu, head_dim=128) == SPECIAL
    assert find_config("attention_decode", DEFAULT, gpu, head_dim=64) not in (SPECIAL, DEFAULT)


def test_a_damaged_file_is_named(gpu: torch.device) -> None:
    path = saved_path(H100)
    path.parent.mkdir(parents=True)
    path.write_text('{"gpu": "x"}')
    with pytest.raises(ConfigError, match=r"nvidia-h100-80gb-hbm3\.json is no file of launch configurations"):
        find_config("attention_decode", DEFAULT, gpu, head_dim=128)


@pytest.mark.parametrize(
    ("name", "capability", "gpu"),
    [
        (H100, 90, "H100 and H200"),
        ("NVIDIA H200", 90, "H100 and H200"),
        ("NVIDIA A100-SXM4-80GB", 80, "A100"),
        ("NVIDIA L4", 89, "L4"),
        ("NVIDIA L40S", 89, "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", 89, "RTX 4090"),
        ("NVIDIA GeForce RTX 3090", 86, "RTX 4090"),
        ("NVIDIA B200", 100, "H100 and H200"),
        ("NVIDIA RTX 6000 Ada Generation", 89, "RTX 4090"),
    ],
)
def test_who_is_launched_as_who(name: str, capability: int, gpu: str) -> None:
    found = packaged_for(name, capability)
    assert found is not None and found.gpu == gpu


def test_who_is_launched_as_nobody() -> None:
    assert packaged_for("Tesla T4", 75) is None


@pytest.mark.parametrize("path", sorted(PACKAGED.glob("*.json")), ids=lambda path: path.stem)
def test_packaged_files_say_why(path: Path) -> None:
    configs = read(path)
    assert configs.source.startswith(("not measured", "measured", "stageline tune-kernels"))
    settings = [setting for kernel in configs.kernels.values() for setting in kernel]
    assert settings and all(setting.why and setting.when for setting in settings)
    assert msgspec.json.decode(path.read_bytes(), type=GpuConfigs) == configs
