"""The command printed after training works for every system and its default objective."""

from __future__ import annotations

import io
import shlex
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calling import Answer, Dragoman

from dragoman import checkpoint, config, load
from dragoman.cli import train
from dragoman.errors import UserError
from dragoman.objectives import OBJECTIVES
from dragoman.run import filling, write_model_file, write_tokenizers
from dragoman.run_files import CHECKPOINT_DIR, CONFIG_FILE
from dragoman.search import Beam, Hypothesis
from dragoman.storage import replace_symlink
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import Tokenizer, learn_tokenizer
from dragoman.training.checkpoint_manager import TrainState
from dragoman.training.resolve import make_framing, resolve_objective

LINES = ["The dog walks in a park .", "A sentence is short .", "Hello . The first words ."]
SMALL = {"model_dim": 16, "layers": 2, "blocks_per_layer": 1, "heads": 2, "feature_dim": 3, "sentinels": 9}
WANTED = {
    "translation": "translate",
    "reward": "translate",
    "minimum-risk": "translate",
    "concatenation": "translate",
    "causal-lm": "generate",
    "dialogue": "generate",
    "unified-lm": "generate",
    "masked-target": "translate",
    "unified-masked-lm": "fill",
    "masked-lm": "fill",
    "replaced-token-detection": "fill",
    "denoising": "fill",
    "span-corruption": "fill",
    "tagging": "tag",
    "classification": "classify",
}


@cache
def tokenizers() -> tuple[Tokenizer, Tokenizer]:
    return learn_tokenizer(LINES, "word", 320), learn_tokenizer(["NOUN VERB"], "word", 100)


def settings_of(system: str) -> dict[str, object]:
    known = SYSTEMS[system].settings()
    return {name: value for name, value in SMALL.items() if name in known}


def defaults() -> list[Any]:
    """Every system with every kind of data that it learns from; the first one of each kind runs by default."""
    found: list[Any] = []
    seen: set[tuple[type, str]] = set()
    for name in SYSTEMS:
        spec = SYSTEMS[name].spec(VocabularySizes(320, 320, joint=True), "tiny", **settings_of(name))
        vectors = "feature_dim" in SYSTEMS[name].settings()
        for holds in spec.default_objectives:
            if (holds == "features") == vectors:
                known = (type(spec), holds) in seen
                found.append(pytest.param(name, holds, marks=pytest.mark.exhaustive if known else ()))
                seen.add((type(spec), holds))
    return found


def make_run(folder: Path, system: str, holds: str = "", objective: str | None = None) -> Path:
    """The folder of a run that nobody has trained."""
    text, tags = tokenizers()
    chosen = config.Config(system=config.SystemConfig(system, "tiny", settings_of(system)))
    spec = SYSTEMS[system].spec(
        VocabularySizes(text.vocab_size, text.vocab_size, joint=True), "tiny", **settings_of(system)
    )
    search = config.SearchDefaults(beam_size=2, max_target_length=4)
    chosen = replace(chosen, objective=config.ObjectiveConfig(objective), search=search)
    chosen = resolve_objective(chosen, spec, holds)
    data_format = OBJECTIVES[chosen.objective.name or ""].data_format
    labelled = data_format in ("tags", "labels")
    if labelled:
        spec = spec.with_labels(tags.vocab_size, of_sequence=data_format == "labels")
    target = tags if labelled else text
    folder.mkdir()
    (folder / CONFIG_FILE).write_text(config.to_yaml(chosen), encoding="utf-8")
    write_model_file(folder, system, spec, make_framing(spec, target))
    write_tokenizers(folder, text, target)
    weights = checkpoint.named_weights(spec.build())
    checkpoint.save(folder / CHECKPOINT_DIR / "000000", {"model": weights}, {"progress": TrainState().to_dict()})
    replace_symlink(folder / CHECKPOINT_DIR / "best", "000000")
    return folder


def do(dragoman: Dragoman, command: str, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Run a command as a shell would, `echo TEXT |` before it and all."""
    said, _, used = command.rpartition(" | ")
    given = io.BytesIO(" ".join(shlex.split(said)[1:]).encode() + b"\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(given))
    program, *arguments = shlex.split(used)
    assert program == "dragoman"
    more = ("--max-new-tokens", 3) if arguments[0] == "generate" else ()
    return dragoman(*arguments, "--device", "cpu", *more)


@pytest.mark.parametrize(("system", "holds"), defaults())
def test_the_command_printed_after_training_works(
    system: str, holds: str, dragoman: Dragoman, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(train, "program_name", lambda: "dragoman")
    run = load(make_run(tmp_path / "run", system, holds), device="cpu")
    command = train.next_commands(run)["use it"]
    if holds == "features":
        np.savez(tmp_path / "some.npz", values=np.zeros((5, 3), np.float32), lengths=[5])
        command = command.replace("FILE.npz", str(tmp_path / "some.npz"))
    answer = do(dragoman, command, monkeypatch)
    assert answer.code == 0, answer.err
    assert answer.out.count("\n") == 1
    assert shlex.split(command.rpartition("| ")[2])[1] == WANTED[run.config.objective.name or ""]


def trained_with(objective: str) -> str:
    """A system that can be trained with an objective."""
    own = {
        "span-corruption": "t5",
        "denoising": "bart",
        "unified-lm": "unilm",
        "unified-masked-lm": "unilm-masked",
        "masked-target": "unilm-masked",
        "replaced-token-detection": "electra",
        "dialogue": "chat",
    }
    other = {
        "masked-lm": "roberta",
        "tagging": "tagger",
        "classification": "classifier",
        "causal-lm": "gpt",
        "concatenation": "transformer-d",
    }
    return (own | other).get(objective, "transformer")


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_wrong_command_names_the_right_one(
    objective: str, dragoman: Dragoman, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = make_run(tmp_path / "run", trained_with(objective), objective=objective)
    for command in ("translate", "generate", "fill", "tag", "classify"):
        answer = do(dragoman, f"echo 'A sentence .' | dragoman {command} {folder}", monkeypatch)
        if OBJECTIVES[objective].supports_command(command):
            assert answer.code == 0, answer.err
        else:
            assert answer.code == 2
            assert f"use 'dragoman {WANTED[objective]} {folder}'" in answer.err


@pytest.mark.parametrize(("system", "architecture"), [("classifier", "encoder"), ("gpt", "decoder")])
def test_a_shortlist_is_not_learned_for_a_model_that_cannot_use_it(
    system: str, architecture: str, dragoman: Dragoman, tmp_path: Path
) -> None:
    answer = dragoman("shortlist", make_run(tmp_path / "run", system, "pairs"))
    assert answer.code == 2
    assert f"has the architecture {architecture}: use it without a shortlist" in answer.err
    assert "learning" not in answer.err


@pytest.mark.parametrize(
    "objective", ["causal-lm", "masked-lm", "replaced-token-detection", "denoising", "span-corruption", "unified-lm"]
)
def test_fine_tuning_is_suggested_for_pretrained_runs(
    objective: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(train, "program_name", lambda: "dragoman")
    folder = make_run(tmp_path / "run", trained_with(objective), objective=objective)
    assert f"--start-from {folder} " in train.next_commands(load(folder, device="cpu"))["fine-tune"]


@pytest.mark.parametrize(("holds", "is_language_model"), [("text", True), ("pairs", False), ("turns", False)])
def test_only_a_decoder_trained_on_text_is_a_language_model(
    holds: str, is_language_model: bool, tmp_path: Path
) -> None:
    """One trained on pairs is a translation model, which reranks as a channel model."""
    assert load(make_run(tmp_path / "run", "gpt", holds), device="cpu").is_language_model is is_language_model


# ---- filling gaps


def test_spans_follow_their_sentinels() -> None:
    assert filling.spans_by_sentinel([7, 900, 1, 2, 901, 902, 3, 901, 4], {900, 901, 902}) == {
        900: [1, 2],
        901: [],
        902: [3],
    }


def test_t5_fills_gaps_with_spans_between_sentinels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The input has a sentinel for each gap; sentinels may be written, and what follows each goes into its gap."""
    run = load(make_run(tmp_path / "run", "t5", "text"), device="cpu")
    tokenizer, size = run.source_tokenizer, run.source_tokenizer.vocab_size
    sentinels = tuple(range(size, size + 9))
    assert set(sentinels) <= set(run.special_tokens.suppressed)  # of every other search
    asked = []

    def decode(search: Beam, writer, given):  # type: ignore[no-untyped-def]
        asked.append((given.source[0].tolist(), writer.special_tokens.suppressed))
        dog, a = tokenizer.encode("dog"), tokenizer.encode("a")
        written = [sentinels[0], *dog, sentinels[1], *a, sentinels[2]]
        return [[Hypothesis(written, -0.5, -0.5, True), Hypothesis([sentinels[1], *a], -1.0, -1.0, True)]]

    monkeypatch.setattr(Beam, "decode", decode)
    for text in ("The <mask> walks in <extra_id_0> park .", "The [MASK] walks in <mask> park ."):
        (filled,) = run.fill([text], top_k=2)
        assert filled.text == "The dog walks in a park ."
        assert filled.alternatives == [("The <mask> walks in a park .", -1.0)]
        assert [[span for span, _ in choices] for choices in filled.choices] == [["dog", ""], ["a", "a"]]
        source, banned = asked.pop()
        assert [token for token in source if token in sentinels] == list(sentinels[:2])
        assert not set(sentinels) & set(banned)
    assert run.fill(["No gap."], top_k=1)[0].text == "No gap."
    assert not asked


def test_lines_without_a_mask_are_reported(dragoman: Dragoman, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", "bart", "text")
    answer = do(dragoman, f"echo 'A sentence .' | dragoman fill {folder}", monkeypatch)
    assert answer.out == "A sentence .\n"
    assert "1 lines without <mask> are printed unchanged, such as: A sentence ." in answer.err


def test_more_masks_than_sentinels_are_rejected(tmp_path: Path) -> None:
    run = load(make_run(tmp_path / "run", "t5", "text"), device="cpu")
    with pytest.raises(UserError, match="a text has 10 gaps, but the model can fill at most 9 gaps of one text"):
        run.fill(["<mask> a " * 10], top_k=1)


def test_bart_generates_the_whole_text(tmp_path: Path) -> None:
    run = load(make_run(tmp_path / "run", "bart", "text"), device="cpu")
    filled, whole = run.fill(["The <mask> walks.", "No gap."], top_k=3)
    assert filled.choices == []
    assert len(filled.alternatives) == 2
    assert (whole.text, whole.alternatives) == ("No gap.", [])
