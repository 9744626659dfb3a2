"""Compiled steps of greedy and beam search change the state as `select` does."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from dragoman.parts import cpu_kernels
from dragoman.parts.inference import optimize_for_inference
from dragoman.search import Beam, LengthLimit, SearchState, SpecialTokens, build_engine
from dragoman.search.engine import SearchEngine, Strategy, gather_rows
from dragoman.search.topk import log_sum_exp, topk_continuations
from dragoman.systems import SYSTEMS, VocabularySizes
from search.states import initial_state

pytestmark = pytest.mark.skipif(cpu_kernels.library() is None, reason="the kernels cannot be compiled here")
NO_TOKENS = torch.tensor([], dtype=torch.long)
EOS, WIDTH, LIMITS = 2, 11, [4, 7, 1, 7, 5]


def prepared(strategy: Strategy) -> SearchState:
    """The state of five sources with different limits before the first step, the last of which is an empty slot."""
    state = initial_state(len(LIMITS), strategy.rows_per_source, max(LIMITS))
    done = torch.tensor([False] * (len(LIMITS) - 1) + [True])
    return strategy.init_state(replace(state, max_length=torch.tensor(LIMITS), done=done), max(LIMITS))


def random_logits(rows: int, step: int, with_ties: bool, width: int = WIDTH) -> Tensor:
    random = torch.Generator().manual_seed(step)
    shape = (len(LIMITS), rows, width)
    logits = torch.randint(0, 3, shape, generator=random).float() if with_ties else torch.randn(shape, generator=random)
    logits[..., EOS] += 1.0
    return logits


def compare_steps(strategy: Strategy, special: SpecialTokens, with_ties: bool, width: int = WIDTH) -> None:
    """Compare all steps up to the longest limit, for the sources that are not done."""
    engine = SearchEngine([], special, strategy)
    ours, plain = prepared(strategy), prepared(strategy)
    suppressed = torch.tensor(special.suppressed, dtype=torch.long)
    for step in range(max(LIMITS)):
        logits = random_logits(strategy.rows_per_source, step, with_ties, width)
        was_live = ~plain.done
        is_done, parents = strategy.fused_step(ours, logits.clone(), special, suppressed)
        assert is_done
        plain, expected = engine._select(plain, logits.clone(), log_sum_exp(logits))
        for name in ("tokens", "output_tokens", "done", "step", "max_length"):
            assert torch.equal(getattr(ours, name)[was_live], getattr(plain, name)[was_live]), name
        torch.testing.assert_close(ours.scores[was_live], plain.scores[was_live])
        assert (parents is None) == (expected is None)
        if parents is not None and expected is not None:
            assert torch.equal(parents[was_live], expected[was_live])
    for found, other in zip(strategy.hypotheses(ours), strategy.hypotheses(plain)):
        assert [one.tokens for one in found] == [one.tokens for one in other]
        for one, right in zip(found, other):
            assert (one.score, one.normalized_score) == pytest.approx((right.score, right.normalized_score))
            assert one.finished == right.finished


SPECIAL = {
    "plain": SpecialTokens(1, EOS),
    "suppressed": SpecialTokens(1, EOS, suppressed=(0, 1)),
    "minimum": SpecialTokens(1, EOS, suppressed=(1,), min_length=3),
}
BEAMS = {
    "exact": Beam(3, n_best=2),
    "penalty": Beam(2, length_penalty=0.6, n_best=2),
    "negative": Beam(3, length_penalty=-0.5),
    "gnmt": Beam(3, length_penalty=1.2, length_normalization="gnmt"),
    "full": Beam(3, early_stopping=True, num_finished=3, n_best=3),
    "heuristic": Beam(3, early_stopping=False, num_finished=1),
    "steps": Beam(4, early_stopping="steps", rank_unfinished="by_score", n_best=4),
    "one": Beam(1, early_stopping=True, num_finished=2),
    "prompt": Beam(2, prompt_length=2, length_penalty=0.0),
}


@pytest.mark.parametrize("with_ties", [False, True])
@pytest.mark.parametrize("special", SPECIAL)
def test_greedy_steps(special: str, with_ties: bool) -> None:
    from dragoman.search.greedy_and_sampling import Greedy

    compare_steps(Greedy(1, EOS), SPECIAL[special], with_ties)
    compare_steps(Greedy(1, EOS), SPECIAL[special], with_ties, width=200)


@pytest.mark.parametrize("with_ties", [False, True])
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("name", BEAMS)
def test_beam_steps(name: str, special: str, with_ties: bool) -> None:
    from dragoman.search.beam import BeamSearch

    for width in (WIDTH, 300):
        compare_steps(BeamSearch(BEAMS[name], EOS), SPECIAL[special], with_ties, width)


def test_strategies_that_differ_are_not_compiled() -> None:
    from dragoman.search.beam import BeamSearch
    from dragoman.search.length_penalty_sweep import LengthPenaltySweep, LengthPenaltySweepSearch

    sweep = LengthPenaltySweepSearch(LengthPenaltySweep(2, length_penalties=(0.0, 1.0)), EOS)
    strategies: list[Strategy] = [BeamSearch(Beam(2, coverage_penalty=0.1), EOS), sweep]
    for strategy in strategies:
        state = prepared(sweep)
        before = deepcopy(state)
        logits = random_logits(2, 0, with_ties=False)
        assert strategy.fused_step(state, logits, SPECIAL["plain"], NO_TOKENS) == (False, None)
        assert torch.equal(state.tokens, before.tokens)


@pytest.mark.parametrize("width", [3, 64, 65, 1000])
@pytest.mark.parametrize("rows", [1, 4])
def test_continuations_are_sorted_by_score_and_index(rows: int, width: int) -> None:
    """A stable sort of all continuations is the definition."""
    random = torch.Generator().manual_seed(width)
    for logits in (torch.randn(3, rows, width, generator=random), torch.zeros(3, rows, width)):
        scores = -torch.rand(3, rows, generator=random)
        scores[1, 0] = -torch.inf
        normalizer = logits.logsumexp(-1)
        everything = (scores[..., None] + (logits - normalizer[..., None]).clamp(max=0)).flatten(1)
        for count in {1, min(5, rows * width), rows * width}:
            best, row, token = topk_continuations(scores, logits, normalizer, count)
            expected = everything.sort(dim=-1, descending=True, stable=True)
            assert torch.equal(row * width + token, expected.indices[:, :count])
            torch.testing.assert_close(best, expected.values[:, :count])


@pytest.mark.parametrize("search", [Beam(1), Beam(3)])
def test_steps_can_be_compiled(search: Beam, monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph, in which torch computes; here it is run as it is, without a code generator."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch.manual_seed(0)
    spec = SYSTEMS["transformer"].spec(VocabularySizes(13, 13, True), "tiny", model_dim=16, layers=2, heads=4)
    model = optimize_for_inference(spec.build().eval())
    source, lengths = torch.randint(3, 9, (2, 4)), torch.tensor([4, 4])
    found = []
    for compiled in (False, True):
        engine = build_engine(
            [model], SPECIAL["suppressed"], replace(search, length_limit=LengthLimit(0, 6)), compile=compiled
        )
        found.append(engine.search(source, lengths, torch.tensor([6, 6]), torch.arange(2)))
    assert [[one.tokens for one in hypotheses] for hypotheses in found[0]] == [
        [one.tokens for one in hypotheses] for hypotheses in found[1]
    ]


def test_tensors_that_kernels_cannot_read_are_left_to_torch() -> None:
    from dragoman.search.greedy_and_sampling import Greedy

    strategy, logits = Greedy(1, EOS), random_logits(1, 0, with_ties=False)
    state = prepared(strategy)
    assert strategy.fused_step(state, logits.double(), SPECIAL["plain"], NO_TOKENS) == (False, None)
    assert strategy.fused_step(state, logits, SPECIAL["plain"], NO_TOKENS.int()) == (False, None)
    state.step = state.step.int()
    assert strategy.fused_step(state, logits, SPECIAL["plain"], NO_TOKENS) == (False, None)


def test_ids_outside_the_vocabulary_are_ignored() -> None:
    from dragoman.search.greedy_and_sampling import Greedy

    strategy = Greedy(1, eos=40)
    special = SpecialTokens(1, 40, suppressed=(-1, WIDTH, 10**9), min_length=3)
    everything = torch.randn(3, len(LIMITS), 1, WIDTH)
    before = everything.clone()
    assert strategy.fused_step(prepared(strategy), everything[1], special, torch.tensor(special.suppressed))[0]
    assert torch.equal(everything, before)


def test_greedy_search_of_logits_that_are_no_numbers() -> None:
    """The first NaN is the best, as in torch, and no token that is not generated."""
    from dragoman.search.greedy_and_sampling import Greedy

    strategy = Greedy(1, EOS)
    for logits in (torch.full((len(LIMITS), 1, WIDTH), torch.nan), torch.zeros(len(LIMITS), 1, WIDTH)):
        logits[:, 0, 4] = torch.nan
        state = prepared(strategy)
        expected = logits.index_fill(2, torch.tensor([0]), -torch.inf).max(-1).indices
        assert strategy.fused_step(state, logits, SPECIAL["plain"], torch.tensor([0]))[0]
        assert torch.equal(state.tokens, expected)


def test_parents_are_those_of_the_output_tokens() -> None:
    """Each row continues the tokens of its parent."""
    from dragoman.search.beam import BeamSearch

    strategy = BeamSearch(Beam(3, early_stopping="steps"), EOS)
    state = prepared(strategy)
    for step in range(3):
        before = state.output_tokens.clone()
        done, parents = strategy.fused_step(state, random_logits(3, step, False), SPECIAL["plain"], NO_TOKENS)
        assert done
        assert parents is not None
        assert torch.equal(state.output_tokens[1, :, :step], gather_rows(before, parents)[1, :, :step])
