"""Fetch a repository of the Hugging Face hub into the hub's own cache, which other programs share."""

from pathlib import Path

from pipeline.checkpoint.reference import HubRepo
from pipeline.errors import ModelError

WANTED = ["*.safetensors", "*.json", "*.jinja"]
UNWANTED = ["*/*", "consolidated*"]
"""The same weights again, in other layouts."""


def fetch_repo(source: HubRepo) -> Path:
    """The folder of the snapshot; downloads what the hub's cache lacks, and honours HF_HUB_OFFLINE.

    Raises ModelError if huggingface_hub is not installed, or the repository cannot be had.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise ModelError("hf: references need huggingface_hub: pip install 'stageline[hub]'") from error
    name = f"hf:{source.repo}" + (f"@{source.revision}" if source.revision else "")
    try:
        return Path(
            snapshot_download(
                source.repo, revision=source.revision, allow_patterns=WANTED, ignore_patterns=UNWANTED
            )
        )
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{name} is not in the hub's cache and the hub cannot be reached ({_first_line(error)}). Go "
            "online and unset HF_HUB_OFFLINE, or give a model on this machine."
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise ModelError(
            f"the hub refused {name}: {_first_line(error)}. Check the name and the revision; a private or "
            "gated repository needs `hf auth login`."
        ) from error
    except OSError as error:
        raise ModelError(f"cannot fetch {name}: {_first_line(error)}. Try again.") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
