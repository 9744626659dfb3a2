"""Word alignment by occlusion follows from the scores of targets for sources without one of their words."""

from __future__ import annotations

import pytest
import torch
from untrained_runs import untrained

from dragoman.run import Run

SOURCE, TARGET = "the cat sees an old house", "an old dog sleeps"


def token_scores(run: Run, source: str) -> torch.Tensor:
    """log p of each target token."""
    scored = run.score([source], [TARGET])[0]
    return torch.tensor(scored.token_scores[:-1])


@pytest.mark.parametrize(("system", "attends"), [("sutskever", False), ("bahdanau", True)])
def test_each_word_is_aligned_with_that_whose_removal_matters_most(system: str, attends: bool) -> None:
    run = untrained("bpe", system)
    words, target_words = SOURCE.split(), TARGET.split()
    token_words = run.target_tokenizer.word_ids(run.target_tokenizer.encode(TARGET))
    weights = torch.zeros(len(target_words), len(words))
    for removed in range(len(words)):
        source = " ".join(word for n, word in enumerate(words) if n != removed)
        differences = (token_scores(run, SOURCE) - token_scores(run, source)).clamp_min(0)
        for token, word in enumerate(token_words):
            weights[word, removed] += differences[token] if word >= 0 else 0  # −1: a space
    weights /= weights.sum(1, keepdim=True)
    if attends:
        attention = run.attention(SOURCE, TARGET).cross
        assert attention is not None
        by_word = torch.zeros_like(weights)
        source_words = run.source_tokenizer.word_ids(run.source_tokenizer.encode(SOURCE))
        for t, target_word in enumerate(token_words):
            for s, source_word in enumerate(source_words):
                by_word[target_word, source_word] += attention[t, s] if min(target_word, source_word) >= 0 else 0
        weights = (weights + 0.01) * (by_word / by_word.sum(1, keepdim=True) + 0.01)
    expected = {(int(row.argmax()), target) for target, row in enumerate(weights)}
    expected |= {
        (source, int(weights[:, source].argmax()))
        for source in range(len(words))
        if source not in {linked for linked, _ in expected}
    }
    found = run.align([SOURCE, "a", ""], [TARGET, TARGET, TARGET], occlusion=True)
    assert found == [sorted(expected), [(0, word) for word in range(len(target_words))], []]
