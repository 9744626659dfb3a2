"""Required phrases: always met, at the price that teacher forcing gives, and nothing else is changed."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from dragoman.errors import UserError
from dragoman.models import Model
from dragoman.search import Beam, Constraints, Hypothesis, SpecialTokens
from dragoman.search.beam import BeamSearch
from dragoman.search.constraints import ForcedPrefix
from dragoman.search.engine import SearchEngine
from dragoman.search.forbidden_phrases import ForbiddenPhrases, PhraseAutomaton
from dragoman.search.forced_decoding import token_scores
from dragoman.search.required_phrases import (
    ConstrainedBeam,
    allocate,
    check_phrases_fit,
    encode_phrase,
    match_token,
    required_phrase_tensors,
)
from dragoman.search.search_state import ConstraintTensors, map_tensors
from dragoman.text import learn_tokenizer
from laws.small import DECODER_STATES, SYMBOLS, as_read, laws_over, pairs, small_model
from search.exhaustive import exhaustive_search
from search.states import initial_state

every_kind = laws_over(["transformer", "bahdanau", "convs2s", "llama", "moe", "gnmt"], DECODER_STATES)
Wanted = list[list[list[int]]]
#: of three sources: two phrases, one that is repeated with one that begins like it, none
WANTED: Wanted = [[[5, 9, 5], [7]], [[11, 4], [11, 4], [11, 6]], []]


@cache
def model_of(variant: str, vocabulary: int = 13) -> Model:
    return small_model(variant, vocabulary)


def found(
    variant: str, wanted: Wanted, settings: Beam, limits: list[int], only: list[int] | None = None
) -> list[list[Hypothesis]]:
    p = pairs(variant)
    rows = torch.tensor(only if only is not None else [*range(len(wanted))])
    engine = SearchEngine([model_of(variant)], SYMBOLS, ConstrainedBeam(settings, SYMBOLS.eos))
    lengths = p.source_lengths[rows]
    source = p.source[rows][:, : int(lengths.max())]
    constraints = ConstraintTensors(required=required_phrase_tensors([wanted[row] for row in rows]))
    return engine.search(source, lengths, torch.tensor(limits)[rows], rows, constraints)


def count(tokens: list[int], phrase: list[int]) -> int:
    """How often a phrase stands in a text, without overlapping itself."""
    number = start = 0
    while start + len(phrase) <= len(tokens):
        same = tokens[start : start + len(phrase)] == phrase
        number, start = number + same, start + (len(phrase) if same else 1)
    return number


def has_all(tokens: list[int], phrases: list[list[int]]) -> bool:
    return all(count(tokens, phrase) >= phrases.count(phrase) for phrase in phrases)


# ---- laws over systems


@every_kind
@pytest.mark.parametrize("size", [1, 2, 5, 12])
def test_phrases_are_met_and_cost_what_teacher_forcing_says(variant: str, size: int) -> None:
    p = pairs(variant)
    results = found(variant, WANTED, Beam(size, n_best=min(size, 3)), [14, 14, 14])
    for row, hypotheses in enumerate(results):
        assert hypotheses
        for h in hypotheses:
            assert has_all(h.tokens, WANTED[row])
            framed = torch.tensor([[SYMBOLS.bos, *h.tokens, *([SYMBOLS.eos] if h.finished else [])]])
            source, length = p.source[row : row + 1, : p.source_lengths[row]], p.source_lengths[row : row + 1]
            scores = token_scores(model_of(variant), source, length, framed, torch.tensor([framed.shape[1]]))
            assert h.score == pytest.approx(float(scores.sum()), abs=1e-4)
            assert h.normalized_score == pytest.approx(h.score / (framed.shape[1] - 1), abs=1e-5)


@every_kind
@pytest.mark.parametrize("early_stopping", [True, False, "never", "steps"])
def test_without_phrases_it_is_a_plain_beam(variant: str, early_stopping: Any) -> None:
    p = pairs(variant)
    settings = Beam(4, n_best=4, early_stopping=early_stopping)
    plain = SearchEngine([model_of(variant)], SYMBOLS, BeamSearch(settings, SYMBOLS.eos))
    expected = plain.search(p.source, p.source_lengths, torch.tensor([9, 8, 10]), torch.arange(3))
    assert found(variant, [[], [], []], settings, [9, 8, 10]) == expected
    beside = found(variant, [[], [[5, 6]], []], settings, [9, 8, 10])  # the phrases of others change nothing
    for one, other in zip((beside[0], beside[2]), (expected[0], expected[2])):
        assert [h.tokens for h in one] == [h.tokens for h in other]


def test_penalties_act_as_in_a_plain_beam() -> None:
    p = pairs("transformer")
    settings = Beam(4, 0.6, n_best=4, length_normalization="gnmt", coverage_penalty=0.3, rank_unfinished="by_score")
    plain = SearchEngine([model_of("transformer")], SYMBOLS, BeamSearch(settings, SYMBOLS.eos))
    expected = plain.search(p.source, p.source_lengths, torch.tensor([9, 8, 10]), torch.arange(3))
    assert found("transformer", [[], [], []], settings, [9, 8, 10]) == expected
    for hypotheses, phrases in zip(found("transformer", WANTED, settings, [9, 8, 10]), WANTED):
        assert all(has_all(h.tokens, phrases) for h in hypotheses)


def test_what_is_forbidden_is_written_in_no_phrase_and_nowhere_else() -> None:
    tokenizer = learn_tokenizer(TEXTS, kind="bpe", size=300)
    model, p = small_model("transformer", tokenizer.vocab_size), pairs("transformer", tokenizer.vocab_size)
    symbols = SpecialTokens(tokenizer.bos, tokenizer.eos, (0, 1, 2, 4, 5, 6))
    rule = ForbiddenPhrases(tokenizer, ["the", "old house"], symbols, model.vocab_size)
    constraints = Constraints(include=[["old", "house"], ["houses"], []], exclude=rule)
    engine = SearchEngine([model], symbols, ConstrainedBeam(Beam(4, n_best=2), symbols.eos), [rule])
    limits = torch.tensor([12, 8, 8])
    tensors = constraints.to_tensors(tokenizer, limits, 0)
    results = engine.search(p.source, p.source_lengths, limits, torch.arange(3), tensors)
    for hypotheses, phrases in zip(results, [["old", "house"], ["houses"], []]):
        assert hypotheses
        for h in hypotheses:
            assert has_all(h.tokens, [tokenizer.encode(phrase) for phrase in phrases])
            assert not rule.automaton.occurs_in(tokenizer.decode(h.tokens))


def test_a_step_compiles_to_one_graph() -> None:
    strategy = ConstrainedBeam(Beam(3), SYMBOLS.eos)
    state = initial_state(3, 3, 9)
    state.constraints.required = required_phrase_tensors(WANTED)
    state = strategy.init_state(state, 9)
    logits = torch.randn(3, 3, 13, generator=torch.Generator().manual_seed(0))
    whole = torch.compile(strategy.select, fullgraph=True, dynamic=False, backend="eager")
    states = [map_tensors(torch.clone, state) for _ in range(2)]
    for _ in range(3):
        (plain, parents), (compiled, same_parents) = (
            step(one, logits.clone(), logits.logsumexp(-1), None) for step, one in zip((strategy.select, whole), states)
        )
        assert torch.equal(plain.tokens, compiled.tokens)
        assert torch.equal(parents, same_parents)
        states = [replace(one, step=one.step + 1) for one in (plain, compiled)]


@every_kind
def test_batch_and_order_never_change_a_result(variant: str) -> None:
    settings = Beam(4, n_best=2)
    together = found(variant, WANTED, settings, [12, 9, 7])
    for rows in ([0], [1], [2], [2, 0], [1, 2, 0]):
        for row, hypotheses in zip(rows, found(variant, WANTED, settings, [12, 9, 7], rows)):
            assert [h.tokens for h in hypotheses] == [h.tokens for h in together[row]]
            assert [h.score for h in hypotheses] == pytest.approx([h.score for h in together[row]], abs=1e-4)


@every_kind
@pytest.mark.parametrize(
    "phrases", [[[4]], [[4, 5]], [[4, 4], [5]], [[5], [5]], [[4, 5], [4, 6]], [[4, 5], [5, 6]], [[4, 5, 4]]]
)
def test_a_beam_as_wide_as_the_space_equals_exhaustive_search(variant: str, phrases: list[list[int]]) -> None:
    model = model_of(variant, 7)  # 3 words and END: 81 hypotheses of 4 words have 324 continuations
    source = as_read(variant, torch.tensor([[4, 6, 5, 4]]))
    engine = SearchEngine(
        [model], SYMBOLS, ConstrainedBeam(Beam(330, 0.7, early_stopping="steps", n_best=330), SYMBOLS.eos)
    )
    limits = torch.tensor([5])
    constraints = ConstraintTensors(required=required_phrase_tensors([phrases]))
    results = engine.search(source, torch.tensor([4]), limits, torch.tensor([0]), constraints)[0]
    every = exhaustive_search(model, source, SYMBOLS, max_length=5, alpha=0.7, n_best=1000)
    oracle = [h for h in every if has_all(h.tokens, phrases)]
    complete = [h for h in results if h.finished]
    assert oracle
    assert {tuple(h.tokens) for h in complete} == {tuple(h.tokens) for h in oracle}
    assert complete[0].tokens == oracle[0].tokens
    for one, other in zip(complete, oracle):
        assert one.score == pytest.approx(other.score, abs=1e-4)


@every_kind
@pytest.mark.parametrize("size", [1, 3])
def test_a_limit_with_just_enough_room_is_enough(variant: str, size: int) -> None:
    wanted: Wanted = [[[5, 9, 5], [7]], [[11, 4], [11, 4], [11, 6]], [[8, 9], [9, 10, 8], [9, 10]]]
    limits = [5, 7, 6]
    check_phrases_fit(required_phrase_tensors(wanted), torch.tensor(limits))
    for row, hypotheses in enumerate(found(variant, wanted, Beam(size), limits)):
        assert has_all(hypotheses[0].tokens, wanted[row])


def test_what_other_rules_make_impossible_is_never_called_finished() -> None:
    p = pairs("transformer")
    constraints = ConstraintTensors(torch.full((1, 5), 7), torch.tensor([5]), required_phrase_tensors([[[5, 9]]]))
    engine = SearchEngine([model_of("transformer")], SYMBOLS, ConstrainedBeam(Beam(3), SYMBOLS.eos), [ForcedPrefix()])
    (results,) = engine.search(p.source[:1], p.source_lengths[:1], torch.tensor([5]), torch.tensor([0]), constraints)
    assert [(h.tokens, h.finished) for h in results] == [([7] * 5, False)]


# ---- by hand


def test_banks_take_turns_the_fullest_first() -> None:
    scores = torch.tensor([[-1.0, -2.0, -3.0, -9.0, -8.0, -torch.inf]])
    bank = torch.tensor([[0, 0, 0, 2, 1, 2]])
    assert allocate(scores, bank, 5).tolist() == [[3, 4, 0, 1, 2]]
    assert allocate(scores, bank, 2).tolist() == [[3, 4]]


@pytest.mark.parametrize("seed", range(20))
def test_progress_is_the_longest_beginning_that_was_just_written(seed: int) -> None:
    draw = random.Random(seed)
    phrase = [draw.randrange(2) for _ in range(draw.randint(1, 5))]
    phrases = required_phrase_tensors([[phrase, [9]]])
    met = place = torch.zeros(1, 1, 2, dtype=torch.long)
    text: list[int] = []
    since = 0  # where the last whole phrase ended
    for _ in range(40):
        text.append(draw.randrange(3))
        met, place = match_token(phrases, met, place, torch.tensor([[text[-1]]]))
        ends = [size for size in range(len(phrase) + 1) if text[since:][len(text) - since - size :] == phrase[:size]]
        longest = max(size for size in ends if size <= len(text) - since)
        since = len(text) if longest == len(phrase) else since
        assert int(met[0, 0, 0]) == count(text, phrase)
        assert int(place[0, 0, 0]) == longest % len(phrase)


def test_phrases_are_padded_counted_and_those_within_others_left_out() -> None:
    phrases = required_phrase_tensors([[[4, 5], [4, 5], [6]], [], [[5], [4, 5, 6]]])
    assert phrases.tokens.tolist() == [[[4, 5, -1], [6, -1, -1]], [[-1] * 3] * 2, [[4, 5, 6], [-1] * 3]]
    assert phrases.lengths.tolist() == [[2, 1], [0, 0], [3, 0]]
    assert phrases.counts.tolist() == [[2, 1], [0, 0], [1, 0]]


# ---- texts


TEXTS = ["the old house is in New York", "a house by the sea, and the sea"] * 3


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "character", "byte"])
@pytest.mark.parametrize("marker", ["initial", "final"])
def test_texts_are_cut_as_within_a_sentence(kind: str, marker: str) -> None:
    tokenizer = learn_tokenizer(TEXTS, kind=kind, size=340, marker=marker)
    constraints = Constraints(include=[["house"], ["New  York ", "sea"], []])
    required = constraints.to_tensors(tokenizer, torch.full((3,), 99), 0).required
    assert required is not None
    phrases = [
        [tokens[:length] for tokens, length in zip(*source)]
        for source in zip(required.tokens.tolist(), required.lengths.tolist())
    ]
    assert [[tokenizer.decode(phrase) for phrase in source if phrase] for source in phrases] == [
        ["house"],
        ["New York", "sea"],
        [],
    ]
    for sentence, phrase in [("the old house is in", "house"), ("house by the sea", "house")]:
        assert count(tokenizer.encode(sentence), tokenizer.encode(phrase)) == 1


def test_what_cannot_be_required_is_refused() -> None:
    words = learn_tokenizer(TEXTS, kind="word")
    with pytest.raises(UserError, match="'old castle' has a word outside the target vocabulary"):
        encode_phrase(words, "old castle")
    with pytest.raises(UserError, match="a required phrase is empty"):
        encode_phrase(words, " ")
    with pytest.raises(UserError, match="'the old house' contains a forbidden phrase"):
        PhraseAutomaton.build(["house"]).check_required(["sea", "the old house"])
    PhraseAutomaton.build(["the old house", "hous", "Sea"]).check_required(["sea", "house"])
    phrases = required_phrase_tensors([[[4, 5]], [[4, 5, 6], [7], [7], [5, 6]]])
    check_phrases_fit(phrases, torch.tensor([3, 6]))
    with pytest.raises(UserError, match="a source have 5 tokens, but its target may have at most 4"):
        check_phrases_fit(phrases, torch.tensor([3, 5]))
    with pytest.raises(UserError, match="a source have 2 tokens, but its target may have at most 1"):
        check_phrases_fit(phrases, torch.tensor([3, 9]), forced=1)
