"""What an import path of the configuration names."""

from importlib import import_module
from typing import Any

from pipeline.errors import ConfigError


def resolve(key: str, path: str) -> Any:
    """What an import path "package.module:Name" names. Raises ConfigError naming `key`."""
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{key} = {path!r}: cannot be imported: {error}") from error
