"""The library's making and its cache, and what a machine without a compiler gets."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pipeline.errors import ConfigError
from pipeline.gpu.host import build as building
from pipeline.gpu.host.build import Build, HostUnavailable, cached_library, find_compiler, provide_library
from pipeline.gpu.host.library import load_library
from pipeline.gpu.host.model import HostDecoder
from pipeline.gpu.options import RunnerOptions
from pipeline.gpu.prenorm import PreNormDecoder
from pipeline.gpu.runner import Runner, build_runner
from tests.gpu.driver import TINY, random_tensors

QUICK = ("-O0", "-DSTAGELINE_PORTABLE", "-Wno-psabi")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "stageline" / "host"


@pytest.fixture
def quick(folder: Path) -> Build:
    return Build(find_compiler(), QUICK)


def runner(**options: object) -> Runner:
    return build_runner(TINY, random_tensors(TINY), RunnerOptions(device="cpu", num_blocks=8, **options))


def test_it_is_compiled_once(folder: Path, quick: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    made = provide_library(quick)
    assert list(folder.iterdir()) == [made]
    monkeypatch.setattr(building, "compile_library", None)
    assert provide_library(quick) == made
    assert load_library(quick).isa_name == "portable"


def test_only_the_owner_may_write_what_will_be_run(folder: Path, quick: Build) -> None:
    assert stat.S_IMODE(provide_library(quick).stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_whatever_it_is_made_of_is_in_its_name(
    folder: Path, quick: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {cached_library(quick), cached_library(Build(quick.compiler, ("-O2",)))}
    monkeypatch.setattr(building, "_cpu", lambda: "another CPU")
    names.add(cached_library(quick))
    for source in building.SOURCES.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes() + b"\n")
    monkeypatch.setattr(building, "SOURCES", tmp_path)
    names.add(cached_library(quick))
    assert len(names) == 4


def test_two_at_once_both_get_a_whole_one(folder: Path, quick: Build) -> None:
    target = cached_library(quick)
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda _: building.compile_library(quick, target), range(3)))
    assert made == [target] * 3
    assert list(folder.iterdir()) == [target]
    load_library(quick)


def test_a_damaged_file_is_made_again(folder: Path, quick: Build) -> None:
    target = cached_library(quick)
    folder.mkdir(parents=True)
    target.write_bytes(b"\x7fELF")
    assert load_library(quick).isa_name == "portable"


def test_what_the_compiler_says_is_the_reason(folder: Path, quick: Build) -> None:
    with pytest.raises(HostUnavailable, match=r"cannot compile .*no-such-flag"):
        provide_library(Build(quick.compiler, ("-fno-such-flag",)))
    assert not list(folder.iterdir())


def test_a_cache_that_cannot_be_written(
    quick: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(HostUnavailable, match="cannot be put into the cache"):
        provide_library(quick)


def test_without_a_compiler_auto_is_torch_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with capture_logs() as lines:
        assert isinstance(runner()._model, PreNormDecoder)
    (line,) = [line for line in lines if "host kernels" in line["event"]]
    assert line["log_level"] == "warning"
    assert "there is no C++ compiler" in line["reason"]


def test_without_a_compiler_what_needs_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r'backend = "host" cannot run: there is no C\+\+ compiler'):
        runner(backend="host")
    with pytest.raises(ConfigError, match=r'weights = "int8" needs the host backend'):
        runner(weights="int8")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "float32"}, 'dtype = "float32"'),
        ({"block_size": 8}, "blocks of a multiple of 16 tokens, not 8"),
    ],
)
def test_what_the_kernels_cannot_take(options: dict[str, object], reason: str) -> None:
    assert isinstance(runner(**options)._model, PreNormDecoder)
    with pytest.raises(ConfigError, match=reason):
        runner(backend="host", **options)


def test_with_a_compiler_auto_is_host() -> None:
    with capture_logs() as lines:
        assert isinstance(runner()._model, HostDecoder)
    assert [line["weights"] for line in lines if "weights" in line] == ["bf16"]
