"""Images as patches: a PNG or JPEG file, scaled to a square, becomes one vector per patch."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dragoman.config import FeatureConfig
from dragoman.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_IMAGE_PIXELS = 2**26  # a small file may decompress to any size; this many take 256 MiB
WHITE = (255, 255, 255)
_MODES_8_BIT = ("1", "L", "P", "RGB", "CMYK", "YCbCr")  # of Pillow, without alpha
_MODES_ALPHA = ("LA", "PA", "RGBA")
_MODES_16_BIT = ("I;16", "I;16L", "I;16B", "I;16N", "I")  # PNG has no mode of 32 bits, which "I" can hold


def patch_dim(settings: FeatureConfig) -> int:
    """Return how many numbers a patch has, patch_size² · colors; raise a UserError if Pillow is not installed."""
    _pillow()  # raises the error
    return settings.patch_size**2 * (1 if settings.image_colors == "gray" else 3)


def read_patches(file: BinaryIO, name: str, settings: FeatureConfig) -> NDArray[np.float32]:
    """Read an image file and cut it into S patches of F numbers, S F; `name` is for error messages."""
    return cut_patches(np.asarray(_open_image(file, name, settings)), settings.patch_size)


def cut_patches(pixels: NDArray[np.uint8], size: int) -> NDArray[np.float32]:
    """Scale pixels of 0 to 255, H W or H W C, to −1 to 1, and cut them into S patches of size² pixels, S F.

    H and W, height and width, are multiples of `size`; C are the colors, and a patch has F = C · size² numbers. Patches
    are in reading order. The numbers of a patch are in the order of a convolution's weights, color × row × column, so
    that the embedding of patches is a convolution with this kernel size and stride (Dosovitskiy et al. 2021, §3.1).
    """
    height, width, colors = pixels.shape if pixels.ndim == 3 else (*pixels.shape, 1)
    grid = pixels.reshape(height // size, size, width // size, size, colors)
    patches = grid.transpose(0, 2, 4, 1, 3).reshape(-1, colors * size * size)  # S F
    return (patches / 127.5 - 1).astype(np.float32)


def _open_image(file: BinaryIO, name: str, settings: FeatureConfig) -> Image:
    """Decode an image, turn it upright, and scale it to image_size² pixels in the colors of the settings.

    An image of more than MAX_IMAGE_PIXELS, or a file that is not a complete PNG or JPEG file, is a UserError, in which
    `name` stands for the file.
    """
    pillow = _pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large images, which are rejected below, and odd metadata
            with pillow.Image.open(file, formats=("PNG", "JPEG")) as image:
                if image.width * image.height > MAX_IMAGE_PIXELS:
                    raise _too_large(name, f"{image.width:,} × {image.height:,} pixels")
                image.load()
                upright = pillow.ImageOps.exif_transpose(image)
                return _fit(pillow, _convert(pillow, upright, name, settings.image_colors), settings)
    except UserError:
        raise
    except pillow.Image.DecompressionBombError:
        raise _too_large(name, "far more pixels") from None
    except Exception as error:  # a damaged file makes the decoders of Pillow raise errors of many types
        raise UserError(
            f"{name} cannot be read as an image ({error}): expected a complete PNG or JPEG file; convert or replace it"
        ) from None


def _too_large(name: str, size: str) -> UserError:
    """Return the error for the image `name` with too many pixels; `size` says how many."""
    return UserError(f"{name} has {size}, but an image may have at most {MAX_IMAGE_PIXELS:,} pixels: scale it down")


def _convert(pillow: ModuleType, image: Image, name: str, colors: str) -> Image:
    """Convert an image of any supported mode to 8-bit `colors` ("rgb" or "gray"); alpha is blended with white.

    `name` is that of the file, for error messages.
    """
    if image.mode in _MODES_16_BIT:
        scaled = np.clip(np.rint(np.asarray(image) / 257), 0, 255)  # from 16 to 8 bits: 65,535 → 255
        image = pillow.Image.fromarray(scaled.astype(np.uint8))
    if image.mode in _MODES_ALPHA or "transparency" in image.info:
        image = image.convert("RGBA")
        background = pillow.Image.new("RGBA", image.size, WHITE)
        image = pillow.Image.alpha_composite(background, image).convert("RGB")
    if image.mode not in _MODES_8_BIT:
        raise UserError(
            f"{name} is an image of Pillow's mode {image.mode}, which is not supported: convert it to 8-bit RGB or gray"
        )
    return image.convert("L" if colors == "gray" else "RGB")


def _fit(pillow: ModuleType, image: Image, settings: FeatureConfig) -> Image:
    """Make an image square, image_size² pixels, by the setting image_fit: "stretch", "pad" with white, or "crop" edges.

    When an image is scaled down, new pixels are averages of the pixels that they cover.
    """
    size, scaling = (settings.image_size, settings.image_size), pillow.Image.Resampling.BILINEAR
    if settings.image_fit == "stretch":
        return image.resize(size, scaling)
    if settings.image_fit == "pad":
        return pillow.ImageOps.pad(image, size, scaling, color=WHITE if image.mode == "RGB" else WHITE[0])
    return pillow.ImageOps.fit(image, size, scaling)


def _pillow() -> Any:
    """Import Pillow, with its modules Image and ImageOps; raise a UserError if it is not installed."""
    try:
        import PIL
        import PIL.Image
        import PIL.ImageOps
    except ImportError:
        raise UserError(
            "reading images needs the package Pillow: install it with pip install 'dragoman[media]'"
        ) from None
    return PIL
