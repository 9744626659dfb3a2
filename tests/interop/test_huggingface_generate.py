"""Greedy and beam search over imported checkpoints find what `generate` of transformers finds on the same settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_pairs import EARLY, FAMILIES, Found, Pair, assert_same, pair, plain, representative

VOCABULARY = 17
PENALTIES = (0.0, 0.6, 1.0, 2.0)  # each with random weights of its own
BEAMS = (2, 5)
LONGEST = 9
LENGTHS = (6, 3, 1, 5, 2)  # of sources and prompts


@pytest.mark.parametrize("name", representative(FAMILIES))
def test_greedy_and_beam_outputs_equal_generate(name: str, tmp_path: Path) -> None:
    """All hypotheses in their order and their scores, for every width, length penalty and stopping rule."""
    seen: Found = []
    apart = dict.fromkeys(EARLY, 0)  # how often a stopping rule finds what another does not
    for seed, alpha in enumerate(PENALTIES):
        models = pair(name, seed, tmp_path / str(seed), LENGTHS, VOCABULARY)
        assert plain(models.search(LONGEST, size=1)) == models.generate(LONGEST, 1)[0]
        for beams in BEAMS:
            results = []
            for early in EARLY:
                found, made = models.generate(LONGEST, beams, length_penalty=alpha, early_stopping=early)
                settings = {"size": beams, "n_best": beams, "length_penalty": alpha}
                ours = models.search(LONGEST, **settings, early_stopping=early, rank_unfinished="by_score")
                assert_same(ours, found, made.sequences_scores)
                results.append(found)
                apart[early] += found != results[0]
            seen += found
    assert apart[False]
    assert apart["never"]
    whole = {len(tokens) for some in seen for tokens, finished in some if finished}
    assert len(whole - {LONGEST - 1}) > 1, "hypotheses must end before the limit, at more lengths than one"
    at_the_limit = [finished for some in seen for tokens, finished in some if len(tokens) >= LONGEST - 1]
    assert at_the_limit
    assert all(at_the_limit) == models.closed


def test_results_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    models = pair("t5", 0, tmp_path, LENGTHS, VOCABULARY)
    settings = {"size": 4, "n_best": 4, "early_stopping": False, "rank_unfinished": "by_score"}
    together = plain(models.search(LONGEST, **settings))
    for ids, expected in zip(models.ids, together):
        alone = Pair(models.theirs, models.ours, models.checkpoint, False, [ids])
        assert plain(alone.search(LONGEST, **settings)) == [expected]
