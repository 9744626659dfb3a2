"""A new part needs one file: this one defines a layer and a position, and uses them in models."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.models import DecoderOnly, count_flops, count_parameters, model_from_dict, model_to_dict
from dragoman.parts.attention import SelfAttention
from dragoman.parts.flops import Workload, module_flops
from dragoman.parts.mixer import Context, Mixer, MixerOutput, SequenceLayout, State
from dragoman.parts.positions import Position
from dragoman.parts.spec import Spec, build_part
from dragoman.parts.stack import PreNorm, Stack


@dataclass(frozen=True)
class Averaging(Spec):
    """y_t = W (mean of x_1 … x_t)."""

    bias: bool = True

    def build(self, dim: int) -> Mixer:
        return AveragingMixer(self, dim)


class AveragingMixer(Mixer):
    supports_packing = False

    def __init__(self, spec: Averaging, dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(dim, dim, bias=spec.bias)

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        return {"total": like.new_zeros(batch, 1, self.project.in_features)}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        totals = x.cumsum(1) if state is None else state["total"] + x.cumsum(1)
        means = totals / (context.layout.positions[..., None] + 1)
        return MixerOutput(self.project(means), None if state is None else {"total": totals[:, -1:]})


@dataclass(frozen=True)
class Triangle(Spec):
    """A position with a formula of its own for its operations."""

    def build(self, dim: int) -> Position:
        return TrianglePosition()


class TrianglePosition(Position):
    def flops(self, work: Workload) -> int:
        return work.tokens


PARTS: dict[str, type[Spec]] = {"Averaging": Averaging, "Triangle": Triangle}


def spec(part: Spec) -> DecoderOnly:
    return DecoderOnly(8, 11, Stack((PreNorm(part),), depth=2))


def test_a_model_with_a_new_part_is_saved_and_read() -> None:
    data = model_to_dict(spec(Averaging(bias=False)))
    assert model_from_dict(data, PARTS) == spec(Averaging(bias=False))


def test_a_new_part_decodes_as_it_reads_whole_sequences() -> None:
    model = spec(Averaging()).build().double().eval()
    tokens = torch.tensor([[3, 7, 2, 9]])
    whole = model(tokens[:, :0], torch.tensor([0]), tokens, torch.tensor([4]))
    start = model.start_decoding(tokens[:, :0], torch.tensor([0]), beam=1, max_length=4, first=3)
    state: State | None = start.state
    for t in range(4):
        logits, state = model.decode(
            tokens[:, t : t + 1], Context(SequenceLayout.continuation(torch.tensor([t]))), state
        )
        torch.testing.assert_close(logits[:, 0], whole[:, t])


def test_matrices_of_a_new_part_are_counted() -> None:
    with_part, without = spec(Averaging()), DecoderOnly(8, 11, Stack((), depth=1))
    assert count_flops(with_part, 3, 4) - count_flops(without, 3, 4) == 2 * 7 * 2 * 8 * 8
    assert count_parameters(with_part) - count_parameters(without) == 2 * (8 * 8 + 8 + 16)


def test_a_new_part_can_have_its_own_formula() -> None:
    part = build_part(SelfAttention(heads=2, position=Triangle()), 8, Mixer)
    plain = build_part(SelfAttention(heads=2), 8, Mixer)
    work = Workload(7, 0, 8)
    assert module_flops(part, work) - module_flops(plain, work) == 7 * 2  # a query for every token and head
