"""A shortlist of the vocabulary: which target pieces are worth looking at, by what the source says.

The output layer of a step multiplies by one row for every piece of the vocabulary, though a sentence is translated
with a few hundred of them. For each source piece the likeliest translations are learned from the training data by a
lexical model (Brown et al. 1993, IBM model 1), p(t|s), and a search looks only at those of its sources' pieces, at the
most frequent ones, and at the symbols. Probabilities are then shares among these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from torch import Tensor

from dragoman.data.token_store import TokenStore
from dragoman.errors import UserError
from dragoman.search.engine import SpecialTokens
from dragoman.search.search_state import ConstraintTensors, Hypothesis
from dragoman.storage import write_file

SHORTLIST_FILE = "shortlist.safetensors"
LINKS = 2**22  # pairs of a source and a target piece that are looked at together
ENTRIES = 2**24  # pairs of pieces of which a probability is kept
ROUNDS = 3

Numbers = NDArray[np.int64]


class Links(NamedTuple):
    """Every piece of a target beside every piece of its source, target by target."""

    source: Numbers
    target: Numbers
    begins: Numbers  # where the links of each target piece begin


@dataclass(frozen=True)
class VocabularySubset:
    """The pieces that one search looks at: number n there is piece `pieces[n]` of the vocabulary."""

    token_ids: Tensor  # sorted

    def to_local(self, pieces: Tensor) -> Tensor:
        """Where some of the pieces stand among these."""
        return torch.searchsorted(self.token_ids, pieces)

    def local_special_tokens(self, symbols: SpecialTokens) -> SpecialTokens:
        """The symbols by their numbers here."""

        def here(tokens: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(self.to_local(torch.tensor(tokens, dtype=torch.long, device=self.token_ids.device)).tolist())

        start = symbols.bos if isinstance(symbols.bos, Tensor) else here((symbols.bos,))[0]
        start = self.to_local(start) if isinstance(start, Tensor) else start
        banned, forced = here(symbols.suppressed), here(symbols.forced_bos)
        return replace(symbols, bos=start, eos=here((symbols.eos,))[0], suppressed=banned, forced_bos=forced)

    def local_constraints(self, constraints: ConstraintTensors) -> ConstraintTensors:
        """What targets must begin with, by its numbers here."""
        prefix = constraints.prefix
        return constraints if prefix is None else replace(constraints, prefix=self.to_local(prefix))

    def to_global(self, found: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
        """Hypotheses in the vocabulary's own numbers."""
        own = self.token_ids.tolist()
        return [[one._replace(tokens=[own[token] for token in one.tokens]) for one in some] for some in found]


class Shortlist:
    """Of every source piece its likeliest translations, and the most frequent target pieces."""

    def __init__(self, frequent: Numbers, begins: Numbers, pieces: Numbers, vocabulary: int) -> None:
        """The pieces of source piece s stand from `begins[s]` to `begins[s + 1]`."""
        self.frequent, self.begins, self.pieces, self.vocabulary = frequent, begins, pieces, vocabulary

    def select(self, source: Tensor, symbols: SpecialTokens, others: Iterable[Tensor] = ()) -> VocabularySubset:
        """For sources, B S; `others` are pieces that are wanted besides."""
        seen = source.flatten().unique().cpu().numpy()
        seen = seen[seen < len(self.begins) - 1]
        begins, ends = self.begins[seen], self.begins[seen + 1]
        places = np.repeat(begins - np.cumsum(ends - begins) + (ends - begins), ends - begins)
        found = [self.frequent, self.pieces[places + np.arange(len(places))]]
        start = symbols.bos.cpu() if isinstance(symbols.bos, Tensor) else torch.tensor([symbols.bos])
        found += [np.array([symbols.eos, *symbols.suppressed, *symbols.forced_bos]), start.numpy()]
        found += [other.flatten().cpu().numpy() for other in others]
        return VocabularySubset(torch.from_numpy(np.unique(np.concatenate(found).astype(np.int64))).to(source.device))

    def save(self, folder: Path) -> None:
        arrays = {"frequent": self.frequent, "begins": self.begins, "pieces": self.pieces}
        write_file(folder / SHORTLIST_FILE, save({**arrays, "vocabulary": np.array([self.vocabulary])}))

    @staticmethod
    def load(folder: Path, vocabulary: int) -> Shortlist:
        path = folder / SHORTLIST_FILE
        if not path.exists():
            raise UserError(f"{folder} has no shortlist: learn one with 'dragoman shortlist {folder}'")
        try:
            arrays = load_file(path)
            frequent, begins, pieces = (arrays[name].astype(np.int64) for name in ("frequent", "begins", "pieces"))
            own = int(arrays["vocabulary"][0])
        except (SafetensorError, KeyError, IndexError, OSError):
            raise UserError(f"{path} is damaged: learn it anew with 'dragoman shortlist {folder}'") from None
        whole = not len(pieces) or 0 <= pieces.min() <= pieces.max() < own
        if (
            own != vocabulary
            or not whole
            or not len(begins)
            or begins[-1] != len(pieces)
            or (np.diff(begins) < 0).any()
        ):
            raise UserError(f"{path} does not belong to this model: learn it anew with 'dragoman shortlist {folder}'")
        return Shortlist(frequent, begins, pieces, own)


def learn_shortlist(
    store: TokenStore, sizes: tuple[int, int], translations: int = 100, frequent: int = 100, max_pairs: int = 200_000
) -> Shortlist:
    """From up to `pairs` training pairs, spread over the store, with vocabularies of such sizes.

    `best` translations of every source piece are kept. What is kept while learning does not grow with the store: where
    too many pieces have met, those that did so least are forgotten.
    """
    if store.monolingual or any(side.features for side in store.columns):
        raise UserError("a shortlist is learned from pairs of texts, which this run was not trained on")
    rows = np.unique(np.linspace(0, len(store) - 1, min(max_pairs, len(store))).astype(np.int64))
    keys, weights = np.zeros(0, np.int64), np.zeros(0)
    seen = np.zeros(sizes[1], np.int64)
    for links in _links(store, rows):
        keys, weights = _met(keys, weights, links.source * sizes[1] + links.target)
        seen += np.bincount(links.target[links.begins], minlength=sizes[1])
    for _ in range(ROUNDS):
        share = _shares(keys, weights, sizes)
        weights = np.zeros(len(keys))
        for links in _links(store, rows):
            key = links.source * sizes[1] + links.target
            place = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
            p = np.where(keys[place] == key, share[place], 0.0)
            total = np.add.reduceat(p, links.begins)  # Σ_s p(t|s) of each target piece
            counts = np.diff(links.begins, append=len(p))
            weights += np.bincount(place, p / np.repeat(np.maximum(total, 1e-12), counts), len(keys))
    return _best(keys, weights, seen, sizes, translations, frequent)


def _met(keys: Numbers, weights: NDArray[np.float64], new: Numbers) -> tuple[Numbers, NDArray[np.float64]]:
    """How often pieces have met, with more meetings counted in."""
    more, count = np.unique(new, return_counts=True)
    keys, place = np.unique(np.concatenate((keys, more)), return_inverse=True)
    weights = np.bincount(place, np.concatenate((weights, count)), len(keys)).astype(np.float64)
    if len(keys) > ENTRIES:
        kept = np.sort(np.argpartition(-weights, ENTRIES // 2)[: ENTRIES // 2])
        keys, weights = keys[kept], weights[kept]
    return keys, weights


def _shares(keys: Numbers, weights: NDArray[np.float64], sizes: tuple[int, int]) -> NDArray[np.float64]:
    """p(t|s) = c(s, t) / Σ_t c(s, t)."""
    total = np.bincount(keys // sizes[1], weights, sizes[0])
    return weights / np.maximum(total[keys // sizes[1]], 1e-12)


def _best(
    keys: Numbers, weights: NDArray[np.float64], seen: Numbers, sizes: tuple[int, int], best: int, frequent: int
) -> Shortlist:
    source, target = keys // sizes[1], keys % sizes[1]
    order = np.lexsort((-weights, source))  # piece by piece, the likeliest first
    source, target, weights = source[order], target[order], weights[order]
    firsts = np.searchsorted(source, np.arange(sizes[0] + 1))
    kept = (np.arange(len(source)) - firsts[source] < best) & (weights > 0)
    begins = np.concatenate(([0], np.cumsum(np.bincount(source[kept], minlength=sizes[0]))))
    common = np.argsort(-seen, kind="stable")[:frequent]
    return Shortlist(np.sort(common[seen[common] > 0]), begins, target[kept], sizes[1])


def _links(store: TokenStore, rows: Numbers) -> Iterator[Links]:
    """The links of some pairs of the store, bit by bit."""
    lengths = [side.lengths[rows].astype(np.int64) for side in store.columns]
    ends = np.cumsum(lengths[0] * lengths[1])
    for some in np.split(np.arange(len(rows)), np.searchsorted(ends, np.arange(LINKS, ends[-1], LINKS))):
        some = some[(lengths[0][some] > 0) & (lengths[1][some] > 0)]
        if not len(some):
            continue
        sources, targets = (side.rows(rows[some]).astype(np.int64) for side in store.columns)
        source_lengths, target_lengths = lengths[0][some], lengths[1][some]
        counts = np.repeat(source_lengths, target_lengths)  # how many source pieces stand beside each target piece
        begins = np.cumsum(counts) - counts
        first = np.repeat(np.cumsum(source_lengths) - source_lengths, target_lengths)  # of its own source
        place = np.arange(counts.sum()) + np.repeat(first - begins, counts)
        yield Links(sources[place], np.repeat(targets, counts), begins)
