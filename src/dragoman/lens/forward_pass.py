"""One teacher-forced pass with everything written down: logits, attention weights, and what stands between layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.models import Model
from dragoman.parts.mixer import Context, Layout
from dragoman.parts.precision import at_least_float32
from dragoman.parts.stack import StackMixer


@dataclass(frozen=True)
class RecordedForward:
    """What came of one sentence: logits T V, weights H T S by the path of their part, readings T V by their layer."""

    logits: Tensor
    attention_weights: dict[str, Tensor]
    layer_logits: dict[str, Tensor]


@torch.inference_mode()
def record_forward(
    model: Model, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor
) -> RecordedForward:
    """A source and a target, 1 S and 1 T, each without padding; a model that writes nothing is given no target (1 0).

    Recorder and hooks are there for this pass alone: a model that nobody looks into has neither.
    """
    recorder: dict[str, list[Tensor]] = {}
    layouts = Layout.padded(source.shape[1], source_lengths), Layout.padded(target.shape[1], target_lengths)
    with record_layers(output_stack(model)) as layers:
        x, _ = model.forward_features(source, layouts[0], target, layouts[1], recorder)
    first = source.shape[1] if model.is_decoder_only else 0  # where the target begins, in a sequence of both
    return RecordedForward(
        at_least_float32(model.output(x)[0]),
        {path: at_least_float32(torch.cat(steps, dim=2)[0]).cpu() for path, steps in recorder.items()},
        {name: at_least_float32(model.output(y[:, first:])[0]) for name, y in layers.items()},
    )


def output_stack(model: Model) -> StackMixer:
    """The stack under the output layer: a decoder, or an encoder that stands alone."""
    owner: Any = model
    for name in ("discriminator", "decoder" if model.can_generate else "encoder"):
        owner = getattr(owner, name, owner)
    assert isinstance(owner, StackMixer)
    return owner


@contextmanager
def record_layers(stack: StackMixer) -> Iterator[dict[str, Tensor]]:
    """What enters a stack and what comes out of each of its layers, B T D, as the output layer would read it.

    The stack's last norm is done to all of them. A stack of one block is taken apart into the parts of that block.
    """
    found: dict[str, Tensor] = {}
    parts: list[nn.Module] = [part for _, part in stack.parts()]
    size = len(parts) // len(stack.layers) if len(stack.layers) > 1 else 1

    def keep(name: str, x: Tensor, ctx: Context) -> None:
        found[name] = stack.norm(x, ctx.layout)

    def entering(part: nn.Module, inputs: tuple[Any, ...]) -> None:
        keep("input", inputs[0], inputs[1])

    def leaving(name: str) -> Any:
        return lambda part, inputs, outputs: keep(name, outputs[0], inputs[1])

    hooks = [parts[0].register_forward_pre_hook(entering)]
    hooks += [
        part.register_forward_hook(leaving(f"layer {number}")) for number, part in enumerate(parts[size - 1 :: size], 1)
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
