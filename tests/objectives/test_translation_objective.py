from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dragoman.data import Batch
from dragoman.objectives import Translation, translation
from dragoman.systems import SYSTEMS, Vocabulary


@pytest.fixture
def batch() -> Batch:
    source, target = torch.randint(4, 20, (3, 6)), torch.randint(4, 20, (3, 5))
    lengths = torch.tensor([5, 4, 3])
    target[:, 0] = 2
    target = target.masked_fill(torch.arange(5) >= lengths[:, None], 0)
    return Batch(source, torch.tensor([6, 5, 4]), target, lengths, np.arange(3), 15, int(lengths.sum()) - 3)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [2**25, 60])
def test_the_loss_is_torchs_cross_entropy(
    batch: Batch, smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translation, "CHUNK", chunk)  # 60: three tokens at a time
    settings = {"width": 16, "layers": 1, "heads": 2}
    model = SYSTEMS["transformer"].spec(Vocabulary(20, 20, True), "tiny", **settings).build().eval()
    loss = Translation(smoothing, pad=0)(model, batch)
    loss.total.backward()
    gradients = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    logits = model(batch.source, batch.source_lengths, batch.target[:, :-1], batch.target_lengths - 1)
    answers = batch.target[:, 1:]
    expected = F.cross_entropy(
        logits.flatten(0, 1), answers.flatten(), ignore_index=0, reduction="sum", label_smoothing=smoothing
    )
    torch.testing.assert_close(loss.total, expected)
    assert loss.count == int((answers != 0).sum())
    expected.backward()
    for ours, weight in zip(gradients, model.parameters()):
        torch.testing.assert_close(ours, weight.grad)


def test_a_model_that_knows_nothing_has_the_vocabulary_as_its_perplexity(batch: Batch) -> None:
    model = SYSTEMS["cho"].spec(Vocabulary(20, 20, True), "tiny", width=8).build().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    loss = Translation()(model, batch)
    assert loss.total.item() / loss.count == pytest.approx(np.log(20), rel=1e-6)
