"""Exact search finds what exhaustive search finds, and says whether it has looked at everything that matters."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from table_model import TableModel

from dragoman.errors import UserError
from dragoman.models import Model
from dragoman.search import Beam, Hypothesis, LengthLimit, SpecialTokens
from dragoman.search.exact_search import BranchAndBound, ExactSearch
from dragoman.search.forced_decoding import token_scores
from dragoman.systems import SYSTEMS, VocabularySizes
from search.exhaustive import exhaustive_search
from search.plain_search import search

SYMBOLS = SpecialTokens(bos=2, eos=3, suppressed=(0, 1, 2))
WRITERS = ["transformer", "bahdanau", "luong", "convs2s", "gpt", "roformer", "gnmt", "llama"]

EXACT = ExactSearch()


def small_model(name: str, vocabulary: int = 13) -> Model:
    """Weights larger than usual, so that the model has opinions and mistakes show."""
    torch.manual_seed(0)
    known = SYSTEMS[name].settings()
    small: dict[str, Any] = {key: value for key, value in {"layers": 2, "heads": 4}.items() if key in known}
    model = (
        SYSTEMS[name].spec(VocabularySizes(vocabulary, vocabulary, True), "tiny", model_dim=16, **small).build().eval()
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2.0).add_(torch.randn_like(weight) * 0.1)
    return model


@dataclass
class ExactResult:
    """What a search has found and proven, and how many prefixes it has expanded."""

    hypothesis: Hypothesis
    proven_optimal: bool | None
    upper_bound: float
    expansions: int


@torch.inference_mode()
def exact_search(
    model: Model,
    source: torch.Tensor,
    lengths: torch.Tensor,
    symbols: SpecialTokens,
    limits: torch.Tensor,
    settings: ExactSearch,
    begun: Hypothesis | None = None,
) -> list[ExactResult]:
    """The best target of each source."""
    results = []
    for row, length, limit in zip(source, lengths.tolist(), limits.tolist()):
        start = model.start_decoding(row[None, :length], torch.tensor([length]), 1, limit, symbols.bos)
        tree = BranchAndBound(model, start, symbols, limit, settings, begun)
        found = tree.search()
        proven = found.proven_optimal
        results.append(ExactResult(found._replace(proven_optimal=None), proven, tree.upper_bound, tree.expansions))
    return results


def mode(model: Model, source: torch.Tensor, longest: int, settings: ExactSearch = EXACT, **more: Any) -> ExactResult:
    lengths = torch.tensor([source.shape[1]])
    return exact_search(model, source, lengths, SYMBOLS, torch.tensor([longest]), settings, **more)[0]


@pytest.mark.parametrize("system", WRITERS)
def test_it_finds_the_mode_of_every_system(system: str) -> None:
    model = small_model(system, vocabulary=7)  # 3 words and END: 1 + 3 + 9 + 27 targets of up to 4 tokens
    source = torch.tensor([[4, 6, 5, 4]])
    for alpha, width in ((0.0, 1), (0.0, 5), (0.7, 7), (-0.5, 2)):
        oracle = exhaustive_search(model, source, SYMBOLS, max_length=4, alpha=alpha)[0]
        found = mode(model, source, 4, ExactSearch(length_penalty=alpha, batch_size=width))
        assert found.proven_optimal
        assert found.hypothesis.tokens == oracle.tokens
        assert found.hypothesis.score == pytest.approx(oracle.score, abs=1e-4)
        assert found.hypothesis.normalized_score == pytest.approx(oracle.normalized_score, abs=1e-4)
        assert found.upper_bound == found.hypothesis.normalized_score


@given(
    seed=st.integers(0, 10_000),
    words=st.integers(1, 3),
    longest=st.integers(1, 5),
    width=st.integers(1, 7),
    sharp=st.floats(0.2, 4.0),
    end=st.floats(-3.0, 3.0),
    alpha=st.sampled_from([0.0, 0.0, 1.0, -1.0]),
)
@settings(deadline=None, max_examples=60)
def test_the_bound_never_cuts_the_mode(
    seed: int, words: int, longest: int, width: int, sharp: float, end: float, alpha: float
) -> None:
    """Any distribution over targets: the best of all of them by enumeration is what is found."""
    model = RandomModel(seed, words, sharp, end)
    oracle = max(
        (Hypothesis(list(y), s, s / (len(y) + 1) ** alpha, True) for y, s in model.targets(longest)),
        key=lambda h: h.normalized_score,
    )
    found = mode(
        cast(Any, model), torch.zeros(1, 1, dtype=torch.long), longest, ExactSearch(10**6, alpha, batch_size=width)
    )
    assert found.proven_optimal
    assert found.hypothesis.normalized_score == pytest.approx(oracle.normalized_score, abs=1e-5)
    assert found.hypothesis.tokens == oracle.tokens or sharp < 0.3  # flat: several may be as good


class RandomModel(TableModel):
    """Conditional probabilities of every prefix drawn by chance."""

    def __init__(self, seed: int, words: int, sharp: float, end: float) -> None:
        self.vocabulary, self.seed, self.sharp, self.end = words + 4, seed, sharp, end
        self.words = [str(i) for i in range(self.vocabulary)]
        self.steps = []

    def after(self, prefix: tuple[str, ...]) -> torch.Tensor:
        name = int("".join(prefix) or "0") + 100_000 * len(prefix)
        logits = torch.randn(self.vocabulary, generator=torch.Generator().manual_seed(self.seed * 1_000_003 + name))
        logits = logits * self.sharp
        logits[SYMBOLS.eos] += self.end
        return logits.log_softmax(-1)

    def targets(self, longest: int) -> list[tuple[tuple[int, ...], float]]:
        found, prefixes = [], [((), 0.0)]
        for _ in range(longest):
            further = []
            for prefix, score in prefixes:
                log_p = self.after(self.text(list(prefix))).tolist()
                found.append((prefix, score + log_p[SYMBOLS.eos]))
                further += [((*prefix, w), score + log_p[w]) for w in range(4, self.vocabulary)]
            prefixes = further
        return found


def tree() -> TableModel:
    """The beam-search curse: the empty translation is likelier than any other, but a beam of 1 goes past it."""
    return TableModel(
        {
            "</s>": math.log(0.3),
            "a": math.log(0.4),
            "b": math.log(0.2),
            "a </s>": math.log(0.4 * 0.5),
            "a c": math.log(0.4 * 0.45),
            "a c </s>": math.log(0.4 * 0.45 * 0.9),
            "b </s>": math.log(0.2 * 0.99),
        }
    )


def table_mode(
    model: TableModel, settings: ExactSearch, begun: Hypothesis | None = None, longest: int = 4
) -> ExactResult:
    source, lengths = torch.zeros(1, 1, dtype=torch.long), torch.tensor([1])
    symbols, limits = model.symbols, torch.tensor([longest])
    return exact_search(cast(Any, model), source, lengths, symbols, limits, settings, begun)[0]


def test_the_empty_translation_can_be_the_mode() -> None:
    model = tree()
    greedy = Hypothesis([model.ids["a"]], math.log(0.2), math.log(0.2), True)  # 0.4 beats 0.3, then 0.5 beats 0.45
    found = table_mode(model, ExactSearch(batch_size=1), greedy)
    assert found.hypothesis.tokens == []
    assert found.hypothesis.score == pytest.approx(math.log(0.3), abs=1e-5)
    assert found.proven_optimal
    assert found.expansions == 2  # of the first words only "a" (0.4) is likelier than 0.3, and nothing after it


def test_only_prefixes_that_may_become_better_are_gone_on_from() -> None:
    """The first target better than the mode's bound needs nothing but the prefixes above it."""
    model = tree()
    best = Hypothesis([], math.log(0.3), math.log(0.3), True)
    table_mode(model, ExactSearch(batch_size=1), best)
    assert [prefix for fed in model.steps for prefix in fed] == [(), ("a",)]


def test_more_than_the_most_is_not_proved() -> None:
    found = table_mode(tree(), ExactSearch(max_expansions=1))
    assert (found.proven_optimal, found.expansions) == (False, 1)
    assert found.hypothesis.tokens == []  # the best that is known
    assert found.upper_bound == pytest.approx(math.log(0.4), abs=1e-5)  # "a" is still to be looked at
    longer = table_mode(tree(), ExactSearch(max_expansions=1, length_penalty=1.0))
    assert longer.upper_bound == pytest.approx(math.log(0.4) / 4, abs=1e-5)  # of 4 tokens, if all to come were certain
    assert table_mode(tree(), ExactSearch(max_expansions=2)).proven_optimal  # as many as it needs


def test_begun_with_an_unfinished_or_too_long_target_it_forgets_it() -> None:
    for one in (Hypothesis([3], 0.0, 0.0, False), Hypothesis([3] * 4, 0.0, 0.0, True)):
        assert table_mode(tree(), ExactSearch(), one).hypothesis.tokens == []


def test_begun_with_the_mode_it_keeps_it_and_looks_at_less() -> None:
    model = small_model("transformer", vocabulary=8)
    source = torch.tensor([[4, 6, 5, 4]])
    first = mode(model, source, 5, ExactSearch(batch_size=1))
    again = mode(model, source, 5, ExactSearch(batch_size=1), begun=first.hypothesis)
    assert again.hypothesis == first.hypothesis
    assert again.expansions <= first.expansions


def test_every_source_of_a_batch_as_if_alone() -> None:
    model = small_model("bahdanau")
    source = torch.tensor([[4, 6, 5, 4, 9], [7, 8, 0, 0, 0]])
    lengths, limits = torch.tensor([5, 2]), torch.tensor([5, 4])
    both = exact_search(model, source, lengths, SYMBOLS, limits, ExactSearch())
    for found, row, length, limit in zip(both, source, (5, 2), (5, 4)):
        assert found == mode(model, row[None, :length], limit)


def test_scores_are_teacher_forced_scores_and_no_beam_is_better() -> None:
    model = small_model("bahdanau")
    source, lengths = torch.tensor([[4, 6, 5, 4, 11]]), torch.tensor([5])
    found = mode(model, source, 7, ExactSearch())
    framed = torch.tensor([[SYMBOLS.bos, *found.hypothesis.tokens, SYMBOLS.eos]])
    scores = token_scores(model, source, lengths, framed, torch.tensor([framed.shape[1]]))
    assert found.hypothesis.score == pytest.approx(float(scores.sum()), abs=1e-4)
    assert found.proven_optimal
    settings = Beam(8, 0.0, early_stopping="steps", n_best=8, length_limit=LengthLimit(0, 7))
    complete = [h for h in search(model, source, lengths, SYMBOLS, settings, torch.tensor([0]))[0] if h.finished]
    assert complete
    assert all(h.score <= found.hypothesis.score + 1e-4 for h in complete)


def test_forced_and_closed_targets() -> None:
    model = small_model("transformer", vocabulary=8)
    source, lengths, limits = torch.tensor([[4, 6, 5]]), torch.tensor([3]), torch.tensor([4])
    forced = replace(SYMBOLS, forced_bos=(5,), force_eos_at_limit=True)
    found = exact_search(model, source, lengths, forced, limits, ExactSearch())[0]
    every: list[tuple[float, list[int]]] = []
    prefixes: list[list[int]] = [[5]]
    for length in (1, 2, 3):
        for prefix in prefixes:
            framed = torch.tensor([[SYMBOLS.bos, *prefix, SYMBOLS.eos]])
            scores = token_scores(model, source, lengths, framed, torch.tensor([framed.shape[1]]))[0]
            every.append((float(scores[1 : 3 if length == 3 else None].sum()), prefix))  # END costs nothing at the end
        prefixes = [[*prefix, word] for prefix in prefixes for word in range(4, 8)]
    assert found.hypothesis.tokens == max(every)[1]
    assert found.hypothesis.score == pytest.approx(max(every)[0], abs=1e-4)


def test_mistakes_are_answered() -> None:
    for make in (
        lambda: ExactSearch(max_expansions=0),
        lambda: ExactSearch(batch_size=0),
        lambda: ExactSearch(length_penalty=20.0),
    ):
        with pytest.raises(UserError):
            make()
    model = small_model("transformer", vocabulary=8)
    forced = replace(SYMBOLS, forced_bos=(5, 6))
    with pytest.raises(UserError, match="no target that ends within 2 tokens"):
        exact_search(model, torch.tensor([[4]]), torch.tensor([1]), forced, torch.tensor([2]), ExactSearch())
