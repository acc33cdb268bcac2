"""The package of a new stage: what its files hold, and writing them where nothing is yet."""

import keyword
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import ConfigError
from pipeline.scaffold.words import MESSAGES
from pipeline.topology import WHOLE


class Package(NamedTuple):
    """A stage's name and where it is to be."""

    name: str
    folder: Path
    module: str
    """By which it is imported, where `stageline` is run in `home`."""
    home: Path | None
    """None: the current folder."""

    @property
    def folder_from_home(self) -> Path:
        return self.folder if self.home is None else Path(self.name)

    @property
    def class_name(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def use(self) -> str:
        return f"{self.module}.stage:{self.class_name}"


def package(name: str, parent: Path) -> Package:
    """A new one, in the folder `parent`. Raises ConfigError: the name or the folder cannot be had."""
    _check_name(name)
    folder = parent / name
    if folder.exists():
        raise ConfigError(f"{folder} exists; nothing was written")
    if not parent.is_dir():
        raise ConfigError(f"--in {parent}: there is no such folder")
    parts = parent.parts
    if not parent.is_absolute() and all(part.isidentifier() for part in parts):
        if not parts and (spec := find_spec(name)) is not None:
            raise ConfigError(f"{name} is taken: Python finds a module of that name at {spec.origin}")
        return Package(name, folder, ".".join((*parts, name)), None)
    return Package(name, folder, name, parent)


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} is no name for a stage: small letters, digits and single _, as for a Python module"
        )
    if name in WHOLE.names:
        raise ConfigError(
            f"{name} is taken: the graph has a stage of that name. To write another in its place: "
            f"stageline new-stage NAME --in-place-of {name}"
        )
    class_name = Package(name, Path(), "", None).class_name
    if class_name in MESSAGES:
        raise ConfigError(f"{name} is taken: its class would be called {class_name}, which is a message")


def write(folder: Path, texts: Mapping[str, str]) -> None:
    """Make the folder and its files. Raises ConfigError; never writes over anything."""
    try:
        folder.mkdir()
        for name, text in texts.items():
            (folder / name).write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from error
