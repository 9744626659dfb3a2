"""The system that is chosen by the corpus."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tokenizers

from dragoman.config import from_dict
from dragoman.data import SentencePair
from dragoman.data.text_profile import count_chunk
from dragoman.training import system_choice
from dragoman.training.prepare import prepare_run
from dragoman.training.system_choice import labelling_system

LETTERS = "abcdefghijklmnop"
PHONEMES = dict(zip(LETTERS, ["a", "b", "k", "d", "e", "f", "g", "h", "i", "dʒ", "k", "l", "m", "n", "o", "p"]))


def choose(folder: Path, phonemes: Callable[[list[str]], list[str]] = list, **sections: Any) -> str | None:
    """Return the system that is chosen for 300 words and their phonemes in another order."""
    random = Random(1)
    words = ["".join(random.choices(LETTERS, k=random.randint(4, 9))) for _ in range(300)]
    pairs = [(word, " ".join(phonemes([PHONEMES[letter] for letter in word]))) for word in words]
    return chosen_system(folder, pairs, **sections)


def chosen_system(folder: Path, pairs: list[tuple[str, str]], **sections: Any) -> str | None:
    """Return the system that is chosen for pairs of source and target."""
    file = folder / "train.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    settings = {"data": {"source": [str(file)]}, "training": {"device": "cpu"}} | sections
    number = len(list(folder.iterdir()))
    prepared = prepare_run(folder / f"run{number}", from_dict(settings), lambda text: None)
    reported = [choice for choice in prepared.choices if choice.setting == "system.name"]
    assert [choice.value for choice in reported] in ([], [prepared.config.system.name])
    return prepared.config.system.name


def test_letters_that_keep_their_order(tmp_path: Path) -> None:
    assert choose(tmp_path) == "hard-monotonic"


def test_letters_between_spaces(tmp_path: Path) -> None:
    random = Random(2)
    words = [random.choices(LETTERS, k=random.randint(4, 9)) for _ in range(300)]
    pairs = [(" ".join(word), " ".join(PHONEMES[letter] for letter in word)) for word in words]
    assert chosen_system(tmp_path, pairs) == "hard-monotonic"


def test_single_tokens_have_no_order(tmp_path: Path) -> None:
    """A target of one token follows any order, but nothing is spelled in it."""
    random = Random(3)
    pairs = [("".join(random.choices(LETTERS, k=6)), random.choice(["N;SG", "N;PL", "V"])) for _ in range(300)]
    assert chosen_system(tmp_path, pairs) == "transformer"


def test_letters_in_another_order(tmp_path: Path) -> None:
    assert choose(tmp_path, lambda phonemes: phonemes[::-1]) == "transformer"
    assert choose(tmp_path, lambda phonemes: phonemes[2:] + phonemes[:2]) == "transformer"


def test_labels_suggest_another_system() -> None:
    random = Random(4)
    words = [f"word{n}" for n in range(300)]
    sentences = [random.choices(words, k=random.randint(3, 9)) for _ in range(300)]
    cases = {
        "tagger": [" ".join(random.choices(["NOUN", "VERB", "DET"], k=len(sentence))) for sentence in sentences],
        "classifier": [random.choice(["good", "bad"]) for _ in sentences],
        "": [" ".join(random.choices(words, k=len(sentence))) for sentence in sentences],  # a translation
    }
    for system, targets in cases.items():
        pairs = [SentencePair(" ".join(source), target, "corpus", 1) for source, target in zip(sentences, targets)]
        suggestion = labelling_system(count_chunk(pairs).profile())
        assert f"--system {system} " in suggestion if system else not suggestion


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"system": {"name": "luong"}}, "luong"),
        ({"system": {"settings": {"dropout": 0.2}}}, "hard-monotonic"),
        ({"system": {"settings": {"heads": 2}}}, "transformer"),  # which the other system does not have
        ({"system": {"size": "small"}}, "hard-monotonic"),
        ({"objective": {"name": "translation"}}, "transformer"),  # whose settings may be those of the Transformer
        ({"text": {"tokenizer": "bpe"}}, "transformer"),
        ({"training": {"recipe": "textbook", "device": "cpu"}}, "transformer"),
    ],
)
def test_what_the_user_has_set(tmp_path: Path, sections: dict[str, Any], expected: str) -> None:
    assert choose(tmp_path, **sections) == expected


def test_imported_tokenizer(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2}, unk_token="<unk>"))
    library.add_special_tokens(["<unk>", "</s>"])
    library.save(str(tmp_path / "tokenizer.json"))
    assert choose(tmp_path, text={"tokenizer_from": str(tmp_path / "tokenizer.json")}) == "transformer"


def test_many_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_choice, "MAX_MONOTONE_PAIRS", 200)
    assert choose(tmp_path) == "transformer"
