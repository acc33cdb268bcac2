"""A JSON file as a typed value, with errors that name it."""

from pathlib import Path
from typing import TypeVar

import msgspec

from pipeline.errors import ModelError

T = TypeVar("T")


def read_json(file: Path, kind: type[T]) -> T:
    """Raises ModelError if the file cannot be read, is no JSON or is not of this kind."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except OSError as error:
        raise ModelError(
            f"{file} cannot be read: {error.strerror}. Is this a folder in Hugging Face layout?"
        ) from error
    except msgspec.ValidationError as error:
        raise ModelError(f"{file}: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{file} is not valid JSON: {error}. Fetch it again.") from error
