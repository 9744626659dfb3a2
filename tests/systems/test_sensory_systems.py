"""Images and sound to words, on data that the tests make: what was learned holds for examples never seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dragoman.models import EncoderDecoder, Model, count_parameters
from dragoman.parts.embedding import Frames, Patches
from dragoman.search import Beam, SpecialTokens
from dragoman.systems import SYSTEMS, VocabularySizes
from search.plain_search import search

PAD, START, END, FIRST = 0, 1, 2, 3
Examples = list[tuple[NDArray[np.float32], list[int]]]


def batch(examples: Examples) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Padded vectors and START words END."""
    sources = [torch.from_numpy(vectors) for vectors, _ in examples]
    targets = [torch.tensor([START, *words, END]) for _, words in examples]
    pad = torch.nn.utils.rnn.pad_sequence
    lengths = [torch.tensor([len(one) for one in side]) for side in (sources, targets)]
    return pad(sources, batch_first=True), lengths[0], pad(targets, batch_first=True), lengths[1]


def train(model: Model, examples: Examples, steps: int, rows: int, rate: float) -> None:
    """Teacher forcing with Adam, the rate falling to zero."""
    torch.set_num_threads(1)  # so little is done at a time that threads would only wait for one another
    random = np.random.default_rng(0)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min((step + 1) / 20, 1 - step / steps)
        source, source_lengths, target, target_lengths = batch(
            [examples[i] for i in random.integers(len(examples), size=rows)]
        )
        logits = model(source, source_lengths, target[:, :-1], target_lengths - 1)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def share_right(model: Model, examples: Examples) -> float:
    """How many word sequences greedy search finds exactly."""
    source, lengths, _, _ = batch(examples)
    symbols = SpecialTokens(START, END, (PAD, START))
    found = search(model.eval(), source, lengths, symbols, Beam(1), torch.arange(len(examples)))
    right = [one[0].tokens == words for one, (_, words) in zip(found, examples)]
    return sum(right) / len(right)


# ---- images

#: shapes of 5 × 5 pixels
SHAPES = {
    "cross": ["#...#", ".#.#.", "..#..", ".#.#.", "#...#"],
    "plus": ["..#..", "..#..", "#####", "..#..", "..#.."],
    "ring": [".###.", "#...#", "#...#", "#...#", ".###."],
    "square": ["#####", "#...#", "#...#", "#...#", "#####"],
    "bar": ["..#..", "..#..", "..#..", "..#..", "..#.."],
    "corner": ["#....", "#....", "#....", "#....", "#####"],
}
ROWS, COLUMNS = ["top", "bottom"], ["left", "right"]
WORDS = [*SHAPES, *ROWS, *COLUMNS]


def draw(random: np.random.Generator) -> tuple[NDArray[np.float32], list[int]]:
    """A noisy image of 12 × 12 pixels with a shape in one of its quarters, as nine patches, and what it shows."""
    name = list(SHAPES)[random.integers(len(SHAPES))]
    row, column = random.integers(2, size=2)
    image = random.normal(0.0, 0.2, (12, 12)).astype(np.float32)
    top, left = 6 * row + random.integers(2), 6 * column + random.integers(2)
    image[top : top + 5, left : left + 5] += np.array([[c == "#" for c in line] for line in SHAPES[name]])
    patches = image.reshape(3, 4, 3, 4).transpose(0, 2, 1, 3).reshape(9, 16)
    words = [name, ROWS[row], COLUMNS[column]]
    return patches, [FIRST + WORDS.index(word) for word in words]


@pytest.mark.exhaustive
def test_vision_learns_captions() -> None:
    random = np.random.default_rng(1)
    seen, unseen = ([draw(random) for _ in range(count)] for count in (2000, 200))
    torch.manual_seed(0)
    size = FIRST + len(WORDS)
    spec = SYSTEMS["vision"].spec(
        VocabularySizes(size, size), "tiny", feature_dim=16, model_dim=48, layers=1, dropout=0.0
    )
    model = spec.build()
    assert share_right(model, unseen) < 0.2
    train(model, seen, steps=300, rows=64, rate=0.004)
    assert share_right(model, unseen) > 0.9


# ---- sound


class Voice:
    """Says words: each is a spectrum of its own that changes on the way, drawn out or hurried, with noise over it."""

    def __init__(self, words: int, features: int, random: np.random.Generator) -> None:
        self.begins, self.ends = random.normal(size=(2, words, features))
        self.random = random

    def say(self) -> tuple[NDArray[np.float32], list[int]]:
        words = self.random.integers(len(self.begins), size=self.random.integers(1, 5))
        parts = []
        for word in words:
            way = np.linspace(0, 1, self.random.integers(6, 12))[:, None]
            parts.append((1 - way) * self.begins[word] + way * self.ends[word])
        frames = np.concatenate(parts)
        noise = self.random.normal(0.0, 0.2, frames.shape)
        return (frames + noise).astype(np.float32), (FIRST + words).tolist()


@pytest.mark.exhaustive
def test_speech_learns_transcripts() -> None:
    voice = Voice(words=8, features=10, random=np.random.default_rng(1))
    seen, unseen = ([voice.say() for _ in range(count)] for count in (3000, 200))
    torch.manual_seed(0)
    spec = SYSTEMS["speech"].spec(VocabularySizes(11, 11), "tiny", feature_dim=10, model_dim=48, layers=1, dropout=0.0)
    model = spec.build()
    assert share_right(model, unseen) < 0.2
    train(model, seen, steps=500, rows=64, rate=0.004)
    assert share_right(model, unseen) > 0.9


# ---- what they are built of


def test_vision_and_speech_have_no_source_embeddings() -> None:
    """The weights, counted by hand, do not depend on a source vocabulary."""
    d, f, v, inner = 8, 5, 20, 32
    attention, norm = 4 * d * d + 4 * d, 2 * d
    feed_forward = 2 * d * inner + inner + d
    encoder = attention + feed_forward + 2 * norm + norm
    decoder = 2 * attention + feed_forward + 3 * norm + norm
    settings = {"model_dim": d, "layers": 1, "heads": 2, "feature_dim": f}
    for source in (7, 1000):
        patches = SYSTEMS["vision"].spec(VocabularySizes(source, v), "tiny", **settings, max_positions=11)
        assert count_parameters(patches) == encoder + decoder + v * d + (f * d + d) + 11 * d
        frames = SYSTEMS["speech"].spec(VocabularySizes(source, v), "tiny", **settings)
        convolved = (3 * f * d + d) + (3 * d * d + d) + (d * d + d)
        assert count_parameters(frames) == encoder + decoder + v * d + convolved


def test_vision_reads_patches_and_speech_reads_frames() -> None:
    vision, speech = (SYSTEMS[name].spec(VocabularySizes(9, 9)) for name in ("vision", "speech"))
    assert isinstance(vision, EncoderDecoder)
    assert isinstance(speech, EncoderDecoder)
    assert vision.input == Patches(16 * 16 * 3)
    assert speech.input == Frames(80, stride=4)


@pytest.mark.parametrize(("name", "longest"), [("vision", 30), ("speech", None)])
def test_maximum_source_length(name: str, longest: int | None) -> None:
    settings = {"max_positions": 30} if name == "vision" else {}
    model = SYSTEMS[name].spec(VocabularySizes(9, 9), "tiny", model_dim=8, **settings).build()
    assert model.max_source_length == longest
