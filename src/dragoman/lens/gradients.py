"""The norm of gradients by distance: how strongly a token can influence states and predictions far away.

    encoder   ‖∂ g·h_i / ∂x_j‖ by |i − j|: the state at i in a fixed random direction g, the embedding at j
    source    ‖∂ log p(y_t) / ∂x_j‖ by S − j + t, the distance if source and target are read as one sequence
    target    ‖∂ log p(y_t) / ∂y_j‖ by t − j

The latter two are divided by their sum over all tokens that y_t depends on, because confident predictions have small
gradients everywhere.

In a recurrent network each gradient is a product of one matrix per step in between, which vanishes or explodes
(Bengio et al. 1994); the path through attention has constant length. Distances do not account for encoders that read
the source backwards, which are closest to its first tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.lens.axes import evenly_spaced
from dragoman.parts.mixer import SequenceLayout
from dragoman.parts.precision import at_least_float32
from dragoman.run import Run
from dragoman.run.pair_scoring import encode_targets

MIN_PAIRS = 3  # pairs of positions at one distance over which a mean is taken


@dataclass(frozen=True)
class GradientPoint:
    """The mean gradient norm over all pairs of positions at one distance."""

    distance: int
    norm: float
    relative: float  # to the norm at the smallest distance
    pairs: int


@dataclass(frozen=True)
class GradientReach:
    """Gradient norms of a system: `encoder`, `source` and `target` curves, as far as the model has these parts."""

    system: str
    sentences: int
    curves: dict[str, tuple[GradientPoint, ...]]


class NormsByDistance:
    """Collects gradient norms by distance."""

    def __init__(self) -> None:
        """Start without norms."""
        self.norms: dict[int, list[float]] = {}  # distance in tokens → the norms that were added for it

    def add(self, distances: Tensor, norms: Tensor, mask: Tensor) -> None:
        """Add gradient norms (B, S) at the positions where `mask` (B, S) is true; zero norms (no path) are skipped.

        `distances`, in tokens, are broadcast to (B, S).
        """
        included = mask & (norms > 0)
        for distance, norm in zip(distances.expand_as(norms)[included].tolist(), norms[included].tolist()):
            self.norms.setdefault(distance, []).append(norm)

    def curve(self) -> tuple[GradientPoint, ...]:
        """Return a point for each distance with at least MIN_PAIRS norms, nearest first: their mean and number.

        `relative` is the mean divided by that at the smallest distance.
        """
        means = {d: sum(norms) / len(norms) for d, norms in sorted(self.norms.items()) if len(norms) >= MIN_PAIRS}
        nearest = next(iter(means.values()), 1.0)  # the mean at the smallest distance
        return tuple(
            GradientPoint(distance=d, norm=mean, relative=mean / nearest, pairs=len(self.norms[d]))
            for d, mean in means.items()
        )


def measure_gradient_reach(
    run: Run, sources: Sequence[str] | None, targets: Sequence[str], max_positions: int = 24
) -> GradientReach:
    """Measure how the norms of gradients fall with the distance between two tokens, on sentence pairs.

    For target position t, the gradient of log p(y_t) by the embeddings of all source and earlier target tokens is
    computed by teacher forcing; its norms, divided by their sum, are averaged by their distance from t. For the
    encoder, it is the gradient of its states by the source embeddings. Models without a decoder, and those that read
    feature vectors (images, speech), are a UserError.

    Args:
        sources: source sentences; None for a language model.
        targets: their translations, or the texts of a language model.
        max_positions: at most so many evenly spaced target positions t, and encoder states, are measured.
    """
    if not targets or (sources is not None and len(sources) != len(targets)):
        raise UserError(
            f"gradients are measured for pairs of a source and its target, but got {len(sources or []):,} sources and "
            f"{len(targets):,} targets: give equally many, at least one"
        )
    model, framing = run.full_precision_model, run.framing
    if not model.can_generate:
        raise UserError(
            f"{run.folder} is an encoder-only model, but gradients are measured for models with a decoder: name "
            "another run"
        )
    if model.source_features is not None:
        raise UserError(
            f"{run.folder} reads feature vectors, but gradients are measured for tokens: name a run that reads text"
        )
    source, source_lengths = run.pad_batch([[] for _ in targets] if sources is None else run.encode_sources(sources))
    # the token before the first one that is predicted, usually BOS; the special tokens that a language model reads
    # before its text, if there are any, are stored as `source_prefix`
    first_input = framing.source_prefix[-1] if sources is None and framing.source_prefix else framing.bos
    labels = [[*ids, framing.eos] for ids in encode_targets(run, targets, has_source=sources is not None)]
    target, lengths = run.pad_batch([[first_input, *ids[:-1]] for ids in labels])
    label_ids, _ = run.pad_batch(labels)
    source_layout = SequenceLayout.padded(source.shape[1], source_lengths)
    target_layout = SequenceLayout.padded(target.shape[1], lengths)
    # Index of the first target position in the concatenated gradients (axis S+T): S, or in a decoder-only model, which
    # reads source and target as one sequence without padding in between, the length of the source.
    target_start = source_lengths[:, None] if model.is_decoder_only else source.shape[1]
    norms = {"encoder": NormsByDistance(), "source": NormsByDistance(), "target": NormsByDistance()}
    with torch.enable_grad(), embedding_leaves(run) as (embedded, states):
        features = model.forward_features(source, source_layout, target, target_layout)
        log_p = at_least_float32(model.logits(features)).log_softmax(-1).gather(2, label_ids[..., None])[..., 0]  # B T
        for t in evenly_spaced(range(target.shape[1]), max_positions):
            present = lengths > t  # B: targets that have a position t
            gradients = torch.autograd.grad(log_p[present, t].sum(), embedded, retain_graph=True)
            gradient_norms = torch.cat([at_least_float32(gradient).norm(dim=-1) for gradient in gradients], 1)
            # B S+T: masks in the places of predicted tokens come last
            gradient_norms = gradient_norms[:, : source.shape[1] + target.shape[1]]
            gradient_norms = gradient_norms / gradient_norms.sum(1, keepdim=True).clamp(min=1e-30)  # shares of the sum
            positions = torch.arange(gradient_norms.shape[1], device=source.device)
            in_source = present[:, None] & (positions < source_lengths[:, None])
            in_target = present[:, None] & (positions >= target_start) & (positions <= target_start + t)
            # distances from y_t: S + t − j of source token j (one more in a joint sequence, where BOS lies in between);
            # the target inputs are BOS, y_0, y_1, …, so that y_j is the one at target_start + j + 1
            source_end = source_lengths[:, None] + int(model.is_decoder_only)
            norms["source"].add(source_end + t - positions, gradient_norms, in_source)
            norms["target"].add(target_start + t + 1 - positions, gradient_norms, in_target)
        for state in states:
            _measure_encoder(norms["encoder"], state, embedded[0], source_lengths, max_positions)
    curves = {name: curve for name, collected in norms.items() if (curve := collected.curve())}
    return GradientReach(system=run.config.system.name or "", sentences=len(targets), curves=curves)


def _measure_encoder(
    norms: NormsByDistance, states: Tensor, embedded: Tensor, lengths: Tensor, max_positions: int
) -> None:
    """Add to `norms` the gradient norms of encoder states (B S D) by the embeddings of source tokens (B S D).

    The gradient is that of a state's component in one fixed random direction. `lengths` (B) are those of the sources;
    at most `max_positions` evenly spaced states of each are measured.
    """
    direction = torch.randn(states.shape[-1], generator=torch.Generator().manual_seed(0)).to(states)
    direction = direction / direction.norm()
    positions = torch.arange(states.shape[1], device=states.device)
    for i in evenly_spaced(range(states.shape[1]), max_positions):
        present = lengths > i  # B: sources that have a position i
        gradient = torch.autograd.grad((states[present, i] @ direction).sum(), embedded, retain_graph=True)[0]
        mask = present[:, None] & (positions < lengths[:, None])
        norms.add((positions - i).abs(), at_least_float32(gradient).norm(dim=-1), mask)


@contextmanager
def embedding_leaves(run: Run) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Within the block, make the outputs of the embedding tables leaves of the autograd graph.

    Yields two lists, which a forward pass within the block fills: these leaves (source B S D, then target B T D), and
    the states of the encoder (B S D), if there is one.
    """
    embedded: list[Tensor] = []
    states: list[Tensor] = []

    def detach_output(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        """Forward hook of an embedding table: replace its output by a leaf."""
        leaf = output.detach().requires_grad_()
        embedded.append(leaf)
        return leaf

    def record_states(module: nn.Module, inputs: Any, outputs: Any) -> None:
        """Forward hook of the encoder: record its states (B S D)."""
        states.append(outputs[0])  # `MixerOutput.output`

    children = dict(run.model.named_children())
    # by id, because source and target may share one table
    tables = {id(table): table for name in ("source_embedding", "target_embedding") if (table := children.get(name))}
    with ExitStack() as hooks:
        for table in tables.values():
            hooks.enter_context(table.register_forward_hook(detach_output))
        if "encoder" in children:
            hooks.enter_context(children["encoder"].register_forward_hook(record_states))
        yield embedded, states
