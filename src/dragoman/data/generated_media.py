"""Generated images and recordings with their texts: data for image and speech systems without a download.

| task | file | text |
|---|---|---|
| captions | colored shapes on a noisy background | a grammar: “two red circles left of a blue square” |
| image-classes | one colored shape | its shape: “circle” |
| spoken-digits | digits of synthetic speech sounds by different voices, with noise | “three one four” |
"""

from __future__ import annotations

import re
import wave
from collections.abc import Callable
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.data.task_grammars import split_of
from dragoman.errors import UserError, unknown_name
from dragoman.storage import atomic_folder

Random = np.random.Generator
Pixels = NDArray[np.uint8]  # H W 3
Sound = NDArray[np.float64]

# ---- images

IMAGE_PIXELS = 32  # height and width
SHAPE_COLORS = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (50, 80, 220),
    "yellow": (230, 210, 50),
    "purple": (150, 50, 180),
    "gray": (120, 120, 120),
}
#: whether the point (x, y), from the center in units of the radius, belongs to the shape
SHAPES: dict[str, Callable[[Sound, Sound], NDArray[np.bool_]]] = {
    "circle": lambda x, y: x**2 + y**2 <= 1,
    "square": lambda x, y: np.maximum(abs(x), abs(y)) <= 0.9,
    "triangle": lambda x, y: (y <= 0.8) & (2 * abs(x) <= y + 1),
    "cross": lambda x, y: (np.minimum(abs(x), abs(y)) <= 0.35) & (np.maximum(abs(x), abs(y)) <= 1),
}
COUNTS = ("a", "two", "three")


def sample_caption(random: Random) -> str:
    """Sample a caption: one group of equal shapes, or two groups and their relation: “two red circles left of a …”.

    The left or upper group is named first, so that an image has one caption.
    """
    if random.random() < 0.3:
        return _sample_group(random)
    return f"{_sample_group(random)} {_choose(random, ['left of', 'above'])} {_sample_group(random)}"


def _sample_group(random: Random) -> str:
    """Sample what one to three equal shapes are called: “a red circle”, “two blue crosses”."""
    count, color, shape = (_choose(random, list(names)) for names in (COUNTS, SHAPE_COLORS, SHAPES))
    plural = "" if count == COUNTS[0] else "es" if shape.endswith("s") else "s"
    return f"{count} {color} {shape}{plural}"


def draw_caption(caption: str, random: Random) -> Pixels:
    """Draw the one or two groups of shapes that a caption names, side by side or one above the other; H W 3."""
    image, groups = _background(random), re.split(" left of | above ", caption)
    size = IMAGE_PIXELS // len(groups)  # pixels of a part of the image
    for start, group in zip(range(0, IMAGE_PIXELS, size), groups):
        whole, part = (0, IMAGE_PIXELS), (start, start + size)  # ranges of pixels
        rows, columns = (part, whole) if " above " in caption else (whole, part)
        _draw_group(image, group, random, rows=rows, columns=columns)
    return image


def sample_class(random: Random) -> str:
    """Sample the name of a shape, such as "circle", which is the class of an image."""
    return _choose(random, list(SHAPES))


def draw_class(shape: str, random: Random) -> Pixels:
    """Draw one shape, such as "circle", of random color, place and size; return the pixels, H W 3."""
    image, radius = _background(random), random.uniform(4, 9)  # pixels
    row, column = random.uniform(radius, IMAGE_PIXELS - radius, 2)  # the center: the shape is inside the image
    _draw_shape(image, shape, _choose(random, list(SHAPE_COLORS)), row=row, column=column, radius=radius)
    return image


def _background(random: Random) -> Pixels:
    """Return the pixels of a light background of random brightness with noise, H W 3."""
    noise = random.normal(loc=random.uniform(200, 250), scale=8, size=(IMAGE_PIXELS, IMAGE_PIXELS, 3))
    return np.clip(noise, 0, 255).astype(np.uint8)


def _draw_group(image: Pixels, group: str, random: Random, rows: tuple[int, int], columns: tuple[int, int]) -> None:
    """Draw the shapes of a group, such as “two blue crosses”, into a part of the image.

    `rows` and `columns` are the range of pixels of this part: the first, and the one after the last.
    """
    count, color, noun = group.split()
    shape = next(name for name in SHAPES if noun.startswith(name))  # the singular
    # the part is divided into cells of 10 × 10 pixels with these centers; each shape is drawn in another one
    centers = (range(first + 5, end - 4, 10) for first, end in (rows, columns))
    cells = list(product(*centers))
    for cell in random.permutation(cells)[: COUNTS.index(count) + 1]:  # COUNTS: "a", "two", "three"
        row, column = cell + random.uniform(-0.5, 1, 2)
        _draw_shape(image, shape, color, row, column, radius=random.uniform(3.5, 4.5))


def _draw_shape(image: Pixels, shape: str, color: str, row: float, column: float, radius: float) -> None:
    """Draw a filled shape with its center at (row, column) into the image; positions and radius are in pixels."""
    rows, columns = np.mgrid[:IMAGE_PIXELS, :IMAGE_PIXELS]
    is_inside = SHAPES[shape]((columns - column) / radius, (rows - row) / radius)  # x, y from the center
    image[is_inside] = SHAPE_COLORS[color]  # red, green, blue


def _write_image(path: Path, pixels: Pixels) -> None:
    """Write the pixels of an image, H W 3, as PNG."""
    try:
        from PIL import Image
    except ImportError:
        raise UserError(
            "writing images needs the package Pillow: install it with pip install 'dragoman[media]'"
        ) from None
    Image.fromarray(pixels).save(path)


# ---- sound

SOUND_RATE = 16_000  # samples per second
#: speech sounds: centers of their frequency bands in Hz, whether they are voiced, and their length in seconds
PHONEMES: dict[str, tuple[tuple[int, ...], bool, float]] = {
    **{"i": ((300, 2300), True, 0.10), "I": ((400, 2000), True, 0.08), "e": ((550, 1800), True, 0.10)},
    **{"a": ((750, 1300), True, 0.12), "o": ((500, 900), True, 0.12), "u": ((320, 800), True, 0.10)},
    **{"r": ((400, 1200, 1600), True, 0.06), "w": ((300, 650), True, 0.06), "n": ((250, 1400), True, 0.07)},
    **{"v": ((250, 1100, 3500), True, 0.06), "z": ((250, 5000), True, 0.07)},
    **{"s": ((5500,), False, 0.09), "f": ((3800, 7000), False, 0.08), "T": ((6500,), False, 0.07)},
    **{"t": ((4200,), False, 0.03), "k": ((2000,), False, 0.04)},
}
DIGITS = {
    **{"zero": "zIro", "one": "wan", "two": "tu", "three": "Tri", "four": "for"},
    **{"five": "faIv", "six": "sIks", "seven": "sevn", "eight": "eIt", "nine": "naIn"},
}
MIN_DIGITS, MAX_DIGITS = 2, 3  # per recording


def sample_digits(random: Random) -> str:
    """Sample the names of two or three digits."""
    return " ".join(_choose(random, list(DIGITS)) for _ in range(random.integers(MIN_DIGITS, MAX_DIGITS + 1)))


def speak_digits(words: str, random: Random) -> Sound:
    """Say names of digits such as “three one” with a random voice, speed and loudness, over noise.

    Returns the samples, which are from −1 to 1.
    """
    pitch = random.uniform(90, 220)  # of the voice, in Hz
    tract = random.uniform(0.9, 1.1)  # factor of the frequencies of speech sounds, by the length of the vocal tract
    speed = random.uniform(0.85, 1.2)  # relative to the usual one
    parts = [_pause(random)]
    for word in words.split():
        # DIGITS spells a word with one letter per speech sound
        parts += [_speak_phoneme(phoneme, random, pitch, tract, speed) for phoneme in DIGITS[word]]
        parts.append(_pause(random))
    sound = random.uniform(0.2, 0.6) * np.concatenate(parts)
    return sound + random.normal(0, random.uniform(0.002, 0.01), len(sound))


def _pause(random: Random) -> Sound:
    """Return the samples of 40 to 120 milliseconds of silence."""
    return np.zeros(int(random.uniform(0.04, 0.12) * SOUND_RATE))


def _speak_phoneme(phoneme: str, random: Random, pitch: float, tract: float, speed: float) -> Sound:
    """Return the samples of a speech sound, from −1 to 1: pulses of the voice, or noise, in its frequency bands.

    `pitch` is the frequency of the voice in Hz. `tract` scales the frequencies of the bands, as the length of the vocal
    tract does. `speed` divides the length.
    """
    centers, voiced, seconds = PHONEMES[phoneme]
    length = int(seconds * random.uniform(0.8, 1.2) * SOUND_RATE / speed)
    time = np.arange(length) / SOUND_RATE
    if voiced:
        periods = np.cumsum(pitch * (1 - 0.3 * time)) / SOUND_RATE  # of the falling pitch, number so far
        source = np.diff(np.floor(periods), prepend=-1.0)  # one pulse per period
    else:
        source = random.normal(0, 1, length)
    spectrum, frequencies = np.fft.rfft(source), np.fft.rfftfreq(length, 1 / SOUND_RATE)
    # Gaussian bands around each center, which are wider at high frequencies
    bands = [np.exp(-(((frequencies - tract * center) / (60 + center / 10)) ** 2)) for center in centers]
    sound = np.fft.irfft(spectrum * sum(bands), length) * np.hanning(length) ** 0.5
    return sound / max(1e-9, float(abs(sound).max()))


def _write_sound(path: Path, samples: Sound) -> None:
    """Write samples as a mono WAV file of 16 bits and SOUND_RATE samples per second; those beyond ±1 are clipped."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SOUND_RATE)
        file.writeframes((np.clip(samples, -1, 1) * 32767).round().astype("<i2").tobytes())


def _choose(random: Random, names: list[str]) -> str:
    """Return one of the names, all equally probable."""
    return names[random.integers(len(names))]


# ---- files


class MediaTask(NamedTuple):
    """How examples of a task are made: a text is sampled, then drawn or spoken, then written."""

    sample: Callable[[Random], str]
    render: Callable[[str, Random], Any]  # text → pixels or samples
    write: Callable[[Path, Any], None]
    suffix: str  # of the files
    has_new_texts: bool = True  # whether texts of validation and test data do not occur in training


MEDIA_TASKS = {
    "captions": MediaTask(sample_caption, draw_caption, _write_image, ".png"),
    "image-classes": MediaTask(sample_class, draw_class, _write_image, ".png", has_new_texts=False),
    "spoken-digits": MediaTask(sample_digits, speak_digits, _write_sound, ".wav"),
}


def write_media(
    folder: str | Path, task: str, train: int = 4000, valid: int = 200, test: int = 200, seed: int = 0
) -> None:
    """Write generated examples of a task ("captions", "image-classes" or "spoken-digits") to a new folder.

    Each of train.tsv, valid.tsv and test.tsv has a path and a text per line, as many as the arguments say. A checksum
    of the text decides in which of them it occurs, so that captions and transcripts of the test are new. The few
    classes of image-classes occur in all. An unknown task, and a folder that exists, are UserErrors.
    """
    if task not in MEDIA_TASKS:
        raise unknown_name("task", task, MEDIA_TASKS)
    folder, media_task = Path(folder), MEDIA_TASKS[task]
    if folder.exists():
        raise UserError(f"{folder} already exists: choose a new folder")
    random = np.random.default_rng(seed)
    with atomic_folder(folder, flush=False) as partial_folder:
        for split, size in (("train", train), ("valid", valid), ("test", test)):
            (partial_folder / split).mkdir()
            texts = iter(partial(media_task.sample, random), None)  # without end, as no text is None
            usable = (text for text in texts if not media_task.has_new_texts or split_of(text) == split)
            lines = []
            for number, text in enumerate(islice(usable, size), 1):
                path = Path(split) / f"{number:05}{media_task.suffix}"
                media_task.write(partial_folder / path, media_task.render(text, random))
                lines.append(f"{path.as_posix()}\t{text}\n")
            (partial_folder / f"{split}.tsv").write_text("".join(lines), encoding="utf-8")
