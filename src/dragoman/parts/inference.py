"""Weights laid out for the CPU: the same model, its matrices packed once for the kernels that multiply by them.

torch's plain product reads a matrix as it lies and rearranges it on every call, which for the few rows of a step takes
as long as the product itself. For inference alone: what was packed does not learn, and gives no gradients.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import unknown_name
from dragoman.parts.attention import CrossAttentionMixer, SelfAttentionMixer
from dragoman.parts.dropout import Dropout
from dragoman.parts.embedding import OutputLayer
from dragoman.parts.feedforward import FeedForwardMixer
from dragoman.parts.inference_attention import QuickCrossAttention, QuickSelfAttention
from dragoman.parts.mixer import Context, Layout, Mixer, State
from dragoman.parts.norm import Identity, LayerNormModule
from dragoman.parts.positions import SinusoidalPosition
from dragoman.parts.stack import ResidualMixer, StackMixer

Product = Callable[[Tensor], Tensor]  # x → x Wᵀ + b, over the last dimension
Pack = Callable[[Tensor, Tensor | None], Product]
InferencePrecision = Literal["float32", "int8", "bfloat16"]
AnyModule = TypeVar("AnyModule", bound=nn.Module)

ROWS = 160  # of x that matrices are packed for; any other number of them can be multiplied
FEW = 4  # rows of x that are too few for packing to pay
TALL = 8_000  # rows of a matrix from which on it is a vocabulary
PLACES = 1024  # of a sequence that have their sines ready


def optimize_for_inference(model: AnyModule, weights: InferencePrecision = "float32") -> AnyModule:
    """The model with packed matrices: the same within rounding in “float32”, faster and coarser in “int8”.

    The one that was given stays as it is, and the two share their weights; the packed ones come on top, as much memory
    again (a quarter of it in int8). A matrix that no kernel here can pack, or that lies on a GPU, stays a plain one.
    """
    if weights not in PACKS:
        raise unknown_name("kind of weights", weights, PACKS)
    tensors = (*model.parameters(), *model.buffers())
    copy = deepcopy(model, {id(tensor): tensor for tensor in tensors})
    packed: dict[tuple[int, int], Product] = {}  # a matrix that several layers share is packed once
    children: list[tuple[nn.Module, str, Any]] = [
        (parent, name, child) for parent in copy.modules() for name, child in parent.named_children()
    ]
    for parent, name, child in reversed(children):  # what lies deepest first
        if type(child) in QUICK:
            setattr(parent, name, QUICK[type(child)](child, _product(child.weight, child.bias, weights, packed)))
            if isinstance(child, OutputLayer):
                getattr(parent, name).pack = PACKS[weights]
    for parent, name, child in reversed(children):
        if type(child) in QUIET:
            setattr(parent, name, QUIET[type(child)](child))
    for part in copy.modules():
        if getattr(part, "activation", None) is F.relu:
            part.activation = torch.relu_  # type: ignore[assignment]  # of a product: nobody else will look at it
        if part is not copy:  # whose parts may be changed for a search
            part.__dict__.update(part._modules)  # where Python looks first
    return copy


def _product(
    weight: Tensor, bias: Tensor | None, weights: InferencePrecision, packed: dict[tuple[int, int], Product]
) -> Product:
    key = id(weight), id(bias)
    if key not in packed:
        able = weight.device.type == "cpu" and weight.dtype == torch.float32
        detached = None if bias is None else bias.detach()
        packed[key] = (PACKS[weights] if able else plain)(weight.detach(), detached)
    return packed[key]


def plain(weight: Tensor, bias: Tensor | None) -> Product:
    return lambda x: F.linear(x, weight, bias)


def packed_float32(weight: Tensor, bias: Tensor | None) -> Product:
    """By MKL, or else by oneDNN, whose products of a few rows begin more slowly; plain where torch has neither."""
    try:
        if torch.backends.mkl.is_available():
            return _mkl(weight, bias)
        if torch.backends.mkldnn.is_available():
            return _onednn(weight, bias)
    except (AttributeError, RuntimeError):  # operators that are not for the public may go away
        pass
    return plain(weight, bias)


def _mkl(weight: Tensor, bias: Tensor | None) -> Product:
    """So few rows that reading the matrix is all the work are multiplied by it as it lies, but for a vocabulary."""
    matrix, multiply = torch.ops.mkl._mkl_reorder_linear_weight(weight, ROWS), torch.ops.mkl._mkl_linear.default
    width, few = weight.shape[1], 0 if weight.shape[0] >= TALL else FEW

    def product(x: Tensor) -> Tensor:
        rows = x.numel() // width
        return F.linear(x, weight, bias) if rows < few else multiply(x, matrix, weight, bias, rows)

    return product


def _onednn(weight: Tensor, bias: Tensor | None) -> Product:
    matrix, multiply = torch.ops.mkldnn._reorder_linear_weight(weight), torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x, matrix, bias, "none", [], "")


def packed_int8(weight: Tensor, bias: Tensor | None) -> Product:
    """y = s_x s_w (q_x − z_x) q_wᵀ + b: a scale s_w for every row of W, the scale and zero of x by what comes.

    The activations of a call have one scale, those of all its rows, so that in int8 a row may depend, within rounding,
    on its company. What a feed-forward layer has widened differs in size from row to row by far: where W narrows, every
    row is divided by its largest number first. Float32 where torch cannot multiply so.
    """
    rows, columns = weight.shape
    inside = bias if columns <= rows else None
    try:
        with _engine(weight), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*quantized tensor creation functions")  # will go some day
            scale = weight.abs().amax(1).clamp(min=1e-8).double() / 127
            zero = torch.zeros_like(scale, dtype=torch.long)
            whole = torch.quantize_per_channel(weight, scale, zero, 0, torch.qint8)
            matrix = torch.ops.quantized.linear_prepack(whole, inside)
    except (AttributeError, RuntimeError):
        return packed_float32(weight, bias)
    multiply, narrow = torch.ops.quantized.linear_dynamic.default, not _vnni()
    if columns <= rows:
        return lambda x: multiply(x, matrix, narrow)

    def product(x: Tensor) -> Tensor:
        size = x.abs().amax(-1, keepdim=True).clamp_(min=1e-8)
        y = multiply(x / size, matrix, narrow)
        return y.mul_(size) if bias is None else torch.addcmul(bias, y, size)

    return product


def _vnni() -> bool:
    """Can the processor add products of bytes without their overflowing? Otherwise activations get seven bits."""
    return bool(getattr(torch.cpu, "_is_vnni_supported", lambda: False)())


@contextmanager
def _engine(weight: Tensor) -> Iterator[None]:
    """The library that packs int8: oneDNN for matrices as tall as a vocabulary, for which it is faster; else FBGEMM."""
    before, known = torch.backends.quantized.engine, torch.backends.quantized.supported_engines
    wished = ("onednn", "x86") if weight.shape[0] >= TALL else ("x86", "onednn")
    torch.backends.quantized.engine = next((name for name in (*wished, "qnnpack") if name in known), before)
    try:
        yield
    finally:
        torch.backends.quantized.engine = before


class QuickLinear(nn.Module):
    """y = x Wᵀ + b."""

    def __init__(self, layer: nn.Linear, product: Product) -> None:
        super().__init__()
        self.weight, self.bias, self.product = layer.weight, layer.bias, product

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)

    __call__ = forward  # without what torch does around every call of a module for those who watch it


class QuickOutput(OutputLayer):
    """Logits of the next token."""

    pack: Pack  # as it was packed

    def __init__(self, layer: OutputLayer, product: Product) -> None:
        nn.Module.__init__(self)
        self.scale, self.transform, self.weight, self.bias = layer.scale, layer.transform, layer.weight, layer.bias
        self.product = product

    def restrict_vocabulary(self, tokens: Tensor) -> OutputLayer:
        made = super().restrict_vocabulary(tokens)
        assert isinstance(made, QuickOutput)
        able = made.weight.device.type == "cpu" and made.weight.dtype == torch.float32
        made.product = (self.pack if able else plain)(made.weight, made.bias)
        return made

    def forward(self, x: Tensor) -> Tensor:
        return self.product(self.output_features(x))


class QuickResidual(ResidualMixer):
    """norm(x + f(norm(x)))."""

    def __init__(self, part: ResidualMixer) -> None:
        Mixer.__init__(self)
        self.body, self.before, self.after, self.path = part.body, part.before, part.after, part.path
        self.fresh = isinstance(part.body, SelfAttentionMixer | CrossAttentionMixer | FeedForwardMixer)  # of a product

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        y, state = self.body.forward(self.before.forward(x, context.layout), context, state)
        return self.after.forward(y.add_(x) if self.fresh else x + y, context.layout), state

    __call__ = forward


class QuickStack(StackMixer):
    """Parts on top of one another, which are what they are."""

    def __init__(self, stack: StackMixer) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(stack.__dict__)
        self.fixed = stack.parts()

    def parts(self) -> list[tuple[str, Mixer]]:
        return self.fixed


class QuickSinusoids(SinusoidalPosition):
    """Sines that were computed once for the first places."""

    def __init__(self, position: SinusoidalPosition) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(position.__dict__)
        self.table = self.encoding(torch.arange(PLACES, device=self.frequency.device))

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        if x.is_cuda:
            return super().embed(x, layout)
        try:
            return x + F.embedding(layout.positions, self.table)
        except IndexError:  # further on
            return super().embed(x, layout)


class QuickNorm(LayerNormModule):
    """(x − mean) / √(variance + ε) · g + b."""

    def __init__(self, norm: LayerNormModule) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(norm.__dict__)

    def forward(self, x: Tensor, layout: Layout | None = None) -> Tensor:
        return torch.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    __call__ = forward


class Quiet(Identity):
    """Nothing: what dropout and norms that are none do."""

    def forward(self, x: Tensor, layout: Layout | None = None) -> Tensor:
        return x

    __call__ = forward


PACKS: dict[str, Pack] = {"float32": packed_float32, "int8": packed_int8}
QUICK: dict[type[nn.Module], Callable[..., nn.Module]] = {nn.Linear: QuickLinear, OutputLayer: QuickOutput}
QUIET: dict[type[nn.Module], Callable[..., nn.Module]] = {
    ResidualMixer: QuickResidual,
    StackMixer: QuickStack,
    SinusoidalPosition: QuickSinusoids,
    LayerNormModule: QuickNorm,
    SelfAttentionMixer: QuickSelfAttention,
    CrossAttentionMixer: QuickCrossAttention,
    Dropout: Quiet,
    Identity: Quiet,
    nn.Identity: Quiet,
}
