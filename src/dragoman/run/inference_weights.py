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
    """Optimizes a model when it is first used, and again whenever its weights have changed."""

    def __init__(self, weights: InferencePrecision | None = None, device: str | torch.device | None = None) -> None:
        """Convert models that decode on `device` to the precision `weights`: "float32", "int8" or "bfloat16".

        None leaves models as they are and where they are, as during training. A precision that the device does not
        support is a UserError.
        """
        if weights is not None and weights not in (*KERNELS, "bfloat16"):  # KERNELS: float32 and int8 (CPU)
            raise unknown_name("precision of the weights", weights, [*KERNELS, "bfloat16"])
        device_type = torch.device(device or "cpu").type
        if weights == "int8" and device_type != "cpu":
            raise UserError(
                f"int8 weights need a CPU, but the run is on the device {device}: load it with --device cpu (in "
                "Python: device='cpu')"
            )
        if weights == "bfloat16" and device_type != "cuda":
            raise UserError(
                f"bfloat16 weights need a GPU of the type cuda, but the run is on {device or 'cpu'}: use float32 "
                "weights (without --bfloat16), or on a CPU int8 weights (--int8)"
            )
        self.weights = weights
        # "cuda" becomes "cuda:0"
        self.device = None if device is None else torch.empty(0, device=device).device
        self._cache: dict[int, _Optimized] = {}  # by the id of the original model

    @property
    def loading_device(self) -> torch.device:
        """The device to load models to: the CPU if only their copies in bfloat16 are needed on the GPU."""
        return torch.device("cpu") if self.device is None or self.weights == "bfloat16" else self.device

    def __call__(self, model: Model) -> Model:
        """Return a copy of the model that is optimized for decoding: packed weights (CPU) or bfloat16 weights (GPU).

        It is converted by the first call, and again if the weights have changed. A model whose parameters are not
        float32, or whose device does not support the precision, is returned itself.
        """
        parameter = next(model.parameters())
        is_packed = self.weights in KERNELS and parameter.device.type == "cpu"  # KERNELS: float32 and int8
        is_float32 = parameter.dtype == torch.float32
        if self.weights is None or not is_float32 or not (is_packed or self.weights == "bfloat16"):
            return model
        versions, cached = _versions(model), self._cache.get(id(model))
        if cached is None or cached.versions != versions:
            optimized = optimize_for_inference(model, self.weights) if is_packed else to_bfloat16(model, self.device)
            cached = self._cache[id(model)] = _Optimized(versions, model, optimized)
        return cached.model

    def move(self, model: Model) -> None:
        """Move a model to the device, if there is one and it is not there; its converted copy stays valid."""
        if self.device is None or next(model.parameters()).device == self.device:
            return
        cached = self._cache.get(id(model))
        is_valid = cached is not None and cached.versions == _versions(model)
        try:
            model.to(self.device)
        except torch.OutOfMemoryError:
            model.to("cpu")  # otherwise a part of it would stay on the GPU
            raise UserError(
                "scores, alignments and inspections need the float32 weights, for which the GPU has too little memory: "
                "use --device cpu for them (in Python: device='cpu')"
            ) from None
        finally:
            if cached is not None and is_valid:
                self._cache[id(model)] = cached._replace(versions=_versions(model))


def _versions(model: Model) -> list[tuple[int, int]]:
    """Return address and change counter of all weights; torch increments `_version` when one is changed in place."""
    return [(weight.data_ptr(), weight._version) for weight in model.parameters()]
