"""Models optimized for inference: packed weights on a CPU, bfloat16 on a GPU, and fewer operations per step."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import unknown_name
from dragoman.parts.attention import CrossAttentionMixer, SelfAttentionMixer
from dragoman.parts.attention_function import additive_mask, cached_keys, matmul_attention
from dragoman.parts.compiled_steps import CompiledHeads, CompiledStep, attention_fields, head_norms
from dragoman.parts.copying import CopyingOutput
from dragoman.parts.cpu_kernels import can_read
from dragoman.parts.cpu_products import FastLinear
from dragoman.parts.dropout import Dropout
from dragoman.parts.embedding import OutputLayer, TokenEmbedding
from dragoman.parts.feedforward import ACTIVATIONS, FeedForwardMixer
from dragoman.parts.kernel_choice import Product
from dragoman.parts.mixer import CachedKeys, Context, Memory, Mixer, MixerOutput, SequenceLayout, State
from dragoman.parts.norm import Identity, LayerNormModule, RMSNormModule
from dragoman.parts.packed_linear import KERNELS, pack
from dragoman.parts.positions import RotaryPosition, SinusoidalPosition, SinusoidalTable
from dragoman.parts.stack import ResidualMixer, StackMixer

InferencePrecision = Literal["float32", "int8", "bfloat16"]
AnyModule = TypeVar("AnyModule", bound=nn.Module)

CPU_TABLE_LENGTH, GPU_TABLE_LENGTH = 1024, 4096  # positions whose sines and cosines are precomputed
MAX_SCALED_COPY = 1 << 25  # weights of an embedding table of which a scaled copy is kept: 64 MiB in bfloat16


# ---- CPU


def optimize_for_inference(model: AnyModule, weights: InferencePrecision = "float32") -> AnyModule:
    """Return a copy of the model for inference on a CPU, with weights packed in “float32” or “int8”.

    In float32 the results are the same up to rounding; int8 is faster and less precise. The copy shares the original
    weights and adds the packed ones, which need as much memory again (a quarter in int8), or twice as much if different
    kernels are faster for few and for many rows. Weights that no kernel can pack stay as they are. Other names of
    `weights`, such as "bfloat16", which is for GPUs, raise an error.
    """
    if weights not in KERNELS:  # matrix-product kernels by the precision of their weights
        raise unknown_name("kind of weights", weights, KERNELS)
    tensors = (*model.parameters(), *model.buffers())
    optimized = deepcopy(model, {id(tensor): tensor for tensor in tensors})  # shares the tensors
    # ids of weight and bias → product; a matrix that several layers share is packed once
    packed: dict[tuple[int, int], Product] = {}
    children: list[tuple[nn.Module, str, Any]] = [
        (parent, name, child) for parent in optimized.modules() for name, child in parent.named_children()
    ]
    for parent, name, child in reversed(children):  # innermost first
        if type(child) in PACKED_MODULES:
            key = id(child.weight), id(child.bias)
            if key not in packed:
                packed[key] = pack(child.weight, child.bias, precision=weights)
            setattr(parent, name, PACKED_MODULES[type(child)](child, packed[key], weights))
    for parent, name, child in reversed(children):  # modules with faster versions for inference
        if type(child) in INFERENCE_MODULES:
            setattr(parent, name, INFERENCE_MODULES[type(child)](child))
    for part in optimized.modules():
        if getattr(part, "activation", None) is F.relu:
            part.activation = torch.relu_  # type: ignore[assignment]  # in place: its input is used nowhere else
        if part is not optimized:  # the model itself may get other modules later: `restrict_vocabulary`
            part.__dict__.update(part._modules)  # submodules are then found without the slow nn.Module.__getattr__
    return optimized


class PackedLinear(nn.Module):
    """y = x Wᵀ + b."""

    def __init__(self, layer: nn.Linear, product: Product, precision: str) -> None:
        """Compute `layer` by `product`, x → x Wᵀ + b with weights packed in `precision`, "float32" or "int8"."""
        super().__init__()
        self.weight, self.bias, self.product, self.precision = layer.weight, layer.bias, product, precision

    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b: … inputs → … outputs."""
        return self.product(x)

    __call__ = forward  # without the hooks of nn.Module.__call__


class PackedOutput(OutputLayer):
    """Output layer with a packed weight."""

    def __init__(self, layer: OutputLayer, product: Product, precision: str) -> None:
        """Compute `layer` by `product`, x → x Wᵀ + b with weights packed in `precision`, "float32" or "int8"."""
        _copy_attributes(self, layer)
        self.product, self.precision = product, precision

    def restrict_vocabulary(self, tokens: Tensor) -> OutputLayer:
        """Return a layer for the logits of N `tokens` (ids) only, whose smaller weight is packed anew."""
        layer = super().restrict_vocabulary(tokens)
        assert isinstance(layer, PackedOutput)
        layer.product = pack(layer.weight, layer.bias, self.precision)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """B T D → logits B T V."""
        return self.product(self.output_features(x))


class PackedCopyingOutput(PackedOutput, CopyingOutput):
    """Output layer with a packed weight that can copy tokens of the source."""


def _copy_attributes(target: nn.Module, source: nn.Module) -> None:
    """Initialize a module with the weights, submodules and other attributes of `source`, which it shares."""
    nn.Module.__init__(target)
    target.__dict__.update(source.__dict__)


class InferenceResidual(ResidualMixer):
    """Residual connection without dropout."""

    def __init__(self, part: ResidualMixer) -> None:
        """Share the modules of `part`, the residual connection of the original model."""
        _copy_attributes(self, part)
        # whether the output of the body is a new tensor, to which x can be added in place
        self.in_place = isinstance(part.body, SelfAttentionMixer | CrossAttentionMixer | FeedForwardMixer)

    @cached_property
    def step(self) -> CompiledStep | None:
        """This residual connection, its norms and the layer in it as one compiled function, if there is one."""
        if not isinstance(self.body, InferenceSelfAttention | InferenceCrossAttention | InferenceFeedForward):
            return None
        return self.body.compiled_step(self.before, self.after)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """x, B T D → after(x + body(before(x))), B T D; `before` and `after` are norms or identities.

        A decoding step of one token per row is one compiled function, where that is faster.
        """
        is_step = x.shape[1] == 1 and not torch.compiler.is_compiling()
        if state is not None and is_step and self.step is not None:
            output = self.step(x, context, state, lambda: self.apply_modules(x, context, state).output)
            if output is not None:
                return MixerOutput(output, state)
        return self.apply_modules(x, context, state)

    def apply_modules(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """x, B T D → after(x + body(before(x))), B T D, by the modules.

        Methods `forward` are called directly, which is faster than through nn.Module.__call__ and its hooks. With
        `in_place`, x is added to the output of the body without creating a new tensor.
        """
        result = self.body.forward(self.before.forward(x, context.layout), context, state)
        total = result.output.add_(x) if self.in_place else x + result.output
        return result.with_output(self.after.forward(total, context.layout))

    __call__ = forward


class InferenceStack(StackMixer):
    """Stack whose list of named layers is computed once, not in every call."""

    def __init__(self, stack: StackMixer) -> None:
        """Share the modules of `stack`, the stack of the original model, and list its layers."""
        _copy_attributes(self, stack)
        self.layer_list = stack.named_layers()

    def named_layers(self) -> list[tuple[str, Mixer]]:
        """Return the precomputed list of (name, layer)."""
        return self.layer_list


class InferenceLayerNorm(LayerNormModule):
    def __init__(self, norm: LayerNormModule) -> None:
        """Share the weights of `norm`, the layer norm of the original model."""
        _copy_attributes(self, norm)

    def forward(self, x: Tensor, layout: SequenceLayout | None = None) -> Tensor:
        """Normalize the last dimension of x; the layout (positions and lengths of the tokens) is not needed."""
        return torch.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    __call__ = forward


class InferenceRMSNorm(RMSNormModule):
    """RMS norm in four operations, where torch's own takes about ten on a CPU.

    x / √(mean(x²) + ε) · g = x / hypot(|x|, √(D ε)) · √D g, with hypot(a, b) = √(a² + b²) and D the width of x.
    """

    def __init__(self, norm: RMSNormModule) -> None:
        """Share the weights of `norm`, the RMS norm of the original model."""
        _copy_attributes(self, norm)
        width = norm.normalized_shape[-1]
        self.scaled_weight = norm.weight.detach() * math.sqrt(width)  # √D g
        self.floor = self.scaled_weight.new_tensor(math.sqrt(width * (norm.eps or 0.0)))  # √(D ε)

    def forward(self, x: Tensor, layout: SequenceLayout | None = None) -> Tensor:
        """Normalize the last dimension of x; the layout (positions and lengths of the tokens) is not needed."""
        return normalize_rms(x, self.scaled_weight, self.floor)

    __call__ = forward


def normalize_rms(x: Tensor, scaled_weight: Tensor, floor: Tensor) -> Tensor:
    """RMS norm of the last dimension of x; `scaled_weight` is √D g, broadcastable to x, and `floor` is √(D ε)."""
    return x.div(torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(floor)).mul_(scaled_weight)


class InferenceIdentity(Identity):
    """Replaces dropout and identities."""

    def forward(self, x: Tensor, layout: SequenceLayout | None = None) -> Tensor:
        """Return x unchanged."""
        return x

    __call__ = forward


class InferenceSelfAttention(SelfAttentionMixer):
    """Decoding steps of self-attention in few operations; everything else as in the base class."""

    def __init__(self, part: SelfAttentionMixer) -> None:
        """Share the modules of `part`, the original layer, and precompute what decoding steps need.

        `has_fast_path`: whether the few operations of this class are enough for a decoding step. They know causal
        masks, rotary positions and RMS norms of queries and keys, but no position biases, other norms or rotated
        values.
        """
        _copy_attributes(self, part)
        position, norms = part.position, (part.query_norm, part.key_norm)
        is_rotary, is_plain = isinstance(position, RotaryPosition), all(isinstance(norm, Identity) for norm in norms)
        self.rotations = rotation_table(position) if isinstance(position, RotaryPosition) else None
        #: √D g for each head of queries and keys, (H+G) E, and √(D ε); None without norms
        self.head_norm: tuple[Tensor, Tensor] | None = None
        if isinstance(norms[0], InferenceRMSNorm) and isinstance(norms[1], InferenceRMSNorm):
            weights = (norms[0].scaled_weight.expand(self.heads, -1), norms[1].scaled_weight.expand(self.kv_heads, -1))
            self.head_norm = torch.cat(weights), norms[0].floor
        has_biases = position.has_score_bias or position.has_value_bias
        knows_positions = is_rotary or not position.rotates
        knows_norms = is_plain or self.head_norm is not None
        self.has_fast_path = (
            part.visibility.causal and not has_biases and knows_positions and knows_norms and not part.rotary_values
        )
        self.heads_step = CompiledHeads.create("self_attention_core", self) if self.has_fast_path else None

    def compiled_step(self, before: nn.Module, after: nn.Module) -> CompiledStep | None:
        """Return this layer with its residual connection and norms as one compiled function, if there is one."""
        if not self.has_fast_path:
            return None
        norms = {"before": before, "after": after, **head_norms(self)}
        products = {"project": self.project, "output": self.output}
        return CompiledStep.create("self_attention_step", self, norms, products)

    def step_fields(self) -> dict[str, float | None]:
        """Return the sizes of the layer for the compiled kernels, and the table of its rotations."""
        return attention_fields(self, self.rotations)

    def step_arguments(self, rows: int, context: Context, state: State) -> tuple[int | None, ...] | None:
        """Return the arguments of the compiled functions that differ from call to call; None if they do not suffice."""
        keys, values = state["key"], state["value"]
        layout, ancestors, shared = context.layout, context.ancestors, context.shared_position
        positions, encoded_positions, length = layout.positions, layout.encoded_positions, keys.shape[1]
        if shared is not None and (shared.has_score_bias or shared.has_value_bias):
            return None
        if self.rotations is not None and not 0 < (layout.num_positions or 0) <= self.rotations.shape[0]:
            return None
        if not (can_read(keys, values) and can_read(positions, encoded_positions, dtype=torch.long)):
            return None
        pointers = (*map(Tensor.data_ptr, (positions, encoded_positions, keys, values)), length)
        if ancestors is None:
            return 1, None, *pointers
        if ancestors.shape[2] != length or not can_read(ancestors, dtype=torch.long):
            return None
        return ancestors.shape[1], ancestors.data_ptr(), *pointers

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """One token per row on a CPU: x, R 1 D → R 1 D, attending to the key–value caches (`state`).

        R = B·K rows are K hypotheses of each source, which see the keys of their ancestors; G is the number of heads of
        keys and values, `sizes` are the widths of queries, keys and values of all heads. Other calls, and layers that
        these few operations do not suffice for, use the base class.
        """
        shared = context.shared_position  # the position encoding of the stack
        is_fast = self.has_fast_path and not (shared is not None and (shared.has_score_bias or shared.has_value_bias))
        if state is None or x.shape[1] > 1 or x.is_cuda or context.recorder is not None or not is_fast:
            return super().forward(x, context, state)
        if self.heads_step is not None and not torch.compiler.is_compiling():
            heads = self.heads_step(self.project(x), context, state)
            if heads is not None:
                return MixerOutput(self.output(heads), state)
        keys, values = state["key"], state["value"]
        cached, mask = self.step_masks(x, context, length=keys.shape[1])  # `cached.rows` (R 1): where to write
        batch = len(cached.keys.positions)  # B; without a beam R
        query_width, key_width, value_width = self.sizes  # H·E and G·E twice
        # R 1 (H·E + G·E), and R 1 G·E
        query_and_key, value = self.project(x).split_with_sizes((query_width + key_width, value_width), 2)
        query, key = self.heads_at(query_and_key.view(len(x), 1, -1, self.width), context.layout)
        keys.index_put_((cached.rows, context.layout.positions), key)
        values.index_put_((cached.rows, context.layout.positions), value.view(len(x), 1, -1, self.value_width))
        keys = keys.view(batch, -1, self.kv_heads, self.width).transpose(1, 2)  # B G K·S E
        values = values.view(batch, -1, self.kv_heads, self.value_width).transpose(1, 2)
        query = query.reshape(batch, -1, self.heads, self.width).transpose(1, 2)  # B H K E
        shares_heads = self.heads != self.kv_heads
        y = F.scaled_dot_product_attention(query, keys, values, mask, scale=self.scale, enable_gqa=shares_heads)
        return MixerOutput(self.output(y.transpose(1, 2).reshape(len(x), 1, -1)), state)

    def heads_at(self, heads: Tensor, layout: SequenceLayout) -> tuple[Tensor, Tensor]:
        """Return queries, R 1 H E, and keys, R 1 G E, from both side by side, normalized and rotated as the layer does.

        The layout has the position of the token of each row.
        """
        if self.head_norm is not None:
            heads = normalize_rms(heads, *self.head_norm)
        if self.rotations is not None:
            positions, half = layout.encoded_positions, self.width // 2
            if layout.num_positions is None or layout.num_positions > len(self.rotations):
                heads = self.position.rotate(heads.transpose(1, 2), positions).transpose(1, 2)
            else:  # (l, r) → (l cos − r sin, r cos + l sin), for the left and the right half of each head
                cosine, sine = torch.embedding(self.rotations, positions)[:, :, None].chunk(2, -1)  # R 1 1 E
                swapped = torch.cat((heads[..., half:], heads[..., :half]), -1)
                heads = (heads * cosine).addcmul_(swapped, sine)
        query, key = heads.split_with_sizes((self.heads, self.kv_heads), 2)
        return query, key

    def step_masks(self, x: Tensor, context: Context, length: int) -> tuple[CachedKeys, Tensor | None]:
        """Return the layout of caches allocated for `length` tokens (S), and their additive mask, B 1 K K·S.

        The first layer of a decoding step computes both; the others find them in `context.masks`. The mask has the
        dtype of x, the input of the layer.
        """
        mask_key = ("step", length)
        if context.masks is not None and mask_key in context.masks.additive:
            return context.masks.cached_keys[length], context.masks.additive[mask_key]
        cached = cached_keys(context, length)
        args = replace(self.attention_args(context, num_keys=length), mask=cached.mask, mask_key=mask_key)
        return cached, additive_mask(cached.queries, cached.keys, context, args, like=x)

    __call__ = forward


class InferenceCrossAttention(CrossAttentionMixer):
    """Cross-attention in few operations, if the keys are arranged by `matmul_layout`."""

    def __init__(self, part: CrossAttentionMixer) -> None:
        """Share the modules of `part`, the original layer."""
        _copy_attributes(self, part)
        self.heads_step = CompiledHeads.create("cross_attention_core", self)

    def compiled_step(self, before: nn.Module, after: nn.Module) -> CompiledStep | None:
        """Return this layer with its residual connection and norms as one compiled function, if there is one."""
        norms = {"before": before, "after": after, **head_norms(self)}
        products = {"project": self.query, "output": self.output}
        return CompiledStep.create("cross_attention_step", self, norms, products)

    def step_fields(self) -> dict[str, float | None]:
        """Return the sizes of the layer for the compiled kernels."""
        return attention_fields(self, rotations=None)

    def step_arguments(self, rows: int, context: Context, state: State) -> tuple[int | None, ...] | None:
        """Return the arguments of the compiled functions that differ from call to call; None if they do not suffice."""
        projections = context.encoded_source.projections.get(self.path)
        if projections is None:  # those that are computed now would be gone when the function reads them
            return None
        key, value, mask = projections["key"], projections["value"], projections.get("mask")
        if not can_read(key.transpose(-1, -2), value, *(() if mask is None else (mask,))):  # see `matmul_layout`
            return None
        pointers = key.data_ptr(), value.data_ptr(), None if mask is None else mask.data_ptr()
        return rows // key.shape[0], *pointers, key.shape[2]

    def project_memory(self, memory: Memory) -> dict[str, Tensor]:
        """Project the encoder's output to keys and values, and add the mask of its padding, B 1 1 S, for all steps."""
        projections, visible = super().project_memory(memory), memory.layout.token_mask  # B S
        if visible is not None:
            mask = torch.where(visible, 0.0, -torch.inf).to(memory.states.dtype)
            projections["mask"] = mask[:, None, None]
        return projections

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """x, R T D (R = B·K rows) → R T D, attending to the encoder's output by two matrix products.

        Uses the base class to record attention, and if keys are not stored transposed, which makes the products fast.
        """
        projections = self.memory_projections(context.encoded_source)
        key, value = projections["key"], projections["value"]  # B G S E
        is_transposed = key.stride(-2) == 1  # `project_memory` does so on a CPU in inference
        if context.recorder is not None or not is_transposed:
            return super().forward(x, context, state)
        if self.heads_step is not None and x.shape[1] == 1 and not torch.compiler.is_compiling():
            heads = self.heads_step(self.query(x), context, state)
            if heads is not None:
                return MixerOutput(self.output(heads), state)
        query = self.query_norm(self.query(x).view(len(key), -1, self.heads, self.width)).transpose(1, 2)  # B H K·T E
        y = matmul_attention(query, key, value, mask=projections.get("mask"), scale=self.scale)
        return MixerOutput(self.output(y.transpose(1, 2).reshape(len(x), x.shape[1], -1)), state)

    __call__ = forward


class InferenceFeedForward(FeedForwardMixer):
    """Decoding steps of the feed-forward network by one compiled function."""

    def __init__(self, part: FeedForwardMixer) -> None:
        """Share the modules of `part`, the original layer."""
        _copy_attributes(self, part)

    def compiled_step(self, before: nn.Module, after: nn.Module) -> CompiledStep | None:
        """Return this layer with its residual connection and norms as one compiled function, if there is one."""
        products = {"widen": self.widen, "narrow": self.narrow} | ({} if self.gate is None else {"gate": self.gate})
        return CompiledStep.create("feed_forward_step", self, {"before": before, "after": after}, products)

    def step_fields(self) -> dict[str, float | None]:
        """Return the number of the activation function in the compiled kernels."""
        return {"activation": list(ACTIVATIONS).index(self.activation_name)}

    def step_arguments(self, rows: int, context: Context, state: State) -> tuple[int | None, ...]:
        """Return no arguments: the compiled function needs only the input."""
        return ()

    __call__ = FeedForwardMixer.forward


def rotation_table(position: RotaryPosition) -> Tensor:
    """Return (cos, cos, −sin, sin) of the angles at the first CPU_TABLE_LENGTH positions, in rows of 2E numbers."""
    positions = torch.arange(CPU_TABLE_LENGTH, device=position.frequency.device)
    angles = positions[:, None] * position.frequency  # L E/2
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat((cosine, cosine, -sine, sine), -1)


PACKED_MODULES: dict[type[nn.Module], Callable[..., nn.Module]] = {
    nn.Linear: PackedLinear,
    FastLinear: PackedLinear,
    OutputLayer: PackedOutput,
    CopyingOutput: PackedCopyingOutput,
}
INFERENCE_MODULES: dict[type[nn.Module], Callable[..., nn.Module]] = {
    ResidualMixer: InferenceResidual,
    StackMixer: InferenceStack,
    SinusoidalPosition: partial(SinusoidalTable, length=CPU_TABLE_LENGTH),
    LayerNormModule: InferenceLayerNorm,
    RMSNormModule: InferenceRMSNorm,
    FeedForwardMixer: InferenceFeedForward,
    SelfAttentionMixer: InferenceSelfAttention,
    CrossAttentionMixer: InferenceCrossAttention,
    Dropout: InferenceIdentity,
    Identity: InferenceIdentity,
    nn.Identity: InferenceIdentity,
}


# ---- GPU


def to_bfloat16(model: AnyModule, device: torch.device | None = None) -> AnyModule:
    """Return a copy of the model for decoding on a GPU, in bfloat16 and with fewer kernels.

    Sinusoids come from a table, small embeddings are scaled in advance, and ReLU is computed together with the matrix
    product before it. The weights are converted one by one, so that `device` (None: that of the model) needs little
    more memory than for the copy.
    """
    tensors: dict[int, Tensor] = {}  # by the id of the original
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        # angles need float32, and counters stay integers
        is_converted = tensor.is_floating_point() and not name.endswith(".frequency")
        copied = tensor.detach().to(device, torch.bfloat16 if is_converted else tensor.dtype, copy=True)
        is_parameter = isinstance(tensor, nn.Parameter)
        tensors[id(tensor)] = nn.Parameter(copied, requires_grad=False) if is_parameter else copied
    converted = deepcopy(model, tensors).eval()
    for parent in list(converted.modules()):
        for name, child in parent.named_children():
            if type(child) is SinusoidalPosition:
                setattr(parent, name, SinusoidalTable(child, length=GPU_TABLE_LENGTH, dtype=torch.bfloat16))
            if isinstance(child, TokenEmbedding) and child.scale != 1.0 and child.weight.numel() <= MAX_SCALED_COPY:
                setattr(parent, name, _scaled_embedding(child))
        if isinstance(parent, FeedForwardMixer) and parent.activation is F.relu:
            parent.widen, parent.activation = ReluLinear(parent.widen), ACTIVATIONS["identity"]  # W₁ x and ReLU
    return converted


def _scaled_embedding(table: TokenEmbedding) -> TokenEmbedding:
    """Return a copy of an embedding table whose vectors are already multiplied by its scale."""
    scaled = copy(table)
    # a new dict, because a shallow copy shares that of the original
    scaled._parameters = {"weight": nn.Parameter(table.weight * table.scale, requires_grad=False)}
    scaled.scale = 1.0
    return scaled


class ReluLinear(nn.Linear):
    """max(0, W x + b) in one kernel on a GPU."""

    def __init__(self, linear: nn.Linear) -> None:
        """Share the weights of `linear`."""
        _copy_attributes(self, linear)

    def forward(self, x: Tensor) -> Tensor:
        """max(0, W x + b): … inputs → … outputs, in one kernel on a GPU.

        That kernel needs a bias; in compiled graphs, the compiler chooses the kernels.
        """
        if not x.is_cuda or self.bias is None or torch.compiler.is_compiling():
            return super().forward(x).relu_()
        return torch._addmm_activation(self.bias, x.flatten(0, -2), self.weight.t()).unflatten(0, x.shape[:-1])
