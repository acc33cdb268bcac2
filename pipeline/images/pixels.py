"""An image file -> [3, S, S] uint8, as the processors of Hugging Face transformers make it.

Runs in images.worker. Neither the file's size nor its own words decide how much memory or time it takes:
these are bounded by `max_pixels`, which is checked before a pixel is decoded.
"""

from io import BytesIO

import numpy as np
from PIL import (
    ExifTags,
    Image,
    ImageOps,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from pipeline.checkpoint.vision import Vision
from pipeline.images.header import Header, ImageFault, read_header

MAX_RATIO = 16
"""Of the longer side to the shorter one: what is beyond it is cut off before an image is resized."""
DECODERS = (PngImagePlugin, JpegImagePlugin, WebPImagePlugin, MpoImagePlugin, TiffImagePlugin, ExifTags)
"""And what they import on their way: where they run (images.worker), no file can be opened any more."""
Image.preinit()
Image.MAX_IMAGE_PIXELS = None  # checked here, where it is a fault and not a warning

_RESAMPLINGS = {
    "lanczos": Image.Resampling.LANCZOS,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


def pixels_of(data: bytes, vision: Vision, max_pixels: int) -> bytes:
    """Raises ImageFault."""
    header = read_header(data)
    _check(header.width, header.height, max_pixels)
    try:
        image = _upright(data, header, max_pixels)
    except ImageFault:
        raise
    except MemoryError:
        raise ImageFault("it takes too much memory") from None
    except Exception as error:  # Pillow raises whatever its decoders do
        raise ImageFault(f"the file is damaged ({type(error).__name__})") from error
    return np.asarray(fitted(image, vision)).transpose(2, 0, 1).tobytes()


def fitted(image: Image.Image, vision: Vision) -> Image.Image:
    """S x S: resized, and what is too much on the longer side left out on both ends."""
    size, resampling = vision.image_size, _RESAMPLINGS[vision.resampling]
    if vision.resize == "exact":
        return image.resize((size, size), resampling)
    image = _less_long(image)
    shorter = min(image.size)
    width, height = (vision.resized * length // shorter for length in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    return image.resize((width, height), resampling).crop((left, top, left + size, top + size))


def _less_long(image: Image.Image) -> Image.Image:
    """One that is thin and very long would be huge once resized; its middle is all that is used."""
    width, height = image.size
    wide, high = min(width, MAX_RATIO * height), min(height, MAX_RATIO * width)
    left, top = (width - wide) // 2, (height - high) // 2
    return image.crop((left, top, left + wide, top + high))


def _upright(data: bytes, header: Header, max_pixels: int) -> Image.Image:
    """RGB, turned as its EXIF says."""
    with Image.open(BytesIO(data), formats=(header.format,)) as image:
        _check(*image.size, max_pixels)
        if header.format != "JPEG" and getattr(image, "is_animated", False):
            raise ImageFault("an animated image cannot be used")
        image.load()
        return ImageOps.exif_transpose(image).convert("RGB")


def _check(width: int, height: int, max_pixels: int) -> None:
    if not width or not height:
        raise ImageFault("the image has no pixels")
    if width * height > max_pixels:
        raise ImageFault(f"the image has {width} x {height} pixels; {max_pixels} are the most")
