"""What `generate` of transformers is asked for in its words and a search here in ours: where the words mean the same,
the same is found; where they do not, docs/generate.md says so, and here it is shown."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import tokenizers
import torch
from huggingface_pairs import EARLY, SEQ2SEQ, Pair, assert_same, pair, plain, representative
from hypothesis import given, settings
from hypothesis import strategies as some

from dragoman.search.constraints import ForcedPrefix
from dragoman.search.forbidden_phrases import ForbiddenPhrases
from dragoman.search.forced_decoding import token_scores
from dragoman.search.search_state import ConstraintTensors
from dragoman.text.imported_tokenizer import ImportedTokenizer

VOCABULARY = 40
LENGTHS = (9, 1, 4, 12, 2, 7, 3, 5)
SEEDS = 3
LONGEST = 18  # more words than a search has room for at first


@cache
def made(name: str, seed: int = 0, **generation: Any) -> Pair:
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        return pair(name, seed, Path(folder), LENGTHS, VOCABULARY, **generation)


@some.composite
def wishes(draw: some.DrawFn) -> dict[str, Any]:
    longest = draw(some.integers(1, LONGEST))
    beams = draw(some.integers(2, 6))
    return {
        "longest": longest,
        "beams": beams,
        "best": draw(some.integers(1, beams)),
        "alpha": draw(some.sampled_from((0.0, 0.6, 1.0, 2.0)) | some.floats(-1.5, 2.5)),
        "early": draw(some.sampled_from(list(EARLY))),
        "least": draw(some.integers(0, longest - 1)),
        "no_repeat": draw(some.sampled_from((0, 0, 2, 3))),
        "bad": draw(some.lists(some.integers(8, VOCABULARY - 1), max_size=4, unique=True)),
    }


@settings(max_examples=8, derandomize=True, deadline=None, database=None)
@given(wish=wishes(), seed=some.integers(0, SEEDS - 1))
@pytest.mark.parametrize("name", representative(SEQ2SEQ))
def test_random_settings(name: str, seed: int, wish: dict[str, Any]) -> None:
    """Widths, numbers of results, penalties, stopping rules, lengths, n-grams and bad words, all at once."""
    models = made(name, seed)
    symbols = models.symbols
    bad = wish["bad"] + ([] if symbols.bos == symbols.eos else [symbols.bos])  # theirs counts it in n-grams
    shared = {
        "bad_words_ids": [[token] for token in (*symbols.suppressed, *bad)] or None,
        "min_new_tokens": wish["least"],
        "no_repeat_ngram_size": wish["no_repeat"],
    }
    ours = {"banned": bad, "least": wish["least"], "no_repeat_ngram_size": wish["no_repeat"]}
    assert_same(models.search(wish["longest"], **ours, size=1), models.generate(wish["longest"], 1, **shared)[0], None)
    beam = {"length_penalty": wish["alpha"], "early_stopping": wish["early"]}
    found, said = models.generate(wish["longest"], wish["beams"], wish["best"], **shared, **beam)
    hypotheses = models.search(
        wish["longest"],
        **ours,
        size=wish["beams"],
        n_best=wish["best"],
        length_penalty=wish["alpha"],
        early_stopping=wish["early"],
        rank_unfinished="by_score",
    )
    assert_same(hypotheses, found, said.sequences_scores)


@pytest.mark.parametrize("name", representative(SEQ2SEQ))
def test_outputs_are_varied(name: str) -> None:
    """Else the comparisons would say little."""
    found = [one for seed in range(SEEDS) for one in made(name, seed).generate(LONGEST, 4, length_penalty=1.0)[0]]
    assert len({tuple(tokens) for some in found for tokens, _ in some}) > 20 * SEEDS
    assert len({token for some in found for tokens, _ in some for token in tokens}) > 10
    assert len({len(tokens) for some in found for tokens, _ in some}) > 3


def test_generate_counts_bos_in_lengths() -> None:
    """max_length and min_length do; max_new_tokens and min_new_tokens do not, and are our limit and least length."""
    for name in ("marian", "t5"):
        models = made(name)
        found, said = models.generate(9, 4, max_new_tokens=None, max_length=10, min_length=6, length_penalty=0.0)
        ours = models.search(
            9, least=5, size=4, n_best=4, length_penalty=0.0, early_stopping=False, rank_unfinished="by_score"
        )
        assert_same(ours, found, said.sequences_scores)
        assert min(len(tokens) for some in found for tokens, _ in some) >= 5


@pytest.mark.parametrize("name", ["marian-open", "bart-open", "t5"])
def test_greedy_score_is_the_sum_of_log_softmax_of_logits(name: str) -> None:
    """Of their `scores`, banned words are taken out before the softmax, here after it."""
    models = made(name)
    _, said = models.generate(LONGEST, 1)
    rows = said.sequences[:, 1:]  # B T
    log_p = torch.stack(said.logits, 1).log_softmax(-1).gather(2, rows[..., None])[..., 0]
    end = models.symbols.eos
    real = torch.cat((torch.ones_like(rows[:, :1]), (rows == end).cumsum(1)[:, :-1] == 0), 1)
    scores = torch.tensor([some[0].score for some in models.search(LONGEST, size=1)])
    torch.testing.assert_close(scores, (log_p * real).sum(1), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", ["marian-open", "bart-open", "t5"])
@pytest.mark.parametrize("beams", [1, 4])
def test_prefix_counts_in_our_scores_but_not_in_generate(name: str, beams: int) -> None:
    """A prefix (their decoder_input_ids) counts neither in their scores nor in their lengths."""
    models = made(name)
    source, lengths = models.source
    start = torch.full((len(source), 1), int(models.symbols.bos))
    prefix = torch.tensor([[9 + row, 30 - row] for row in range(len(source))])
    begun = torch.cat((start, prefix), 1)
    cost = token_scores(models.ours, source, lengths, begun, torch.full_like(lengths, 3)).sum(1)  # B
    found, said = models.generate(
        LONGEST, beams, decoder_input_ids=begun, max_new_tokens=LONGEST - 2, length_penalty=0.0
    )
    wish = ConstraintTensors(prefix=prefix, prefix_length=torch.full_like(lengths, 2))
    beam = {
        "size": beams,
        "n_best": beams,
        "length_penalty": 0.0,
        "early_stopping": False,
        "rank_unfinished": "by_score",
    }
    ours = models.search(LONGEST, [ForcedPrefix()], wish, **(beam if beams > 1 else {"size": 1}))
    assert plain(ours) == found
    if beams > 1:
        scores = torch.tensor([[one.score for one in some] for some in ours]) - cost[:, None]
        torch.testing.assert_close(scores.flatten(), said.sequences_scores, atol=1e-4, rtol=1e-5)


def test_generate_counts_bos_and_prompt_in_ngrams() -> None:
    """Where START is END, no word twice means no END before the limit; words of a prompt are not written again."""
    models = made("bart")
    assert models.symbols.bos == models.symbols.eos
    found, said = models.generate(9, 3, no_repeat_ngram_size=1, length_penalty=1.0)
    beam = {"size": 3, "n_best": 3, "no_repeat_ngram_size": 1, "early_stopping": False, "rank_unfinished": "by_score"}
    assert_same(models.search(9, least=9, **beam), found, said.sequences_scores)
    assert plain(models.search(9, **beam)) != found
    models = made("llama")
    for ids in models.ids:
        alone = Pair(models.theirs, models.ours, models.checkpoint, True, [ids])
        found, said = alone.generate(9, 3, no_repeat_ngram_size=1, length_penalty=1.0)
        assert_same(alone.search(9, banned=[*{*ids} - {models.symbols.eos}], **beam), found, said.sequences_scores)


@pytest.mark.parametrize("name", ["marian", "bart-open", "t5"])
def test_bad_words_equal_excluded_phrases_for_word_tokens(name: str) -> None:
    """Elsewhere theirs are one way to cut a phrase, and ours the phrase however it is cut."""
    models = made(name)
    names = {f"w{number}": number for number in range(VOCABULARY)}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(names, unk_token="w3"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = ImportedTokenizer(library, {number: word for word, number in names.items()}, {}, {})
    free, _ = models.generate(LONGEST, 3, length_penalty=1.0)
    pairs = {pair for some in free for tokens, _ in some for pair in pairwise(tokens)}
    bad = [list(pair) for pair in sorted(pairs)[::2]]
    words = [[token] for token in models.symbols.suppressed]
    found, said = models.generate(LONGEST, 3, length_penalty=1.0, bad_words_ids=[*bad, *words])
    assert found != free
    never = ForbiddenPhrases(
        tokenizer, [" ".join(f"w{token}" for token in one) for one in bad], models.symbols, VOCABULARY
    )
    ours = models.search(LONGEST, [never], size=3, n_best=3, early_stopping=False, rank_unfinished="by_score")
    assert_same(ours, found, said.sequences_scores)


def test_minimum_length_equal_to_the_limit() -> None:
    """A least length of the limit itself: theirs never end, here the limit comes first."""
    models = made("marian-open")
    found, said = models.generate(6, 3, min_new_tokens=6, length_penalty=1.0)
    assert not any(finished for some in found for _, finished in some)
    beam = {"size": 3, "n_best": 3, "early_stopping": False, "rank_unfinished": "by_score"}
    assert_same(models.search(6, banned=[models.symbols.eos], **beam), found, said.sequences_scores)
    assert any(one.finished for some in models.search(6, least=6, **beam) for one in some)


def test_fewer_hypotheses_than_n_best() -> None:
    """Theirs are filled up with what is no hypothesis, at −10⁹."""
    models = made("bart")
    _, said = models.generate(1, 2)
    assert said.sequences_scores.tolist() == [0.0, -1e9] * len(LENGTHS)
    ours = models.search(1, size=2, n_best=2, early_stopping=False, rank_unfinished="by_score")
    assert plain(ours) == [[([], True)]] * len(LENGTHS)
