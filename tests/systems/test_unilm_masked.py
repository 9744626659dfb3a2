"""UniLM as published (Dong et al. 2019): masks, segments, masking, and decoding by appended mask tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dragoman.data import Batches, EncodedPair, SentencePair, TokenStore, write_store
from dragoman.data.noise import MaskedLanguageModeling
from dragoman.errors import UserError
from dragoman.models import MaskedDecoderModel
from dragoman.models.masked_decoder import (
    FIRST_SEGMENT,
    LEFT_TO_RIGHT,
    RIGHT_TO_LEFT,
    SECOND_SEGMENT,
    SOURCE_SEGMENT,
    TARGET_SEGMENT,
)
from dragoman.objectives import Objective, TaskContext, build_objective
from dragoman.parts.mixer import Context, SequenceLayout
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import learn_tokenizer
from dragoman.text.special_tokens import BOS, EOS, MASK, PAD, SEP

WORDS = 30


def small_model(vocabulary: int = WORDS) -> MaskedDecoderModel:
    torch.manual_seed(0)
    settings = {"model_dim": 16, "layers": 2, "heads": 2, "dropout": 0.0, "attention_dropout": 0.0}
    sizes = VocabularySizes(vocabulary, vocabulary, True)
    model = SYSTEMS["unilm-masked"].spec(sizes, "tiny", **settings).build()
    assert isinstance(model, MaskedDecoderModel)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3.0)
    return model.double()


def task(model: MaskedDecoderModel) -> TaskContext:
    tokenizer = learn_tokenizer(["a b c d e f g h i j k l m n o"], "word", 100)
    return TaskContext(model, tokenizer, tokenizer, model.spec.default_framing)


def store_of(folder: Path, sources: list[list[int]], targets: list[list[int]] | None = None) -> TokenStore:
    pair = SentencePair("x", None if targets is None else "y", "corpus", 1)
    rows = [None] * len(sources) if targets is None else targets
    return write_store(folder / "store", [[EncodedPair(pair, x, y) for x, y in zip(sources, rows)]], 260)


# ---- decoding


def test_every_target_token_is_predicted_at_a_mask_appended_to_those_before_it() -> None:
    """One pass over all masks gives what one pass per token gives, in which the mask is really appended."""
    model = small_model()
    source, lengths = torch.tensor([[BOS, 9, 12, 7, EOS], [BOS, 20, EOS, PAD, PAD]]), torch.tensor([5, 3])
    target = torch.tensor([[SEP, 11, 8, 25], [SEP, 14, 10, 9]])
    logits = model(source, lengths, target, torch.tensor([4, 4]))
    for count in range(1, 5):
        appended = torch.cat((target[:, :count], torch.full((2, 1), MASK)), 1)
        features = model.forward_masked_target(source, lengths, appended, torch.full((2,), count + 1)).output
        torch.testing.assert_close(logits[:, count - 1], model.output(features[:, -1]), rtol=1e-9, atol=1e-9)


def test_the_mask_is_replaced_by_the_token_in_the_cache() -> None:
    """After a step the cache holds keys of source and tokens; those of the mask are overwritten by the next token."""
    model = small_model().eval()
    source, lengths = torch.tensor([[BOS, 9, EOS]]), torch.tensor([3])
    with torch.no_grad():
        start = model.start_decoding(source, lengths, beam=1, max_length=6, first=SEP)
        state: Any = start.state
        for step, token in enumerate((SEP, 11, 8)):
            context = Context(SequenceLayout.continuation(start.positions + step))
            _, state = model.decode(torch.tensor([[token]]), context, state)
        read = model.start_decoding(source, lengths, beam=1, max_length=6, first=SEP).state
        whole = torch.tensor([[SEP, 11, 8]])
        context = Context(SequenceLayout.continuation(torch.tensor([3]), 3))
        plain: Any = model.decoder(model.embed(whole, TARGET_SEGMENT), context, read).state
    caches, expected = leaves(state), leaves(plain)
    assert len(caches) == len(expected) == 4  # keys and values of two layers
    for cache, other in zip(caches, expected):
        torch.testing.assert_close(cache[:, :6], other[:, :6])
        assert not torch.equal(cache[:, 6], other[:, 6])  # where the last mask is


def leaves(state: Any) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else [leaf for part in state.values() for leaf in leaves(part)]


def changed_outputs(types: list[int], place: int) -> set[int]:
    """The places whose outputs change with the token at one place."""
    model = small_model()
    tokens = torch.tensor([[BOS, 9, 12, 7, 15, EOS]])
    other = tokens.clone()
    other[0, place] = 21
    layout, segments = SequenceLayout.padded(6, torch.tensor([6])), torch.tensor([types])
    before, after = (model.forward_segments(row, layout, segments).output for row in (tokens, other))
    return set(((before - after).abs().amax(-1)[0] > 1e-9).nonzero()[:, 0].tolist())


@pytest.mark.parametrize(
    ("types", "place", "sees"),
    [
        ([FIRST_SEGMENT] * 4 + [SECOND_SEGMENT] * 2, 2, {0, 1, 2, 3, 4, 5}),
        ([LEFT_TO_RIGHT] * 6, 2, {2, 3, 4, 5}),
        ([RIGHT_TO_LEFT] * 6, 2, {0, 1, 2}),
        ([SOURCE_SEGMENT] * 3 + [TARGET_SEGMENT] * 3, 2, {0, 1, 2, 3, 4, 5}),
        ([SOURCE_SEGMENT] * 3 + [TARGET_SEGMENT] * 3, 4, {4, 5}),
    ],
)
def test_the_segment_chooses_the_mask(types: list[int], place: int, sees: set[int]) -> None:
    """A token is seen from both sides, from the right, from the left, or as a source; and by later target tokens."""
    assert changed_outputs(types, place) == sees


def test_padding_is_invisible_under_every_mask() -> None:
    model = small_model()
    tokens = torch.tensor([[BOS, 9, 12, EOS]])
    for kind in (FIRST_SEGMENT, LEFT_TO_RIGHT, RIGHT_TO_LEFT):
        types = torch.full((1, 4), kind)
        alone = model.forward_segments(tokens, SequenceLayout.padded(4, torch.tensor([4])), types).output
        padded, segments = (torch.cat((rows, torch.zeros(1, 3, dtype=torch.long)), 1) for rows in (tokens, types))
        output = model.forward_segments(padded, SequenceLayout.padded(7, torch.tensor([4])), segments).output
        assert bool(output.isfinite().all())
        torch.testing.assert_close(output[:, :4], alone)


# ---- pretraining


def test_rows_have_the_masks_and_segments_of_the_paper(tmp_path: Path) -> None:
    """⅓ bidirectional, ⅙ each way, ⅓ sequence-to-sequence; 15 % masked; EOS only where generation ends with it."""
    model = small_model()
    objective = build_objective("unified-masked-lm", task(model), {})
    text = [8 + n % 12 for n in range(60)]
    store = store_of(tmp_path, [text] * 600)
    assert objective.build_row is not None
    kinds: dict[int, int] = {}
    labeled = masked = 0
    for index in range(600):
        row = objective.build_row(store, index, np.random.default_rng(index))
        types = row.token_type_ids
        assert types is not None
        first = int(types[0])
        kinds[first] = kinds.get(first, 0) + 1
        is_label = row.target != PAD
        original = np.where(is_label, row.target, row.source)
        assert [token for token in original.tolist() if token not in (BOS, EOS, SEP)] == text
        assert original[0] == BOS
        assert original[-1] == EOS
        assert not is_label[0]
        assert first in (LEFT_TO_RIGHT, SOURCE_SEGMENT) or not is_label[-1]
        border = np.flatnonzero(original == SEP).tolist()
        if first == SOURCE_SEGMENT or border:
            assert original[border[0] - 1] == EOS
            second = {SOURCE_SEGMENT: TARGET_SEGMENT, FIRST_SEGMENT: SECOND_SEGMENT}[first]
            assert types.tolist() == [first] * border[0] + [second] * (len(types) - border[0])
        else:
            assert set(types.tolist()) == {first}
        labeled, masked = labeled + int(is_label.sum()), masked + int((row.source == MASK).sum())
    shares = {FIRST_SEGMENT: 1 / 3, LEFT_TO_RIGHT: 1 / 6, RIGHT_TO_LEFT: 1 / 6, SOURCE_SEGMENT: 1 / 3}
    for kind, share in shares.items():
        assert abs(kinds[kind] / 600 - share) < 5 * 0.5 / 600**0.5
    assert 0.148 < labeled / (600 * 60) < 0.155
    assert abs(masked / labeled - 0.8) < 5 * 0.4 / labeled**0.5


def test_a_fifth_of_the_selections_are_bigrams_or_trigrams() -> None:
    """At a low rate selections rarely touch: (1 · 0.8 + 2 · 0.1 + 3 · 0.1) = 1.3 tokens per run of selected tokens."""
    masker = MaskedLanguageModeling(vocab_size=WORDS, first_token=8, rate=0.02, ngram_share=0.2)
    random, tokens, runs = np.random.default_rng(0), 0, 0
    for _ in range(60):
        _, labels = masker(np.full(1000, 9), random)
        selected = labels != PAD
        tokens, runs = tokens + int(selected.sum()), runs + int((np.diff(selected, prepend=False) & selected).sum())
    assert tokens == 60 * 20
    assert tokens / runs == pytest.approx(1.3 * 1.02, rel=0.05)  # 2 % of the runs touch another one
    alone = MaskedLanguageModeling(vocab_size=WORDS, first_token=8, rate=1.0, ngram_share=0.2)
    assert (alone(np.full(7, 9), random)[1] == 9).all()


def test_next_token_objectives_are_refused() -> None:
    with pytest.raises(UserError, match="predicts a masked token at the position of its mask"):
        build_objective("dialogue", task(small_model()), {})


# ---- pairs


def batch_of(objective: Objective, folder: Path) -> Any:
    store = store_of(folder, [[9, 10, 11], [12, 13]], [[14, 15, 16, 17], [18]])
    return Batches(store, 200, seed=0, rows=objective.row_format).build_batch(np.arange(2), 0)


def test_target_tokens_are_masked_and_validation_predicts_all(tmp_path: Path) -> None:
    """With every token masked, the loss of training is that of inputs that are all masks; EOS is one of them."""
    model = small_model(30)
    given = task(model)
    objective = build_objective("masked-target", given, {"mask_rate": 1.0})
    objective.masker = MaskedLanguageModeling(  # type: ignore[assignment]
        vocab_size=30, first_token=8, rate=1.0, random_share=0.0, keep_share=0.0
    )
    batch = batch_of(objective, tmp_path)
    loss = objective(batch)
    assert int(loss.num_labels) == 7  # 4 + 1 tokens, and EOS of both
    expected = torch.zeros((), dtype=torch.float64)
    for row, target in enumerate(([14, 15, 16, 17, EOS], [18, EOS])):
        source = batch.source[row : row + 1, : int(batch.source_lengths[row])]
        masks = torch.tensor([[SEP, *[MASK] * len(target)]])
        lengths = torch.tensor([source.shape[1]]), torch.tensor([masks.shape[1]])
        features = model.forward_masked_target(source, lengths[0], masks, lengths[1]).output[0, 1:]
        expected -= model.output(features).log_softmax(-1)[range(len(target)), target].sum()
    torch.testing.assert_close(loss.total, expected)
    with torch.no_grad():
        validated = objective(batch)
    logits = model(batch.source, batch.source_lengths, batch.target, batch.target_lengths)
    torch.testing.assert_close(validated.total, cross_entropy(logits, batch.labels))


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
