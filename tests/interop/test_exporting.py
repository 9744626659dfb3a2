"""The frame of all exports: formats, folders, verification, and that a failed export leaves nothing behind."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors import SafetensorError

import dragoman
from dragoman import checkpoint, config
from dragoman.interop import exporting
from dragoman.interop.export_check import (
    ExportCheck,
    ExportSamples,
    beam_outputs,
    count_equal_outputs,
    relative_error,
    sample_pairs,
    teacher_forced_logits,
    with_rounded_weights,
)
from dragoman.interop.exporting import ExportOptions, WrittenExport
from dragoman.run import write_model_file, write_tokenizers
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import learn_tokenizer


class CopyingExporter:
    """Writes one file; the other library is our own, with an error that a test chooses."""

    library: ClassVar[str] = "torch"
    extra: ClassVar[str] = "huggingface"
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)
    writes_model_card: ClassVar[bool] = False
    error: ClassVar[float] = 0.0
    failure: ClassVar[Exception | None] = None

    def __init__(self, options: ExportOptions) -> None:
        self.options = options

    def write(self, run: dragoman.Run, folder: Path) -> WrittenExport:
        (folder / "weights").write_text("1")
        if self.failure:
            raise self.failure
        return WrittenExport("Copy", ("a note",))

    def verify(self, run: dragoman.Run, folder: Path, samples: ExportSamples) -> ExportCheck:
        ours = teacher_forced_logits(run, samples)
        theirs = [logits * (1 + self.error) for logits in ours]
        outputs = [[*h.tokens, *[run.framing.eos] * h.finished] for h in beam_outputs(run, samples.source_ids)]
        equal = count_equal_outputs(run, samples, outputs)
        return ExportCheck("copy 1.0", len(samples), relative_error(ours, theirs), equal_outputs=equal)


@pytest.fixture(autouse=True)
def copying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(exporting.EXPORTERS, "copy", f"{__name__}:CopyingExporter")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dragoman.Run:
    """An untrained translator in a run folder."""
    folder = tmp_path_factory.mktemp("exporting") / "run"
    tokenizer = learn_tokenizer(["The dog sleeps.", "A cat sees an old house."], "bpe", 300)
    vocabulary = VocabularySizes(tokenizer.vocab_size, tokenizer.vocab_size, joint=True)
    spec = SYSTEMS["bahdanau"].spec(vocabulary, "tiny", model_dim=8)
    folder.mkdir()
    search = {"max_target_length": 6, "beam_size": 2, "length_penalty": 1.0}
    settings = config.from_dict({"system": {"name": "bahdanau"}, "search": search}, "the test")
    (folder / "config.yaml").write_text(config.to_yaml(settings))
    write_model_file(folder, "bahdanau", spec, spec.default_framing)
    write_tokenizers(folder, tokenizer, tokenizer)
    checkpoint.save(folder / "checkpoints" / "best", {"model": checkpoint.named_weights(spec.build())}, {})
    return dragoman.load(folder, device="cpu")


def test_an_export_is_verified_and_reported(run: dragoman.Run, tmp_path: Path) -> None:
    result = run.export(tmp_path / "out", "copy")
    assert (tmp_path / "out" / "weights").read_text() == "1"
    assert (result.model, result.notes, result.files) == ("Copy", ("a note",), ("weights",))
    assert result.check is not None
    assert result.check.max_relative_error == 0
    assert result.check.equal_outputs == result.check.sentences > 1
    assert result.verification.startswith("verified with copy 1.0: largest relative error of logits 0.0e+00")


def test_samples_are_the_given_sentences_or_texts_of_the_vocabulary(run: dragoman.Run) -> None:
    samples = sample_pairs(run, None)
    assert len(samples) > 4
    assert all(ids[-1] == run.framing.eos for ids in samples.source_ids)
    assert all(ids[0] == run.framing.bos for ids in samples.target_ids)
    (sentence,) = sample_pairs(run, ["", "The dog sleeps."]).source_ids
    assert run.source_tokenizer.decode(sentence) == "The dog sleeps."
    with pytest.raises(dragoman.UserError, match="all empty lines"):
        sample_pairs(run, [" "])


def leaves_nothing(folder: Path) -> bool:
    return not list(folder.iterdir())


def test_a_mismatch_is_an_error_and_leaves_no_output(
    run: dragoman.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CopyingExporter, "error", 0.01)
    with pytest.raises(dragoman.UserError, match=r"copy 1.0 computes other values .* logits 1.0e-02"):
        run.export(tmp_path / "out", "copy")
    assert leaves_nothing(tmp_path)


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_leaves_no_output(
    run: dragoman.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setattr(CopyingExporter, "failure", failure)
    with pytest.raises(dragoman.UserError, match=r"the disk of .* is full|cannot be written .full"):
        run.export(tmp_path / "out", "copy")
    assert leaves_nothing(tmp_path)


def test_an_existing_folder_is_not_overwritten(run: dragoman.Run, tmp_path: Path) -> None:
    with pytest.raises(dragoman.UserError, match="already exists: choose another name"):
        run.export(tmp_path, "copy")


def test_without_the_other_library_nothing_is_verified(
    run: dragoman.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CopyingExporter, "library", "no_such_package")
    result = dragoman.export(run.folder, tmp_path / "out", "copy", log=lambda text: None)
    assert result.check is None
    assert "nothing was verified, because no_such_package is not installed" in result.verification
    assert (tmp_path / "out" / "weights").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "copyy"}, "unknown format of an export 'copyy': did you mean 'copy'"),
        ({"to": "copy", "license": "mit"}, "which an export to copy does not have: leave out --license"),
        ({"to": "copy", "dtype": "int8"}, "an export to copy can store weights as float32, not as 'int8'"),
    ],
)
def test_wrong_options(run: dragoman.Run, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(dragoman.UserError, match=message):
        run.export(tmp_path / "out", **options)


def test_an_ensemble_is_not_exported(run: dragoman.Run, tmp_path: Path) -> None:
    with pytest.raises(dragoman.UserError, match="is an ensemble"):
        run.ensemble(run).export(tmp_path / "out", "copy")


def test_relative_error() -> None:
    """|5 − 4| / 5 in the first sample; the second is equal; NaN is infinite."""
    ours = [torch.tensor([[1.0, -5.0]]), torch.tensor([[2.0]])]
    assert relative_error(ours, [[[1.0, -4.0]], [[2.0]]]) == pytest.approx(0.2)
    assert relative_error(ours[1:], [[[float("nan")]]]) == float("inf")
    with pytest.raises(dragoman.UserError, match=r"shape \[1\], but the original run returns shape \[1, 1\]"):
        relative_error(ours[1:], [[2.0]])


def test_another_output_is_equal_only_if_its_score_is(run: dragoman.Run) -> None:
    samples = sample_pairs(run, ["The dog sleeps."])
    assert count_equal_outputs(run, samples, [[9, 10, 11]]) == 0
    assert count_equal_outputs(run, samples, [[]]) == 0


def test_rounded_weights(run: dragoman.Run) -> None:
    rounded = with_rounded_weights(run, torch.bfloat16)
    weight, original = next(rounded.model.parameters()), next(run.model.parameters())
    torch.testing.assert_close(weight, original.bfloat16().float(), rtol=0, atol=0)
    assert with_rounded_weights(run, torch.float32) is run
