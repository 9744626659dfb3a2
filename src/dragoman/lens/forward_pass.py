"""A teacher-forced forward pass that records attention weights and the states between layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
    """Results of a recorded pass over one sentence pair."""

    logits: Tensor  # T V
    attention_weights: dict[str, Tensor]  # path of the attention module → H T S
    layer_logits: dict[str, Tensor]  # name of the layer → T V, the output layer applied to its states


@torch.inference_mode()
def record_forward(
    model: Model, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor
) -> RecordedForward:
    """Run the model on one sentence pair, with recorder and hooks that exist for this pass only.

    Shape: source (1, S) and target (1, T), without padding; target (1, 0) for encoders, whose outputs have length S.
    """
    recorder: dict[str, list[Tensor]] = {}
    layouts = Layout.padded(source.shape[1], source_lengths), Layout.padded(target.shape[1], target_lengths)
    with record_layers(model.output_stack) as layers:
        states = model.forward_features(source, layouts[0], target, layouts[1], recorder).output
    first = source.shape[1] if model.is_decoder_only else 0  # first target position in the joint sequence
    return RecordedForward(
        at_least_float32(model.output(states)[0]),
        {path: at_least_float32(torch.cat(steps, dim=2)[0]).cpu() for path, steps in recorder.items()},
        {name: at_least_float32(model.output(states[:, first:])[0]) for name, states in layers.items()},
    )


@contextmanager
def record_layers(stack: StackMixer) -> Iterator[dict[str, Tensor]]:
    """Record the input of a stack and the output of each layer, (B, T, D), after the final norm of the stack.

    The sublayers of a stack with a single block are recorded one by one.
    """
    recorded: dict[str, Tensor] = {}
    parts: list[nn.Module] = [part for _, part in stack.named_layers()]
    parts_per_layer = len(parts) // len(stack.layers) if len(stack.layers) > 1 else 1

    def record(name: str, x: Tensor, context: Context) -> None:
        recorded[name] = stack.norm(x, context.layout)

    def record_output(name: str) -> Any:
        return lambda part, inputs, outputs: record(name, outputs[0], inputs[1])

    with ExitStack() as hooks:
        hooks.enter_context(parts[0].register_forward_pre_hook(lambda part, inputs: record("input", *inputs[:2])))
        for number, part in enumerate(parts[parts_per_layer - 1 :: parts_per_layer], 1):
            hooks.enter_context(part.register_forward_hook(record_output(f"layer {number}")))
        yield recorded
