"""How far a gradient reaches: what a word that stands so and so far away could still change.

    encoder   ‖∂ g·h_i / ∂x_j‖ by |i − j|: the state at i in a direction g that is drawn once, the embedding at j
    source    ‖∂ log p(y_t) / ∂x_j‖ by the tokens from x_j to y_t, source and target read as one sequence: S − j + t
    target    ‖∂ log p(y_t) / ∂y_j‖ by t − j

The latter two are shares of the sum over all words that y_t depends on, since a word that the model is sure of has
small gradients altogether.

In a recurrent network each is a product of as many matrices as there are steps between, which vanishes or explodes
(Bengio et al. 1994); attention has a way of constant length. An encoder that reads its source backwards is nearest to
the first words of it, whatever is counted here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.mixer import Layout
from dragoman.parts.precision import at_least_float32
from dragoman.run import Run

Reach = Literal["encoder", "source", "target"]

LEAST = 3  # pairs that a mean is taken over


@dataclass(frozen=True)
class GradientPoint:
    """The mean size of a gradient over all pairs at one distance, and how that compares with the nearest."""

    distance: int
    norm: float
    relative: float
    pairs: int


@dataclass(frozen=True)
class GradientReach:
    """Curves by what was derived; a model has those that it has parts for."""

    system: str
    sentences: int
    curves: dict[str, tuple[GradientPoint, ...]]


class NormsByDistance:
    """Sizes by distance."""

    def __init__(self) -> None:
        self.sizes: dict[int, list[float]] = {}

    def add(self, distances: Tensor, sizes: Tensor, real: Tensor) -> None:
        """All B S; what is not real and what no way leads from is left out."""
        counted = real & (sizes > 0)
        for distance, size in zip(distances.expand_as(sizes)[counted].tolist(), sizes[counted].tolist()):
            self.sizes.setdefault(distance, []).append(size)

    def curve(self) -> tuple[GradientPoint, ...]:
        means = {d: sum(some) / len(some) for d, some in sorted(self.sizes.items()) if len(some) >= LEAST}
        first = next(iter(means.values()), 1.0)
        return tuple(GradientPoint(d, size, size / first, len(self.sizes[d])) for d, size in means.items())


def measure_gradient_reach(
    run: Run, sources: Sequence[str], targets: Sequence[str], max_positions: int = 24
) -> GradientReach:
    """Over some sentences and their translations; of each up to `most` places are derived, evenly spread."""
    if len(sources) != len(targets) or not targets:
        raise UserError(f"{len(sources):,} sources came with {len(targets):,} targets: give at least one pair")
    model, framing = run.model, run.framing
    if not model.can_generate:
        raise UserError(f"{run.folder} holds an encoder alone: gradients are those of what a decoder writes")
    if model.source_features is not None:
        raise UserError(f"{run.folder} reads vectors: gradients are shown for words")
    source, source_lengths = run.pad_batch(run.encode_sources(sources), framing.pad)
    written = [[*ids, framing.eos] for ids in run.target_tokenizer.encode_batch(list(targets))]
    target, lengths = run.pad_batch([[framing.bos, *ids[:-1]] for ids in written], framing.pad)
    answers, _ = run.pad_batch(written, framing.pad)
    layouts = Layout.padded(source.shape[1], source_lengths), Layout.padded(target.shape[1], lengths)
    found: dict[str, NormsByDistance] = {
        "encoder": NormsByDistance(),
        "source": NormsByDistance(),
        "target": NormsByDistance(),
    }
    with torch.enable_grad(), embedding_leaves(run) as (embedded, states):
        x, _ = model.forward_features(source, layouts[0], target, layouts[1])
        log_p = at_least_float32(model.output(x)).log_softmax(-1).gather(2, answers[..., None])[..., 0]  # B T
        for t in evenly_spaced(target.shape[1], max_positions):
            here = lengths > t
            derived = torch.autograd.grad(log_p[here, t].sum(), embedded, retain_graph=True)
            sizes = [at_least_float32(one).norm(dim=-1) for one in derived]  # B S and B T, or B S+T
            whole = torch.cat(sizes, 1).sum(1, keepdim=True).clamp(min=1e-30)  # B 1
            sizes = [one / whole for one in sizes]
            if model.is_decoder_only:
                places = torch.arange(sizes[0].shape[1], device=source.device)
                distances = source_lengths[:, None] + t + 1 - places
                before, within = places < source_lengths[:, None], distances > 0
                found["source"].add(distances, sizes[0], here[:, None] & before)
                found["target"].add(distances, sizes[0], here[:, None] & ~before & within)
                continue
            places = torch.arange(source.shape[1], device=source.device)
            real = here[:, None] & (places < source_lengths[:, None])
            found["source"].add(source_lengths[:, None] - places + t, sizes[0], real)
            places = torch.arange(target.shape[1], device=source.device)
            found["target"].add(t + 1 - places, sizes[1], here[:, None] & (places <= t))
        for state in states:
            _within_encoder(found["encoder"], state, embedded[0], source_lengths, max_positions)
    curves = {name: curve for name, sums in found.items() if (curve := sums.curve())}
    return GradientReach(run.config.system.name or "", len(sources), curves)


def _within_encoder(sums: NormsByDistance, states: Tensor, embedded: Tensor, lengths: Tensor, most: int) -> None:
    direction = torch.randn(states.shape[-1], generator=torch.Generator().manual_seed(0)).to(states)
    direction = direction / direction.norm()
    places = torch.arange(states.shape[1], device=states.device)
    for i in evenly_spaced(states.shape[1], most):
        here = lengths > i
        derived = torch.autograd.grad((states[here, i] @ direction).sum(), embedded, retain_graph=True)[0]
        real = here[:, None] & (places < lengths[:, None])
        sums.add((places - i).abs(), at_least_float32(derived).norm(dim=-1), real)


def evenly_spaced(count: int, max_count: int) -> list[int]:
    """Up to so many of the first numbers, evenly spread, first and last among them."""
    if count <= max_count:
        return list(range(count))
    return sorted({round(n * (count - 1) / (max_count - 1)) for n in range(max_count)})


@contextmanager
def embedding_leaves(run: Run) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """While it lasts: what comes out of the embeddings, as the leaves of every graph, and what the encoder makes."""
    embedded: list[Tensor] = []
    states: list[Tensor] = []

    def cut_off(part: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        leaf = output.detach().requires_grad_()
        embedded.append(leaf)
        return leaf

    def keep(part: nn.Module, inputs: Any, outputs: Any) -> None:
        states.append(outputs[0])

    named = dict(run.model.named_children())
    tables = {id(table): table for name in ("source_embedding", "target_embedding") if (table := named.get(name))}
    hooks = [table.register_forward_hook(cut_off) for table in tables.values()]
    if "encoder" in named:
        hooks.append(named["encoder"].register_forward_hook(keep))
    try:
        yield embedded, states
    finally:
        for hook in hooks:
            hook.remove()
