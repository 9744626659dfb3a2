"""Every objective: its rows by hand, its loss by torch's own functions, and that it falls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.data import IGNORE_INDEX, Batch, Batches, EncodedPair, SentencePair, TokenStore, write_store
from dragoman.errors import UserError
from dragoman.models import EncoderDecoderModel, Model
from dragoman.objectives import Objective, TaskContext, build_objective, check_objective
from dragoman.objectives.translation_objective import sample_tokens
from dragoman.parts.mixer import SequenceLayout
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import Tokenizer, learn_tokenizer

PAD, UNKNOWN, START, END, MASK, SEPARATOR, CLASS = range(7)
TEXT = ["the old man reads a book .", "she sees the tree ! he sees a dog .", "we read .", "a dog sees the man ."] * 8


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return learn_tokenizer(TEXT, "word", 100)


@pytest.fixture
def store_of(tmp_path: Path) -> Callable[..., TokenStore]:
    def make_store(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]] | None = None) -> TokenStore:
        pair = SentencePair("x", None if targets is None else "y", "corpus", 1)
        rows = [None] * len(sources) if targets is None else [list(row) for row in targets]
        examples = [EncodedPair(pair, list(source), target) for source, target in zip(sources, rows)]
        return write_store(tmp_path / "store", [examples], 260)

    return make_store


def small(name: str, vocabulary: int, **settings: Any) -> Model:
    torch.manual_seed(0)
    known = SYSTEMS[name].settings()
    chosen = {"model_dim": 32, "layers": 1, "heads": 2, "dropout": 0.0, "attention_dropout": 0.0}
    chosen = {key: value for key, value in chosen.items() if key in known}
    return SYSTEMS[name].spec(VocabularySizes(vocabulary, vocabulary, True), "tiny", **(chosen | settings)).build()


def material(model: Model, tokenizer: Tokenizer) -> TaskContext:
    return TaskContext(model, tokenizer, tokenizer, model.spec.default_framing)


def batches(objective: Objective, store: TokenStore, tokens: int = 400) -> Batches:
    return Batches(
        store,
        tokens,
        seed=0,
        rows=replace(objective.row_format, doubled=False, subword_samplers=(None, None)),
    )


def only(objective: Objective, store: TokenStore, epoch: int = 0) -> Batch:
    return batches(objective, store).build_batch(np.arange(len(store)), epoch)


def answers_of(batch: Batch) -> Tensor:
    """B S: the answer to each token of the source, IGNORE_INDEX where none was asked for."""
    assert batch.label_positions is not None
    blank = torch.full((batch.source.numel(),), IGNORE_INDEX)
    return blank.scatter(0, batch.label_positions, batch.labels).view_as(batch.source)


def restored(batch: Batch) -> Tensor:
    """The source with the answers in their places."""
    return torch.where(answers_of(batch) != IGNORE_INDEX, answers_of(batch), batch.source)


# ---- rows


def test_language_model_rows_have_bos_and_eos(tokenizer: Tokenizer, store_of: Any) -> None:
    objective = build_objective("causal-lm", material(small("gpt", tokenizer.vocab_size), tokenizer), {})
    batch = only(objective, store_of([[20, 21, 22], [23]]))
    assert batch.source.shape == (2, 0)
    assert batch.target.tolist() == [[START, 20, 21, 22], [START, 23, PAD, PAD]]
    assert batch.labels.tolist() == [[20, 21, 22, END], [23, END, IGNORE_INDEX, IGNORE_INDEX]]
    assert batch.target_tokens == 6


def test_concatenated_rows(tokenizer: Tokenizer, store_of: Any) -> None:
    objective = build_objective("concatenation", material(small("transformer-d", tokenizer.vocab_size), tokenizer), {})
    batch = only(objective, store_of([[20, 21]], [[30]]))
    assert batch.target.tolist() == [[START, 20, 21, SEPARATOR, 30]]
    assert batch.labels.tolist() == [[20, 21, SEPARATOR, 30, END]]
    assert batch.target_tokens == 5


def test_masked_tokens_are_the_labels(tokenizer: Tokenizer, store_of: Any) -> None:
    objective = build_objective(
        "masked-lm", material(small("roberta", tokenizer.vocab_size), tokenizer), {"mask_rate": 0.4}
    )
    ids = [list(range(8, 18)), list(range(10, 15))]
    batch = only(objective, store_of(ids))
    for source, target, real in zip(batch.source.tolist(), answers_of(batch).tolist(), ids):
        length = len(real)
        assert (source[0], source[length + 1]) == (CLASS, SEPARATOR)
        assert target[0] == target[length + 1] == IGNORE_INDEX
        for token, answer, was in zip(source[1 : length + 1], target[1 : length + 1], real):
            assert answer in (IGNORE_INDEX, was)
            assert answer != IGNORE_INDEX or token == was
    assert batch.target.shape == (2, 0)
    assert batch.target_tokens == len(batch.labels) > 0


def test_static_and_dynamic_masking(tokenizer: Tokenizer, store_of: Any) -> None:
    store = store_of([list(range(8, 28))])
    dynamic = build_objective("masked-lm", material(small("roberta", tokenizer.vocab_size), tokenizer), {})
    static = build_objective("masked-lm", material(small("bert", tokenizer.vocab_size), tokenizer), {"mask_copies": 2})
    asked = {
        (name, epoch): answers_of(only(objective, store, epoch)).tolist()
        for name, objective in (("dynamic", dynamic), ("static", static))
        for epoch in range(3)
    }
    assert asked["dynamic", 0] != asked["dynamic", 2]
    assert asked["static", 0] == asked["static", 2]
    assert asked["static", 0] != asked["static", 1]


def test_next_sentence_rows(tokenizer: Tokenizer, store_of: Any) -> None:
    objective = build_objective(
        "masked-lm", material(small("bert", tokenizer.vocab_size), tokenizer), {"next_sentence": True}
    )
    store = store_of([[8 + n] * 3 for n in range(12)])
    seen = set()
    for epoch in range(20):
        batch = only(objective, store, epoch)
        original = restored(batch)
        assert batch.sentence_labels is not None
        assert batch.token_type_ids is not None
        for index, row in enumerate(original.tolist()):
            assert row[0] == CLASS
            assert row[4] == row[8] == SEPARATOR
            assert row[1:4] == [8 + index] * 3
            label = int(batch.sentence_labels[index])
            seen.add(label)
            if label == 0:
                assert row[5:8] == [9 + index] * 3
            assert batch.token_type_ids[index].tolist() == [0] * 5 + [1] * 4
    assert seen == {0, 1}


def test_span_corruption_rows(tokenizer: Tokenizer, store_of: Any) -> None:
    model = small("t5", tokenizer.vocab_size)
    assert model.vocab_size > tokenizer.vocab_size
    objective = build_objective("span-corruption", material(model, tokenizer), {"mask_rate": 0.5})
    ids = list(range(8, 20))
    batch = only(objective, store_of([ids]))
    source, target = batch.source[0].tolist(), [*batch.target[0].tolist(), int(batch.labels[0, -1])]
    assert batch.labels[0].tolist() == target[1:]
    assert source[-1] == END
    assert (target[0], target[-1]) == (START, END)
    spans = {key: list(some) for key, some in itertools.groupby([*target[1:-1]], lambda t: t >= tokenizer.vocab_size)}
    assert spans
    parts: dict[int, list[int]] = {}
    for token in target[1:-1]:
        if token >= tokenizer.vocab_size:
            last = parts.setdefault(token, [])
        else:
            last.append(token)
    back = [word for token in source[:-1] for word in (parts[token] if token >= tokenizer.vocab_size else [token])]
    assert back == ids


def test_denoising_target_is_the_whole_text(tokenizer: Tokenizer, store_of: Any) -> None:
    objective = build_objective(
        "denoising", material(small("bart", tokenizer.vocab_size), tokenizer), {"infill_rate": 0.5}
    )
    batch = only(objective, store_of([list(range(8, 20))]))
    assert batch.target.tolist() == [[START, *range(8, 20)]]
    assert batch.labels.tolist() == [[*range(8, 20), END]]
    assert MASK in batch.source[0].tolist()
    assert batch.source[0, -1] == END


def test_unified_rows_under_three_masks(tokenizer: Tokenizer, store_of: Any) -> None:
    model = small("unilm", tokenizer.vocab_size)
    ids = list(range(8, 16))
    store = store_of([ids])
    given = material(model, tokenizer)
    left = only(build_objective("unified-lm", given, {"bidirectional": 0.0, "left_to_right": 1.0}), store)
    assert left.source.tolist() == [[START, *ids]]
    assert answers_of(left).tolist() == [[*ids, END]]
    assert left.sentence_labels is not None
    assert left.sentence_labels.tolist() == [0]
    both = only(build_objective("unified-lm", given, {"bidirectional": 1.0, "left_to_right": 0.0}), store)
    assert both.sentence_labels is not None
    assert both.sentence_labels.tolist() == [len(ids) + 2] == [both.source.shape[1]]
    assert answers_of(both)[0, 0] == answers_of(both)[0, -1] == IGNORE_INDEX
    cut = only(build_objective("unified-lm", given, {"bidirectional": 0.0, "left_to_right": 0.0}), store)
    assert cut.sentence_labels is not None
    seen = int(cut.sentence_labels[0])
    assert cut.source[0].tolist() == [START, *ids[: seen - 1], SEPARATOR, *ids[seen - 1 :]]
    assert answers_of(cut)[0].tolist() == [IGNORE_INDEX] * seen + [*ids[seen - 1 :], END]


def test_unified_rows_are_attended_as_their_mask_says(tokenizer: Tokenizer) -> None:
    model = small("unilm", tokenizer.vocab_size, layers=2).eval()
    tokens, changed = torch.tensor([[2, 9, 10, 11, 12]]), torch.tensor([[2, 9, 10, 11, 13]])
    layout = SequenceLayout.padded(5, torch.tensor([5]))
    for prefix, sees in ((0, False), (3, False), (5, True)):
        one, other = (model.forward_tokens(t, layout, torch.tensor([prefix]))[0] for t in (tokens, changed))
        assert (not torch.allclose(one[:, 1], other[:, 1], atol=1e-6)) is sees


# ---- losses


def test_masked_loss_equals_torch(tokenizer: Tokenizer, store_of: Any) -> None:
    model = small("bert", tokenizer.vocab_size).eval()
    objective = build_objective("masked-lm", material(model, tokenizer), {"next_sentence": True, "mask_rate": 0.5})
    batch = only(objective, store_of([[8, 9, 10, 11], [12, 13], [14, 15, 16]]))
    loss = objective(batch)
    layout = SequenceLayout.padded(batch.source.shape[1], batch.source_lengths)
    features = model.forward_features(batch.source, layout, token_types=batch.token_type_ids).output
    words = F.cross_entropy(model.output(features).flatten(0, 1), answers_of(batch).flatten(), reduction="sum")
    next_one = F.cross_entropy(model.pooler(features), batch.sentence_labels)
    torch.testing.assert_close(loss.metrics["nll_loss"], words.detach())
    torch.testing.assert_close(loss.total, words + next_one * batch.target_tokens)


def test_only_replies_have_labels(tokenizer: Tokenizer, store_of: Any) -> None:
    from dragoman.data.data_formats import encode_dialogue

    model = small("chat", tokenizer.vocab_size).eval()
    given = material(model, tokenizer)
    inputs, answers = encode_dialogue([[8, 9], [10], [11], [12, 13]], given.framing)
    assert inputs == [START, 8, 9, SEPARATOR, 10, END, 11, SEPARATOR, 12, 13]
    assert answers == [PAD, PAD, PAD, 10, END, PAD, PAD, 12, 13, END]
    objective = build_objective("dialogue", given, {})
    batch = only(objective, store_of([inputs], [answers]))
    assert batch.target_tokens == 5
    log_p = model(batch.source[:, :0], torch.tensor([0]), batch.source, batch.source_lengths).log_softmax(-1)[0]
    expected = -sum(log_p[i, answer] for i, answer in enumerate(answers) if answer != PAD)
    torch.testing.assert_close(objective(batch).total, expected)


def test_validation_replacements_do_not_depend_on_the_generator(
    tokenizer: Tokenizer, store_of: Callable[..., TokenStore]
) -> None:
    """Another generator changes its own loss, but not what the discriminator is measured on."""
    model = small("electra", tokenizer.vocab_size).eval()
    objective = build_objective("replaced-token-detection", material(model, tokenizer), {})
    store = store_of([tokenizer.encode(text) for text in TEXT])
    batch = next(iter(batches(objective, store).iterate_epoch(0)))

    def losses() -> list[float]:
        torch.manual_seed(0)
        loss = objective.validation_loss(batch)
        return [float(loss.metrics["nll_loss"]), float(loss.metrics["detection_loss"])]

    with torch.no_grad():
        before, again = losses(), losses()
        model.generator.output.bias += torch.randn(tokenizer.vocab_size)  # type: ignore[union-attr]
        after = losses()
    assert before == again
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_discriminator_loss_covers_every_token(tokenizer: Tokenizer, store_of: Any) -> None:
    """With a generator that is always right, nothing is replaced; its loss is then that of all “no” answers."""
    model = small("electra", tokenizer.vocab_size).eval()
    objective = build_objective("replaced-token-detection", material(model, tokenizer), {"discriminator_weight": 3.0})
    batch = only(objective, store_of([[8] * 12, [8] * 5]))
    with torch.no_grad():
        model.generator.output.bias[:] = -100.0
        model.generator.output.bias[8] = 100.0
    original = restored(batch)
    loss = objective(batch)
    logits = model(original, batch.source_lengths)[..., 0]
    real = torch.arange(original.shape[1]) < batch.source_lengths[:, None]
    each = F.binary_cross_entropy_with_logits(logits, torch.zeros_like(logits), reduction="none")
    expected = each[real].mean() * 3.0 * batch.target_tokens + loss.metrics["nll_loss"]
    torch.testing.assert_close(loss.total, expected, rtol=1e-4, atol=1e-4)


def test_electra_masks_as_its_published_code(tokenizer: Tokenizer, store_of: Any) -> None:
    """15 % of the tokens, of which 85 % become the mask and the others stay; with keep_rate 0, all become the mask."""
    model = small("electra", tokenizer.vocab_size)
    store = store_of([[8 + n % 3 for n in range(100)]] * 200)
    for keep_rate in (0.15, 0.0):
        settings = {} if keep_rate else {"keep_rate": 0.0}
        objective = build_objective("replaced-token-detection", material(model, tokenizer), settings)
        assert objective.discriminator_weight == 50
        assert objective.build_row is not None
        masked = selected = 0
        for index in range(len(store)):
            row = objective.build_row(store, index, np.random.default_rng(index))
            labeled = row.target != PAD
            assert row.target[labeled].tolist() == store.source(index)[labeled[1:-1]].tolist()
            stays = row.source == np.concatenate(([row.source[0]], store.source(index), [row.source[-1]]))
            is_mask = row.source == tokenizer.mask
            assert (stays | is_mask).all()
            assert not is_mask[~labeled].any()
            selected, masked = selected + int(labeled.sum()), masked + int(is_mask.sum())
        assert selected == 15 * len(store)
        assert abs(masked / selected - (1 - keep_rate)) < 5 * 0.5 / selected**0.5
        assert keep_rate or masked == selected


def test_the_largest_electra_selects_a_quarter_of_the_tokens() -> None:
    """Clark et al. 2020, table 6."""
    assert SYSTEMS["electra"].default_objective("text", "big") == ("replaced-token-detection", {"mask_rate": 0.25})
    assert SYSTEMS["electra"].default_objective("text", "base") == ("replaced-token-detection", {})


def test_generator_samples_come_as_often_as_their_probability() -> None:
    torch.manual_seed(0)
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    tokens = sample_tokens(p.log().expand(20_000, -1))
    torch.testing.assert_close(tokens.bincount(minlength=4) / 20_000, p, rtol=0, atol=5 * 0.5 / 20_000**0.5)


LEARN = [
    ("causal-lm", "gpt", {}),
    ("causal-lm", "rnn-lm", {}),
    ("masked-lm", "bert", {"next_sentence": True, "mask_copies": 3}),
    ("masked-lm", "roberta", {}),
    ("replaced-token-detection", "electra", {}),
    ("span-corruption", "t5", {}),
    ("denoising", "bart", {"delete_rate": 0.1, "mask_rate": 0.1, "rotate_document": True, "shuffle_distance": 2}),
    ("unified-lm", "unilm", {}),
    ("unified-masked-lm", "unilm-masked", {}),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "system", "settings"), LEARN)
def test_loss_of_every_objective_falls(
    name: str, system: str, settings: dict[str, Any], tokenizer: Tokenizer, store_of: Any
) -> None:
    model = small(system, tokenizer.vocab_size).train()
    objective = build_objective(name, material(model, tokenizer), settings)
    data = batches(objective, store_of(tokenizer.encode_batch(TEXT)), tokens=300)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    seen: list[dict[str, float]] = []
    for step, (batch, _) in enumerate(itertools.islice(data.iterate_from(), 120)):
        loss = objective(batch, step)
        optimizer.zero_grad()
        (loss.total / loss.num_labels).backward()
        optimizer.step()
        parts = {key: float(part) / loss.num_labels for key, part in loss.metrics.items()}
        seen.append(parts | {"total": float(loss.total.detach()) / loss.num_labels})
    for part in ("total", "nll_loss", *(["detection_loss"] if name == "replaced-token-detection" else [])):
        first, last = (np.mean([one[part] for one in some]) for some in (seen[:15], seen[-15:]))
        assert last < 0.85 * first


# ---- what cannot be


def test_objective_rejects_other_models(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="needs a model of kind EncoderOnly, but the system is of kind DecoderOnly"):
        build_objective("masked-lm", material(small("gpt", tokenizer.vocab_size), tokenizer), {})


def test_span_corruption_needs_sentinels(tokenizer: Tokenizer) -> None:
    model = small("transformer", tokenizer.vocab_size)
    assert isinstance(model, EncoderDecoderModel)
    with pytest.raises(UserError, match=r"this system has no sentinel tokens: set system\.name to t5"):
        build_objective("span-corruption", material(model, tokenizer), {})


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("masked-l", {}, "unknown objective 'masked-l': did you mean 'masked-lm'?"),
        ("masked-lm", {"rat": 0.1}, "unknown setting of the objective masked-lm 'rat': did you mean 'mask_rate'?"),
        ("masked-lm", {"mask_rate": "much"}, "masked-lm.mask_rate must be float, but is 'much'"),
        (
            "masked-lm",
            {"mask_rate": 1.5},
            "the setting mask_rate of the objective masked-lm is a probability and must be from 0 to 1, "
            "but is 1.5: change objective.settings.mask_rate",
        ),
    ],
)
def test_invalid_objective_settings(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        check_objective(name, settings)
    assert str(error.value) == message
