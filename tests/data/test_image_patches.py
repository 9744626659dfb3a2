"""Patches of images: equal to torch's unfold, for all modes of PNG and JPEG; damaged and huge files are errors."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from dragoman.config import FeatureConfig
from dragoman.data.image_patches import cut_patches, patch_dim, read_patches
from dragoman.errors import UserError

SMALL = FeatureConfig(image_size=4, patch_size=2)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    image.save(file, kind, **options)
    file.seek(0)
    return file


def pixels_of(image: Image.Image, kind: str = "PNG", **options: Any) -> NDArray[np.float32]:
    """The first color of the only patch of an image, 2 × 2 pixels, on the scale of 0 to 255; then the other colors."""
    patch = read_patches(encoded(image, kind, **options), "it", FeatureConfig(image_size=2, patch_size=2))
    return (patch.reshape(-1, 2, 2) + 1) * 127.5


@pytest.mark.parametrize("colors", [1, 3])
def test_patches_equal_unfold(colors: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, colors), np.uint8)
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None].double() / 127.5 - 1  # 1 C H W
    expected = torch.nn.functional.unfold(image, kernel_size=2, stride=2)[0].T  # S C·2·2
    found = cut_patches(pixels if colors == 3 else pixels[..., 0], 2)
    assert found.dtype == np.float32
    assert np.allclose(found, expected.numpy(), atol=1e-7)


def test_an_image_of_the_right_size_is_read_pixel_by_pixel() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (4, 4, 3), np.uint8)
    found = read_patches(encoded(Image.fromarray(pixels)), "it", SMALL)
    assert found.shape == (4, patch_dim(SMALL)) == (4, 12)
    assert np.array_equal(found, cut_patches(pixels, 2))
    # the second patch is at the top right: its red, row by row
    assert np.allclose(found[1, :4], pixels[:2, 2:, 0].reshape(-1) / 127.5 - 1)


GRAY = np.array([[0, 255], [51, 102]], np.uint8)


def test_modes_of_pixels() -> None:
    gray = Image.fromarray(GRAY)
    expected = np.stack([GRAY] * 3)
    assert np.allclose(pixels_of(gray), expected)
    palette = gray.convert("RGB").quantize(4)
    assert palette.mode == "P"
    assert np.allclose(pixels_of(palette), expected)
    sixteen = Image.fromarray(GRAY.astype(np.uint16) * 257)
    assert np.allclose(pixels_of(sixteen), expected)
    black_and_white = Image.fromarray(GRAY > 60)
    assert np.allclose(pixels_of(black_and_white)[0], [[0, 255], [0, 255]])
    cmyk = Image.new("CMYK", (2, 2), (0, 255, 255, 0))  # no cyan: red
    assert np.allclose(pixels_of(cmyk, "JPEG", quality=100)[:, 0, 0], [255, 0, 0], atol=2)


def test_transparent_pixels_are_white() -> None:
    alpha = np.array([[0, 255], [0, 255]], np.uint8)
    image = Image.fromarray(np.dstack([GRAY, GRAY, GRAY, alpha]))
    assert image.mode == "RGBA"
    assert np.allclose(pixels_of(image)[0], [[255, 255], [255, 102]])
    palette = Image.fromarray(np.zeros((2, 2), np.uint8))
    palette.putpalette([9, 9, 9])
    assert np.allclose(pixels_of(palette, transparency=0), 255)
    half = Image.new("LA", (2, 2), (0, 128))
    assert np.allclose(pixels_of(half), 127, atol=1)


def test_a_rotated_photo_is_turned_upright() -> None:
    image = Image.fromarray(np.arange(0, 240, 60, dtype=np.uint8).reshape(2, 2))
    exif = Image.Exif()
    exif[0x0112] = 3  # rotated by 180 degrees
    plain = pixels_of(image, "JPEG", quality=100)
    assert np.allclose(pixels_of(image, "JPEG", quality=100, exif=exif), plain[:, ::-1, ::-1])


def test_fit_of_a_wide_image() -> None:
    """Black, gray, gray, white from left to right: cropping leaves the gray middle."""
    image = Image.fromarray(np.repeat(np.array([[0, 128, 128, 255]], np.uint8), 2, axis=0))
    found = {}
    for fit in ("crop", "pad", "stretch"):
        settings = FeatureConfig(image_size=2, patch_size=2, image_fit=fit, image_colors="gray")
        assert patch_dim(settings) == 4
        patches = read_patches(encoded(image), "it", settings)
        found[fit] = (patches.reshape(2, 2) + 1) * 127.5
    assert np.allclose(found["crop"], 128, atol=0.5)
    assert found["stretch"][0, 0] < 100
    assert found["stretch"][0, 1] > 150
    assert not np.allclose(found["pad"], found["stretch"])


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("size", [(1, 1), (1, 900), (900, 1), (5, 3)])
def test_images_of_any_proportion(fit: Any, size: tuple[int, int]) -> None:
    settings = FeatureConfig(image_size=4, patch_size=2, image_fit=fit)
    assert read_patches(encoded(Image.new("RGB", size)), "it", settings).shape == (4, 12)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_truncated_and_damaged_files_are_user_errors(kind: str) -> None:
    """Whatever is cut off or changed, the result is an array or a UserError."""
    random = np.random.default_rng(0)
    whole = encoded(Image.fromarray(random.integers(0, 256, (9, 9, 3), np.uint8)), kind).getvalue()
    with pytest.raises(UserError, match="photo cannot be read as an image"):
        read_patches(io.BytesIO(whole[: len(whole) // 2]), "photo", SMALL)
    for _ in range(60):
        damaged = bytearray(whole[: random.integers(len(whole)) or None])
        for position in random.integers(0, len(damaged), 3) if len(damaged) else ():
            damaged[position] = random.integers(256)
        with suppress(UserError):
            assert read_patches(io.BytesIO(bytes(damaged)), "photo", SMALL).shape == (4, 12)


def test_other_files_are_user_errors() -> None:
    for content in (b"", b"text", b"GIF89a"):
        with pytest.raises(UserError, match="photo cannot be read as an image"):
            read_patches(io.BytesIO(content), "photo", SMALL)
    bitmap = encoded(Image.new("RGB", (2, 2)), "BMP")  # a format that Pillow reads, but which is not expected
    with pytest.raises(UserError, match="expected a complete PNG or JPEG file"):
        read_patches(bitmap, "photo", SMALL)


@pytest.mark.parametrize("size", [9_000, 12_000, 60_000])
def test_a_small_file_with_many_pixels_is_rejected_before_it_is_decoded(size: int) -> None:
    """The header announces size² pixels; Pillow itself warns of the second and refuses the third."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    with pytest.raises(UserError, match="at most 67,108,864 pixels: scale it down"):
        read_patches(io.BytesIO(bomb), "bomb", SMALL)


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r"needs the package Pillow: install it with pip install 'dragoman\[media\]'"):
        patch_dim(SMALL)


def test_images_are_cut_into_whole_patches() -> None:
    with pytest.raises(UserError, match=r"features\.image_size=10 is not a multiple of features\.patch_size=4"):
        FeatureConfig(image_size=10, patch_size=4)
