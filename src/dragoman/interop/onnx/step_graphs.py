"""The graphs of an ONNX export: what is computed once per source, and one decoding step, with named tensors.

A generating model has two graphs. `encoder` reads the sources and returns `memory/…`, which is constant during
decoding, and `past/…`, the state before the first token: recurrent states, and caches of keys and values. `decoder`
reads one token per row with its position, `memory/…` and `past/…`, and returns the logits of the next token and the
new state, `present/…`, which is `past/…` of the next step. Caches grow by one position in each step. A model that
labels its source is one graph, `model`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.models import Model
from dragoman.models.model import DecodingStart
from dragoman.parts.mixer import Context, Memory, SequenceLayout, State

#: sizes of the examples that graphs are traced with; the differences between them show which axes are dynamic
BATCH, OTHER_BATCH, LENGTH, OTHER_LENGTH, CACHE_LENGTH, OTHER_CACHE_LENGTH = 2, 3, 9, 17, 4, 2000
PADDING = 2  # positions of padding in all rows but the first

Axes = dict[int, str]  # axis of a tensor → name of its size, if that is dynamic


@dataclass(frozen=True)
class Graph:
    """A module with named inputs and outputs, ready to be traced.

    Attributes:
        name: name of the file, without its ending
        module: takes the inputs in order and returns a tuple of the outputs
        inputs: an example of each input
        axes: the dynamic axes of each input
        outputs: names of the outputs
        output_axes: the dynamic axes of each output
    """

    name: str
    module: nn.Module
    inputs: dict[str, Tensor]
    axes: dict[str, Axes]
    outputs: list[str]
    output_axes: dict[str, Axes]

    def describe(self) -> dict[str, dict[str, list[str]]]:
        """Return the names of the dynamic axes of all inputs and outputs, such as {"source": ["batch", …]}."""
        return {
            "inputs": {name: list(axes.values()) for name, axes in self.axes.items()},
            "outputs": {name: list(self.output_axes[name].values()) for name in self.outputs},
        }


def build_graphs(model: Model, bos: int) -> list[Graph]:
    """Return the graphs of an ONNX export: encoder and decoder, or one graph of a model that labels its source.

    `bos` is the first token of a target. A "start" is what a search begins with: encoded source, decoder state and
    caches. Which axes of its tensors are dynamic is found by comparing starts of different batch sizes, source lengths
    and cache lengths (numbers of target positions in caches).
    """
    if not model.can_generate:
        return [_labelling_graph(model)]
    first, longer = _example_start(model, bos), _example_start(model, bos, cache_length=OTHER_CACHE_LENGTH)
    start, long_start = _named_tensors(first), _named_tensors(longer)  # name → tensor
    other_batch = _named_tensors(_example_start(model, bos, batch=OTHER_BATCH))
    other_length = _named_tensors(_example_start(model, bos, length=OTHER_LENGTH))
    axes = {
        name: _dynamic_axes(tensor, other_batch[name], "batch")
        | _dynamic_axes(tensor, other_length[name], "memory_length")
        | _dynamic_axes(tensor, long_start[name], "cache_length")
        for name, tensor in start.items()
    }
    growing = _growing_axes(start, long_start, axes, positions=longer.max_length - first.max_length)
    # other tensors than state, position and source mask are left out if no decoding step reads them
    always_kept = ("past/", "positions", "memory/mask")
    kept = [name for name in start if name.startswith(always_kept) or _is_read(model, first.state, start, name)]
    step_inputs = [name for name in kept if name != "positions"]
    past = [name for name in step_inputs if name.startswith("past/")]
    source, lengths = _example_source(model, BATCH, LENGTH)
    encoder = Graph(
        "encoder",
        _EncoderModule(model, bos, kept),
        inputs={"source": source, "source_lengths": lengths},
        axes={"source": {0: "batch", 1: "source_length"}, "source_lengths": {0: "batch"}},
        outputs=kept,
        output_axes={name: axes[name] for name in kept},
    )
    tokens = torch.full((BATCH,), bos, device=source.device)
    present = [name.replace("past/", "present/", 1) for name in past]
    decoder = Graph(
        "decoder",
        _StepModule(model, first.state, step_inputs, growing),
        inputs={"tokens": tokens, "positions": torch.full_like(tokens, CACHE_LENGTH)}
        | {name: start[name] for name in step_inputs},
        axes={"tokens": {0: "batch"}, "positions": {0: "batch"}} | {name: axes[name] for name in step_inputs},
        outputs=["logits", *present],
        output_axes={"logits": {0: "batch"}}
        | {new: _after_step(axes[old]) for new, old in zip(present, past, strict=True)},
    )
    return [encoder, decoder]


class _EncoderModule(nn.Module):
    """Sources and their lengths → what decoding steps read, as named by `names`."""

    def __init__(self, model: Model, bos: int, names: Sequence[str]) -> None:
        """Encode with `model`; `bos` is the first token of a target, `names` are those of the outputs in order."""
        super().__init__()
        self.model, self.bos, self.names = model, bos, names

    def forward(self, source: Tensor, source_lengths: Tensor) -> tuple[Tensor, ...]:
        """Source B S (or vectors of width F, B S F) of lengths B → what a search starts with, caches being empty.

        Of its tensors, those that `names` lists are returned.
        """
        start = self.model.start_decoding(source, source_lengths, beam=1, max_length=0, first=self.bos)
        tensors = _named_tensors(start)
        return tuple(tensors[name].clone() for name in self.names)  # each output of a graph is a tensor of its own


class _StepModule(nn.Module):
    """A decoding step: tokens and their positions, memory and state → logits of the next tokens, and the new state."""

    def __init__(self, model: Model, state: State, names: Sequence[str], growing: Mapping[str, int]) -> None:
        """Decode with `model`; `state` is an example of its decoder's state, of which only the keys are used.

        `names` are those of the inputs after tokens and positions, "memory/…" and "past/…"; `growing` is the axis along
        which each cache grows by one position, by input name.
        """
        super().__init__()
        self.model, self.example_state, self.names, self.growing = model, state, names, growing

    def forward(self, tokens: Tensor, positions: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Tokens B at positions B → logits of the next tokens B V, and the tensors of the new state.

        `tensors` are those that `names` names: the encoded source ("memory/…") and the decoder's state ("past/…").
        """
        named = dict(zip(self.names, tensors, strict=True))
        # copies, since layers write into their caches in place, and inputs of a graph stay as they are
        past = {name: tensor.clone() for name, tensor in named.items() if name.startswith("past/")}
        past |= {name: _with_one_more_position(named[name], axis) for name, axis in self.growing.items()}
        state = _nest_like(self.example_state, "past/", past)
        memory = _memory(named) if "memory/mask" in named else None
        context = Context(SequenceLayout.continuation(positions), memory)
        logits, new_state = self.model.decode(tokens[:, None], context, state)
        assert new_state is not None
        flat = dict(_flatten("past/", new_state))
        return logits[:, -1], *(flat[name] for name in self.names if name.startswith("past/"))


class _LabellingModule(nn.Module):
    """Sources and their lengths → logits of every position."""

    def __init__(self, model: Model) -> None:
        """Wrap `model`, which predicts a label for every token of its source."""
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, source_lengths: Tensor) -> Tensor:
        """Source B S of lengths B → logits B S V."""
        logits: Tensor = self.model(source, source_lengths)
        return logits


def _labelling_graph(model: Model) -> Graph:
    """Return the only graph of a model that labels the tokens of its source: source and lengths → logits, B S V."""
    source, lengths = _example_source(model, BATCH, LENGTH)
    axes: dict[str, Axes] = {"source": {0: "batch", 1: "source_length"}, "source_lengths": {0: "batch"}}
    inputs = {"source": source, "source_lengths": lengths}
    output_axes = {"logits": axes["source"]}  # B S V has the dynamic axes of B S
    return Graph("model", _LabellingModule(model), inputs, axes, outputs=["logits"], output_axes=output_axes)


def _example_source(model: Model, batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Return example sources as the model reads them, tokens B S or vectors of width F, B S F, and their lengths B.

    The first source has `length` positions, the others are padded. The numbers have no meaning.
    """
    device = next(model.parameters()).device
    if model.source_features is not None:
        source = torch.linspace(-1, 1, batch * length * model.source_features, device=device)
        source = source.view(batch, length, model.source_features)
    else:
        table = model.embedding_tables[0]  # of the source
        assert table is not None
        source = torch.arange(batch * length, device=device).view(batch, length) % len(table.weight)
    lengths = torch.full((batch,), length - PADDING, device=device)
    lengths[0] = length
    return source, lengths


@torch.no_grad()
def _example_start(
    model: Model, bos: int, batch: int = BATCH, length: int = LENGTH, cache_length: int = CACHE_LENGTH
) -> DecodingStart:
    """Return the start of a search over example sources, with caches for `cache_length` target tokens."""
    source, lengths = _example_source(model, batch, length)
    return model.start_decoding(source, lengths, beam=1, max_length=cache_length, first=bos)


def _named_tensors(start: DecodingStart) -> dict[str, Tensor]:
    """Return all tensors of the start of a search by name.

    They are `positions` (that of the first token in each row), `memory/…` (the encoded source, if the model has an
    encoder) and `past/…` (the decoder's state, with caches).
    """
    tensors = {"positions": start.positions}
    if (memory := start.memory) is not None:
        mask = memory.layout.token_mask
        assert mask is not None  # sources are padded
        named: dict[str, Any] = {
            "mask": mask,
            "states": memory.states,  # output of the encoder
            "encoder_inputs": memory.encoder_inputs,  # embeddings with positions
            "final_state": memory.final_state,  # of a recurrent encoder
            "copied_tokens": memory.copied_tokens,  # target token as which each source token can be copied
            "projections": memory.projections,  # by layer, such as keys and values of cross-attention
        }
        tensors |= dict(_flatten("memory/", {name: value for name, value in named.items() if value is not None}))
    return tensors | dict(_flatten("past/", start.state))


def _flatten(prefix: str, nested: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of nested dicts with their names: `prefix`, then the keys that lead to them, as in past/a/b."""
    for name, value in nested.items():
        if isinstance(value, Tensor):
            yield f"{prefix}{name}", value
        else:
            yield from _flatten(f"{prefix}{name}/", value)


def _nest_like(example: State, prefix: str, tensors: Mapping[str, Tensor]) -> State:
    """Return nested dicts with the keys of `example`, filled with `tensors`: the inverse of `_flatten`.

    The tensor at the keys a, b of the nested dicts is called `prefix` a/b in `tensors`.
    """
    nested: State = {}
    for name, value in example.items():
        path = f"{prefix}{name}"
        nested[name] = tensors[path] if isinstance(value, Tensor) else _nest_like(value, f"{path}/", tensors)
    return nested


def _memory(tensors: Mapping[str, Tensor]) -> Memory:
    """Return the encoded source from tensors with names such as "memory/mask" and "memory/projections/LAYER/key".

    The encoder's output, "memory/states", is replaced by zeros of width 1 if no decoding step reads it.
    """
    # such as "memory/projections/decoder.layers.0.1.body": {"key": …, "value": …}
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        part, _, last_key = name.rpartition("/")
        parts.setdefault(part, {})[last_key] = tensor
    named, mask = parts["memory"], tensors["memory/mask"]
    projections = "memory/projections/"
    return Memory(
        named.get("states", torch.zeros_like(mask, dtype=torch.float32)[..., None]),
        SequenceLayout.padded(mask.shape[1], mask.sum(1)),
        encoder_inputs=named.get("encoder_inputs"),
        final_state=parts.get("memory/final_state"),
        copied_tokens=named.get("copied_tokens"),
        projections={part.removeprefix(projections): parts[part] for part in parts if part.startswith(projections)},
    )


def _with_one_more_position(cache: Tensor, axis: int) -> Tensor:
    """Return a cache with zeros for one more position at the end of `axis`."""
    shape = [1 if number == axis else size for number, size in enumerate(cache.shape)]
    return torch.cat((cache, cache.new_zeros(shape)), axis)


def _dynamic_axes(tensor: Tensor, other: Tensor, name: str) -> Axes:
    """Return the axes whose sizes differ between two examples of a tensor, and for each the `name` of its size."""
    return {axis: name for axis, (size, other_size) in enumerate(zip(tensor.shape, other.shape)) if size != other_size}


def _growing_axes(
    start: dict[str, Tensor], longer: dict[str, Tensor], axes: dict[str, Axes], positions: int
) -> dict[str, int]:
    """Return for each cache, by its name, the axis along which it grows; raise an error if not by one per token.

    `start` are the tensors of a search by name, `longer` those of a search with `positions` more target positions,
    `axes` the names of the dynamic axes of each tensor; that of a cache is "cache_length".
    """
    growing = {
        name: axis
        for name, size_names in axes.items()
        for axis, size_name in size_names.items()
        if size_name == "cache_length"
    }
    for name, axis in growing.items():  # compressed caches, say, have fewer entries than positions
        if longer[name].shape[axis] != start[name].shape[axis] + positions:
            layer = name.split("/")[1]  # past/LAYER/…
            raise UserError(
                f"this model cannot be exported to ONNX: the cached state of decoder layer {layer} does not grow "
                "by one position for each token (that of local or compressed attention does not): train another "
                "system, such as transformer-d"
            )
    return growing


@torch.no_grad()
def _is_read(model: Model, state: State, start: dict[str, Tensor], name: str) -> bool:
    """Whether a decoding step reads the tensor `name` of `start`: whether its outputs change if the tensor does.

    `start` are the tensors of the start of a search by name, `state` is the decoder state among them. The tensor is
    filled with NaN, or with 0 if it holds integers. The first step may read other tensors than those that follow, so
    that the steps at positions 0 and 1 are tried.
    """
    step_inputs = [input_name for input_name in start if input_name != "positions"]
    step = _StepModule(model, state, step_inputs, growing={})  # {}: the caches have room for both positions
    changed = start | {name: torch.full_like(start[name], torch.nan if start[name].is_floating_point() else 0)}
    for position in (0, 1):
        positions = torch.full_like(start["positions"], position)
        tokens = torch.zeros_like(positions)
        outputs = step(tokens, positions, *(start[input_name] for input_name in step_inputs))
        changed_outputs = step(tokens, positions, *(changed[input_name] for input_name in step_inputs))
        if not all(map(torch.equal, outputs, changed_outputs)):
            return True
    return False


def _after_step(axes: Axes) -> Axes:
    """Return the dynamic axes of a tensor of the state after a decoding step, in which caches are longer by one."""
    return {axis: "cache_length + 1" if name == "cache_length" else name for axis, name in axes.items()}
