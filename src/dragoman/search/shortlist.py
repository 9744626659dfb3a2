"""Vocabulary shortlists: the target tokens that are probable translations of the source tokens.

The output layer computes a logit for every token of the vocabulary, although a sentence needs a few hundred of them. A
shortlist holds the most probable translations of each source token by a lexical translation model p(t|s), which is
learned from the training data (IBM model 1, Brown et al. 1993). A search then uses only the translations of its source
tokens, the most frequent tokens and the special tokens. Probabilities are normalized over these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from torch import Tensor

from dragoman.data.lexical_model import IntArray, LexicalModel, learn_lexical_model, spread_rows, token_links
from dragoman.data.token_store import TokenStore
from dragoman.errors import UserError
from dragoman.search.engine import SpecialTokens
from dragoman.search.search_state import ConstraintTensors, Hypothesis
from dragoman.storage import write_file

SHORTLIST_FILE = "shortlist.safetensors"


@dataclass(frozen=True)
class VocabularySubset:
    """The tokens of one search: local id n is token `token_ids[n]` of the vocabulary."""

    token_ids: Tensor  # sorted

    def to_local(self, token_ids: Tensor) -> Tensor:
        """Convert token ids of the vocabulary, all of them in the subset, to local ids: their indices in the subset.

        `self.token_ids` are the ids in the subset, sorted.
        """
        return torch.searchsorted(self.token_ids, token_ids)

    def local_special_tokens(self, special_tokens: SpecialTokens) -> SpecialTokens:
        """Return the special tokens with local ids (indices in the subset) in place of token ids of the vocabulary.

        All of them are in the subset. BOS is one id for all sources, or a tensor with one for each (B).
        """
        local_ids = {token: local_id for local_id, token in enumerate(self.token_ids.tolist())}
        bos = special_tokens.bos
        return replace(
            special_tokens,
            bos=self.to_local(bos) if isinstance(bos, Tensor) else local_ids[bos],
            eos=local_ids[special_tokens.eos],
            suppressed=tuple(local_ids[token] for token in special_tokens.suppressed),
            forced_bos=tuple(local_ids[token] for token in special_tokens.forced_bos),
            suppressed_first=tuple(local_ids[token] for token in special_tokens.suppressed_first),
        )

    def local_constraints(self, constraints: ConstraintTensors) -> ConstraintTensors:
        """Return the constraints with local ids (indices in the subset) in the target prefixes.

        Required phrases are not supported with a subset of the vocabulary.
        """
        prefix = constraints.prefix
        return constraints if prefix is None else replace(constraints, prefix=self.to_local(prefix))

    def to_global(self, nbest: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
        """Return the hypotheses of each source with token ids of the vocabulary in place of local ids.

        A local id is an index in the subset.
        """
        ids = self.token_ids.tolist()
        return [
            [hypothesis._replace(tokens=[ids[local_id] for local_id in hypothesis.tokens]) for hypothesis in hypotheses]
            for hypotheses in nbest
        ]


@dataclass(frozen=True)
class Shortlist:
    """The most frequent target tokens, and the most probable translations of every source token."""

    frequent: IntArray  # ids of the most frequent target tokens
    starts: IntArray  # translations of source token s are translations[starts[s] : starts[s + 1]]
    translations: IntArray  # ids of target tokens
    vocab_size: int  # of the target

    def select(self, source: Tensor, special_tokens: SpecialTokens, others: Iterable[Tensor] = ()) -> VocabularySubset:
        """Return the subset of the target vocabulary that a search of a batch of sources (token ids, B S) may generate.

        It contains the frequent tokens, the special tokens, the translations of the source tokens (those of token s are
        `translations[starts[s] : starts[s + 1]]`) and `others`, such as those of a forced prefix.
        """
        source_tokens = source.flatten().unique().cpu().numpy()
        source_tokens = source_tokens[source_tokens < len(self.starts) - 1]  # those for which there are translations
        starts = self.starts[source_tokens]
        counts = self.starts[source_tokens + 1] - starts
        # offsets[i] + i is the index in `translations` of the i-th translation of all source tokens
        offsets = np.repeat(starts - np.cumsum(counts) + counts, counts)
        bos = special_tokens.bos.cpu() if isinstance(special_tokens.bos, Tensor) else torch.tensor([special_tokens.bos])
        token_ids = [
            self.frequent,
            self.translations[offsets + np.arange(len(offsets))],
            np.array(
                [
                    special_tokens.eos,
                    *special_tokens.suppressed,
                    *special_tokens.forced_bos,
                    *special_tokens.suppressed_first,
                ]
            ),
            bos.numpy(),
            *(other.flatten().cpu().numpy() for other in others),
        ]
        unique = np.unique(np.concatenate(token_ids).astype(np.int64))
        return VocabularySubset(torch.from_numpy(unique).to(source.device))

    def save(self, folder: Path) -> None:
        """Write the shortlist into a run folder; tensors have the names of the first version of the file format."""
        arrays = {"frequent": self.frequent, "begins": self.starts, "pieces": self.translations}
        write_file(folder / SHORTLIST_FILE, save({**arrays, "vocabulary": np.array([self.vocab_size])}))

    @staticmethod
    def load(folder: Path, vocab_size: int) -> Shortlist:
        """Load the shortlist of a run, whose target vocabulary has `vocab_size` tokens, from its folder.

        A missing or damaged file, or one of another model, is a UserError.
        """
        path, command = folder / SHORTLIST_FILE, f"dragoman shortlist {folder}"
        if not path.exists():
            raise UserError(f"the run {folder} has no vocabulary shortlist: learn one with '{command}'")
        try:
            arrays = load_file(path)
            frequent, starts, translations = (
                arrays[name].astype(np.int64) for name in ("frequent", "begins", "pieces")
            )
            size = int(arrays["vocabulary"][0])
        except (SafetensorError, KeyError, IndexError, OSError):
            raise UserError(f"the vocabulary shortlist {path} is damaged: learn a new one with '{command}'") from None
        in_range = not len(translations) or 0 <= translations.min() <= translations.max() < size
        # translations of source token s are translations[starts[s] : starts[s + 1]]
        sorted_starts = len(starts) and starts[-1] == len(translations) and (np.diff(starts) >= 0).all()
        if size != vocab_size or not in_range or not sorted_starts:
            raise UserError(
                f"the vocabulary shortlist {path} is damaged, or was learned for another vocabulary than that of the "
                f"model: learn a new one with '{command}'"
            )
        return Shortlist(frequent, starts, translations, size)


def learn_shortlist(
    store: TokenStore, sizes: tuple[int, int], translations: int = 100, frequent: int = 100, max_pairs: int = 200_000
) -> Shortlist:
    """Learn a shortlist with IBM model 1 from at most `max_pairs` sentence pairs, evenly spread over the token store.

    Training data that are not pairs of texts are a UserError.

    Args:
        store: The tokenized training data.
        sizes: Sizes of the source and the target vocabulary.
        translations: Number of translations per source token.
        frequent: Number of the most frequent target tokens.
    """
    # columns with features have vectors, such as those of speech or images, in place of tokens
    if store.monolingual or any(column.features for column in store.columns):
        raise UserError(
            "a vocabulary shortlist is learned from pairs of source and target texts, but this run was not trained on "
            "such pairs: translate without a shortlist"
        )
    model = learn_lexical_model(store, sizes, max_pairs)
    occurrences = np.zeros(model.target_size, np.int64)
    for links in token_links(store, spread_rows(store, max_pairs)):
        # a link is a pair of a target token and a source token of its sentence; `starts` is the index of the first link
        # of each target token, so that it is counted once, whatever the number of source tokens
        occurrences += np.bincount(links.target[links.starts], minlength=model.target_size)
    most_frequent = np.argsort(-occurrences, kind="stable")[:frequent]
    most_frequent = np.sort(most_frequent[occurrences[most_frequent] > 0])  # none that does not occur
    starts, best = _best_translations(model, translations)
    return Shortlist(most_frequent, starts, best, model.target_size)


def _best_translations(model: LexicalModel, max_translations: int) -> tuple[IntArray, IntArray]:
    """Return the most probable target tokens of each source token, at most `max_translations` each.

    Returns (starts, targets): the tokens for source token s are targets[starts[s] : starts[s + 1]]. `model` has the
    expected count of every pair of source and target token.
    """
    # the key of a pair of tokens is source · target_size + target
    source, target = model.keys // model.target_size, model.keys % model.target_size
    order = np.lexsort((-model.counts, source))  # by source token, the most probable translation first
    source, target, counts = source[order], target[order], model.counts[order]
    first = np.searchsorted(source, np.arange(model.source_size + 1))  # where the pairs of each source token begin
    is_best = (np.arange(len(source)) - first[source] < max_translations) & (counts > 0)
    starts = np.concatenate(([0], np.cumsum(np.bincount(source[is_best], minlength=model.source_size))))
    return starts, target[is_best]
