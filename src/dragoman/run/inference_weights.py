"""Models optimized for decoding: packed weights on a CPU, equal within rounding, or bfloat16 on a GPU."""

from __future__ import annotations

from typing import NamedTuple

import torch

from dragoman.errors import UserError, unknown_name
from dragoman.models import Model
from dragoman.parts.inference import InferencePrecision, optimize_for_inference, to_bfloat16
from dragoman.parts.packed_linear import KERNELS


class _Optimized(NamedTuple):
    """A model converted for decoding, and the model that it was converted from."""

    versions: list[tuple[int, int]]  # address and change counter of the weights that the model was optimized from
    original: Model  # kept alive, because the cache is keyed by its id
    model: Model


class InferenceWeights:
    """Optimizes a model when it is first used, and again whenever its weights have changed.

    Args:
        weights: `float32`, `int8` (CPU) or `bfloat16` (GPU); None leaves models as they are, as during training
        device: the device of the models
    """

    def __init__(self, weights: InferencePrecision | None = None, device: str | torch.device = "cpu") -> None:
        """Convert models to the precision `weights` when they are called: "float32", "int8" or "bfloat16".

        None leaves models as they are, as during training. A precision that the device does not support is a UserError.
        """
        if weights is not None and weights not in (*KERNELS, "bfloat16"):  # KERNELS: float32 and int8 (CPU)
            raise unknown_name("precision of the weights", weights, [*KERNELS, "bfloat16"])
        device_type = torch.device(device).type
        if weights == "int8" and device_type != "cpu":
            raise UserError(
                f"int8 weights need a CPU, but the run is on the device {device}: load it with --device cpu (in "
                "Python: device='cpu')"
            )
        if weights == "bfloat16" and device_type == "cpu":
            raise UserError(
                "bfloat16 weights need a GPU, but the run is on a CPU: use float32 weights (without --bfloat16) or "
                "int8 weights (--int8)"
            )
        self.weights = weights
        self._cache: dict[int, _Optimized] = {}  # by the id of the original model

    def __call__(self, model: Model) -> Model:
        """Return a copy of the model that is optimized for decoding: packed weights (CPU) or bfloat16 weights (GPU).

        It is converted by the first call, and again if the weights have changed. A model whose parameters are not
        float32, or whose device does not support the precision, is returned itself.
        """
        parameter = next(model.parameters())
        # precisions by type of device; those of KERNELS are float32 and int8
        supported = {"cpu": tuple(KERNELS), "cuda": ("bfloat16",)}.get(parameter.device.type, ())
        if self.weights is None or self.weights not in supported or parameter.dtype != torch.float32:
            return model
        # torch increments _version when a weight is changed in place
        versions = [(weight.data_ptr(), weight._version) for weight in model.parameters()]
        cached = self._cache.get(id(model))
        if cached is None or cached.versions != versions:
            optimized = to_bfloat16(model) if parameter.is_cuda else optimize_for_inference(model, self.weights)
            cached = self._cache[id(model)] = _Optimized(versions, model, optimized)
        return cached.model
