"""Shortlists: what is learned, and that a shortlist of everything changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman import load
from dragoman.config import from_dict
from dragoman.data import lexical_model, phrasebook
from dragoman.data.lexical_model import alignment_statistics, learn_lexical_model
from dragoman.data.token_store import TokenStore
from dragoman.errors import UserError
from dragoman.run import Run
from dragoman.search import Beam, LengthLimit, Sample, SpecialTokens
from dragoman.search.shortlist import SHORTLIST_FILE, Shortlist, learn_shortlist
from dragoman.training.display import Display
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer

TEXTS = ["the dog sleeps .", "a cat sees the old house .", "", "we read ."]
SHORT = LengthLimit(0, 8, 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shortlist")
    phrasebook.write(folder / "corpus", 400, seed=1, valid=20, test=20)
    names = {"source": "train.en", "target": "train.de", "valid_source": "valid.en", "valid_target": "valid.de"}
    files = {side: [str(folder / "corpus" / name)] for side, name in names.items()}
    system = {"name": "transformer", "size": "tiny", "settings": {"model_dim": 16, "layers": 1}}
    training = {
        "steps": 3,
        "validation_interval": 3,
        "validation_sentences": 1,
        "seed": 1,
        "device": "cpu",
        "batch_tokens": 400,
    }
    text = {"vocab_size": 400, "shared_vocabulary": False}
    config = {"data": files, "text": text, "system": system, "training": training}
    prepare_run(folder / "run", from_dict(config), lambda text: None)
    Trainer(folder / "run", Display()).train()
    return folder / "run"


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return load(folder, device="cpu")


def learned(run: Run, **settings: int) -> Shortlist:
    sizes = run.source_tokenizer.vocab_size, run.target_tokenizer.vocab_size
    return learn_shortlist(TokenStore(run.folder / "data" / "train"), sizes, **settings)


def of_source(found: Shortlist, piece: int) -> list[int]:
    return found.translations[found.starts[piece] : found.starts[piece + 1]].tolist()


class Pairs:
    """A store that is in memory."""

    monolingual = False

    def __init__(self, sources: list[list[int]], targets: list[list[int]]) -> None:
        self.columns = [Column(sources), Column(targets)]

    def __len__(self) -> int:
        return len(self.columns[0].lengths)


class Column:
    features = 0

    def __init__(self, rows: list[list[int]]) -> None:
        self.all = [np.array(row, np.int32) for row in rows]
        self.lengths = np.array([len(row) for row in rows], np.int32)

    def rows(self, indices: np.ndarray) -> np.ndarray:
        return np.concatenate([self.all[index] for index in indices])


def test_model_1_finds_who_translates_whom() -> None:
    """das Haus / the house, das Buch / the book, ein Buch / a book (Knight 1999): by the second round all is clear."""
    store = Pairs([[0, 1], [0, 2], [3, 2]], [[0, 1], [0, 2], [3, 2]])
    found = learn_shortlist(store, (4, 4), translations=1, frequent=0)  # type: ignore[arg-type]
    assert [of_source(found, piece) for piece in range(4)] == [[0], [1], [2], [3]]


def test_probabilities_are_those_worked_out_by_hand() -> None:
    """After one round from p(t|s) = c(s, t) / c(s) over {a b / x y, a / x}: p(x|a) = 2/3 and p(y|a) = 1/3 of a's three
    meetings, p(x|b) = p(y|b) = 1/2. The x of the first pair is a's by (2/3) / (2/3 + 1/2) = 4/7 and its y by
    (1/3) / (1/3 + 1/2) = 2/5, the x of the second all a's: a has 11/7 of x and 2/5 of y, and b 3/7 and 3/5."""
    model = learn_lexical_model(Pairs([[0, 1], [0]], [[0, 1], [0]]), (2, 2), 9, iterations=1)  # type: ignore[arg-type]
    assert model.counts.tolist() == pytest.approx([11 / 7, 2 / 5, 3 / 7, 3 / 5])


@pytest.mark.parametrize(
    ("reorder", "share"),
    [
        (lambda tokens: tokens, 1.0),
        (lambda tokens: tokens[::-1], 0.25),  # of four different tokens any single one
        (lambda tokens: tokens[2:] + tokens[:2], 0.5),  # two parts that change places
    ],
)
def test_share_of_monotone_alignments(reorder: Callable[[list[int]], list[int]], share: float) -> None:
    sources = list(map(list, permutations(range(6), 4)))
    store: Any = Pairs(sources, [reorder(source) for source in sources])
    assert alignment_statistics(store, (6, 6)).monotone == pytest.approx(share)


def test_share_of_information_that_source_tokens_give() -> None:
    """All of it if each target token has a source token of its own, nothing if all sources are the same token."""
    sources = list(map(list, permutations(range(6), 4)))
    store: Any = Pairs(sources, sources)
    assert alignment_statistics(store, (6, 6)).explained > 0.8  # after five iterations
    store = Pairs([[0]] * len(sources), sources)
    assert alignment_statistics(store, (1, 6)).explained == pytest.approx(0, abs=1e-6)
    store = Pairs([[0], [0]], [[1, 1], [1]])
    assert alignment_statistics(store, (1, 2)).explained == 0  # a target that is always the same has no information


def test_features_are_no_positions() -> None:
    sources = list(map(list, permutations(range(6), 4)))
    store: Any = Pairs([[6, *source] for source in sources], [[*source, 6] for source in sources])
    # the last of five tokens is the feature's
    assert alignment_statistics(store, (7, 7)).monotone == pytest.approx(0.8)
    assert alignment_statistics(store, (7, 7), ignored=range(6, 7)).monotone > 0.9


def test_what_is_looked_at_together_does_not_matter(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = learned(run)
    monkeypatch.setattr(lexical_model, "MAX_BATCH_LINKS", 1000)
    bits = learned(run)
    assert np.array_equal(whole.starts, bits.starts)
    assert np.array_equal(whole.frequent, bits.frequent)


def test_no_more_is_kept_than_there_is_room_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexical_model, "MAX_BATCH_LINKS", 1000)
    monkeypatch.setattr(lexical_model, "MAX_TABLE_ENTRIES", 500)
    assert 0 < len(learned(run).translations) <= 500


@pytest.mark.parametrize(
    "search", [Beam(1, length_limit=SHORT), Beam(4, length_limit=SHORT), Sample(2, length_limit=SHORT, seed=3)]
)
def test_a_shortlist_of_the_whole_vocabulary_changes_nothing(run: Run, search: Beam | Sample) -> None:
    size = run.model.vocab_size
    everything = run.with_shortlist(Shortlist(np.arange(size), np.zeros(2, np.int64), np.zeros(0, np.int64), size))
    for settings in ({}, {"prefixes": ["der", "", "", "wir"]}):
        one, other = (some.translate(TEXTS, search=search, **settings) for some in (run, everything))
        assert [translation.tokens for translation in one] == [translation.tokens for translation in other]
        assert [translation.score for translation in one] == pytest.approx([t.score for t in other], abs=1e-4)


def test_only_what_is_on_the_list_is_written(run: Run) -> None:
    found = learned(run, translations=3, frequent=5)
    allowed = set(found.frequent.tolist()) | set(found.translations.tolist()) | set(run.target_tokenizer.encode("zzz"))
    few = run.with_shortlist(found)
    for translation in few.translate(TEXTS, search=Beam(4, length_limit=SHORT)):
        assert set(run.target_tokenizer.tokens_to_ids(translation.tokens)) <= allowed
    begun = few.translate(["we read ."], search=Beam(4, length_limit=SHORT), prefixes=["zzz"])[0]
    assert begun.text.startswith("zzz")


def test_pieces_of_the_sources_and_symbols_are_chosen() -> None:
    found = Shortlist(np.array([7]), np.array([0, 2, 3, 3]), np.array([4, 5, 9]), 20)
    chosen = found.select(torch.tensor([[0, 2], [0, 19]]), SpecialTokens(1, 2, (3,)))
    assert chosen.token_ids.tolist() == [1, 2, 3, 4, 5, 7]
    assert chosen.local_special_tokens(SpecialTokens(1, 2, (3,))) == SpecialTokens(0, 1, (2,))


def test_it_is_kept_in_the_run(run: Run, folder: Path) -> None:
    with pytest.raises(UserError, match="has no vocabulary shortlist"):
        run.with_shortlist()
    learned(run).save(folder)
    assert run.with_shortlist().translate(TEXTS[:1], search=Beam(2, length_limit=SHORT))[0].tokens
    with pytest.raises(UserError, match="shortlist does not work with required or forbidden phrases"):
        run.with_shortlist().translate(TEXTS[:1], search=Beam(2, length_limit=SHORT), exclude=["der"])
    (folder / SHORTLIST_FILE).write_bytes(b"nothing")
    with pytest.raises(UserError, match="is damaged"):
        run.with_shortlist()
