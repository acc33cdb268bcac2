"""Images: files of strangers, made the pixels that a model's encoder takes. Pillow, an extra, reads them."""

from importlib.util import find_spec

from pipeline.images.reader import ImageReader, ImageRefused

__all__ = ["ImageReader", "ImageRefused", "is_installed"]


def is_installed() -> bool:
    return find_spec("PIL") is not None
