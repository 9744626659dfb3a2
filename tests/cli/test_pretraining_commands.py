"""Pretraining, fine-tuning and what encoders and decoders alone are for, as a user calls them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from dragoman import checkpoint, load
from dragoman.cli import main
from dragoman.data import phrasebook

SMALL = ("model_dim=16", "layers=1", "heads=2")


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Dragoman = Callable[..., Answer]


def called(*arguments: object) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["dragoman", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)


@pytest.fixture
def dragoman(capfd: pytest.CaptureFixture[str]) -> Dragoman:
    def call(*arguments: object) -> Answer:
        capfd.readouterr()
        code = called(*arguments)
        return Answer(code, *capfd.readouterr())

    return call


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "phrasebook"
    phrasebook.write(folder, pairs=200, valid=10, test=10)
    for name in ("train", "valid"):
        lines = (folder / f"{name}.en").read_text(encoding="utf-8").splitlines()
        tagged = [
            f"{line}\t{' '.join('UP' if word[0].isupper() else 'low-er' for word in line.split())}" for line in lines
        ]
        (folder / f"{name}.tsv").write_text("".join(f"{line}\n" for line in tagged), encoding="utf-8")
    dialogues = [{"turns": ["Hello .", "Good day .", "Who are you ?", f"Number {n} ."]} for n in range(60)]
    (folder / "dialogues.jsonl").write_text("".join(json.dumps(one) + "\n" for one in dialogues), encoding="utf-8")
    return folder


def options(*settings: str, steps: int = 3) -> list[object]:
    common = (
        "training.batch_tokens=800",
        "training.validation_interval=2",
        "training.validation_sentences=3",
        "text.vocab_size=400",
    )
    pairs = [part for setting in (*common, *settings) for part in ("--set", setting)]
    return ["--steps", steps, "--device", "cpu", *pairs]


def small(system: str, **others: object) -> list[object]:
    settings = [f"system.settings.{setting}" for setting in SMALL]
    return ["--system", system, *options(*settings)]


@pytest.fixture(scope="module")
def runs(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small run of each kind: a language model, masked words, denoising."""
    folder = tmp_path_factory.mktemp("runs")
    text = ["--source", corpus / "train.en", "--valid-source", corpus / "valid.en"]
    assert called("train", folder / "gpt", *text, *small("gpt")) == 0
    assert called("train", folder / "bert", *text, *small("bert")) == 0
    both = ["--source", corpus / "train.en", "--source", corpus / "train.de", "--valid-source", corpus / "valid.en"]
    assert called("train", folder / "bart", *both, *small("bart")) == 0
    return folder


def test_training_on_text_uses_the_default_objective_of_the_system(runs: Path) -> None:
    names = {name: load(runs / name).config.objective for name in ("gpt", "bert", "bart")}
    assert {name: objective.name for name, objective in names.items()} == {
        "gpt": "causal-lm",
        "bert": "masked-lm",
        "bart": "denoising",
    }
    assert names["bert"].settings == {"mask_copies": 10, "next_sentence": True}


@pytest.mark.parametrize(("name", "shown"), [("bert", "<mask>"), ("bart", "<mask>")])
def test_pretraining_shows_corrupted_inputs_with_their_targets(runs: Path, name: str, shown: str) -> None:
    """Before training, at every validation, and in the report."""
    before = json.loads((runs / name / "preflight.json").read_text(encoding="utf-8"))["examples"]
    assert before
    assert any(shown in one["input"] for one in before)
    assert all(one["target"] for one in before)
    samples = (runs / name / "samples" / "000002.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(samples) == 5
    assert any(shown in json.loads(line)["source"] for line in samples)
    assert "corrupted as in pretraining" in (runs / name / "report.html").read_text(encoding="utf-8")


def test_generate_continues_a_prompt(runs: Path, dragoman: Dragoman, tmp_path: Path) -> None:
    (tmp_path / "prompts").write_text("The old man\n\nA book\n", encoding="utf-8")
    answer = dragoman("generate", runs / "gpt", tmp_path / "prompts", "--max-new-tokens", 4, "--device", "cpu")
    lines = answer.out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("The old man")
    assert lines[2].startswith("A book")
    again = dragoman("generate", runs / "gpt", tmp_path / "prompts", "--max-new-tokens", 4, "--device", "cpu")
    assert again.out == answer.out
    other = dragoman(
        "generate", runs / "gpt", tmp_path / "prompts", "--max-new-tokens", 4, "--seed", 1, "--device", "cpu"
    )
    assert other.out != answer.out
    best = dragoman(
        "generate", runs / "gpt", tmp_path / "prompts", "--beam-size", 3, "--n-best", 2, "--json", "--device", "cpu"
    )
    found = json.loads(best.out)
    assert [len(one["alternatives"]) for one in found] == [1, 1, 1]
    assert found[0]["score"] >= found[0]["alternatives"][0]["score"] or True


def test_a_language_model_scores_texts_without_sources(runs: Path, dragoman: Dragoman, tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("The old man reads.\nA book.\n", encoding="utf-8")
    answer = dragoman("score", runs / "gpt", "--target", tmp_path / "texts", "--device", "cpu")
    scores = [float(line) for line in answer.out.splitlines()]
    run = load(runs / "gpt", device="cpu")
    ids = [2, *run.target_tokenizer.encode("A book."), 3]
    log_p = run.logits(None, torch.tensor([ids[:-1]]))[0].log_softmax(-1)
    expected = sum(float(log_p[i, token]) for i, token in enumerate(ids[1:]))
    assert scores[1] == pytest.approx(expected, abs=1e-3)
    refused = dragoman("score", runs / "bart", "--target", tmp_path / "texts", "--device", "cpu")
    assert refused.code == 2
    assert "whose scores need sources" in refused.err


def test_fill_predicts_masked_tokens(runs: Path, dragoman: Dragoman, tmp_path: Path) -> None:
    (tmp_path / "masked").write_text("The old <mask> reads a [MASK].\nNothing here.\n", encoding="utf-8")
    answer = dragoman("fill", runs / "bert", tmp_path / "masked", "--json", "--top-k", 3, "--device", "cpu")
    first, second = json.loads(answer.out)
    assert [len(choices) for choices in first["choices"]] == [3, 3]
    assert first["text"].startswith("The old")
    assert "mask" not in first["text"].lower()
    assert (second["text"], second["choices"]) == ("Nothing here.", [])


def test_a_run_is_fine_tuned_from_another(runs: Path, corpus: Path, dragoman: Dragoman, tmp_path: Path) -> None:
    files = ["--source", corpus / "train.en", "--target", corpus / "train.de"]
    files += ["--valid-source", corpus / "valid.en", "--valid-target", corpus / "valid.de"]
    run = tmp_path / "translator"
    answer = dragoman(
        "train", run, "--start-from", runs / "bart", *files, *options()[:-8], "--set", "training.batch_tokens=800"
    )
    assert answer.code == 0, answer.err
    assert re.search(r"\d+ weights \([\d,]+ parameters\) are loaded", answer.err)
    assert "randomly initialized" not in answer.err
    begun = checkpoint.read_tensors(run / "initial", "model")
    origin = checkpoint.read_tensors(runs / "bart" / "checkpoints" / "best", "model")
    assert all(torch.equal(begun[name], origin[name]) for name in origin)
    assert (run / "tokenizer.json").read_text() == (runs / "bart" / "tokenizer.json").read_text()
    assert load(run).config.objective.name == "translation"
    shutil.move(runs / "bart", tmp_path / "elsewhere")  # the new run needs the old one no more
    try:
        assert dragoman("train", run, "--resume", "--steps", 5).code == 0
    finally:
        shutil.move(tmp_path / "elsewhere", runs / "bart")


def test_many_files_are_processed_like_one(runs: Path, corpus: Path, dragoman: Dragoman, tmp_path: Path) -> None:
    inputs = tmp_path / "in"
    inputs.mkdir()
    lines = ["The <mask> sleeps .", "A <mask>", "The old <mask> reads a book ."]
    (inputs / "a.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    records = "".join(json.dumps({"id": 1, "text": line}) + "\n" for line in lines)
    (inputs / "b.jsonl").write_text(records, encoding="utf-8")
    for run, command, key, options in (
        ("gpt", "generate", "generated", ("--beam-size", 2, "--max-new-tokens", 5)),
        ("gpt", "score", "score", ()),
        ("bert", "fill", "filled", ()),
    ):
        file = ("--target", inputs / "a.txt") if command == "score" else (inputs / "a.txt",)
        alone = dragoman(command, runs / run, *file, *options, "--device", "cpu").out
        output = tmp_path / command
        files = ("--input", f"{inputs}/*", "--output", output, *options, "--device", "cpu")
        answer = dragoman(command, runs / run, *files)
        assert answer.code == 0, answer.err
        assert (output / "a.txt").read_text(encoding="utf-8") == alone
        rows = [json.loads(line) for line in (output / "b.jsonl").read_text(encoding="utf-8").splitlines()]
        values = [row[key] for row in rows]
        assert [f"{value:.4f}" if isinstance(value, float) else value for value in values] == alone.splitlines()
    assert "--top-k cannot be used with --input" in dragoman("fill", runs / "bert", *files, "--top-k", 3).err
    assert "--num-workers needs --input" in dragoman("fill", runs / "bert", inputs / "a.txt", "--num-workers", 2).err


def test_samples_of_different_lines_differ(runs: Path, dragoman: Dragoman, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The old\n" * 600, encoding="utf-8")
    sampled = ("--max-new-tokens", 4, "--block-kib", 1, "--device", "cpu")  # in five blocks
    files = ("--input", tmp_path / "a.txt", "--output", tmp_path / "out")
    assert dragoman("generate", runs / "gpt", *files, *sampled).code == 0
    lines = (tmp_path / "out" / "a.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 600
    assert lines[:100] != lines[128:228]  # the beginnings of two blocks


def test_a_tagger_starts_from_an_encoder(runs: Path, corpus: Path, dragoman: Dragoman, tmp_path: Path) -> None:
    run = tmp_path / "tagger"
    files = ["--source", corpus / "train.tsv", "--valid-source", corpus / "valid.tsv"]
    answer = dragoman("train", run, "--start-from", runs / "bert", *files, "--steps", 30, "--device", "cpu")
    assert answer.code == 0, answer.err
    assert "are not used" in answer.err
    assert "output.weight" in answer.err
    assert "are new" in answer.err
    (tmp_path / "text").write_text("The old man reads .\n\nA Book\n", encoding="utf-8")
    tags = dragoman("tag", run, tmp_path / "text", "--device", "cpu").out.splitlines()
    assert [len(line.split()) for line in tags] == [5, 0, 2]
    assert set(" ".join(tags).split()) <= {"UP", "low-er"}
    many = dragoman("tag", run, "--input", tmp_path / "text", "--output", tmp_path / "many", "--device", "cpu")
    assert many.code == 0, many.err
    assert (tmp_path / "many" / "text").read_text().splitlines() == tags
    wrong = ("--input", tmp_path / "text", "--output", tmp_path / "wrong")
    assert "'classify' cannot use" in dragoman("classify", run, *wrong).err
    assert not (tmp_path / "wrong").exists()
    columns = dragoman("tag", run, tmp_path / "text", "--columns", "--device", "cpu").out.splitlines()
    assert columns[0].split("\t")[0] == "The"
    (tmp_path / "gold").write_text("UP low-er low-er low-er low-er\n\nUP UP\n", encoding="utf-8")
    scored = dragoman(
        "evaluate", run, "--source", tmp_path / "text", "--reference", tmp_path / "gold", "--device", "cpu"
    )
    assert "accuracy" in scored.out
    assert dragoman("translate", run, tmp_path / "text").code == 2


def test_training_on_dialogues(corpus: Path, dragoman: Dragoman, tmp_path: Path) -> None:
    run = tmp_path / "chat"
    assert dragoman("train", run, "--source", corpus / "dialogues.jsonl", *small("chat")).code == 0
    assert load(run).config.objective.name == "dialogue"
    (tmp_path / "said").write_text("Hello .\nHello .\tGood day .\tWho are you ?\n", encoding="utf-8")
    assert len(dragoman("translate", run, tmp_path / "said", "--device", "cpu").out.splitlines()) == 2


def test_word_vectors_initialize_embeddings(corpus: Path, dragoman: Dragoman, tmp_path: Path) -> None:
    words = ["the", "old", "man", "house", "nonsense"]
    lines = [f"{word} {' '.join(str(n + i / 10) for i in range(16))}" for n, word in enumerate(words)]
    (tmp_path / "glove.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = ["--source", corpus / "train.en", "--target", corpus / "train.de"]
    run = tmp_path / "run"
    answer = dragoman("train", run, *files, "--source-word-vectors", tmp_path / "glove.txt", *small("transformer"))
    assert answer.code == 0, answer.err
    assert "words of the vocabulary" in answer.err
    loaded = load(run)
    number = loaded.source_tokenizer.encode("the")
    begun = checkpoint.read_tensors(run / "initial", "model")
    table = begun["target_embedding.weight"][number[0]] * 4  # √16
    assert table.tolist() == pytest.approx([i / 10 for i in range(16)], abs=1e-5)
    narrow = dragoman(
        "train", tmp_path / "other", *files, "--source-word-vectors", tmp_path / "glove.txt", "--size", "tiny"
    )
    assert narrow.code == 2
    assert "has word vectors of size 16, but the embeddings of the model have size 128" in narrow.err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--system", "gpt", "--objective", "maskd-lm"], "unknown objective 'maskd-lm': did you mean 'masked-lm'?"),
        (
            ["--system", "gpt", "--objective", "masked-lm"],
            "needs a model of kind EncoderOnly, but the system is of kind",
        ),
        ([], "has only sources: give the file of the targets with --target, or --format tsv"),
        (["--start-from", "nowhere"], "nowhere does not exist: name a run folder"),
        (["--system", "bert", "--set", "objective.settings.mask_rate=2.0"], "must be from 0 to 1"),
    ],
)
def test_impossible_pretraining_is_rejected(
    arguments: list[str], message: str, corpus: Path, dragoman: Dragoman, tmp_path: Path
) -> None:
    answer = dragoman("train", tmp_path / "run", "--source", corpus / "train.en", *arguments)
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") <= 5
    assert not (tmp_path / "run").exists()


def test_another_number_of_tags_than_words_is_rejected(dragoman: Dragoman, tmp_path: Path) -> None:
    (tmp_path / "tags.tsv").write_text("one two\tA B\nthree four\tA\n" * 20, encoding="utf-8")
    answer = dragoman("train", tmp_path / "run", "--system", "tagger", "--source", tmp_path / "tags.tsv")
    assert answer.code == 2
    assert "tags.tsv, line 2 has 2 words but 1 tags: expected one tag per word" in answer.err
    assert not (tmp_path / "run").exists()
