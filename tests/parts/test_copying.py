"""The pointer–generator (See et al. 2017): its equations worked by hand, its losses, and what it copies."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.errors import UserError
from dragoman.models import EncoderDecoderModel, model_from_dict, model_to_dict
from dragoman.objectives import cross_entropy
from dragoman.objectives.objective import token_log_probs, token_loss
from dragoman.parts.copying import Copying, CopyingOutput, coverage_loss
from dragoman.parts.inference import optimize_for_inference
from dragoman.parts.mixer import Context, CopyDistribution, Memory, MixerOutput, SequenceLayout
from dragoman.search.forced_decoding import cross_attention, record_attention
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import learn_tokenizer

IGNORED = -100
SOURCE, SOURCE_LENGTHS = torch.tensor([[5, 7, 5, 3], [6, 3, 0, 0]]), torch.tensor([4, 2])
TARGET, TARGET_LENGTHS = torch.tensor([[2, 5, 8], [2, 6, 0]]), torch.tensor([3, 2])
LABELS = torch.tensor([[5, 8, 3], [6, 3, IGNORED]])


@pytest.fixture(autouse=True)
def _double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def small_model(system: str = "transformer", vocabulary: int = 11, **settings: object) -> EncoderDecoderModel:
    torch.manual_seed(0)
    sizes = VocabularySizes(vocabulary, vocabulary, joint=True)
    spec = SYSTEMS[system].spec(sizes, "tiny", model_dim=8, layers=1, copying=True, **settings)
    model = spec.build().eval()
    assert isinstance(model, EncoderDecoderModel)
    return model


def test_the_mixture_by_hand() -> None:
    """One target position, D = 2, a vocabulary of 4, the source “b a b”: eq. 8 and 9 in plain numbers."""
    layer = CopyingOutput(Copying(), (4, 4), dim=2, tied=None, bias=False, transform=None, scaled=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0, 0.0], [math.log(2), 0.0], [math.log(3), 0.0], [0.0, math.log(4)]]))
        layer.pointer.key.weight.copy_(math.sqrt(2) * torch.eye(2))  # cancels 1/√D
        layer.pointer.source_gate.weight.copy_(torch.tensor([[2.0, 0.0]]))
        layer.pointer.gate.weight.copy_(torch.tensor([[0.5, -1.0, 0.25, 0.0]]))
        layer.pointer.gate.bias.fill_(0.125)
    states = torch.tensor([[[math.log(2), 0.0], [0.0, 1.0], [math.log(4), 0.0]]])
    layout = SequenceLayout.padded(3, torch.tensor([3]))
    memory = Memory(states, layout, copied_tokens=layer.copied_tokens(torch.tensor([[2, 1, 2]]), layout, 3))
    decoded = MixerOutput(torch.tensor([[[1.0, 0.0]]]), stack_inputs=torch.tensor([[[3.0, 0.0]]]))
    features = layer.add_copy_probabilities(decoded, Context(SequenceLayout.padded(1, torch.tensor([1])), memory))
    assert features.copying is not None
    # scores log 2, 0, log 4 → attention 2/7, 1/7, 4/7
    gate = 2 * (2 / 7 * math.log(2) + 4 / 7 * math.log(4)) + 0.5 * 1.0 + 0.25 * 3.0 + 0.125
    p_gen = 1 / (1 + math.exp(-gate))
    assert features.copying.generation_prob.item() == pytest.approx(p_gen, abs=1e-12)
    # logits 0, log 2, log 3, 0 → P_vocab 1/7, 2/7, 3/7, 1/7
    expected = [p_gen / 7, p_gen * 2 / 7 + (1 - p_gen) / 7, p_gen * 3 / 7 + (1 - p_gen) * 6 / 7, p_gen / 7]
    probabilities = layer.logits(features.output, features.copying).exp()[0, 0]
    torch.testing.assert_close(probabilities, torch.tensor(expected))


def test_coverage_loss_by_hand() -> None:
    attention = torch.tensor([[[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]]])
    # coverage (0, 0), (0.5, 0.5), (0.75, 1.25): minima 0, 0.25 + 0.5, 0.5 + 0.5
    assert coverage_loss(attention, SequenceLayout.padded(3, torch.tensor([3]))).item() == pytest.approx(1.75 / 3)
    assert coverage_loss(attention, SequenceLayout.padded(3, torch.tensor([2]))).item() == pytest.approx(0.75 / 2)


def test_coverage_loss_is_added_with_its_weight() -> None:
    model = small_model(coverage_loss=0.5)
    layouts = SequenceLayout.padded(4, SOURCE_LENGTHS), SequenceLayout.padded(3, TARGET_LENGTHS)
    recorder: dict[str, list[Tensor]] = {}
    features = model.forward_features(SOURCE, layouts[0], TARGET, layouts[1], recorder)
    attention = recorder["output.pointer"][0][:, 0]  # B T S
    tokens = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]  # row and position
    sums = [torch.minimum(attention[b, t], attention[b, :t].sum(0)).sum() for b, t in tokens]
    torch.testing.assert_close(features.auxiliary_losses, (0.5 * torch.stack(sums).mean(),))
    without = small_model().forward_features(SOURCE, layouts[0], TARGET, layouts[1])
    assert without.auxiliary_losses == ()


@pytest.mark.parametrize("system", ["transformer", "bahdanau", "convs2s"])
@torch.no_grad()
def test_probabilities_sum_to_one_and_padding_is_not_copied(system: str) -> None:
    model = small_model(system)
    log_p = model(SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)
    torch.testing.assert_close(log_p.logsumexp(-1), torch.zeros(2, 3))
    features = model.forward_features(
        SOURCE, SequenceLayout.padded(4, SOURCE_LENGTHS), TARGET, SequenceLayout.padded(3, TARGET_LENGTHS)
    )
    assert features.copying is not None
    assert (features.copying.copy_probs[1, :, 2:] == 0).all()


@torch.no_grad()
def test_a_source_without_tokens_to_copy_is_generated_from() -> None:
    model = small_model()
    assert isinstance(model.output, CopyingOutput)
    model.output.copy_table.fill_(-1)
    log_p = model(SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)
    features = model.forward_features(
        SOURCE, SequenceLayout.padded(4, SOURCE_LENGTHS), TARGET, SequenceLayout.padded(3, TARGET_LENGTHS)
    )
    torch.testing.assert_close(log_p, model.output(features.output).log_softmax(-1))


def test_copied_tokens_are_aligned_by_the_attention_that_copies() -> None:
    model = small_model()
    weights, copying = record_attention(model, SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)
    assert copying is not None
    aligned = cross_attention(model, weights, copying)
    pointer, decoder = weights["output.pointer"][:, 0], weights["decoder.layers.0.1.body"].mean(1)
    p_gen = copying.generation_prob
    torch.testing.assert_close(aligned, p_gen * (decoder + pointer) / 2 + (1 - p_gen) * pointer)


def features_of(model: EncoderDecoderModel) -> tuple[Tensor, CopyDistribution]:
    layouts = SequenceLayout.padded(4, SOURCE_LENGTHS), SequenceLayout.padded(3, TARGET_LENGTHS)
    features = model.forward_features(SOURCE, layouts[0], TARGET, layouts[1])
    assert features.copying is not None
    return features.output, features.copying


@pytest.mark.parametrize("chunk", [2**23, 11])  # all labels at a time, or one
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradients_are_those_of_the_mixture(
    smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cross_entropy.MAX_CHUNK_LOGITS, "cpu", chunk)
    model = small_model()
    x, copying = features_of(model)
    sums = token_loss(model.output, x, LABELS, smoothing, copying=copying)
    log_p = model(SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)[LABELS != IGNORED]
    nll = F.nll_loss(log_p, LABELS[LABELS != IGNORED], reduction="sum")
    expected = (1 - smoothing) * nll - smoothing * log_p.mean(-1).sum()
    torch.testing.assert_close(sums["total"], expected)
    torch.testing.assert_close(sums["nll_loss"], nll)
    weights = list(model.parameters())
    torch.testing.assert_close(torch.autograd.grad(sums["total"], weights), torch.autograd.grad(expected, weights))
    with torch.no_grad():
        correct = token_loss(model.output, x, LABELS, smoothing, copying=copying)["correct"]
    assert correct == (log_p.argmax(-1) == LABELS[LABELS != IGNORED]).sum()


def test_gradients_equal_finite_differences() -> None:
    model = small_model(vocabulary=9)
    x, copying = (tensor for tensor in features_of(model))
    inputs = [leaf.detach().requires_grad_() for leaf in (x, copying.generation_prob, copying.copy_probs)]

    def loss(x: Tensor, generation_prob: Tensor, copy_probs: Tensor) -> Tensor:
        distribution = CopyDistribution(generation_prob, copy_probs, copying.tokens)
        return token_loss(model.output, x, LABELS, 0.1, copying=distribution)["total"]

    assert torch.autograd.gradcheck(loss, inputs)


def test_token_log_probs_are_those_of_the_mixture() -> None:
    model = small_model()
    x, copying = features_of(model)
    log_p = model(SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS).gather(-1, LABELS.clamp(min=0)[..., None])[..., 0]
    expected = log_p.masked_fill(LABELS == IGNORED, 0.0)
    actual = token_log_probs(model.output, x, LABELS, copying)
    torch.testing.assert_close(actual, expected)
    weights = list(model.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(actual.square().sum(), weights), torch.autograd.grad(expected.square().sum(), weights)
    )


def test_rdrop_compares_the_mixtures_of_two_passes() -> None:
    model = small_model()
    passes = [features_of(model), features_of(small_model(vocabulary=11))]
    x = torch.cat([passes[0][0], 1.5 * passes[1][0]])
    copying = CopyDistribution(*(torch.cat(pair) for pair in zip(passes[0][1], passes[1][1])))
    labels = torch.cat((LABELS, LABELS))
    sums = token_loss(model.output, x, labels, smoothing=0.0, rdrop_alpha=3.0, copying=copying)
    log_p = model.output.logits(x, copying)[labels != IGNORED]
    first, second = log_p.chunk(2)
    divergence = F.kl_div(first, second, reduction="sum", log_target=True)
    divergence = divergence + F.kl_div(second, first, reduction="sum", log_target=True)
    torch.testing.assert_close(sums["divergence"], divergence)
    nll = F.nll_loss(log_p, labels[labels != IGNORED], reduction="sum")
    torch.testing.assert_close(sums["total"], nll + 1.5 * divergence)


@torch.no_grad()
def test_a_restricted_vocabulary_copies_under_its_own_ids() -> None:
    model = small_model()
    order = torch.tensor([3, 0, 10, 7, 5, 1, 2, 4, 6, 8, 9])  # all tokens, under new ids
    position = order.argsort()
    restricted = model.restrict_vocabulary(order)
    expected = model(SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)[..., order]
    torch.testing.assert_close(restricted(SOURCE, SOURCE_LENGTHS, position[TARGET], TARGET_LENGTHS), expected)
    few = model.restrict_vocabulary(torch.tensor([2, 3, 5, 8]))
    tokens = few.output.copied_tokens(SOURCE, SequenceLayout.padded(4, SOURCE_LENGTHS), 4)
    assert tokens is not None
    assert tokens.tolist() == [[2, -1, 2, 1], [-1, 1, -1, -1]]
    assert model.copyable_tokens(SOURCE, SOURCE_LENGTHS).tolist() == [3, 5, 6, 7]


@torch.no_grad()
def test_packed_weights_give_the_same_mixture() -> None:
    torch.set_default_dtype(torch.float32)
    model = small_model()
    packed = optimize_for_inference(model)
    torch.testing.assert_close(
        packed(SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS), model(SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)
    )


def test_separate_vocabularies_are_matched_by_their_tokens() -> None:
    source = learn_tokenizer(["Anna sees Köln", "Anna sees Bonn"], "word", 40)
    target = learn_tokenizer(["Köln sieht Anna", "Bonn sieht Anna"], "word", 40)
    spec = SYSTEMS["transformer"].spec(
        VocabularySizes(source.vocab_size, target.vocab_size), "tiny", model_dim=8, copying=True
    )
    model = spec.build()
    model.match_vocabularies(source, target)
    assert isinstance(model.output, CopyingOutput)
    ids = torch.tensor([[*source.encode("Anna sees Köln"), source.eos]])
    tokens = model.output.copied_tokens(ids, SequenceLayout.padded(4, torch.tensor([4])), 4)
    assert tokens is not None
    assert tokens.tolist() == [[*target.encode("Anna"), -1, *target.encode("Köln"), target.eos]]


def test_settings_are_checked_and_specs_are_read() -> None:
    sizes = VocabularySizes(11, 11, joint=True)
    spec = SYSTEMS["transformer"].spec(sizes, "tiny", copying=True, coverage_loss=1.0)
    assert model_from_dict(model_to_dict(spec)) == spec
    with pytest.raises(UserError, match=r"set system.settings.copying to true"):
        SYSTEMS["transformer"].spec(sizes, "tiny", coverage_loss=1.0)
    with pytest.raises(UserError, match="weight of a loss and must be at least 0"):
        SYSTEMS["transformer"].spec(sizes, "tiny", copying=True, coverage_loss=-1.0).build()
    assert "copying" not in SYSTEMS["vision"].settings()


def test_features_are_not_copied() -> None:
    tokenizer = learn_tokenizer(["one two"], "character").with_tags(["news"]).with_features(["PST", "V"], ";")
    sizes = VocabularySizes(tokenizer.vocab_size, tokenizer.vocab_size, joint=True)
    model = SYSTEMS["transformer"].spec(sizes, "tiny", model_dim=16, copying=True).build()
    model.match_vocabularies(tokenizer, tokenizer)
    expected = [-1 if token in tokenizer.source_prefix_ids else token for token in range(tokenizer.vocab_size)]
    assert model.output.copy_table.tolist() == expected
    assert expected.count(-1) == 4  # a tag, two features, and the symbol of unknown features
