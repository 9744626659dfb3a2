"""The models of a run as searches use them: packed for a CPU, the same within rounding, or in bfloat16 on a GPU."""

from __future__ import annotations

from typing import Any

import torch

from dragoman.errors import UserError, unknown_name
from dragoman.models import Model
from dragoman.parts.bfloat16 import to_bfloat16
from dragoman.parts.inference import PACKS, InferencePrecision, optimize_for_inference


class InferenceWeights:
    """Packs a model when it is first asked for, and once more whenever its weights have changed since.

    `weights` None: nothing is packed, as where a model is still being trained.
    """

    def __init__(self, weights: InferencePrecision | None = None, device: str | torch.device = "cpu") -> None:
        if weights is not None and weights not in (*PACKS, "bfloat16"):
            raise unknown_name("kind of weights", weights, [*PACKS, "bfloat16"])
        kind = torch.device(device).type
        if weights == "int8" and kind != "cpu":
            raise UserError(f"int8 weights are for a CPU, but the run is on {device}: load it on the device 'cpu'")
        if weights == "bfloat16" and kind == "cpu":
            raise UserError("bfloat16 weights are for a GPU, but the run is on a CPU: leave them, or take int8")
        self.weights = weights
        self._packed: dict[int, tuple[Any, Model, Model]] = {}  # what it was packed from, that model, the packed one

    def __call__(self, model: Model) -> Model:
        first = next(model.parameters())
        wanted = {"cpu": PACKS, "cuda": ("bfloat16",)}.get(first.device.type, ())
        if self.weights is None or self.weights not in wanted or first.dtype != torch.float32:
            return model
        now = [(weight.data_ptr(), weight._version) for weight in model.parameters()]
        if id(model) not in self._packed or self._packed[id(model)][0] != now:
            self._packed[id(model)] = (
                now,
                model,
                to_bfloat16(model) if first.is_cuda else optimize_for_inference(model, self.weights),
            )
        return self._packed[id(model)][2]
