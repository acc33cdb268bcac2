"""Architectures by family. To add one, add a module that defines FAMILIES: {name: Family}."""

import importlib
import pkgutil

from pipeline.errors import ModelError
from pipeline.gpu.api import Family


def families() -> dict[str, Family]:
    """Every family that can run, from the modules of this package."""
    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(__path__):
        found |= importlib.import_module(f"{__name__}.{module.name}").FAMILIES
    return found


def find_model(family: str) -> Family:
    """Raises ModelError with the known families."""
    known = families()
    if family not in known:
        raise ModelError(f'model family "{family}" is not supported; known: {", ".join(sorted(known))}')
    return known[family]
