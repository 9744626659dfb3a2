"""bfloat16 weights for decoding on a GPU."""

from __future__ import annotations

import pytest
import torch

from dragoman.errors import UserError
from dragoman.parts import inference
from dragoman.parts.embedding import TokenEmbedding
from dragoman.parts.inference import GPU_TABLE_LENGTH, to_bfloat16
from dragoman.parts.mixer import SequenceLayout
from dragoman.parts.positions import Sinusoidal, SinusoidalTable
from dragoman.run.inference_weights import InferenceWeights
from laws.small import pairs, small_model


@pytest.mark.parametrize("variant", ["transformer", "luong", "convs2s", "gpt"])
def test_a_copy_in_bfloat16_differs_by_rounding(variant: str) -> None:
    model = small_model(variant).eval()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    copy, read = to_bfloat16(model), pairs(variant)
    assert {weight.dtype for weight in copy.parameters()} == {torch.bfloat16}
    with torch.no_grad():
        exact, rounded = (
            one(read.source, read.source_lengths, read.target, read.target_lengths).float() for one in (model, copy)
        )
    real = torch.arange(read.target.shape[1]) < read.target_lengths[:, None]
    assert (exact - rounded)[real].abs().mean() < 0.05 * exact[real].std()
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def test_sines_are_those_of_the_formula() -> None:
    plain = Sinusoidal().build(16)
    sines = SinusoidalTable(plain, GPU_TABLE_LENGTH, torch.bfloat16)
    near = SequenceLayout(torch.tensor([[0, 5, GPU_TABLE_LENGTH - 1]]), max_length=GPU_TABLE_LENGTH)
    torch.testing.assert_close(
        sines.embed(torch.zeros(1, 3, 16, dtype=torch.bfloat16), near).float(),
        plain.encoding(near.positions),
        atol=4e-3,
        rtol=0,
    )
    far = SequenceLayout(torch.tensor([[GPU_TABLE_LENGTH + 7]]), max_length=2 * GPU_TABLE_LENGTH)
    torch.testing.assert_close(sines.embed(torch.zeros(1, 1, 16), far), plain.encoding(far.positions))


def test_bfloat16_weights_are_refused_on_a_cpu() -> None:
    with pytest.raises(UserError, match="bfloat16 weights need a GPU"):
        InferenceWeights("bfloat16", "cpu")
    with pytest.raises(UserError, match="precision of the weights"):
        InferenceWeights("float8")  # type: ignore[arg-type]


def test_tied_weights_stay_tied_and_large_tables_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("transformer").eval()
    scales = [part.scale for part in model.modules() if isinstance(part, TokenEmbedding)]
    assert 1.0 not in scales
    size = sum(weight.numel() for weight in model.parameters())
    assert 1.0 in [part.scale for part in to_bfloat16(model).modules() if isinstance(part, TokenEmbedding)]
    monkeypatch.setattr(inference, "MAX_SCALED_COPY", 1)
    copy = to_bfloat16(model, torch.device("cpu"))
    assert sum(weight.numel() for weight in copy.parameters()) == size
    assert [part.scale for part in copy.modules() if isinstance(part, TokenEmbedding)] == scales
