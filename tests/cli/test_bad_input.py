"""Mistakes of the user: one sentence, exit code 2, and no partial files."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from calling import Answer, Dragoman

from dragoman import checkpoint
from dragoman.cli import main
from dragoman.data import phrasebook
from dragoman.storage import os_errors_as_user_errors, write_file


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "phrasebook"
    phrasebook.write(folder, pairs=300, valid=10, test=10)
    return folder


SMALL = [
    *("--set", "system.settings.model_dim=16", "--set", "system.settings.layers=1", "--set", "system.settings.heads=2"),
    *(
        "--set",
        "training.batch_tokens=400",
        "--set",
        "text.vocab_size=400",
        "--set",
        "data.max_length=60",
        "--device",
        "cpu",
    ),
]


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps, made by the command line itself."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        files = ["--source", corpus / "train.en", "--target", corpus / "train.de"]
        patch.setattr("sys.argv", ["dragoman", *map(str, ["train", folder, *files, "--steps", 3, *SMALL])])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    return folder


def sentence(answer: Answer) -> str:
    """The one plain sentence of a refusal; progress may stand before it, a traceback may not."""
    assert answer.code == 2, answer.err
    assert "Traceback" not in answer.err
    last = answer.err.strip().splitlines()[-1]
    assert last.startswith("dragoman: ")
    return last


def train(dragoman: Dragoman, run: Path, source: Path, target: Path, *more: object) -> str:
    """The sentence that refuses the training, which leaves nothing behind."""
    said = sentence(dragoman("train", run, "--source", source, "--target", target, *SMALL, *more))
    assert not run.exists()
    assert list(run.parent.glob(f".{run.name}*")) == []
    return said


def file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_files_of_different_length(dragoman: Dragoman, tmp_path: Path) -> None:
    source, target = file(tmp_path / "a.en", b"one\ntwo\nthree\n"), file(tmp_path / "a.de", b"eins\nzwei\n")
    said = train(dragoman, tmp_path / "run", source, target)
    assert "a.en has 3 lines" in said
    assert "a.de has 2 lines" in said


def test_an_empty_test_set(dragoman: Dragoman, trained: Path, tmp_path: Path) -> None:
    empty = file(tmp_path / "empty", b"")
    assert "empty is empty" in sentence(dragoman("evaluate", trained, "--source", empty, "--reference", empty))
    assert "empty is empty" in sentence(dragoman("score", trained, "--source", empty, "--target", empty))


def test_an_empty_file(dragoman: Dragoman, tmp_path: Path) -> None:
    source, target = file(tmp_path / "a.en", b""), file(tmp_path / "a.de", b"eins\n")
    assert "a.en is empty" in train(dragoman, tmp_path / "run", source, target)


def test_a_missing_file_and_the_nearest_one(dragoman: Dragoman, corpus: Path, tmp_path: Path) -> None:
    said = train(dragoman, tmp_path / "run", corpus / "trein.en", corpus / "train.de")
    assert "trein.en does not exist" in said
    assert "train.en" in said


def test_bytes_that_are_not_utf_8(dragoman: Dragoman, tmp_path: Path) -> None:
    source, target = file(tmp_path / "a.en", b"one\ntw\xff\n"), file(tmp_path / "a.de", b"eins\nzwei\n")
    assert "a.en, line 2 is not UTF-8" in train(dragoman, tmp_path / "run", source, target)


def test_a_sentence_longer_than_the_limit_is_dropped_and_counted(
    dragoman: Dragoman, corpus: Path, tmp_path: Path
) -> None:
    source = file(tmp_path / "a.en", (corpus / "train.en").read_bytes() + b"very " * 300 + b"long.\n")
    target = file(tmp_path / "a.de", (corpus / "train.de").read_bytes() + b"kurz.\n")
    more = ["--steps", 1, *SMALL, "--set", "data.max_length=200"]
    answer = dragoman("train", tmp_path / "run", "--source", source, "--target", target, *more)
    assert answer.code == 0, answer.err
    assert "dropped 1: source longer than 200 tokens" in answer.err
    dropped = json.loads((tmp_path / "run" / "preflight.json").read_text())["dropped"]
    assert [found["pairs"] for found in dropped.values()] == [1]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--set", "training.step=5"], "did you mean 'training.steps'"),
        (["--set", "trainig.steps=5"], "did you mean 'training'"),
        (["--set", "training.steps=many"], "training.steps must be an integer"),
        (["--set", "training.schedule=triangular"], "training.schedule"),
        (["--set", "nothing"], "--set expects NAME=VALUE"),
        (["--set", "system.settings.model_dmi=3"], "did you mean 'model_dim'"),
        (["--set", "system.settings.model_dim=wide"], "model_dim must be int"),
        (["--set", "system.settings.heads=3"], "model_dim=16 is not divisible by 3 heads"),
        (["--set", "text.vocab_size=10"], "10"),
        (["--set", "text.tokenizer=bpee"], "did you mean 'bpe'"),
        (["--system", "transfomer"], "did you mean 'transformer'"),
        (["--size", "huge"], "unknown size 'huge'"),
        (["--device", "abacus"], "unknown device"),
        (["--device", "xpu"], "unknown device 'xpu': use auto, cpu, cuda, cuda:N or mps"),
        (["--set", "training.clip_norm=-1"], "training.clip_norm must be at least 0, got -1"),
        (["--set", "training.learning_rate=-0.01"], "training.learning_rate must be between"),
        (["--set", "training.label_smoothing=1.5"], "training.label_smoothing must be between"),
        (["--set", "training.gradient_accumulation=0"], "training.gradient_accumulation must be at least 1"),
        (["--set", "training.batch_tokens=30"], "training.batch_tokens is 30"),
        (["--set", "training.keep_checkpoints=0"], "training.keep_checkpoints must be at least 1"),
        (["--set", "text.bpe_dropout=1.5"], "text.bpe_dropout must be between"),
        (
            ["--set", "text.tokenizer=character", "--set", "text.bpe_dropout=0.1"],
            "text.bpe_dropout needs text.tokenizer=bpe",
        ),
        (
            ["--set", "text.tokenizer=unigram", "--set", "text.compression_ratio=3"],
            "text.compression_ratio needs text.tokenizer=bpe",
        ),
        (["--set", "search.beam_size=0"], "search.beam_size must be between"),
        (["--set", "system.settings={1: 2}"], "system.settings must map names of settings to values"),
        (["--device", "cuda"], "no GPU is available"),
        (["--valid-source", "nowhere.en", "--valid-target", "nowhere.de"], "nowhere.en does not exist"),
    ],
)
def test_misspelt_and_invalid_settings(
    dragoman: Dragoman, corpus: Path, tmp_path: Path, more: list[str], expected: str
) -> None:
    if "cuda" in more and os.path.exists("/dev/nvidia0"):  # noqa: PTH110
        pytest.skip("there is a GPU here")
    assert expected in train(dragoman, tmp_path / "run", corpus / "train.en", corpus / "train.de", *more)


def test_a_broken_configuration_file(dragoman: Dragoman, tmp_path: Path) -> None:
    assert "is not valid YAML" in sentence(
        dragoman("train", tmp_path / "run", "--config", file(tmp_path / "c.yaml", b"a: [1"))
    )
    assert "did you mean 'training'" in sentence(
        dragoman("train", tmp_path / "run", "--config", file(tmp_path / "d.yaml", b"trainin: {}"))
    )


def test_no_files_at_all(dragoman: Dragoman, tmp_path: Path) -> None:
    assert "no training text: give --source" in sentence(dragoman("train", tmp_path / "run"))


def test_a_run_is_never_overwritten(dragoman: Dragoman, trained: Path, corpus: Path, tmp_path: Path) -> None:
    files = ["--source", corpus / "train.en", "--target", corpus / "train.de"]
    before = sorted(path.name for path in trained.iterdir())
    assert "already contains a run" in sentence(dragoman("train", trained, *files))
    assert sorted(path.name for path in trained.iterdir()) == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("precious")
    assert "is not a run" in sentence(dragoman("train", tmp_path / "notes", *files))
    assert (tmp_path / "notes" / "mine.txt").read_text() == "precious"


def test_resuming_with_other_settings(dragoman: Dragoman, trained: Path) -> None:
    said = sentence(dragoman("train", trained, "--resume", "--set", "training.learning_rate=1"))
    assert "can change only training.steps" in said
    before = (trained / "config.yaml").read_bytes()
    assert "counts from the start of the run" in sentence(dragoman("train", trained, "--resume", "--steps", 1))
    assert (trained / "config.yaml").read_bytes() == before
    if not os.path.exists("/dev/nvidia0"):  # noqa: PTH110
        assert "no GPU" in sentence(dragoman("train", trained, "--resume", "--device", "cuda"))
        assert dragoman("train", trained, "--resume").code == 0  # the mistake was not written down
    assert "is not a run folder" in sentence(dragoman("train", trained.parent, "--resume"))


@pytest.mark.parametrize("command", ["translate", "show", "score", "evaluate"])
def test_a_folder_without_a_run_is_rejected(dragoman: Dragoman, corpus: Path, tmp_path: Path, command: str) -> None:
    files = {
        "score": ["--source", corpus / "test.en", "--target", corpus / "test.de"],
        "evaluate": ["--source", corpus / "test.en", "--reference", corpus / "test.de"],
    }.get(command, [])
    assert "is not a run folder" in sentence(dragoman(command, tmp_path, *files))
    assert "does not exist" in sentence(dragoman(command, tmp_path / "nowhere", *files))


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    shutil.copytree(trained, folder, symlinks=True)
    return folder


def test_a_truncated_checkpoint(dragoman: Dragoman, copy: Path) -> None:
    weights = copy / "checkpoints" / "best" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "truncated or was altered" in sentence(dragoman("translate", copy, "--device", "cpu"))


def test_an_altered_checkpoint(dragoman: Dragoman, copy: Path) -> None:
    weights = copy / "checkpoints" / "best" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    assert "truncated or was altered" in sentence(dragoman("translate", copy, "--device", "cpu"))
    assert "truncated or was altered" in sentence(dragoman("train", copy, "--resume", "--steps", 9))


def test_a_checkpoint_of_another_model(dragoman: Dragoman, copy: Path) -> None:
    best = copy / "checkpoints" / "best"
    weights = checkpoint.read_tensors(best, "model")
    name = next(iter(weights))
    for number, (change, expected) in enumerate(
        [
            ({name: None}, f"lacks the weight {name}"),
            ({"extra": weights[name].clone()}, "has the weight extra"),
            ({name: weights[name][..., :1].clone()}, f"{name} with shape [1], but in this model its shape is"),
        ]
    ):
        changed = {key: value for key, value in (weights | change).items() if value is not None}
        checkpoint.save(copy / "checkpoints" / f"{number}", {"model": changed}, {})
        assert expected in sentence(dragoman("translate", copy, "--checkpoint", number, "--device", "cpu"))


def test_a_missing_checkpoint(dragoman: Dragoman, trained: Path) -> None:
    said = sentence(dragoman("translate", trained, "--checkpoint", "999999", "--device", "cpu"))
    assert "no checkpoint '999999'" in said
    assert "best" in said


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "is damaged"),
        ('{"version": 2, "spec": {}}', "only version 1 is supported"),
        ('{"version": 1, "spec": {"kind": "EncoderDecodr"}}', "did you mean 'EncoderDecoder'"),
    ],
)
def test_a_damaged_model_description(dragoman: Dragoman, copy: Path, content: str, expected: str) -> None:
    (copy / "model.json").write_text(content)
    assert expected in sentence(dragoman("translate", copy, "--device", "cpu"))


def test_a_damaged_tokenizer(dragoman: Dragoman, copy: Path) -> None:
    (copy / "tokenizer.json").write_text("{}")
    assert "tokenizer.json" in sentence(dragoman("translate", copy, "--device", "cpu"))


def test_contradictory_search_settings(dragoman: Dragoman, trained: Path, corpus: Path) -> None:
    for more, expected in [
        (["--beam-size", 2, "--n-best", 3], "a beam of 2 hypotheses cannot return the 3 best"),
        (["--beam-size", 0], "--beam-size must be at least 1"),
        (["--sample", "--top-p", 2], "--top-p must be above 0 and at most 1, but is 2"),
        (["--min-length", 9, "--max-new-tokens", 3], "--min-length is 9, more than the maximum of 3 tokens"),
        (["--search", '{"kind": "Beam", "size": 0}'], "'size' of Beam must be at least 1"),
        (["--beam-size", 100000], "larger than"),
        (["--sample", "--temperature", 0], "--temperature must be above 0"),
        (["--sample", "--top-p", 1.5], "--top-p"),
        (["--sample", "--num-groups", 2], "--sample and --num-groups cannot be combined"),
        (["--min-p", 0.1], "--min-p needs --sample: add --sample"),
    ]:
        answer = dragoman("translate", trained, corpus / "test.en", "--device", "cpu", *more)
        assert expected in sentence(answer)


def test_an_unknown_metric(dragoman: Dragoman, trained: Path, corpus: Path) -> None:
    files = ["--source", corpus / "test.en", "--reference", corpus / "test.de"]
    assert "did you mean 'bleu'" in sentence(dragoman("evaluate", trained, *files, "--metrics", "blue"))


def test_disk_errors_are_explained(tmp_path: Path) -> None:
    for number, expected in [(errno.ENOSPC, "is full"), (errno.EACCES, "no permission to write")]:
        with pytest.raises(Exception, match=expected), os_errors_as_user_errors(tmp_path / "run"):
            raise OSError(number, os.strerror(number))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission(dragoman: Dragoman, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    said = train(dragoman, tmp_path / "locked" / "run", corpus / "train.en", corpus / "train.de")
    assert "no permission to write" in said


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_file(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Exception, match="is full"):
        write_file(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_empty_lines_translate_to_empty_lines_in_place(dragoman: Dragoman, trained: Path, tmp_path: Path) -> None:
    text = file(tmp_path / "text", b"\nThe man sleeps.\n\n  \nAnna reads.\n")
    answer = dragoman("translate", trained, text, "--device", "cpu", "--beam-size", 1)
    assert answer.code == 0, answer.err
    lines = answer.out.split("\n")
    assert len(lines) == 6
    assert [not line for line in lines] == [True, False, True, True, False, True]


def test_input_that_is_not_utf_8_names_the_line(dragoman: Dragoman, trained: Path, tmp_path: Path) -> None:
    text = file(tmp_path / "text", b"fine\nbad \xff\n")
    assert "line 2 is not UTF-8" in sentence(dragoman("translate", trained, text, "--device", "cpu", "--beam-size", 1))


@pytest.mark.parametrize("name", ["a #2", "null", "yes", "x: y"])
def test_an_option_keeps_text_that_looks_like_yaml(
    dragoman: Dragoman, corpus: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = train(dragoman, tmp_path / "run", corpus / "train.en", corpus / "train.de", "--start-from", name)
    assert said.startswith(f"dragoman: {name} does not exist")
