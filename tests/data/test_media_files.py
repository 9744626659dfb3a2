"""Lists and folders of images and recordings: read as pairs, trained on and translated by every command."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import dragoman
from dragoman.cli import app
from dragoman.config import FeatureConfig
from dragoman.data import DATA_FORMATS, Corpus, FeatureFile, detect_data_format, feature_dim
from dragoman.data.corpus_passes import choose_num_workers
from dragoman.data.data_formats import has_references
from dragoman.data.feature_files import read_feature_pairs
from dragoman.data.media_files import MediaFile, read_media_paths
from dragoman.errors import UserError

SETTINGS = FeatureConfig(image_size=4, patch_size=2, sample_rate=8000, mel_bins=20)


def image(path: Path, value: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (value, 0, 255 - value)).save(path)
    return path


def sound(path: Path, rate: int = 8000) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.random.default_rng(0).integers(-999, 999, 800).astype("<i2").tobytes())
    return path


def text(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three images in a folder below, the first and the last one equal."""
    for name, value in (("a", 10), ("b", 200), ("c", 10)):
        image(tmp_path / "images" / f"{name}.png", value)
    return tmp_path


# ---- reading


def test_a_list_with_texts_in_another_file(folder: Path) -> None:
    source = text(folder / "images.txt", "images/a.png", "images/b.png", "images/c.png")
    corpus = Corpus(source, text(folder / "captions.txt", "red", "blue", "red"), features=SETTINGS)
    assert detect_data_format(corpus) is DATA_FORMATS["features"]
    assert has_references(corpus)
    assert not has_references(Corpus(source))
    assert feature_dim(corpus) == 12
    pairs = list(DATA_FORMATS["features"].read([corpus]))
    assert [(pair.target, pair.line) for pair in pairs] == [("red", 1), ("blue", 2), ("red", 3)]
    assert pairs[0].source == pairs[2].source != pairs[1].source  # identified by content
    first = np.asarray(pairs[0].features)
    assert first.shape == (4, 12)
    assert np.allclose(first[:, :4], 10 / 127.5 - 1)  # red
    assert list(read_media_paths(corpus)) == [folder / "images" / f"{name}.png" for name in "abc"]


def test_tsv_and_json_lines_with_texts(folder: Path) -> None:
    columns = text(folder / "a.tsv", "images/a.png\tred", "images/b.png\tblue")
    records = text(folder / "a.jsonl", *(json.dumps({"source": f"images/{x}.png", "target": x}) for x in "ab"))
    swapped = text(folder / "b.tsv", "red\timages/a.png")
    assert [pair.target for pair in read_feature_pairs(Corpus(columns, features=SETTINGS))] == ["red", "blue"]
    assert [pair.target for pair in read_feature_pairs(Corpus(records, features=SETTINGS))] == ["a", "b"]
    corpus = Corpus(swapped, None, "", "1", "0", SETTINGS)
    assert [pair.target for pair in read_feature_pairs(corpus)] == ["red"]


def test_a_folder_with_subfolders_as_classes(folder: Path) -> None:
    image(folder / "classes" / "dog" / "2.jpg", 10)
    image(folder / "classes" / "cat" / "old" / "1.PNG", 20)
    image(folder / "classes" / "dog" / ".hidden.png", 20)
    corpus = Corpus(folder / "classes", features=SETTINGS)
    assert [pair.target for pair in read_feature_pairs(corpus)] == ["cat", "dog"]
    assert has_references(corpus)
    flat = Corpus(folder / "images", features=SETTINGS)
    with pytest.raises(UserError, match=r"a\.png has no text: put it into a subfolder named after its label"):
        list(read_feature_pairs(flat))
    with_texts = Corpus(flat.source, text(folder / "texts", "x", "y", "z"), features=SETTINGS)
    assert [pair.target for pair in read_feature_pairs(with_texts)] == ["x", "y", "z"]
    short = Corpus(flat.source, text(folder / "short", "x"), features=SETTINGS)
    with pytest.raises(UserError, match=r"has 3 image or sound files but .*short has 1 lines"):
        list(read_feature_pairs(short))


def test_sound(folder: Path) -> None:
    sound(folder / "a.wav")
    corpus = Corpus(text(folder / "a.tsv", "a.wav\tone two"), features=SETTINGS)
    assert feature_dim(corpus) == 20
    assert np.asarray(next(read_feature_pairs(corpus)).features).shape == (8, 20)  # 1 + (800 − 200) // 80


def test_text_that_is_not_a_list(folder: Path) -> None:
    """Sentences, names of files that do not exist, and files that cannot be read as text."""
    (folder / "binary").write_bytes(b"\xff\xfe\n")
    for path in (
        text(folder / "a.txt", "See images/a.png", "A sentence."),
        text(folder / "b.txt", "logo.png", "icon.png"),
        text(folder / "c.txt"),
        text(folder / "d.txt", "x" * 5000 + ".png", "\0.png"),
        text(folder / "e.jsonl", '{"turns": ["a.png", "b"]}'),
        folder / "binary",
        folder / "missing.txt",
    ):
        assert not Corpus(path).has_media
        assert not Corpus(path).has_features


WRONG = {
    "images/b.txt": "does not have the suffix of an image or sound file: expected one of .png, .jpg, .jpeg, .wav",
    "images/x.png": "does not exist",
    "images/folder.png": "is a folder",
    "": "names no file",
    "a.wav": "has vectors of 20 numbers, but the first file of the list has vectors of 12: keep images and sound",
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_name_the_line(name: str, folder: Path) -> None:
    sound(folder / "a.wav")
    (folder / "images" / "folder.png").mkdir()
    corpus = Corpus(text(folder / "a.tsv", "images/a.png\tred", f"{name}\tblue"), features=SETTINGS)
    with pytest.raises(UserError, match=rf"a\.tsv, line 2.*{WRONG[name]}"):
        list(read_feature_pairs(corpus))


def test_a_file_that_cannot_be_decoded(folder: Path) -> None:
    (folder / "images" / "b.png").write_bytes(b"nonsense")
    sound(folder / "a.wav", rate=16_000)
    for name, expected in {
        "images/b.png": "cannot be read as an image",
        "a.wav": r"features\.sample_rate=16000",
    }.items():
        pair = next(read_feature_pairs(Corpus(text(folder / "a.tsv", f"{name}\tred"), features=SETTINGS)))
        with pytest.raises(UserError, match=rf"a\.tsv, line 1: .*{expected}"):
            np.asarray(pair.features)


def test_worker_processes_decode_many_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Corpus(text(folder / "a.tsv", "images/a.png\tred"), features=SETTINGS)
    features = DATA_FORMATS["features"]
    assert choose_num_workers(None, [corpus], features) == 1
    assert choose_num_workers(3, [corpus], features) == 3
    monkeypatch.setattr("dragoman.data.corpus_passes.MIN_PARALLEL_BYTES", 10)
    monkeypatch.setattr("dragoman.data.corpus_passes.available_cpus", lambda: 5)
    assert choose_num_workers(None, [corpus], features) == 5
    np.save(folder / "a.npy", np.zeros((1, 2, 3)))
    assert choose_num_workers(3, [Corpus(folder / "a.npy")], features) == 1


# ---- a run


def invoke(*arguments: object, stdin: str = "") -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    message = f"{result.exception}" if isinstance(result.exception, UserError) else ""
    return (2 if message else result.exit_code), result.stdout, result.stderr + message


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a list of 40 images and captions, and a run that was trained on it for a moment."""
    folder = tmp_path_factory.mktemp("media")
    lines = []
    for number in range(40):
        image(folder / "images" / f"{number:02}.png", 6 * number)
        lines.append(f"images/{number:02}.png\t{'dark' if number < 20 else 'light'} {'red' if number % 2 else 'blue'}")
    text(folder / "train.tsv", *lines)
    settings = [
        *("features.image_size=4", "features.patch_size=2", "system.settings.model_dim=16", "system.settings.layers=1"),
        *(
            "text.tokenizer=word",
            "training.steps=2",
            "training.validation_sentences=2",
            "training.device=cpu",
            "search.max_target_length=8",
        ),
    ]
    chosen = [part for setting in settings for part in ("--set", setting)]
    source = folder / "train.tsv"
    code, _, said = invoke("train", folder / "run", "--source", source, "--system", "vision", "--size", "tiny", *chosen)
    assert code == 0, said
    assert "LIST_OF_FILES.txt" in said
    return folder


def test_all_commands_read_lists(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = dragoman.load(trained / "run", device="cpu")
    assert run.config.system.settings["feature_dim"] == run.model.source_features == 12
    paths = sorted((trained / "images").glob("*.png"))
    arrays = [np.asarray(MediaFile(path, run.config.features)) for path in paths]
    expected = [translation.text for translation in run.translate(arrays)]
    assert [translation.text for translation in run.translate(paths)] == expected
    assert [translation.text for translation in run.translate([str(path) for path in paths])] == expected
    listed = text(trained / "list.txt", *(f"images/{path.name}" for path in paths))
    for source in (trained / "train.tsv", listed, trained / "images"):
        code, out, said = invoke("translate", trained / "run", source)
        assert (code, out.splitlines()) == (0, expected), said
    monkeypatch.chdir(trained)
    code, out, said = invoke("translate", trained / "run", stdin="images/00.png\n\nimages/01.png\n")
    assert (code, out.splitlines()) == (0, [expected[0], "", expected[1]]), said
    code, out, said = invoke("score", trained / "run", "--source", trained / "train.tsv")
    targets = [line.split("\t")[1] for line in (trained / "train.tsv").read_text().splitlines()]
    scores = [scored.score for scored in run.score(arrays, targets)]
    assert [float(line) for line in out.split()] == pytest.approx(scores, abs=1e-3), said
    exact = sum(one == other for one, other in zip(expected, targets)) / 40
    code, out, said = invoke("evaluate", trained / "run", "--source", trained / "train.tsv", "--metrics", "exact")
    assert f"exact match {100 * exact:.2f} %" in out, said


def test_show_reads_an_image(trained: Path) -> None:
    path = trained / "images" / "00.png"
    code, out, said = invoke("show", trained / "run", path, "--target", "dark blue")
    assert code == 0, said
    assert str(path) in out
    code, out, said = invoke("show", "attention", trained / "run", path, "--target", "dark blue", "--json")
    assert code == 0, said
    cross = next(one for one in json.loads(out)["attention"] if one["kind"] == "cross")
    assert np.shape(cross["weights"])[-2:] == (3, 4)  # two words and EOS, four patches


def test_arrays_of_the_same_images_give_the_same_training_data(trained: Path) -> None:
    """The stored vectors are those that a feature file with the same patches would give."""
    run = dragoman.load(trained / "run", device="cpu")
    paths = sorted((trained / "images").glob("*.png"))
    np.save(trained / "a.npy", np.stack([np.asarray(MediaFile(path, run.config.features)) for path in paths]))
    arrays = {array.tobytes() for array in FeatureFile(trained / "a.npy")}
    stores = [dragoman.data.TokenStore(trained / "run" / "data" / name) for name in ("train", "valid")]
    stored = [store.source(index).tobytes() for store in stores for index in range(store.pairs)]
    assert len(stored) == 40
    assert set(stored) == arrays


def test_fine_tuning_keeps_the_feature_settings(trained: Path) -> None:
    options: tuple[Any, ...] = ("--start-from", trained / "run", "--source", trained / "train.tsv", "--steps", 1)
    code, _, said = invoke("train", trained / "tuned", *options, "--device", "cpu")
    assert code == 0, said
    assert dragoman.load(trained / "tuned", device="cpu").config.features.patch_size == 2


def test_an_ensemble_needs_equal_feature_settings(trained: Path) -> None:
    run, other = (dragoman.load(trained / "run", device="cpu") for _ in range(2))
    assert run.ensemble(other).translate([trained / "images" / "00.png"])
    other.config = dragoman.config.replace_settings(other.config, {"features.image_fit": "pad"})
    with pytest.raises(UserError, match=r"have different settings .features. for images and sound"):
        run.ensemble(other)


def test_errors_of_commands(trained: Path, tmp_path: Path) -> None:
    missing = text(trained / "missing.txt", "images/00.png", "images/99.png")
    unknown = text(trained / "unknown.txt", "nowhere.png")
    captions = text(tmp_path / "captions.txt", "red", "blue")
    sound(tmp_path / "a.wav", rate=16_000)
    vision = ("--system", "vision")
    for arguments, expected in {
        ("translate", trained / "run", missing): r"missing.txt, line 2: ",
        ("translate", trained / "run", unknown): "nowhere.png does not exist",
        ("translate", trained / "run", text(tmp_path / "b.txt", "a.wav")): "vectors × 12, but has shape 3 × 80",
        ("translate", trained / "run", captions): "reads vectors of 12 features, not text",
        ("train", tmp_path / "run", "--source", missing, "--target", captions, *vision): "missing.txt, line 2: ",
        ("train", tmp_path / "run", "--source", unknown, "--target", captions, *vision): "nor a list or folder of",
        ("train", tmp_path / "run", "--source", missing, "--target", captions): "transformer reads text, but",
        ("evaluate", trained / "run", "--source", missing): "",
    }.items():
        code, _, said = invoke(*arguments)
        assert code == 2, said
        assert expected in said
        assert not (tmp_path / "run").exists()
