"""Patches and frames: worked by hand and by torch's own convolution, lengths, padding, what is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dragoman.errors import UserError
from dragoman.parts.embedding import FrameEmbedding, Frames, Patches
from dragoman.parts.mixer import SequenceLayout


def padded(lengths: list[int]) -> SequenceLayout:
    return SequenceLayout.padded(max(lengths), torch.tensor(lengths))


def test_a_patch_is_a_matrix_product() -> None:
    part = Patches(features=3).build(2)
    with torch.no_grad():
        part.project.weight.copy_(torch.tensor([[1.0, 2.0, 0.0], [0.0, -1.0, 3.0]]))
        part.project.bias.copy_(torch.tensor([0.5, -0.5]))
    source = torch.tensor([[[1.0, 1.0, 1.0], [2.0, 0.0, -1.0]]])
    layout = padded([2])
    x, after = part.embed_source(source, layout)
    assert x.tolist() == [[[3.5, 1.5], [2.5, -3.5]]]  # 1 + 2 + ½, −1 + 3 − ½; 2 + ½, −3 − ½
    assert after is layout


def by_torch(part: FrameEmbedding, frames: torch.Tensor) -> torch.Tensor:
    """The same by `conv1d`, whose weights lie out × in × kernel, for one recording: S F → S' D."""
    x = frames.T[None]
    for layer in part.halve:
        assert isinstance(layer, torch.nn.Linear)
        kernels = layer.weight.unflatten(1, (3, -1)).transpose(1, 2)
        x = F.relu(F.conv1d(x, kernels, layer.bias, stride=2, padding=1))
    return part.project(x[0].T)


@pytest.mark.parametrize("stride", [1, 2, 4, 8])
@torch.no_grad()
def test_frames_are_torchs_convolutions(stride: int) -> None:
    torch.manual_seed(0)
    part = Frames(features=5, stride=stride).build(6)
    lengths = [11, 8, 7, 2, 1]
    source = torch.randn(5, 11, 5)
    x, after = part.embed_source(source, padded(lengths))
    assert after.lengths is not None
    assert after.lengths.tolist() == [-(-length // stride) for length in lengths]
    assert x.shape == (5, -(-11 // stride), 6)
    for row, length in enumerate(lengths):
        expected = by_torch(part, source[row, :length])
        torch.testing.assert_close(x[row, : len(expected)], expected)


@torch.no_grad()
def test_padding_values_do_not_matter() -> None:
    torch.manual_seed(0)
    part = Frames(features=3, stride=4).build(4)
    source, layout = torch.randn(2, 9, 3), padded([9, 5])
    clean, after = part.embed_source(source, layout)
    source[1, 5:] = float("nan")
    garbled, _ = part.embed_source(source, layout)
    assert after.token_mask is not None
    assert torch.equal(clean[after.token_mask], garbled[after.token_mask])


def test_wrong_feature_shape_is_refused() -> None:
    for part in (Patches(features=3).build(4), Frames(features=3).build(4)):
        with pytest.raises(UserError, match=r"but got the shape 2 × 5 × 4"):
            part.embed_source(torch.zeros(2, 5, 4), padded([5, 5]))
        with pytest.raises(UserError, match=r"but got the shape 2 × 5:"):
            part.embed_source(torch.zeros(2, 5, dtype=torch.long), padded([5, 5]))


def test_frames_cannot_be_packed() -> None:
    part = Frames(features=3).build(4)
    assert not part.supports_packing
    with pytest.raises(UserError, match=r"set training\.batch_layout to padded"):
        part.embed_source(torch.zeros(1, 4, 3), SequenceLayout.packed_row(4, torch.tensor([2, 2]), 2))


@pytest.mark.parametrize("stride", [3, 6])
def test_frame_stride_must_be_a_power_of_two(stride: int) -> None:
    with pytest.raises(UserError, match=f"must be a power of two, such as 4, but is {stride}"):
        Frames(features=3, stride=stride).build(4)
