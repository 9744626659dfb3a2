"""Vectors in the place of a source's text: read from numpy's files, stored, batched, trained on and translated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pair_encoding import choose_holdout, inspect_encoded
from typer.testing import CliRunner

import dragoman
from dragoman.cli import app
from dragoman.data import (
    DATA_FORMATS,
    Batches,
    Corpus,
    EncodedPair,
    Encoding,
    FeatureFile,
    SentencePair,
    TokenStore,
    detect_data_format,
    write_store,
)
from dragoman.data.feature_files import check_features, read_feature_pairs
from dragoman.errors import UserError
from dragoman.text import learn_tokenizer
from dragoman.text.framing import ENCODER_DECODER_FRAMING


def rows(*lengths: int, features: int = 3) -> list[NDArray[np.float32]]:
    """Examples of so many vectors, every number another."""
    values = np.arange(sum(lengths) * features, dtype=np.float32).reshape(-1, features)
    return np.split(values, np.cumsum(lengths)[:-1])


def save(path: Path, examples: list[NDArray[Any]], compressed: bool = False) -> Path:
    write = np.savez_compressed if compressed else np.savez
    write(path, values=np.concatenate(examples), lengths=[len(one) for one in examples])
    return path


def text(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


# ---- reading


@pytest.mark.parametrize("compressed", [False, True])
def test_examples_of_different_lengths(tmp_path: Path, compressed: bool) -> None:
    examples = rows(2, 0, 5, 1)
    signals = FeatureFile(save(tmp_path / "a.npz", examples, compressed))
    assert (len(signals), signals.dim) == (4, 3)
    for found, expected in zip(signals, examples, strict=True):
        assert found.dtype == np.float32
        assert np.array_equal(found, expected)


def test_uncompressed_arrays_are_memory_mapped(tmp_path: Path) -> None:
    assert isinstance(FeatureFile(save(tmp_path / "a.npz", rows(2, 3))).values, np.memmap)
    assert not isinstance(FeatureFile(save(tmp_path / "b.npz", rows(2, 3), compressed=True)).values, np.memmap)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", [np.float64, np.float16, np.uint8])
def test_examples_of_one_length(tmp_path: Path, kind: type[np.generic], order: Any) -> None:
    array = np.arange(24).reshape(2, 4, 3).astype(kind)
    np.save(tmp_path / "a.npy", np.asarray(array, order=order))
    found = list(FeatureFile(tmp_path / "a.npy"))
    assert len(found) == 2
    assert all(np.array_equal(one, expected.astype(np.float32)) for one, expected in zip(found, array))


def test_pairs_have_line_numbers_and_are_identified_by_content(tmp_path: Path) -> None:
    one, two = rows(2, 4)
    corpus = Corpus(save(tmp_path / "a.npz", [one, two, one]), text(tmp_path / "a.txt", "x", "y z", "x"))
    pairs = list(read_feature_pairs(corpus))
    assert [(pair.target, pair.line, pair.corpus) for pair in pairs] == [
        ("x", 1, corpus.name),
        ("y z", 2, corpus.name),
        ("x", 3, corpus.name),
    ]
    assert pairs[0].source == pairs[2].source != pairs[1].source
    assert detect_data_format(corpus) is DATA_FORMATS["features"]
    split = choose_holdout(pairs)
    assert (pairs[0] in split) == (pairs[2] in split) != (pairs[1] in split)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "sum": ({"values": np.ones((5, 3)), "lengths": [2, 2]}, "adds up to 4 vectors, but the array 'values' has 5"),
    "no lengths": ({"values": np.ones((5, 3))}, "has no array 'lengths', only"),
    "negative": ({"values": np.ones((5, 3)), "lengths": [6, -1]}, "as integers of at least 0"),
    "halves": ({"values": np.ones((5, 3)), "lengths": [2.5, 2.5]}, "'lengths' must hold"),
    "flat": ({"values": np.ones(5), "lengths": [5]}, "'values' must be numbers of shape vectors × features, but is 5"),
    "letters": ({"values": np.array([["a"]]), "lengths": [1]}, "'values' must be numbers"),
    "nothing": ({"values": np.ones((0, 3)), "lengths": np.ones(0, int)}, "is empty"),
    "objects": (
        {"values": np.array([{}], object), "lengths": [1]},
        "contains pickled Python objects",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_arrays_are_rejected(case: str, tmp_path: Path) -> None:
    arrays, said = WRONG[case]
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UserError, match=said):
        FeatureFile(tmp_path / "a.npz")


def test_compressed_pickles_are_rejected(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", values=np.array([{}], object), lengths=[1])
    with pytest.raises(UserError, match="cannot be read as numpy arrays"):
        FeatureFile(tmp_path / "a.npz")


def test_other_files_are_rejected(tmp_path: Path) -> None:
    text(tmp_path / "a.npz", "a sentence")
    with pytest.raises(UserError, match="cannot be read as numpy arrays"):
        FeatureFile(tmp_path / "a.npz")
    whole = save(tmp_path / "b.npz", rows(50, 50)).read_bytes()
    for cut in (10, 200, len(whole) - 30):
        (tmp_path / "b.npz").write_bytes(whole[:cut])
        with pytest.raises(UserError, match="cannot be read as numpy arrays"):
            FeatureFile(tmp_path / "b.npz")
    np.save(tmp_path / "c.npy", np.ones((2, 3)))
    with pytest.raises(UserError, match="contains an array of 2 × 3 of float64: expected an array of examples"):
        FeatureFile(tmp_path / "c.npy")
    with pytest.raises(UserError, match="does not exist"):
        FeatureFile(tmp_path / "d.npy")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinite_values_are_rejected(tmp_path: Path, value: float) -> None:
    examples = rows(2, 3)
    examples[1][1, 2] = value
    path = save(tmp_path / "a.npz", examples)
    with pytest.raises(UserError, match=r"a\.npz, example 2 contains NaN or infinite values"):
        list(FeatureFile(path))


@pytest.mark.parametrize("lines", [1, 3])
def test_examples_and_lines_must_match(tmp_path: Path, lines: int) -> None:
    corpus = Corpus(save(tmp_path / "a.npz", rows(2, 3)), text(tmp_path / "a.txt", *["x"] * lines))
    with pytest.raises(UserError, match=rf"a\.npz has 2 examples but .*a\.txt has {lines} lines"):
        list(read_feature_pairs(corpus))
    with pytest.raises(UserError, match="name the file with their target texts, too"):
        list(read_feature_pairs(Corpus(corpus.source)))


def test_a_single_example() -> None:
    assert check_features([[1, 2], [3, 4]], 2).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(UserError, match="must have the shape number of vectors × 3, but has shape 2 × 2"):
        check_features([[1, 2], [3, 4]], 3)
    with pytest.raises(UserError, match="reads vectors of 3 features, not text"):
        check_features("a sentence", 3)


# ---- store, batches, preflight


def stored(folder: Path, examples: list[NDArray[np.float32]]) -> TokenStore:
    pairs = [EncodedPair(SentencePair("", "", "", n), one, [7] * (n + 1)) for n, one in enumerate(examples)]
    return write_store(folder / "store", [pairs[:2], pairs[2:]], 100)


def test_a_store_gives_back_the_same_vectors(tmp_path: Path) -> None:
    examples = rows(2, 5, 1, 4)
    store = stored(tmp_path, examples)
    assert store.columns[0].lengths.tolist() == [2, 5, 1, 4]
    assert store.max_length == 5
    assert store.tokens == 12
    for index, expected in enumerate(examples):
        assert np.array_equal(store.source(index), expected)
        assert store.target(index).tolist() == [7] * (index + 1)


def test_a_batch_pads_vectors_with_zeros(tmp_path: Path) -> None:
    examples = rows(2, 5, 1, 4)
    store = stored(tmp_path, examples)
    (batch,) = Batches(store, max_tokens=100, seed=1).iterate_epoch(0)
    assert batch.source.shape == (4, 5, 3)
    assert batch.source.dtype == torch.float32
    for row, index in enumerate(batch.indices):
        length = len(examples[index])
        assert batch.source_lengths[row] == length
        assert np.array_equal(batch.source[row, :length].numpy(), examples[index])
        assert not batch.source[row, length:].any()
        assert batch.target[row, : index + 2].tolist() == [ENCODER_DECODER_FRAMING.bos, *[7] * (index + 1)]
        assert batch.labels[row, : index + 2].tolist() == [*[7] * (index + 1), ENCODER_DECODER_FRAMING.eos]
    assert batch.padding_ratio == pytest.approx(1 - (12 + 2 + 3 + 4 + 5) / (4 * 5 + 4 * 5))


def test_the_preflight_counts_feature_vectors(tmp_path: Path) -> None:
    examples = rows(40, 0, 30, 2)
    lines = ["one two", "three", "four", "five five"]
    corpus = Corpus(save(tmp_path / "a.npz", examples), text(tmp_path / "a.txt", *lines))
    tokenizer = learn_tokenizer(lines, "word", 100)
    features = DATA_FORMATS["features"]
    encoding = Encoding(tokenizer, tokenizer, 256, ENCODER_DECODER_FRAMING)
    kept, report = inspect_encoded(
        [features.encode(list(features.read([corpus])), encoding)], tokenizer, data_format="features"
    )
    assert [len(encoded.source) for encoded in kept] == [40, 30, 2]
    assert (report.pairs_read, report.pairs, list(report.dropped)) == (4, 3, ["source empty"])
    assert report.source.words is None
    assert (report.source.tokens.total, report.source.tokens.max) == (72, 40)
    assert report.target is not None
    assert report.target.tokens.total == 5
    assert report.length_mismatch.pairs == 0  # of course there are more frames than words
    assert any("source tokens" in line for line in report.lines())


# ---- from the command line

WORDS = ["red", "green", "blue"]


def colours(folder: Path, name: str, count: int) -> tuple[Path, Path]:
    """Each word is three vectors that show its colour, with a little noise."""
    random = np.random.default_rng(len(name) + count)
    examples, lines = [], []
    for _ in range(count):
        said = random.integers(3, size=random.integers(1, 4))
        examples.append((np.eye(3)[said].repeat(3, 0) + random.normal(0, 0.1, (3 * len(said), 3))).astype(np.float32))
        lines.append(" ".join(WORDS[one] for one in said))
    return save(folder / f"{name}.npz", examples), text(folder / f"{name}.txt", *lines)


def invoke(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=True)
    if isinstance(result.exception, UserError):
        return 2, result.stdout, str(result.exception)
    assert result.exception is None, result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("signals")
    source, target = colours(folder, "train", 800)
    torch.set_num_threads(1)
    settings = [
        *(
            "system.settings.model_dim=32",
            "system.settings.layers=1",
            "system.settings.stride=2",
            "text.tokenizer=word",
        ),
        *(
            "training.steps=300",
            "training.learning_rate=0.005",
            "training.warmup_steps=10",
            "training.validation_interval=150",
        ),
        *("training.batch_tokens=512", "training.device=cpu"),
    ]
    chosen = [part for setting in settings for part in ("--set", setting)]
    code, _, said = invoke(
        "train", folder / "run", "--source", source, "--target", target, "--system", "speech", *chosen
    )
    assert code == 0, said
    assert "FILE.npz" in said
    return folder


def test_a_run_learns_from_arrays_and_translates_them(trained: Path) -> None:
    source, target = colours(trained, "test", 40)
    code, out, said = invoke("translate", trained / "run", source)
    assert code == 0, said
    expected = target.read_text().splitlines()
    right = sum(one == other for one, other in zip(out.splitlines(), expected, strict=True))
    assert right >= 36  # nine of ten
    run = dragoman.load(trained / "run", device="cpu")
    arrays = list(FeatureFile(source))
    assert [one.text for one in run.translate(arrays)] == out.splitlines()
    assert run.translate([arrays[0][:0]])[0].text == ""
    scored = run.score(arrays[:5], expected[:5])
    best = run.translate(arrays[:5])
    for one, other, line in zip(scored, best, expected):
        if other.text == line:
            assert one.score == pytest.approx(other.score, abs=1e-4)


def test_attention_to_feature_positions(trained: Path) -> None:
    run = dragoman.load(trained / "run", device="cpu")
    attention = run.attention(rows(7)[0], "red blue")
    assert attention.source == ["1", "2", "3", "4"]  # ⌈7/2⌉
    assert attention.cross is not None
    assert attention.cross.shape == (3, 4)  # two words and END
    assert attention.cross.sum(1).tolist() == pytest.approx([1, 1, 1])
    assert attention.alignment == []
    with pytest.raises(UserError, match="this run reads feature vectors"):
        run.logits(torch.ones(1, 2), torch.ones(1, 2, dtype=torch.long))


def test_coverage_counts_positions_after_downsampling(trained: Path) -> None:
    source, _ = colours(trained, "cover", 5)
    code, out, said = invoke("translate", trained / "run", source, "--coverage-penalty", 0.2)
    assert code == 0, said
    assert len(out.splitlines()) == 5


def test_a_test_set_of_arrays_is_scored(trained: Path) -> None:
    source, target = colours(trained, "set", 20)
    code, out, said = invoke("evaluate", trained / "run", "--source", source, "--reference", target)
    assert code == 0, said
    assert "exact match" in out  # single words


def test_mismatched_files_and_systems_are_rejected(trained: Path, tmp_path: Path) -> None:
    sentences = text(tmp_path / "a.txt", "a b", "c d", "e f")
    arrays = save(tmp_path / "a.npz", rows(2, 3, 1, features=4))
    wrong = {
        ("translate", trained / "run", sentences): "reads vectors of 3 features, not text",
        ("translate", trained / "run", arrays): "must have the shape number of vectors × 3, but has shape 2 × 4",
        ("show", trained / "run", "red"): "reads vectors of 3 features, not text",
        ("train", tmp_path / "b", "--source", arrays, "--target", sentences): "transformer reads text, but",
        ("train", tmp_path / "b", "--source", sentences, "--target", sentences, "--system", "vision"): (
            "vision reads images, sound or vectors, but"
        ),
        (
            *("train", tmp_path / "b", "--source", arrays, "--target", sentences, "--system", "vision"),
            *("--set", "system.settings.feature_dim=5"),
        ): "has vectors of 4 numbers, but the system reads vectors of 5",
        ("compare", tmp_path / "c", "--systems", "speech,transformer"): "speech does not translate text",
    }
    for arguments, expected in wrong.items():
        code, _, said = invoke(*arguments)
        assert code == 2, said
        assert expected in said
        assert not (tmp_path / "b").exists()
