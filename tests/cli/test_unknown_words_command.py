"""Unknown words of a closed vocabulary, replaced through the alignment when a run translates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dragoman import load
from dragoman.cli import main
from dragoman.errors import UserError
from dragoman.run import Run, pair_scoring, translator
from dragoman.search import Beam, Hypothesis


def train(folder: Path, kind: str, system: str) -> Path:
    nouns = ["man", "dog", "house", "tree", "book", "sun"]
    english = [f"the {a} sees the {b}" for a in nouns for b in nouns]
    (folder / "en").write_text("".join(f"{line}\n" for line in english), encoding="utf-8")
    (folder / "de").write_text("".join(f"{line.upper()}\n" for line in english), encoding="utf-8")
    settings = [
        "system.settings.model_dim=16",
        f"text.tokenizer={kind}",
        "text.vocab_size=400",
        "training.batch_tokens=400",
    ]
    arguments = ["train", folder / "run", "--source", folder / "en", "--target", folder / "de", "--steps", 2]
    arguments += ["--system", system, "--device", "cpu", *(x for s in settings for x in ("--set", s))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["dragoman", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    return folder / "run"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Says “THE <unk> SEES”, and looks at the source word in the same place each time."""
    loaded = load(train(tmp_path, "word", "bahdanau"), device="cpu")
    tokens = [*loaded.target_tokenizer.encode("THE"), loaded.target_tokenizer.unk]
    tokens += loaded.target_tokenizer.encode("THE SEES")[1:]
    said = Hypothesis(tokens, -1.0, -1.0, True)
    monkeypatch.setattr(Beam, "decode", lambda search, run, request: [[said]] * len(request.source))

    def diagonal(run: Run, source: torch.Tensor, lengths: torch.Tensor, targets: list[list[int]]) -> torch.Tensor:
        return torch.eye(len(targets[0]) + 1, source.shape[1])[None]

    monkeypatch.setattr(translator, "batch_cross_attention", diagonal)
    monkeypatch.setattr(pair_scoring, "batch_cross_attention", diagonal)
    return loaded


def test_unknown_words_are_translated_by_the_dictionary_or_copied(run: Run) -> None:
    plain = run.translate(["the zebra sees the dog", ""])
    assert [t.text for t in plain] == ["THE <unk> SEES", ""]
    copied = run.translate(["the zebra sees the dog", ""], dictionary={})
    assert [t.text for t in copied] == ["THE zebra SEES", ""]
    assert copied[0].alignment == [(0, 0), (1, 1), (2, 2)]
    assert run.translate(["the zebra sees"], dictionary={"zebra": "ZEBRA"})[0].text == "THE ZEBRA SEES"
    two = run.translate(["the zebra sees"], dictionary={"zebra": "GESTREIFTES PFERD"})[0]
    assert two.text == "THE GESTREIFTES PFERD SEES"
    assert two.alignment == [(0, 0), (1, 1), (1, 2), (2, 3)]


def test_subword_tokenizers_have_no_unknown_words(tmp_path: Path) -> None:
    run = load(train(tmp_path, "bpe", "bahdanau"), device="cpu")
    with pytest.raises(UserError, match="of kind 'bpe', which has no unknown words"):
        run.translate(["the dog"], dictionary={})


def test_replacing_unknown_words_needs_attention(tmp_path: Path) -> None:
    run = load(train(tmp_path, "word", "cho"), device="cpu")
    with pytest.raises(UserError, match="has no attention, by which they are aligned"):
        run.translate(["the dog"], dictionary={})
