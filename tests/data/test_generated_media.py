"""Generated images and recordings: deterministic, held-out texts are new, and an image shows what its caption says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.config import FeatureConfig
from dragoman.data import Corpus
from dragoman.data.feature_files import read_feature_pairs
from dragoman.data.generated_media import (
    COUNTS,
    DIGITS,
    MEDIA_TASKS,
    PHONEMES,
    SHAPE_COLORS,
    SOUND_RATE,
    draw_caption,
    draw_class,
    sample_caption,
    speak_digits,
    write_media,
)
from dragoman.errors import UserError

SETTINGS = FeatureConfig(image_size=32, patch_size=8)


@pytest.mark.parametrize("task", MEDIA_TASKS)
def test_files_depend_only_on_the_seed(task: str, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_media(tmp_path / name, task, train=6, valid=3, test=2, seed=seed)
    contents = [
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        for name in "abc"
    ]
    assert len(contents[0]) == 6 + 3 + 2 + 3
    assert contents[0] == contents[1] != contents[2]
    pairs = list(read_feature_pairs(Corpus(tmp_path / "a" / "train.tsv", features=SETTINGS)))
    assert len(pairs) == 6
    assert all(np.isfinite(np.asarray(pair.features)).all() for pair in pairs)


@pytest.mark.parametrize("task", MEDIA_TASKS)
def test_held_out_texts_are_new_but_classes_are_not(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = MEDIA_TASKS[task]._replace(render=lambda text, random: text, write=lambda path, text: None)
    monkeypatch.setitem(MEDIA_TASKS, task, written)
    write_media(tmp_path / "a", task, train=400, valid=60, test=60)
    lines = [(tmp_path / "a" / f"{split}.tsv").read_text().splitlines() for split in ("train", "valid", "test")]
    train, valid, test = ({line.split("\t")[1] for line in split} for split in lines)
    assert train & valid == train & test == valid & test == (train if task == "image-classes" else set())
    words = {word for text in train for word in text.split()}
    assert words.issuperset(word for text in valid | test for word in text.split())


def components(mask: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """The connected areas of a mask, each as the coordinates of its pixels."""
    left, found = set(zip(*np.nonzero(mask))), []
    while left:
        area, queue = [], [left.pop()]
        while queue:
            row, column = queue.pop()
            area.append((row, column))
            near = {(row + dy, column + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= near
            queue += near
        found.append(np.array(area))
    return found


def test_an_image_shows_what_its_caption_says() -> None:
    """Pixels of the exact color are counted by connected areas; their centers have the relation of the caption."""
    random = np.random.default_rng(3)
    for _ in range(40):
        caption = sample_caption(random)
        image = draw_caption(caption, random)
        groups = re.split(" left of | above ", caption)
        if len({group.split()[1] for group in groups}) < len(groups):
            continue  # two groups of the same color cannot be told apart by color
        centers = []
        for group in groups:
            count, color, _ = group.split()
            areas = components((image == SHAPE_COLORS[color]).all(-1))
            assert len(areas) == COUNTS.index(count) + 1, caption
            centers.append(np.array([area.mean(0) for area in areas]))  # N 2: row and column
        if "left of" in caption:
            assert centers[0][:, 1].max() < centers[1][:, 1].min()
        if "above" in caption:
            assert centers[0][:, 0].max() < centers[1][:, 0].min()


def test_shapes_of_classes_cover_their_part_of_the_bounding_box() -> None:
    """Area over the bounding box: π/4 for a circle, 1 for a square, about 1/2 for a triangle and less for a cross."""
    expected = {"circle": (0.7, 0.87), "square": (0.99, 1.0), "triangle": (0.4, 0.65), "cross": (0.4, 0.8)}
    random = np.random.default_rng(0)
    for shape, (low, high) in expected.items():
        image = draw_class(shape, random)
        mask = np.any([(image == color).all(-1) for color in SHAPE_COLORS.values()], axis=0)
        rows, columns = np.nonzero(mask)
        box = (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
        assert low <= mask.sum() / box <= high, shape


def test_speech_lasts_as_long_as_its_sounds() -> None:
    random = np.random.default_rng(0)
    assert set("".join(DIGITS.values())) == set(PHONEMES)
    short, long = (speak_digits(words, random) for words in ("one", "one two three"))
    assert 0.15 * SOUND_RATE < len(short) < len(long) < 3 * SOUND_RATE
    assert 0.1 < abs(short).max() <= 1


def test_invalid_names_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'captions'"):
        write_media(tmp_path / "a", "caption")
    with pytest.raises(UserError, match="already exists: choose a new folder"):
        write_media(tmp_path, "captions")
