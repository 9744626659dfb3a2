from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dragoman.data import IGNORE_INDEX, Batch
from dragoman.models import Model
from dragoman.objectives import TaskContext, TranslationObjective, cross_entropy
from dragoman.objectives.translation_objective import teacher_forcing_ratio
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import ENCODER_DECODER_FRAMING, learn_tokenizer


def material(model: Model, smoothing: float = 0.0) -> TaskContext:
    tokenizer = learn_tokenizer(["a b"], "byte")
    return TaskContext(model, tokenizer, tokenizer, ENCODER_DECODER_FRAMING, smoothing)


@pytest.fixture
def batch() -> Batch:
    source, words = torch.randint(4, 20, (3, 6)), torch.randint(4, 20, (3, 4))
    lengths = torch.tensor([4, 3, 2])
    padding = torch.arange(4) >= lengths[:, None]
    fed = torch.cat((torch.full((3, 1), 2), words[:, :-1]), 1).masked_fill(padding, 0)
    answers = words.masked_fill(padding, IGNORE_INDEX)
    return Batch(source, torch.tensor([6, 5, 4]), fed, lengths, answers, np.arange(3), 15, int(lengths.sum()))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [2**25, 60])
def test_loss_equals_torch_cross_entropy(
    batch: Batch, smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy, "MAX_CHUNK_LOGITS", {"cpu": chunk})  # 60: three tokens at a time
    settings = {"model_dim": 16, "layers": 1, "heads": 2}
    model = SYSTEMS["transformer"].spec(VocabularySizes(20, 20, True), "tiny", **settings).build().eval()
    loss = TranslationObjective(material(model, smoothing))(batch)
    loss.total.backward()
    gradients = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    logits = model(batch.source, batch.source_lengths, batch.target, batch.target_lengths)
    expected = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(loss.total, expected)
    assert loss.num_labels == int(batch.target_lengths.sum())
    expected.backward()
    for ours, weight in zip(gradients, model.parameters()):
        torch.testing.assert_close(ours, weight.grad)


def test_uniform_model_has_the_vocabulary_size_as_perplexity(batch: Batch) -> None:
    model = SYSTEMS["cho"].spec(VocabularySizes(20, 20, True), "tiny", model_dim=8).build().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    loss = TranslationObjective(material(model))(batch)
    assert loss.total.item() / loss.num_labels == pytest.approx(np.log(20), rel=1e-6)


# ---- scheduled sampling


def tiny() -> Model:
    torch.manual_seed(0)
    return SYSTEMS["transformer"].spec(VocabularySizes(20, 20, True), "tiny", model_dim=16, layers=1, heads=2).build()


def test_teacher_forcing_ratio() -> None:
    for decay in ("linear", "exponential", "inverse-sigmoid"):
        shares = [teacher_forcing_ratio(done / 10, decay) for done in range(11)]
        assert shares == sorted(shares, reverse=True)
        assert shares[0] > 0.99
        assert shares[-1] < 0.02
    assert teacher_forcing_ratio(0.25, "linear") == 0.75
    assert teacher_forcing_ratio(0.5, "exponential") == pytest.approx(0.1)
    assert teacher_forcing_ratio(0.5, "inverse-sigmoid") == 0.5
    assert teacher_forcing_ratio(7.0, "linear") == 0.0


def test_sampling_rate_of_zero_is_teacher_forcing(batch: Batch) -> None:
    model = tiny().eval()
    forced = TranslationObjective(material(model))(batch, step=5)
    sampled = TranslationObjective(material(model), sampling_rate=1.0, sampling_steps=10)(batch, step=0)
    torch.testing.assert_close(forced.total, sampled.total)


def test_sampled_inputs_come_from_the_model(batch: Batch) -> None:
    """A model that can say but one word is fed that word after START, and nothing else where all words are its own."""
    model = tiny().eval()
    model.output.weight = torch.nn.Parameter(torch.zeros(20, 16))
    model.output.bias = torch.nn.Parameter(torch.full((20,), -30.0))
    with torch.no_grad():
        model.output.bias[7] = 30.0
    fed: list[torch.Tensor] = []
    features = model.forward_features

    def watch(source, source_layout, target, target_layout, recorder=None):  # type: ignore[no-untyped-def]
        fed.append(target)
        return features(source, source_layout, target, target_layout, recorder)

    model.forward_features = watch  # type: ignore[method-assign]
    loss = TranslationObjective(material(model), sampling_rate=1.0, sampling_steps=1)(batch, step=1)
    assert torch.equal(fed[0], batch.target)
    assert fed[1][:, 0].tolist() == [2, 2, 2]
    assert set(fed[1][:, 1:].flatten().tolist()) == {7}
    loss.total.backward()


def test_validation_is_never_sampled(batch: Batch) -> None:
    model = tiny().eval()
    with torch.no_grad():
        forced = TranslationObjective(material(model))(batch)
        sampled = TranslationObjective(material(model), sampling_rate=1.0, sampling_steps=1)(batch, step=9)
    torch.testing.assert_close(forced.total, sampled.total)


def test_sampling_pass_keeps_batch_statistics(batch: Batch) -> None:
    """Running statistics after one step follow one pass: (1 − 0.1) · 0 + 0.1 · mean, not two."""
    settings = {"model_dim": 16, "layers": 1, "heads": 2, "norm": "batch", "dropout": 0.0}
    torch.manual_seed(0)
    model = SYSTEMS["transformer"].spec(VocabularySizes(20, 20, True), "tiny", **settings).build().train()
    start = {name: value.clone() for name, value in model.named_buffers() if "running" in name}
    assert start

    def after(objective: TranslationObjective) -> dict[str, torch.Tensor]:
        model.load_state_dict(start, strict=False)
        objective(batch, step=1)
        return {name: value.clone() for name, value in model.named_buffers() if "running" in name}

    forced = after(TranslationObjective(material(model)))
    sampled = after(
        TranslationObjective(material(model), sampling_rate=1e-9, sampling_steps=1)
    )  # two passes, no token replaced
    assert any(not torch.equal(forced[name], start[name]) for name in start)
    for name, value in forced.items():
        torch.testing.assert_close(sampled[name], value, rtol=0, atol=0)


def test_rdrop_passes_share_sampled_tokens(batch: Batch) -> None:
    model = tiny().train()
    fed: list[torch.Tensor] = []
    features = model.forward_features

    def watch(source, source_layout, target, target_layout, recorder=None):  # type: ignore[no-untyped-def]
        fed.append(target)
        return features(source, source_layout, target, target_layout, recorder)

    model.forward_features = watch  # type: ignore[method-assign]
    objective = TranslationObjective(material(model), sampling_rate=1.0, sampling_steps=1, rdrop_alpha=1.0)
    loss = objective(batch.duplicate_rows(), step=1)
    first, second = fed[-1].chunk(2)
    assert torch.equal(first, second)
    assert not torch.equal(first, batch.target)
    assert loss.metrics["divergence"] > 0  # dropout alone differs
