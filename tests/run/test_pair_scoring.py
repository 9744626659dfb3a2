"""Teacher forcing on given pairs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from untrained_runs import untrained

from dragoman.run import Run

SOURCE = torch.tensor([[5, 6, 7]])


@pytest.fixture(scope="module")
def padded_with_bos() -> Run:
    """A run whose padding has the id of BOS, as in T5."""
    run = untrained("bpe")
    run.framing = replace(run.framing, bos=run.framing.pad)
    return run


def logits_without_padding(run: Run, target: list[int]) -> Tensor:
    """The model's logits (T V) for a batch of one target, which is all tokens."""
    with torch.inference_mode():
        return run.model(SOURCE, torch.tensor([3]), torch.tensor([target]), torch.tensor([len(target)]))[0]


@pytest.mark.parametrize("left", range(4))
@pytest.mark.parametrize("right", range(2))
def test_padding_with_the_id_of_bos_does_not_change_logits(padded_with_bos: Run, left: int, right: int) -> None:
    pad, target = padded_with_bos.framing.bos, [padded_with_bos.framing.bos, 8, 9]
    padded = torch.tensor([[pad] * left + target + [pad] * right])
    found = padded_with_bos.logits(SOURCE, padded)[0, left : left + len(target)]
    torch.testing.assert_close(found, logits_without_padding(padded_with_bos, target), atol=1e-4, rtol=1e-4)


def test_first_token_of_a_target_of_padding_is_bos(padded_with_bos: Run) -> None:
    bos = padded_with_bos.framing.bos
    found = padded_with_bos.logits(SOURCE, torch.tensor([[bos, bos, bos]]))[0, :1]
    torch.testing.assert_close(found, logits_without_padding(padded_with_bos, [bos]), atol=1e-4, rtol=1e-4)


def test_target_without_bos_keeps_all_its_tokens(padded_with_bos: Run) -> None:
    found = padded_with_bos.logits(SOURCE, torch.tensor([[8, 9, padded_with_bos.framing.pad]]))[0, :2]
    torch.testing.assert_close(found, logits_without_padding(padded_with_bos, [8, 9]), atol=1e-4, rtol=1e-4)
